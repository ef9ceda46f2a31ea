//! Calls are spread over all ready replicas of a service, while replicas are added and removed (B9).
#![allow(clippy::print_stdout)]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use coscheduler_kubernetes::pipeline_run::PipelineRun;
use integration_tests::runs::run;
use integration_tests::{Scene, alone_with, metrics};
use kube::Api;
use kube::api::PostParams;
use serde_json::json;
use testbed::Config;
use testbed::services::{Replica, Service, Services, ServicesConfig};
use tokio::time::{interval, sleep};

type Outcome = anyhow::Result<()>;

/// The time after which the calls are spread again when a replica has come or gone.
const SHARED: Duration = Duration::from_secs(10);
/// The shares are measured for this time. A client chooses replicas at random, so unequal shares are measured for longer, at most
/// [`WINDOWS`] times as long.
const WINDOW: Duration = Duration::from_secs(24);
const WINDOWS: u32 = 5;
/// With two replicas, each answers at least this part of the calls that the other one answers. With three replicas, each answers
/// at least this part of a third of the calls.
const SHARE: f64 = 0.8;
const PERIOD: Duration = Duration::from_millis(50);

/// The services whose calls are compared, with the compared methods. `AdmitPipelineRun` is called for each new run, and the other
/// methods for each change of a run's labels.
const CALLED: [(Service, &[&str]); 2] = [
    (
        Service::AffinityPlanner,
        &["AdmitPipelineRun", "ReportPipelineRun"],
    ),
    (Service::PlaceholderManager, &["Ensure"]),
];

/// Every 50 ms, creates a run as a dry run and changes an existing run, until the API server refuses a request.
async fn calls(scene: &Scene<'_>) -> anyhow::Result<()> {
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let runs: Api<PipelineRun> = scene.api();
    let probe = run("probe").task("one", &[], &[]).into_json();
    let probe: PipelineRun = serde_json::from_value(probe)?;
    let held = run("held").template("source").task("one", &["source"], &[]);
    scene.submit(held.held("one")).await?;
    let mut period = interval(PERIOD);
    for number in 0_u64.. {
        period.tick().await;
        runs.create(&dry_run, &probe).await.context("a new run")?;
        // The watcher reports this change, because placeholders have the labels of their run.
        let path = "tekton.dev/v1/pipelineruns/held";
        let change = json!({"metadata": {"labels": {"example.dev/change": number.to_string()}}});
        let changed = scene.send("PATCH", path, &change).await?;
        ensure!(
            changed.refusal().is_none(),
            "a change: {:?}",
            changed.refusal()
        );
    }
    Ok(())
}

/// The number of calls of these methods that each replica has answered so far.
async fn answered(
    services: &Services,
    replicas: &[Replica],
    methods: &[&str],
) -> anyhow::Result<Vec<f64>> {
    let mut answered = Vec::new();
    for replica in replicas {
        let metrics = metrics::scrape(&services.http_address(*replica)).await?;
        let calls = methods.iter().map(|method| {
            let labels = [("grpc_method", *method)];
            metrics::sum(&metrics, "grpc_server_handled_total", &labels)
        });
        answered.push(calls.sum());
    }
    Ok(answered)
}

/// Checks that these replicas of each service answer equal shares of the calls from now on.
async fn shared_by(services: &Services, numbers: &[u16]) -> Outcome {
    let mut before = BTreeMap::new();
    let replicas = |service: Service| -> Vec<_> {
        numbers
            .iter()
            .map(|number| service.replica(*number))
            .collect()
    };
    for (service, methods) in CALLED {
        let now = answered(services, &replicas(service), methods).await?;
        before.insert(service, now);
    }
    let mut unequal = None;
    for window in 1..=WINDOWS {
        // This pause is part of the scenario.
        sleep(WINDOW).await;
        unequal = None;
        for (service, methods) in CALLED {
            let now = answered(services, &replicas(service), methods).await?;
            let calls = now.iter().zip(&before[&service]);
            let calls: Vec<f64> = calls.map(|(now, before)| now - before).collect();
            let time = WINDOW * window;
            println!("{service}: {calls:?} calls of {methods:?} in {time:?}");
            if !are_equal(&calls) {
                unequal = Some(format!("{service}: {calls:?}"));
            }
        }
        if unequal.is_none() {
            return Ok(());
        }
    }
    bail!("{unequal:?}")
}

/// True if each replica has answered its share of these calls.
fn are_equal(calls: &[f64]) -> bool {
    let most = calls.iter().copied().fold(0.0, f64::max);
    let least = calls.iter().copied().fold(f64::MAX, f64::min);
    let share = match calls.len() {
        2 => most,
        _ => calls.iter().sum::<f64>() / calls.len() as f64,
    };
    most > 20.0 && least >= SHARE * share
}

/// The calls between the services that failed despite retries. Streams of method `Watch…` do not count.
async fn failed(services: &Services) -> anyhow::Result<Vec<String>> {
    let mut failed = Vec::new();
    for service in [
        Service::AdmissionWebhook,
        Service::Watcher,
        Service::AffinityPlanner,
    ] {
        for replica in services.replicas(service) {
            if !services.is_running(replica)? {
                continue;
            }
            let metrics = metrics::scrape(&services.http_address(replica)).await?;
            let lines = metrics.lines().filter(|line| {
                line.starts_with("grpc_client_handled_total")
                    && !line.contains("grpc_code=\"OK\"")
                    && !line.contains("Watch")
                    && !line.ends_with(" 0")
            });
            failed.extend(lines.map(|line| format!("{replica}: {line}")));
        }
    }
    Ok(failed)
}

async fn scenario(services: &Services) -> Outcome {
    let third = CALLED.map(|(service, _)| service.replica(3));
    shared_by(services, &[1, 2]).await.context("two replicas")?;

    for replica in third {
        services.start_service(replica)?;
    }
    services.wait_ready().await?;
    let since = Instant::now();
    sleep(SHARED).await;
    shared_by(services, &[1, 2, 3])
        .await
        .context("three replicas")?;
    println!(
        "compared from {SHARED:?} to {:?} after it was ready",
        since.elapsed()
    );

    for replica in third {
        services.withdraw(replica);
        services.terminate(replica).await?;
    }
    sleep(SHARED).await;
    shared_by(services, &[1, 2]).await.context("two again")?;
    let failed = failed(services).await?;
    ensure!(failed.is_empty(), "{failed:?}");
    Ok(())
}

#[test]
fn b9_replicas_share_the_calls_and_none_is_lost_when_one_goes() -> Outcome {
    let three = |services: &mut ServicesConfig| services.replicas = 3;
    alone_with(Config::default(), three, async |scene| {
        let services = &scene.stack.services;
        for (service, _) in CALLED {
            services.withdraw(service.replica(3));
            services.terminate(service.replica(3)).await?;
        }
        tokio::select! {
            refused = calls(scene) => refused?,
            done = scenario(services) => done?,
        }
        scene.end("held", "one").await?;
        scene.succeeds("held").await?;
        scene.nothing_left_but(&[]).await
    })
}
