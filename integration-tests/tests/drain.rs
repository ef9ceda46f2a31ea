//! A node is drained while many runs are on it (N1). All runs continue on another node and succeed, and our services send only a
//! few requests per run.
//!
//! `kubectl drain` cordons the node and then evicts all its pods, placeholders and tasks. The manager evicts the placeholders at
//! the same time. The tasks that are killed have `retries`, because Tekton fails a task without retries if its pod is deleted.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;
use coscheduler_core::observed::PodPhase;
use coscheduler_kubernetes::pipeline_run::PipelineRun;
use coscheduler_kubernetes::pods;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use integration_tests::audit::Request;
use integration_tests::installation::kubectl;
use integration_tests::look::{is_placeholder, node, succeeded};
use integration_tests::runs::{Run, run};
use integration_tests::sets::only_pods;
use integration_tests::{Scene, shared_with_overrides};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::json;
use testbed::services::Service;
use testbed::{Config, DURATION_ANNOTATION, MOVABLE_STORAGE_CLASS};

type Outcome = anyhow::Result<()>;

const RUNS: usize = 50;
/// The number of requests that the test itself sends at the same time.
const AT_ONCE: usize = 10;
const OLD: &str = "node-1";
const NEW: &str = "node-2";

/// The most requests that our services may send per run, from the drain until everything is deleted. The end of a run needs two
/// deletions (StatefulSet and claim), a patch of the claim and a list of pods. The drain needs a deletion and an Event. If
/// `kubectl drain` evicts a pod first, the manager's deletion is refused, and the manager decides again. On a slow machine,
/// each run may also need an Event and two patches of an annotation, because the placeholder waits, and a patch that retries
/// the placeholder.
const BOUNDS: [(&str, f64); 4] = [
    ("create", 2.2),
    ("delete", 4.2),
    ("list", 1.2),
    ("patch", 4.2),
];

/// Runs a test on two nodes. Each of them has room for all runs.
fn on_two_nodes(test: impl AsyncFnOnce(Scene<'static>) -> Outcome) -> Outcome {
    let config = Config {
        nodes: 2,
        node_cpu: "64".to_owned(),
        node_memory: "256Gi".to_owned(),
        pods_per_node: 500,
        audit_log: true,
        ..Config::default()
    };
    shared_with_overrides(config, |_| {}, test)
}

/// A run with two tasks that share a claim, which every node can reach. Every second run is between its tasks when the node is
/// drained: a task without a pod, the gate, holds it. The other runs are in their first task.
fn two(number: usize) -> Run {
    let mode = ["pipelineruns", "workspaces"][number / 2 % 2];
    let first = run(&format!("run-{number}"))
        .in_mode(mode)
        .template_of_class("source", MOVABLE_STORAGE_CLASS)
        .task("one", &["source"], &[])
        .with("retries", 1.into());
    if is_between_tasks(number) {
        first.gate(&["one"]).task("two", &["source"], &["gate"])
    } else {
        first.held("one").task("two", &["source"], &["one"])
    }
}

fn is_between_tasks(number: usize) -> bool {
    number.is_multiple_of(2)
}

fn label<'a>(pod: &'a Pod, key: &str) -> &'a str {
    pod.labels().get(key).map_or("", String::as_str)
}

fn is_of_task(pod: &Pod, task: &str) -> bool {
    label(pod, "tekton.dev/pipelineTask") == task
}

fn has_ended(pod: &Pod) -> bool {
    matches!(pods::phase(pod), PodPhase::Succeeded | PodPhase::Failed)
}

