//! Many runs in each mode, created at the same time, also while the mode changes. All succeed, each on the nodes that its mode
//! requires, and nothing is left. A watch records where each pod was and when. Meanwhile, the plugin names no cause that would
//! keep a run waiting for ever.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)]

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use coscheduler_core::observed::PodPhase;
use coscheduler_kubernetes::pipeline_run::PipelineRun;
use coscheduler_kubernetes::pods::phase;
use coscheduler_proto::config::Mode;
use futures::future::{try_join, try_join_all};
use integration_tests::look::{assert_succeeded, claims, is_done, is_placeholder, node};
use integration_tests::plugin::{PASSING, explanation};
use integration_tests::runs::{Run, run};
use integration_tests::stack::lead_for_long;
use integration_tests::{Scene, alone_with, at_scale};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::api::events::v1::Event;
use kube::ResourceExt as _;
use kube::api::ListParams;
use testbed::Config;
use testbed::services::ServicesConfig;

type Outcome = anyhow::Result<()>;

fn runs_of_each_mode() -> usize {
    at_scale(30, 100)
}

/// Makes the tests of this file run one after the other, because each keeps the machine busy.
static TURN: Mutex<()> = Mutex::new(());

/// Runs a test on nodes that have room for all runs, so that only the mode keeps runs apart.
fn in_mode(mode: &str, nodes: usize, test: impl AsyncFnOnce(&Scene<'_>) -> Outcome) -> Outcome {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let config = Config {
        nodes,
        node_cpu: "64".to_owned(),
        node_memory: "256Gi".to_owned(),
        pods_per_node: 500,
        task_duration: Duration::from_millis(500),
        ..Config::default()
    };
    let change = |services: &mut ServicesConfig| {
        services.mode = Some(mode.to_owned());
        lead_for_long(services);
    };
    alone_with(config, change, test)
}

/// A run with two tasks that share a claim.
fn two(name: &str) -> Run {
    run(name)
        .template("source")
        .task("one", &["source"], &[])
        .task("two", &["source"], &["one"])
}

fn names(range: std::ops::Range<usize>) -> Vec<String> {
    range.map(|index| format!("run-{index}")).collect()
}

async fn submit(scene: &Scene<'_>, names: &[String]) -> Outcome {
    try_join_all(names.iter().map(|name| scene.submit(two(name)))).await?;
    Ok(())
}

/// Waits until all these runs have succeeded. The total time depends on the machine, but fifty more of their pods must end every
/// five minutes.
async fn succeed(scene: &Scene<'_>, names: &[String]) -> Outcome {
    let names: HashSet<&str> = names.iter().map(String::as_str).collect();
    let ended = |pod: &Pod| {
        phase(pod) == PodPhase::Succeeded && !is_placeholder(pod) && names.contains(run_of(pod))
    };
    scene
        .until_many("have succeeded", 2 * names.len(), ended)
        .await?;
    let done = |runs: &[Arc<PipelineRun>]| -> Vec<Arc<PipelineRun>> {
        let ours = runs
            .iter()
            .filter(|run| names.contains(run.name_any().as_str()));
        ours.filter(|run| is_done(run)).cloned().collect()
    };
    let runs = scene
        .until_all("are done", |runs| done(runs).len() == names.len())
        .await?;
    done(&runs).iter().try_for_each(|run| assert_succeeded(run))
}

/// Asks the plugin once about each of these runs while they are under way. It may name a cause that passes by itself, and those
/// in `expected`.
async fn no_false_alarm(scene: &Scene<'_>, names: &[String], expected: &[&str]) -> Outcome {
    let mut under_way = 0;
    for name in names {
        let found = explanation(scene, name).await?;
        let reason = found["cause"]["reason"].as_str();
        ensure!(
            reason.is_none_or(|it| PASSING.contains(&it) || expected.contains(&it)),
            "{name} gets on: {found}"
        );
        let done = found["done"].as_bool().context("no field done")?;
        under_way += usize::from(!done);
    }
    let all = names.len();
    println!("the plugin was asked about {under_way} of {all} runs while they were under way");
    ensure!(3 * under_way > all, "{under_way} of {all}");
    Ok(())
}

/// Checks that our services have written no warning but those with these reasons.
async fn no_warning(scene: &Scene<'_>, expected: &[&str]) -> Outcome {
    let events = scene.api::<Event>().list(&ListParams::default()).await?;
    for event in events {
        let by = event.reporting_controller.as_deref().unwrap_or_default();
        let ours = by.starts_with("coscheduler.dev/") && event.type_.as_deref() == Some("Warning");
        let reason = event.reason.as_deref().unwrap_or_default();
        ensure!(!ours || expected.contains(&reason), "{event:?}");
    }
    Ok(())
}

fn run_of(pod: &Pod) -> &str {
    &pod.labels()["tekton.dev/pipelineRun"]
}

/// The task pods of each run. Checks that each run has two: no task was retried.
async fn task_pods(
    scene: &Scene<'_>,
    names: &[String],
) -> anyhow::Result<BTreeMap<String, Vec<Pod>>> {
    let mut of_runs: BTreeMap<String, Vec<Pod>> = BTreeMap::new();
    for pod in scene.objects().await?.task_pods {
        of_runs
            .entry(run_of(&pod).to_owned())
            .or_default()
            .push(pod);
    }
    for name in names {
        let pods = of_runs.get(name).map_or(0, Vec::len);
        ensure!(pods == 2, "{name} has {pods} pods of its two tasks");
    }
    Ok(of_runs)
}

