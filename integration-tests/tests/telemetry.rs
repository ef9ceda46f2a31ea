//! The telemetry of the services: one trace for each run, and metrics as the documentation describes them.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context as _;
use integration_tests::collector::{Collector, Span};
use integration_tests::metrics::scrape;
use integration_tests::runs::run;
use integration_tests::sets::only_pods;
use integration_tests::{alone_with, grpc, shared};
use kube::ResourceExt as _;
use testbed::Config;
use testbed::services::{OPERATOR, Service, ServicesConfig};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

const TRACEPARENT: &str = "coscheduler.dev/traceparent";
const DOCUMENTATION: &str = include_str!("../../docs/metrics.md");

/// The service and the name of each span, from the outermost to the innermost.
const ADMISSION: [(&str, &str); 3] = [
    ("admission-webhook", "admission"),
    (
        "admission-webhook",
        "coscheduler.planner.v1.PlannerService/AdmitPipelineRun",
    ),
    (
        "affinity-planner",
        "coscheduler.planner.v1.PlannerService/AdmitPipelineRun",
    ),
];
/// The clean-up by the manager itself, which watches runs.
fn clean_up(last: &'static str) -> [(&'static str, &'static str); 3] {
    [
        ("admission-webhook", "admission"),
        ("placeholder-manager", "clean up"),
        ("placeholder-manager", last),
    ]
}

/// The chain of a report by the watcher, for which the planner calls the placeholder-manager. `rpc` is the name of both spans
/// of this call, and `last` is the manager's request.
fn reported(rpc: &'static str, last: &'static str) -> [(&'static str, &'static str); 8] {
    const REPORT: &str = "coscheduler.planner.v1.PlannerService/ReportPipelineRun";
    [
        ("admission-webhook", "admission"),
        ("watcher", "report"),
        ("watcher", REPORT),
        ("affinity-planner", REPORT),
        ("affinity-planner", rpc),
        ("placeholder-manager", rpc),
        ("placeholder-manager", "reconcile"),
        ("placeholder-manager", last),
    ]
}

/// True if these spans exist, each as a child of the previous one, and the first one as a root.
fn has_chain(spans: &[Span], chain: &[(&str, &str)]) -> bool {
    let mut parents = BTreeSet::from([""]);
    for (service, name) in chain {
        let found = spans.iter().filter(|span| {
            span.service == *service && span.name == *name && parents.contains(span.parent.as_str())
        });
        parents = found.map(|span| span.id.as_str()).collect();
    }
    !parents.is_empty()
}

#[test]
fn b6_one_trace_follows_a_run_from_its_admission_to_its_clean_up() -> anyhow::Result<()> {
    let (collector, listener) = Collector::bind()?;
    let export = |services: &mut ServicesConfig| services.environment = collector.environment();
    alone_with(Config::default(), export, async |scene| {
        collector.serve(listener)?;
        // An author's own trace context is not used for the run, and neither is that of another run.
        let given = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let of_author = run("traced")
            .metadata("annotations", serde_json::json!({TRACEPARENT: given}))
            .template("source")
            .task("one", &["source"], &[]);
        scene.submit(of_author).await?;
        let stored = scene.succeeds("traced").await?;
        let traceparent = &stored.annotations()[TRACEPARENT];
        let trace = traceparent
            .split('-')
            .nth(1)
            .context("no trace in the annotation")?;
        assert_ne!(traceparent, given);
        scene.nothing_left_but(&[]).await?;

        let rpc = "coscheduler.placeholder.v1.PlaceholderService/Ensure";
        let (created, deleted) = match only_pods() {
            true => ("create pods", "delete pods"),
            false => ("create statefulsets", "delete statefulsets"),
        };
        let creation = reported(rpc, created);
        // If the watcher's report reaches the manager before the manager's own watch shows the end of the run, this report begins
        // the clean-up.
        let rpc = "coscheduler.placeholder.v1.PlaceholderService/Release";
        let release = reported(rpc, deleted);
        let chains: [(&str, &[&[_]]); 3] = [
            ("admission", &[&ADMISSION]),
            ("creation", &[&creation]),
            ("clean-up", &[&clean_up(deleted), &release]),
        ];
        for (what, any) in chains {
            let has_any = |spans: &[Span]| any.iter().any(|chain| has_chain(spans, chain));
            collector.trace(trace, what, has_any).await?;
        }

        // The copy of a traced run has a trace of its own.
        let mut copy = run("copy").task("one", &[], &[]);
        copy = copy.metadata("annotations", serde_json::to_value(stored.annotations())?);
        let copy = scene.submit(copy).await?;
        assert_ne!(&copy.annotations()[TRACEPARENT], traceparent);
        scene.succeeds("copy").await.map(drop)
    })
}

