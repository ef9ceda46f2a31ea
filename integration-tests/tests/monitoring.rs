//! Tests the monitoring component: its alerts and its dashboard in a real Prometheus, and the metrics for people on call.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use coscheduler_kubernetes::pipeline_run::PipelineRun;
use integration_tests::installation::{define, kubectl, overlay};
use integration_tests::look::LIMIT;
use integration_tests::prometheus::Prometheus;
use integration_tests::runs::run;
use integration_tests::sets::only_pods;
use integration_tests::{Scene, alone};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::DeleteParams;
use serde_json::{Value, json};
use testbed::Config;
use testbed::services::{CONFIG_MAP, NAMESPACE};

type Outcome = anyhow::Result<()>;

/// The time between two polls.
const PAUSE: Duration = Duration::from_millis(200);

const DOCUMENTATION: &str = include_str!("../../docs/metrics.md");

/// Applies the component. Returns the rule groups and the dashboard, as the API server has stored them.
async fn apply(scene: &Scene<'_>) -> anyhow::Result<(Value, Value)> {
    let bed = &scene.stack.bed;
    for (name, plural) in [
        ("PodMonitor", "podmonitors"),
        ("PrometheusRule", "prometheusrules"),
    ] {
        define(bed, "monitoring.coreos.com", name, plural).await?;
    }
    let overlay = overlay(bed, &[], "monitoring")?;
    kubectl(bed, &["apply", "-k", &overlay]).await?;
    let stored = async |of: &str, name: &str| {
        let arguments = [
            "get",
            of,
            name,
            "--namespace",
            NAMESPACE,
            "--output",
            "json",
        ];
        let text = kubectl(bed, &arguments).await?;
        anyhow::Ok(serde_json::from_str::<Value>(&text)?)
    };
    stored("podmonitors", "coscheduler").await?;
    let rules = stored("prometheusrules", "coscheduler").await?;
    let dashboard = stored("configmaps", "coscheduler-dashboard").await?;
    let dashboard = dashboard["data"]["coscheduler.json"].as_str();
    let dashboard = serde_json::from_str(dashboard.context("no dashboard")?)?;
    Ok((rules["spec"]["groups"].clone(), dashboard))
}

/// The metrics that an expression names.
fn named(expression: &str) -> impl Iterator<Item = &str> {
    let words = expression.split(|it: char| !it.is_ascii_alphanumeric() && it != '_');
    words.filter(|word| {
        let prefixes = ["coscheduler_", "grpc_server_", "grpc_client_"];
        prefixes.iter().any(|prefix| word.starts_with(prefix))
    })
}

#[test]
fn b6_a_real_prometheus_evaluates_every_alert_and_every_panel() -> Outcome {
    alone(Config::default(), async |scene| {
        let (groups, dashboard) = apply(scene).await?;
        let prometheus = Prometheus::start(scene, &groups).await?;
        scene.submit(run("plain").task("one", &[], &[])).await?;
        scene.succeeds("plain").await?;

        // Every rule is evaluated, and is documented under its name.
        let alerts: Vec<_> = groups[0]["rules"]
            .as_array()
            .context("no rules")?
            .iter()
            .collect();
        let names: BTreeSet<_> = alerts
            .iter()
            .filter_map(|it| it["alert"].as_str())
            .collect();
        let headings = DOCUMENTATION
            .lines()
            .filter_map(|line| line.strip_prefix("### "));
        let headings = headings.filter(|it| it.starts_with("Coscheduler"));
        assert_eq!(names, headings.collect());
        let evaluated = tokio::time::timeout(LIMIT, async {
            loop {
                let rules = prometheus.api("rules").await?;
                let rules = rules["groups"][0]["rules"]
                    .as_array()
                    .cloned()
                    .unwrap_or_default();
                if rules.iter().all(|rule| rule["health"] != "unknown") {
                    return anyhow::Ok(rules);
                }
                tokio::time::sleep(PAUSE).await;
            }
        });
        let evaluated = evaluated.await??;
        assert_eq!(evaluated.len(), alerts.len());
        for rule in evaluated {
            ensure!(rule["health"] == "ok", "{rule:#}");
        }

        // Every query can be evaluated, and every metric in it has samples.
        let panels = dashboard["panels"].as_array().context("no panels")?;
        let targets = panels
            .iter()
            .filter_map(|panel| panel["targets"].as_array())
            .flatten();
        let targets: Vec<_> = targets
            .filter_map(|target| target["expr"].as_str())
            .collect();
        ensure!(targets.len() >= panels.len(), "{targets:?}");
        let conditions = alerts.iter().filter_map(|alert| alert["expr"].as_str());
        for expression in targets.into_iter().chain(conditions) {
            prometheus.query(expression).await?;
            for metric in named(expression) {
                prometheus
                    .until(&format!("count({metric})"), |count| count.is_some())
                    .await?;
            }
        }
        Ok(())
    })
}

#[test]
fn b6_the_metrics_for_people_on_call_follow_what_happens() -> Outcome {
    alone(Config::default(), async |scene| {
        let (groups, _) = apply(scene).await?;
        let prometheus = Prometheus::start(scene, &groups).await?;
        let is = |expect: f64| move |value: Option<f64>| value == Some(expect);
        let bound = "coscheduler_placeholders{mode=\"pipelineruns\",phase=\"bound\"}";
        prometheus.until(bound, is(0.0)).await?;
        scene
            .submit(run("held").task("one", &[], &[]).held("one"))
            .await?;
        scene.placeholder().await?;
        prometheus.until(bound, is(1.0)).await?;
        let measured = "coscheduler_placeholder_pending_seconds_count";
        prometheus.until(measured, is(1.0)).await?;

        let refused = scene.stack.scene().await?;
        let of_placeholders = match only_pods() {
            true => "pods",
            false => "count/statefulsets.apps",
        };
        refused.quota(json!({of_placeholders: "0"})).await?;
        refused.submit(run("refused").task("one", &[], &[])).await?;
        let waiting = "coscheduler_runs_waiting{reason=\"QuotaExceeded\"}";
        prometheus.until(waiting, is(1.0)).await?;
        let events = "coscheduler_events_total{reason=\"QuotaExceeded\"}";
        prometheus.until(events, is(1.0)).await?;
        let runs = refused.api::<PipelineRun>();
        runs.delete("refused", &DeleteParams::default()).await?;
        prometheus.until(waiting, is(0.0)).await?;

        // An alert without `for` fires.
        let maps: Api<ConfigMap> = Api::namespaced(scene.client.clone(), NAMESPACE);
        let firing = "ALERTS{alertname=\"CoschedulerConfigInvalid\",alertstate=\"firing\"}";
        ensure!(prometheus.query(firing).await?.is_empty());
        maps.delete(CONFIG_MAP, &DeleteParams::default()).await?;
        prometheus.until(firing, is(1.0)).await?;

        scene.end("held", "one").await?;
        scene.succeeds("held").await?;
        prometheus.until(bound, is(0.0)).await?;
        scene.nothing_left_but(&[]).await
    })
}
