//! A large cluster with noisy tenants. Other tenants create runs, and the nodes of their placeholders are cordoned (N8, N1). In
//! the first part, the noise is one run with many waiting pods. In the second part, the scheduler takes placeholders first
//! (component `placeholder-priority`). There are then two more noisy tenants: one whose placeholders are refused, and one whose
//! placeholders fit on no node. Before all this, the test creates some runs at once, to check that inter-pod affinity is quick
//! enough on this many nodes (P2).
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stderr)]

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use coscheduler_core::pod_template::{EVACUATED_CLASS, PLACEHOLDER_CLASS};
use coscheduler_kubernetes::pipeline_run::PipelineRun;
use coscheduler_kubernetes::pods::is_unschedulable;
use futures::future::try_join_all;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use integration_tests::configuration::admitted_until;
use integration_tests::installation::{kubectl, overlay};
use integration_tests::look::{has_priority, is_placeholder, node};
use integration_tests::nodes::NodeEvent;
use integration_tests::runs::{Run, run};
use integration_tests::sets::only_pods;
use integration_tests::struck::Waiting;
use integration_tests::{Scene, alone, at_scale};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::events::v1::Event;
use kube::ResourceExt as _;
use serde_json::{Value, json};
use testbed::{Config, LOCAL_STORAGE_CLASS};

type Outcome = anyhow::Result<()>;

const NODES: usize = 300;
/// The runs that are created at once in the empty cluster.
const AT_ONCE: usize = 20;
/// The longest time until the first pods of these runs are bound. On two processors, it took four seconds.
const ALL_BOUND: Duration = Duration::from_secs(40);
/// The longest time from the creation of a run until its placeholder is bound.
const BEGUN: Duration = Duration::from_secs(5);
/// The longest time of a move beside one wide run: twice the time that it takes on an idle cluster.
const MOVED: Duration = Duration::from_secs(2);

/// The longest time of a move beside the crowd of all noisy tenants. At the normal scale, other work may slow the machine down.
fn moved_beside_all() -> Duration {
    at_scale(Duration::from_secs(5), MOVED)
}

/// The numbers of pods and runs that are on the cluster beside the measured runs.
#[derive(Clone, Copy, Debug)]
struct Crowd {
    /// Pods of the wide run that wait for room.
    waiting: usize,
    /// Runs of the tenant whose placeholders are refused.
    refused: usize,
    /// Runs of the tenant whose placeholders fit on no node.
    unplaceable: usize,
}

fn crowd() -> Crowd {
    let normal = Crowd {
        waiting: 200,
        refused: 100,
        unplaceable: 100,
    };
    let full = Crowd {
        waiting: 256,
        refused: 1000,
        unplaceable: 500,
    };
    at_scale(normal, full)
}

/// Applies the ConfigMap of an installation with component `placeholder-priority`, and the component's PriorityClasses and rights.
/// Waits until new runs have the class.
async fn put_placeholders_first(scene: &Scene<'_>) -> Outcome {
    let bed = &scene.stack.bed;
    let overlay = overlay(bed, &["base"], "placeholder-priority")?;
    let rendered = kubectl(bed, &["kustomize", &overlay]).await?;
    let mut objects: Vec<Value> = serde_saphyr::from_multiple(&rendered)?;
    objects.retain(|it| {
        it["kind"] == "ConfigMap" || it["metadata"]["name"].as_str().is_some_and(is_of_component)
    });
    ensure!(objects.len() == 5, "{objects:?}");
    let file = format!("{overlay}/objects.json");
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
    std::fs::write(&file, list.to_string())?;
    kubectl(bed, &["apply", "-f", &file]).await?;
    let probe = run("probe").task("one", &[], &[]);
    let has_class = |run: &PipelineRun| {
        let mut pins = run.annotations().values();
        pins.any(|value| value.contains(PLACEHOLDER_CLASS))
    };
    admitted_until(&scene.api(), probe, has_class).await
}

/// True if the component contains an object with this name.
fn is_of_component(name: &str) -> bool {
    [PLACEHOLDER_CLASS, EVACUATED_CLASS].contains(&name)
}

/// Creates runs at once, and checks the time until the first pod of each run is bound. Each pod waits for the affinity to its
/// placeholder, which the scheduler checks on all nodes.
async fn at_once(scene: &Scene<'_>) -> Outcome {
    let began = Instant::now();
    let runs = (0..AT_ONCE).map(|number| {
        let run = run(&format!("run-{number}")).template("source");
        scene.submit(run.task("one", &["source"], &[]))
    });
    try_join_all(runs).await?;
    let bound = |pod: &Pod| !is_placeholder(pod) && node(pod).is_some();
    scene.until_many("are bound", AT_ONCE, bound).await?;
    let took = began.elapsed();
    eprintln!("the first pods of {AT_ONCE} runs on {NODES} nodes are bound after {took:.2?}");
    ensure!(took < ALL_BOUND, "bound after {took:?}");
    Ok(())
}