/// Waits until every run is between its tasks or in its first task, as [`two`] says.
async fn all_under_way(scene: &Scene<'_>) -> Outcome {
    let between = (0..RUNS).filter(|number| is_between_tasks(*number)).count();
    scene
        .until_all::<Pod>("are all under way", |pods| {
            let of_one = pods.iter().filter(|pod| is_of_task(pod, "one"));
            let running = of_one.filter(|pod| pods::phase(pod) == PodPhase::Running);
            let held = running.filter(|pod| pod.metadata.deletion_timestamp.is_none());
            held.count() == RUNS - between
        })
        .await?;
    let gates = scene.gates();
    while gates.list(&ListParams::default()).await?.items.len() < between {
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    Ok(())
}

/// Opens the gates of all runs that have one.
async fn open(scene: &Scene<'_>) -> Outcome {
    let waiting = (0..RUNS).filter(|number| is_between_tasks(*number));
    stream::iter(waiting)
        .map(async |number| scene.open_gate(&format!("run-{number}")).await)
        .buffer_unordered(AT_ONCE)
        .try_for_each(async |()| Ok(()))
        .await
}

/// Ends the held tasks, again and again: Tekton retries the tasks that the drain killed, and the new pods are held too.
async fn end_held(scene: &Scene<'_>) -> Outcome {
    for round in 1.. {
        let duration = format!("{round}ms");
        let now = json!({"metadata": {"annotations": {DURATION_ANNOTATION: duration}}});
        let now = Patch::Merge(now);
        let pods = scene.api::<Pod>();
        let held = pods.list(&ListParams::default()).await?.items.into_iter();
        let held = held.filter(|pod| is_of_task(pod, "one") && !has_ended(pod));
        stream::iter(held)
            .map(async |pod| {
                let name = pod.name_any();
                match pods.patch(&name, &PatchParams::default(), &now).await {
                    Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
                    patched => patched.map(drop),
                }
            })
            .buffer_unordered(AT_ONCE)
            .try_for_each(async |()| Ok(()))
            .await?;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    Ok(())
}

/// Waits until each run has succeeded. The total time depends on the machine, but five more runs must end every five minutes.
async fn all_succeed(scene: &Scene<'_>) -> Outcome {
    let with = |runs: &[Arc<PipelineRun>], wanted: &[&str]| {
        let is = |run: &&Arc<PipelineRun>| {
            succeeded(run).is_some_and(|succeeded| wanted.contains(&succeeded))
        };
        runs.iter().filter(is).count()
    };
    let mut expected = 0;
    while expected < RUNS {
        expected = (expected + 5).min(RUNS);
        let what = format!("are done, {expected} of {RUNS}");
        let runs = scene
            .until_all::<PipelineRun>(&what, |runs| with(runs, &["True", "False"]) >= expected)
            .await?;
        let mut failed = runs.iter().filter(|run| succeeded(run) == Some("False"));
        if let Some(run) = failed.next() {
            let conditions = run.status.get("conditions");
            anyhow::bail!("run {} did not succeed: {conditions:?}", run.name_any());
        }
        expected = with(&runs, &["True"]);
    }
    Ok(())
}

/// Some tasks ended before the drain, which deleted their pods. Checks that all other tasks succeeded on the other node.
async fn assert_elsewhere(scene: &Scene<'_>) -> Outcome {
    let mut tasks = BTreeSet::new();
    for pod in scene.objects().await?.task_pods {
        let of = |key: &str| label(&pod, key).to_owned();
        let task = (of("tekton.dev/pipelineRun"), of("tekton.dev/pipelineTask"));
        ensure!(node(&pod) == Some(NEW), "{task:?} on {:?}", node(&pod));
        if pods::phase(&pod) == PodPhase::Succeeded {
            tasks.insert(task);
        }
    }
    for number in 0..RUNS {
        let later = if is_between_tasks(number) {
            &["two"][..]
        } else {
            &["one", "two"]
        };
        for task in later {
            let task = (format!("run-{number}"), (*task).to_owned());
            ensure!(tasks.contains(&task), "{task:?} did not succeed on {NEW}");
        }
    }
    Ok(())
}

/// The number of requests of our services, by verb, resource and status of the answer. Watches and requests for Leases do not
/// count, because their number depends on the time.
fn asked(requests: &[Request]) -> BTreeMap<(String, String, u16), usize> {
    let mut table = BTreeMap::new();
    for request in requests {
        let ours = Service::ALL.into_iter().any(|of| request.is_by(of));
        if !ours || request.verb == "watch" || request.object.resource == "leases" {
            continue;
        }
        let (verb, resource) = (&request.verb, &request.object.resource);
        let key = (verb.clone(), resource.clone(), request.answer.code);
        *table.entry(key).or_default() += 1;
    }
    table
}

#[expect(clippy::cast_precision_loss, reason = "a few thousand at most")]
fn a_run(requests: usize) -> f64 {
    requests as f64 / RUNS as f64
}

#[test]
fn n1_a_node_drained_with_fifty_runs_on_it_costs_a_few_requests_a_run() -> Outcome {
    on_two_nodes(async |scene| {
        scene.stack.history.exempt(&scene.namespace);
        scene.cordon(NEW, true).await?;
        stream::iter(0..RUNS)
            .map(async |number| scene.submit(two(number)).await)
            .buffer_unordered(AT_ONCE)
            .try_for_each(async |_| Ok(()))
            .await?;
        all_under_way(&scene).await?;
        scene.cordon(NEW, false).await?;

        let mark = scene.mark()?;
        let drain = [
            "drain",
            OLD,
            "--ignore-daemonsets",
            "--delete-emptydir-data",
        ];
        let drain = [&drain[..], &["--force", "--timeout=5m"]].concat();
        kubectl(&scene.stack.bed, &drain).await?;
        scene
            .until_all::<Pod>("have their placeholders elsewhere", |pods| {
                let elsewhere = |pod: &&Arc<Pod>| {
                    let alive = pod.metadata.deletion_timestamp.is_none();
                    is_placeholder(pod) && alive && node(pod) == Some(NEW)
                };
                pods.iter().filter(elsewhere).count() == RUNS
            })
            .await?;

        open(&scene).await?;
        tokio::select! {
            ended = all_succeed(&scene) => ended?,
            told = end_held(&scene) => told?,
        }
        assert_elsewhere(&scene).await?;
        scene.nothing_left_but(&[]).await?;
        let all = asked(&scene.requests_since(mark)?);
        let mut by_verb = BTreeMap::<&str, usize>::new();
        for ((verb, ..), count) in &all {
            *by_verb.entry(verb).or_default() += count;
        }
        for (verb, count) in by_verb {
            let bound = BOUNDS.iter().find(|(of, _)| *of == verb);
            let mut bound = bound.map_or(0.0, |(_, bound)| *bound);
            if only_pods() && verb == "list" {
                // Before the StatefulSet that replaces a pod creates its own pod, the manager checks that the old pod is gone.
                bound += 1.0;
            }
            let count = a_run(count);
            ensure!(
                count <= bound,
                "{verb}: {count:.2} a run, bound {bound}, of {all:?}"
            );
        }
        Ok(())
    })
}