/// The type and the labels of a metric, as documented or exposed.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Metric {
    kind: String,
    labels: BTreeSet<String>,
}

/// Metrics by name.
type Metrics = BTreeMap<String, Metric>;

/// The metrics of `service` in the tables of the documentation.
fn documented(service: Service) -> Metrics {
    let rows = DOCUMENTATION.lines().filter(|line| line.starts_with("| `"));
    let metrics = rows.filter_map(|row| {
        let cells: Vec<_> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [name, kind, labels, services, _meaning] = cells[..] else {
            panic!("not five columns: {row}");
        };
        let concerned = services == "all" || services.split(", ").any(|one| one == service.name());
        let labels = labels.split(", ").map(|label| label.trim_matches('`'));
        concerned.then(|| {
            let metric = Metric {
                kind: kind.to_owned(),
                labels: labels
                    .filter(|label| !label.is_empty())
                    .map(str::to_owned)
                    .collect(),
            };
            (name.trim_matches('`').to_owned(), metric)
        })
    });
    metrics.collect()
}

/// The metrics that a service exposes, by the names that queries use: counters end with `_total`.
fn exposed(text: &str) -> Metrics {
    let types = text.lines().filter_map(|line| {
        let (name, kind) = line.strip_prefix("# TYPE ")?.split_once(' ')?;
        let asked = match kind {
            "counter" => format!("{name}_total"),
            _ => name.to_owned(),
        };
        let sample = match kind {
            "histogram" => format!("{name}_count"),
            _ => asked.clone(),
        };
        let labels = text.lines().find_map(|line| {
            let (series, _) = line.rsplit_once(' ')?;
            let (name, given) = series.split_once('{').unwrap_or((series, ""));
            let labels = given.trim_end_matches('}').split("\",");
            let labels = labels.filter_map(|label| Some(label.split_once('=')?.0.to_owned()));
            (name == sample).then(|| labels.collect())
        });
        let metric = Metric {
            kind: kind.to_owned(),
            labels: labels.unwrap_or_default(),
        };
        Some((asked, metric))
    });
    types.collect()
}

#[test]
fn every_metric_is_documented_and_every_documented_metric_is_there() -> anyhow::Result<()> {
    shared(async |scene| {
        let of_run = run("measured")
            .template("source")
            .task("one", &["source"], &[]);
        scene.submit(of_run).await?;
        scene.succeeds("measured").await?;
        scene.nothing_left_but(&[]).await?;
        for service in Service::ALL {
            // The metrics of RPCs appear when an RPC has ended. A service that serves only streams may have no ended RPC yet.
            let channel = grpc::connect(&scene.stack.services, service, OPERATOR).await?;
            let mut health = HealthClient::new(channel);
            health.check(HealthCheckRequest::default()).await?;
            let text = scrape(&scene.stack.services.http_address(service)).await?;
            let (documented, exposed) = (documented(service), exposed(&text));
            let names = |all: &Metrics| all.keys().cloned().collect::<Vec<_>>();
            assert_eq!(
                names(&exposed),
                names(&documented),
                "{service}: what it exposes against docs/metrics.md"
            );
            for (name, metric) in documented {
                assert_eq!(exposed[&name], metric, "{service}: {name}");
                for forbidden in ["namespace", "pod", "pipeline_run", "name", "uid"] {
                    assert!(!metric.labels.contains(forbidden), "{name}: {forbidden}");
                }
            }
        }
        Ok(())
    })
}