/// Creates the runs of a noisy tenant, several at a time. Each run has one task.
async fn submit_noisy(scene: &Scene<'_>, runs: usize, change: impl Fn(Run) -> Run) -> Outcome {
    let runs = (0..runs).map(|number| run(&format!("run-{number}")).task("one", &[], &[]));
    stream::iter(runs.map(change))
        .map(|run| scene.submit(run))
        .buffer_unordered(10)
        .try_for_each(async |_| Ok(()))
        .await
}

/// Creates the runs of a tenant whose quota allows no placeholder, and waits until each run has an Event about this.
async fn refused(scene: &Scene<'_>, runs: usize) -> Outcome {
    // The quota refuses only placeholders.
    let quota = match only_pods() {
        true => json!({"hard": {"pods": "0"}, "scopeSelector": {"matchExpressions": [
            {"scopeName": "PriorityClass", "operator": "In", "values": [PLACEHOLDER_CLASS]},
        ]}}),
        false => json!({"hard": {"count/statefulsets.apps": "0"}}),
    };
    scene.quota_of(quota).await?;
    submit_noisy(scene, runs, |run| run).await?;
    let tells = |event: &Event| event.reason.as_deref() == Some("QuotaExceeded");
    let told = scene.until_many("tell a run of the quota", runs, tells);
    told.await.map(drop)
}

/// Creates the runs of a tenant whose placeholders fit on no node, and waits until all these placeholders are unschedulable.
async fn unplaceable(scene: &Scene<'_>, runs: usize) -> Outcome {
    submit_noisy(scene, runs, |run| run.in_pool_of(scene)).await?;
    let waits = |pod: &Pod| is_placeholder(pod) && is_unschedulable(pod);
    let waiting = scene.until_many("are placeholders that wait", runs, waits);
    let waiting = waiting.await?;
    ensure!(waiting == runs, "{waiting} placeholders of {runs} runs");
    Ok(())
}

/// Brings four runs to a gate, one after the other.
async fn at_gates<'a>(scene: &Scene<'a>) -> anyhow::Result<Vec<Waiting<'a>>> {
    let mut waiting = Vec::new();
    for _ in 0..4 {
        waiting.push(Waiting::at_gate(scene.stack, None).await?);
    }
    Ok(waiting)
}

/// Cordons the nodes of runs, one after the other. Checks the time until each placeholder is bound elsewhere, and the priority that
/// it has then.
async fn all_move(runs: &[Waiting<'_>], priority: i32, limit: Duration) -> Outcome {
    for Waiting { scene, node } in runs {
        let began = Instant::now();
        scene.strike(node, NodeEvent::Cordon).await?;
        let moved = scene.moved_from(node).await?;
        let took = began.elapsed();
        eprintln!("bound elsewhere after {took:.2?}");
        ensure!(took < limit, "bound elsewhere after {took:?}");
        has_priority(&moved, priority)?;
    }
    Ok(())
}

#[test]
fn n8_n1_noisy_tenants_do_not_hold_up_another_tenants_placeholder_or_evacuation() -> Outcome {
    let numbers = crowd();
    let config = Config {
        nodes: NODES,
        ..Config::default()
    };
    alone(config, async |scene| {
        at_once(&scene.stack.scene().await?).await?;
        // Each task requests most of the eight CPUs of a node, and the claim keeps all tasks on one node.
        let mut wide = run("crowd").template_of_class("source", LOCAL_STORAGE_CLASS);
        for number in 0..=numbers.waiting {
            let task = format!("task-{number}");
            wide = wide.task(&task, &["source"], &[]).asking("5").held(&task);
        }
        scene.submit(wide).await?;
        let waiting = at_gates(scene).await?;
        scene
            .until_many("wait", numbers.waiting, is_unschedulable)
            .await?;
        all_move(&waiting, 0, MOVED).await?;

        put_placeholders_first(scene).await?;
        let (waiting, last) = (at_gates(scene).await?, at_gates(scene).await?);
        let stack = scene.stack;
        refused(&stack.scene().await?, numbers.refused).await?;
        all_move(&waiting, 2, moved_beside_all()).await?;
        unplaceable(&stack.scene().await?, numbers.unplaceable).await?;
        eprintln!("the crowd is there: {numbers:?}");
        for _ in 0..4 {
            let quiet = stack.scene().await?;
            let began = Instant::now();
            quiet.submit(run("run").task("one", &[], &[])).await?;
            quiet
                .until_all::<Pod>("is a placeholder", |pods| {
                    pods.iter().any(|pod| is_placeholder(pod))
                })
                .await?;
            let made = began.elapsed();
            let (_, placeholder) = quiet.placeholder().await?;
            let took = began.elapsed();
            eprintln!("made after {made:.2?}, bound after {took:.2?}");
            ensure!(took < BEGUN, "a placeholder was bound after {took:?}");
            has_priority(&placeholder, 1)?;
            quiet.succeeds("run").await.context("a quiet run")?;
        }
        all_move(&last, 2, moved_beside_all()).await
    })
}