/// Checks that these pods were coscheduled: on one node, each with an affinity to a placeholder.
fn assert_together(name: &str, pods: &[Pod]) {
    let nodes: BTreeSet<_> = pods.iter().map(|pod| node(pod).unwrap()).collect();
    assert_eq!(nodes.len(), 1, "{name} was on {nodes:?}");
    for pod in pods {
        let affinity = pod.spec.as_ref().unwrap().affinity.as_ref();
        let required = affinity.and_then(|affinity| affinity.pod_affinity.as_ref());
        assert!(
            required.is_some(),
            "{name}: {} requires no placeholder",
            pod.name_any()
        );
    }
}

/// Waits until no placeholder is left, and only `tektons` claims, which Tekton made.
async fn nothing_left_but_tektons(scene: &Scene<'_>, tektons: usize) -> Outcome {
    scene.until_sets("are gone", |sets| sets.is_empty()).await?;
    scene
        .until_all::<Pod>("have no placeholder", |pods| {
            !pods.iter().any(|pod| is_placeholder(pod))
        })
        .await?;
    scene
        .until_all::<PersistentVolumeClaim>("are those that Tekton made", |claims| {
            claims.len() == tektons
        })
        .await?;
    Ok(())
}

#[test]
fn b2_m1_m3_m5_m8_v2_v3_many_runs_of_each_mode_at_once_as_the_mode_changes() -> Outcome {
    in_mode("pipelineruns", 4, async |scene| {
        let all = names(0..3 * runs_of_each_mode());
        let (in_pipelineruns, rest) = all.split_at(runs_of_each_mode());
        let (in_workspaces, in_disabled) = rest.split_at(runs_of_each_mode());
        submit(scene, in_pipelineruns).await?;
        scene.set_flags(&[("coschedule", "workspaces")]).await?;
        scene.planned_in(Mode::Workspaces).await?;
        submit(scene, in_workspaces).await?;
        scene.set_flags(&[("coschedule", "disabled")]).await?;
        scene.planned_in(Mode::Disabled).await?;
        submit(scene, in_disabled).await?;
        try_join(succeed(scene, &all), no_false_alarm(scene, &all, &[])).await?;
        no_warning(scene, &[]).await?;

        let pods = task_pods(scene, &all).await?;
        for (name, pods) in pods.iter().filter(|(name, _)| !in_disabled.contains(name)) {
            assert_together(name, pods);
            assert_eq!(claims(&pods[0]), claims(&pods[1]), "{name}");
            // The StatefulSet or Tekton made the claim, depending on the mode in which the run was created.
            let made_for_placeholder = claims(&pods[0])[0].ends_with("-0");
            assert_eq!(
                made_for_placeholder,
                in_pipelineruns.contains(name),
                "{name}"
            );
        }
        for name in in_disabled {
            for pod in &pods[name] {
                let affinity = pod.spec.as_ref().unwrap().affinity.as_ref();
                assert_eq!(affinity, None, "{}", pod.name_any());
            }
        }
        let stays = scene.stack.history.stays(&scene.namespace).await?;
        let of_disabled = stays.iter().filter(|stay| in_disabled.contains(&stay.run));
        assert_eq!(of_disabled.filter(|stay| stay.placeholder).count(), 0);
        nothing_left_but_tektons(scene, 2 * runs_of_each_mode()).await
    })
}

#[test]
fn b2_m4_many_isolated_runs_at_once_on_twenty_nodes() -> Outcome {
    in_mode("isolate-pipelinerun", 20, async |scene| {
        let names = names(0..runs_of_each_mode());
        submit(scene, &names).await?;
        // The second code: the scheduler requests a volume for a placeholder, and then rejects the placeholder because its
        // claim has just changed. Another run may take the node in between.
        let waits = ["NoIsolatedNode", "ClaimsNotMovable"];
        let looks = no_false_alarm(scene, &names, &waits);
        try_join(succeed(scene, &names), looks).await?;
        no_warning(scene, &waits).await?;
        for (name, pods) in &task_pods(scene, &names).await? {
            assert_together(name, pods);
        }
        nothing_left_but_tektons(scene, 0).await?;

        let stays = scene.stack.history.stays(&scene.namespace).await?;
        let of_tasks = stays.iter().filter(|stay| !stay.placeholder).count();
        assert_eq!(of_tasks, 2 * runs_of_each_mode(), "the watch saw each pod");
        // Every node has room for all runs, so no placeholder has a reason to leave its node.
        assert_eq!(
            stays.len() - of_tasks,
            runs_of_each_mode(),
            "each placeholder has one pod"
        );
        let mut shared = Vec::new();
        for (index, one) in stays.iter().enumerate() {
            for other in &stays[index + 1..] {
                if one.run != other.run && one.node == other.node && one.overlaps(other) {
                    shared.push(format!("{one:?} and {other:?}"));
                }
            }
        }
        assert!(shared.is_empty(), "{shared:#?}");
        Ok(())
    })
}
