//! Measures the services in a filled cluster: memory and CPU of each, the time until it is ready after a start, and the times of
//! new runs and of evacuations.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use integration_tests::nodes::NodeEvent;
use integration_tests::runs::run;
use integration_tests::stack::Stack;
use integration_tests::struck::Waiting;
use k8s_openapi::api::apps::v1::StatefulSet;
use serde::Serialize;
use testbed::services::Service;

use super::Size;

const MIB: f64 = 1024.0 * 1024.0;
/// The number of new runs, and of evacuations, that are measured.
const TRIES: usize = 10;
/// An evacuation that takes longer has failed.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long nothing changes while the CPU of the services is measured.
const QUIET: Duration = Duration::from_secs(30);

#[derive(Debug, Serialize)]
pub(crate) struct OfService {
    pub(crate) memory_mib: f64,
    pub(crate) start_seconds: f64,
    /// The CPU that the service uses while only the heartbeats of the nodes change, in milliseconds per second.
    pub(crate) quiet_cpu: f64,
}

/// The figures of one cluster. Times are in seconds.
#[derive(Debug, Serialize)]
pub(crate) struct Figures {
    pub(crate) size: Size,
    pub(crate) services: BTreeMap<String, OfService>,
    created: Vec<f64>,
    bound: Vec<f64>,
    evacuated: Vec<f64>,
}

pub(crate) async fn measure(stack: &Stack, size: Size) -> anyhow::Result<Figures> {
    let mut starts = BTreeMap::new();
    for service in Service::ALL {
        stack.services.terminate(service).await?;
        let began = Instant::now();
        stack.services.start_service(service)?;
        stack.services.wait_ready().await?;
        starts.insert(service, began.elapsed().as_secs_f64());
    }
    let (mut created, mut bound, mut evacuated) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..TRIES {
        let scene = stack.scene().await?;
        let began = Instant::now();
        scene.submit(run("new").task("one", &[], &[])).await?;
        let is_there = |sets: &[std::sync::Arc<StatefulSet>]| !sets.is_empty();
        scene.until_all::<StatefulSet>("is there", is_there).await?;
        created.push(began.elapsed().as_secs_f64());
        scene.placeholder().await?;
        bound.push(began.elapsed().as_secs_f64());
        scene.succeeds("new").await?;
    }
    for _ in 0..TRIES {
        let waiting = Waiting::at_gate(stack, None).await?;
        let moved = waiting.moves(NodeEvent::Cordon, PATIENCE).await?;
        evacuated.push(moved.context("an evacuation took a minute")?.as_secs_f64());
    }
    let before = stack.services.cpu_seconds()?;
    tokio::time::sleep(QUIET).await;
    let after = stack.services.cpu_seconds()?;
    let mut services = BTreeMap::new();
    for service in Service::ALL {
        let of_service = |used: &BTreeMap<String, f64>| {
            let used = used.get(service.name()).copied();
            used.with_context(|| format!("{service} does not run"))
        };
        let used = of_service(&after)? - of_service(&before)?;
        let of = OfService {
            memory_mib: stack.memory(service)? as f64 / MIB,
            start_seconds: starts[&service],
            quiet_cpu: used * 1000.0 / QUIET.as_secs_f64(),
        };
        services.insert(service.name().to_owned(), of);
    }
    Ok(Figures {
        size,
        services,
        created,
        bound,
        evacuated,
    })
}

/// A table in Markdown.
pub(crate) fn table(all: &[Figures]) -> String {
    let mut table = String::from("| |");
    for Figures { size, .. } in all {
        let _ = write!(
            table,
            " {} ended runs of four pods, {} nodes, {} foreign pods, {} active runs |",
            size.ended_runs, size.nodes, size.foreign_pods, size.active_runs
        );
    }
    table += "\n|---|";
    table += &"---|".repeat(all.len());
    let mut row = |label: String, figure: &dyn Fn(&Figures) -> String| {
        let _ = write!(table, "\n| {label} |");
        for figures in all {
            let _ = write!(table, " {} |", figure(figures));
        }
    };
    for service in Service::ALL.map(Service::name) {
        row(format!("{service}: memory"), &|it| {
            format!("{:.0} MiB", it.services[service].memory_mib)
        });
        row(format!("{service}: ready after a start"), &|it| {
            format!("{:.1} s", it.services[service].start_seconds)
        });
        row(format!("{service}: CPU while nothing happens"), &|it| {
            format!("{:.1} m", it.services[service].quiet_cpu)
        });
    }
    for (label, of) in [
        (
            "a new run until its placeholder exists",
            (|it| &it.created) as fn(&Figures) -> &Vec<f64>,
        ),
        ("a new run until its placeholder is bound", |it| &it.bound),
        ("cordon until the placeholder is bound elsewhere", |it| {
            &it.evacuated
        }),
    ] {
        row(format!("{label}: p50, longest"), &|it| {
            let mut sorted = of(it).clone();
            sorted.sort_by(f64::total_cmp);
            let longest = sorted.last().copied().unwrap_or_default();
            let middle = sorted.get(sorted.len() / 2).copied().unwrap_or_default();
            format!("{middle:.2} s, {longest:.2} s")
        });
    }
    table
}
