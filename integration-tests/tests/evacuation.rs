//! Nodes that begin to turn pods away while runs are on them (N1). Each case has two nodes of its own, which its pods come to
//! by node selector, so that it takes nobody else's from under them.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use coscheduler_kubernetes::pipeline_run::PipelineRun;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use integration_tests::look::{is_placeholder, node};
use integration_tests::nodes::NodeEvent;
use integration_tests::runs::{Run, run};
use integration_tests::stack::Stack;
use integration_tests::{Scene, alone, shared_on};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams};
use kube::runtime::wait::await_condition;
use serde_json::json;
use testbed::services::Service;
use testbed::{
    CUSTOM_STATUS, Config, LOCAL_STORAGE_CLASS, MOVABLE_STORAGE_CLASS, STATUS_ANNOTATION,
};

type Outcome = anyhow::Result<()>;

const BLOCKED: &str = "coscheduler.dev/blocked";
const MODES: [&str; 3] = ["workspaces", "pipelineruns", "isolate-pipelinerun"];
/// Cases under way at the same time.
const AT_ONCE: usize = 5;
/// Nobody waits longer for what is only measured.
const PATIENCE: Duration = Duration::from_secs(60);

/// On a stack on which each run chooses its mode, with few nodes that are nobody's.
fn shared(test: impl AsyncFnOnce(Scene<'static>) -> Outcome) -> Outcome {
    let boot = async || {
        let config = Config {
            nodes: 1,
            audit_log: true,
            ..Config::default()
        };
        let stack = Stack::boot(config, |_| {}).await?;
        stack.allow_overrides().await?;
        Ok(stack)
    };
    shared_on(boot, test)
}

/// Tasks one, two and three on one claim of this storage class.
fn three(scene: &Scene<'_>, mode: &str, class: &str) -> Run {
    first(scene, mode, class)
        .task("two", &["source"], &["one"])
        .task("three", &["source"], &["two"])
}

/// As [`three`], with a task without a pod behind task one, which ends with [`open`].
fn gated(scene: &Scene<'_>, mode: &str, class: &str) -> Run {
    let wait = json!({"apiVersion": "example.dev/v1", "kind": "Wait", "spec": {}});
    first(scene, mode, class)
        .task("gate", &[], &["one"])
        .with("taskSpec", wait)
        .task("two", &["source"], &["gate"])
        .task("three", &["source"], &["two"])
}

fn first(scene: &Scene<'_>, mode: &str, class: &str) -> Run {
    // In `workspaces`, too, the claim is to go with the run.
    let annotations = json!({
        "coscheduler.dev/coschedule": mode,
        "tekton.dev/auto-cleanup-pvc": "true",
    });
    run("three")
        .metadata("annotations", annotations)
        .in_pool_of(scene)
        .workspace(
            "source",
            json!({"volumeClaimTemplate": {"spec": {
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": class,
                "resources": {"requests": {"storage": "1Gi"}},
            }}}),
        )
        .task("one", &["source"], &[])
}

/// Waits until a run is at its gate: task one has ended, and no other has begun.
async fn at_gate(scene: &Scene<'_>) -> Outcome {
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("tekton.dev", "v1beta1", "CustomRun"));
    let api =
        kube::Api::<DynamicObject>::namespaced_with(scene.client.clone(), &scene.namespace, &kind);
    let there = await_condition(api, "three-gate", |gate: Option<&DynamicObject>| {
        gate.is_some()
    });
    let there = tokio::time::timeout(Duration::from_secs(120), there).await;
    there.context("the run does not come to its gate")??;
    Ok(())
}

async fn open(scene: &Scene<'_>) -> Outcome {
    let succeeded = json!({"status": {"conditions": [{
        "type": "Succeeded", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z",
    }]}});
    let path = "tekton.dev/v1beta1/customruns/three-gate/status";
    scene.send("PATCH", path, &succeeded).await?.accepted()?;
    Ok(())
}

/// The run's pods that there are, by task: several of a task that was tried again.
async fn nodes_by_task(scene: &Scene<'_>) -> anyhow::Result<BTreeMap<String, Vec<String>>> {
    let mut nodes = BTreeMap::<_, Vec<_>>::new();
    for pod in scene.objects().await?.task_pods {
        let task = pod.labels()["tekton.dev/pipelineTask"].clone();
        let node = node(&pod).unwrap_or("no node").to_owned();
        nodes.entry(task).or_default().push(node);
    }
    Ok(nodes)
}

/// Waits until a task's pod runs, and answers it.
async fn running(scene: &Scene<'_>, task: &str) -> anyhow::Result<Pod> {
    let runs = |pod: &Pod| {
        let status = pod.status.as_ref();
        pod.labels()
            .get("tekton.dev/pipelineTask")
            .is_some_and(|of| of == task)
            && status.and_then(|status| status.phase.as_deref()) == Some("Running")
    };
    let pods = scene
        .until_all::<Pod>(&format!("run task {task}"), |pods| {
            pods.iter().any(|pod| runs(pod))
        })
        .await?;
    let pod = pods.iter().find(|pod| runs(pod));
    Ok(pod.context("it has gone")?.as_ref().clone())
}

fn node_of(pod: &Pod) -> String {
    node(pod).unwrap_or("no node").to_owned()
}

/// Holds `check` against each of `cases`, each in a namespace with two nodes of its own.
async fn each<C: Copy>(
    stack: &Stack,
    cases: impl IntoIterator<Item = C>,
    check: impl AsyncFn(&Scene<'_>, C) -> Outcome,
) -> Outcome {
    stream::iter(cases)
        .map(async |case| {
            let scene = stack.scene().await?;
            scene.pool(2).await?;
            check(&scene, case).await
        })
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await
}

fn with_every_mode(events: &[NodeEvent]) -> Vec<(NodeEvent, &'static str)> {
    let with_modes = |event: &NodeEvent| MODES.map(|mode| (*event, mode));
    events.iter().flat_map(with_modes).collect()
}

#[test]
fn n1_whatever_happens_to_the_node_between_two_tasks_the_run_goes_on_elsewhere() -> Outcome {
    shared(async |scene| {
        let cases = with_every_mode(&NodeEvent::ALL);
        each(scene.stack, cases, async |scene, (event, mode)| {
            between(scene, event, mode)
                .await
                .with_context(|| format!("{event} in mode {mode}"))
        })
        .await
    })
}

async fn between(scene: &Scene<'_>, event: NodeEvent, mode: &str) -> Outcome {
    let run = gated(scene, mode, MOVABLE_STORAGE_CLASS);
    scene.submit(run).await?;
    at_gate(scene).await?;
    let (_, before) = scene.placeholder().await?;
    let old = node_of(&before);
    let since = Instant::now();
    scene.strike(&old, event).await?;
    let after = scene.moved_from(&old).await?;
    println!(
        "{event}, {mode}: bound elsewhere after {:?}",
        since.elapsed()
    );
    open(scene).await?;
    scene.succeeds("three").await?;
    let nodes = nodes_by_task(scene).await?;
    for task in ["two", "three"] {
        assert_eq!(nodes[task], [node_of(&after)], "{event}, {mode}: {task}");
    }
    let told = scene.told("three", "PodEvacuated").await?;
    ensure!(
        told.iter().any(|(_, message)| message.contains(&old)),
        "{event}, {mode}: {told:?}"
    );
    scene.nothing_left_but(&[]).await?;
    // No task ran meanwhile, so nobody held the claim in two places.
    scene.stack.history.verdict(&scene.namespace).await
}

#[test]
fn n1_a_running_task_is_left_alone_and_the_next_ones_go_elsewhere() -> Outcome {
    shared(async |scene| {
        let cases = with_every_mode(&[NodeEvent::Cordon, NodeEvent::NoSchedule]);
        each(scene.stack, cases, async |scene, (event, mode)| {
            during(scene, event, mode)
                .await
                .with_context(|| format!("{event} in mode {mode}"))
        })
        .await
    })
}

async fn during(scene: &Scene<'_>, event: NodeEvent, mode: &str) -> Outcome {
    let run = three(scene, mode, MOVABLE_STORAGE_CLASS).lasting("one", 8);
    scene.submit(run).await?;
    let one = running(scene, "one").await?;
    let old = node_of(&one);
    scene.strike(&old, event).await?;
    let after = scene.moved_from(&old).await?;
    scene.succeeds("three").await?;
    let left = scene.api::<Pod>().get(&one.name_any()).await?;
    assert_eq!(left.metadata.uid, one.metadata.uid, "{event}, {mode}");
    assert_eq!(left.metadata.deletion_timestamp, None);
    let nodes = nodes_by_task(scene).await?;
    let new = node_of(&after);
    let expected = [("one", old), ("three", new.clone()), ("two", new)];
    let expected = expected.map(|(task, node)| (task.to_owned(), vec![node]));
    assert_eq!(nodes, BTreeMap::from(expected), "{event}, {mode}");
    scene.nothing_left_but(&[]).await
}

#[test]
fn n1_a_task_that_its_node_kills_is_tried_again_elsewhere() -> Outcome {
    shared(async |scene| {
        each(scene.stack, MODES, async |scene, mode| {
            killed(scene, mode).await.with_context(|| mode.to_owned())
        })
        .await
    })
}

async fn killed(scene: &Scene<'_>, mode: &str) -> Outcome {
    let run = three(scene, mode, MOVABLE_STORAGE_CLASS).lasting("one", 5);
    let mut run = run.into_json();
    run["spec"]["pipelineSpec"]["tasks"][0]["retries"] = 1.into();
    scene
        .send("POST", "tekton.dev/v1/pipelineruns", &run)
        .await?
        .accepted()?;
    let one = running(scene, "one").await?;
    let old = node_of(&one);
    // Kubernetes itself deletes what runs there.
    scene.strike(&old, NodeEvent::NoExecute).await?;
    let after = scene.moved_from(&old).await?;
    scene.succeeds("three").await?;
    let nodes = nodes_by_task(scene).await?;
    for task in ["one", "two", "three"] {
        assert_eq!(nodes[task], [node_of(&after)], "{mode}: {task}");
    }
    scene.nothing_left_but(&[]).await
}

#[test]
fn n1_who_bears_it_stays_and_nobody_moves_back() -> Outcome {
    shared(async |scene| {
        let everything = json!({"tolerations": [{"operator": "Exists"}]});
        let run = |scene: &Scene<'_>| gated(scene, "pipelineruns", MOVABLE_STORAGE_CLASS);
        let [preferring, bearing, moving] = [
            scene.stack.scene().await?,
            scene.stack.scene().await?,
            scene,
        ];
        let mut nodes = Vec::new();
        for scene in [&preferring, &bearing, &moving] {
            scene.pool(2).await?;
            let submitted = if std::ptr::eq(scene, &bearing) {
                run(scene).in_pool_with(scene, everything.clone())
            } else {
                run(scene)
            };
            scene.submit(submitted).await?;
        }
        for scene in [&preferring, &bearing, &moving] {
            at_gate(scene).await?;
            nodes.push(scene.placeholder().await?.1);
        }
        let [prefers, bears, moves] = nodes.try_into().unwrap();
        preferring
            .taint(&node_of(&prefers), "PreferNoSchedule")
            .await?;
        bearing.taint(&node_of(&bears), "NoExecute").await?;
        bearing.cordon(&node_of(&bears), true).await?;
        // What happened before is known by the time that this one has moved.
        moving.cordon(&node_of(&moves), true).await?;
        let moved = moving.moved_from(&node_of(&moves)).await?;
        moving.cordon(&node_of(&moves), false).await?;
        for (scene, stays) in [
            (&preferring, &prefers),
            (&bearing, &bears),
            (&moving, &moved),
        ] {
            open(scene).await?;
            running(scene, "three").await?;
            let (_, placeholder) = scene.placeholder().await?;
            assert_eq!(placeholder.metadata.uid, stays.metadata.uid);
            scene.succeeds("three").await?;
            let of_tasks = nodes_by_task(scene).await?;
            for task in ["two", "three"] {
                assert_eq!(of_tasks[task], [node_of(stays)], "{task}");
            }
        }
        assert_eq!(preferring.told_so_far("three").await?, []);
        assert_eq!(bearing.told_so_far("three").await?, []);
        Ok(())
    })
}

#[test]
fn n1_a_pod_that_never_started_follows() -> Outcome {
    shared(async |scene| {
        each(scene.stack, MODES, async |scene, mode| {
            let mut run = three(scene, mode, MOVABLE_STORAGE_CLASS).into_json();
            run["spec"]["taskRunSpecs"] = json!([{
                "pipelineTaskName": "one",
                "metadata": {"annotations": {STATUS_ANNOTATION: CUSTOM_STATUS}},
            }]);
            scene
                .send("POST", "tekton.dev/v1/pipelineruns", &run)
                .await?
                .accepted()?;
            let is_one = |pod: &Pod| {
                let task = pod.labels().get("tekton.dev/pipelineTask");
                task.is_some_and(|task| task == "one")
            };
            let bound = |other_than: &str| {
                let other_than = other_than.to_owned();
                move |pod: &Pod| is_one(pod) && node(pod).is_some_and(|node| node != other_than)
            };
            let first = bound("");
            let pods = scene
                .until_all::<Pod>("bind task one", |pods| pods.iter().any(|pod| first(pod)))
                .await?;
            let old = node_of(pods.iter().find(|pod| first(pod)).unwrap());
            scene.cordon(&old, true).await?;
            let again = bound(&old);
            let pods = scene
                .until_all::<Pod>("bind task one elsewhere", |pods| {
                    pods.iter().any(|pod| again(pod))
                })
                .await?;
            let one = pods.iter().find(|pod| again(pod)).unwrap();
            let after = scene.moved_from(&old).await?;
            assert_eq!(node(one), node(&after), "{mode}");
            let starts = json!({"metadata": {"annotations": {STATUS_ANNOTATION: null}}});
            let params = PatchParams::default();
            scene
                .api::<Pod>()
                .patch(&one.name_any(), &params, &Patch::Merge(starts))
                .await?;
            scene.succeeds("three").await?;
            let nodes = nodes_by_task(scene).await?;
            assert_eq!(nodes["one"], [node_of(&after)], "{mode}");
            Ok(())
        })
        .await
    })
}

#[test]
fn n1_a_run_whose_claim_cannot_follow_goes_on_once_its_node_is_back() -> Outcome {
    shared(async |scene| {
        each(scene.stack, MODES, async |scene, mode| {
            let run = gated(scene, mode, LOCAL_STORAGE_CLASS);
            scene.submit(run).await?;
            at_gate(scene).await?;
            let (_, before) = scene.placeholder().await?;
            let old = node_of(&before);
            scene.cordon(&old, true).await?;
            scene
                .until_all::<Pod>("have a placeholder without a node", |pods| {
                    pods.iter()
                        .any(|pod| is_placeholder(pod) && is_unschedulable(pod))
                })
                .await?;
            open(scene).await?;
            scene
                .until_all::<Pod>("have a task that waits", |pods| {
                    pods.iter()
                        .any(|pod| !is_placeholder(pod) && is_unschedulable(pod))
                })
                .await?;
            let told = scene.told("three", "ClaimsNotMovable").await?;
            assert!(
                told.iter().any(|(_, message)| message.contains(&old)),
                "{told:?}"
            );
            let is_blocked = |run: Option<&PipelineRun>| {
                run.is_some_and(|run| run.annotations().contains_key(BLOCKED))
            };
            scene.until("three", "is blocked", is_blocked).await?;
            scene.cordon(&old, false).await?;
            scene
                .until("three", "is not blocked", |run| !is_blocked(run))
                .await?;
            scene.succeeds("three").await?;
            let nodes = nodes_by_task(scene).await?;
            for task in ["one", "two", "three"] {
                assert_eq!(nodes[task], std::slice::from_ref(&old), "{mode}: {task}");
            }
            scene.nothing_left_but(&[]).await
        })
        .await
    })
}

fn is_unschedulable(pod: &Pod) -> bool {
    let conditions = pod
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    node(pod).is_none()
        && conditions.any(|condition| condition.reason.as_deref() == Some("Unschedulable"))
}

#[test]
fn n1_nodes_that_come_and_go_move_a_placeholder_more_and_more_seldom() -> Outcome {
    shared(async |scene| {
        scene.pool(2).await?;
        let run = gated(&scene, "pipelineruns", MOVABLE_STORAGE_CLASS);
        scene.submit(run).await?;
        at_gate(&scene).await?;
        let mut old = node_of(&scene.placeholder().await?.1);
        let since = Instant::now();
        for _ in 0..3 {
            scene.cordon(&old, true).await?;
            let new = node_of(&scene.moved_from(&old).await?);
            println!("moved after {:?}", since.elapsed());
            scene.cordon(&old, false).await?;
            old = new;
        }
        // One second after the first move, two after the second.
        assert!(since.elapsed() >= Duration::from_secs(3));
        open(&scene).await?;
        scene.succeeds("three").await?;
        assert_eq!(nodes_by_task(&scene).await?["three"], [old]);
        scene.nothing_left_but(&[]).await
    })
}

#[test]
fn n1_a_node_that_turned_bad_while_nobody_looked_is_evacuated() -> Outcome {
    alone(Config::default(), async |scene| {
        scene.pool(2).await?;
        let mut run = gated(scene, "pipelineruns", MOVABLE_STORAGE_CLASS).into_json();
        run["metadata"]["annotations"] = json!({});
        scene
            .send("POST", "tekton.dev/v1/pipelineruns", &run)
            .await?
            .accepted()?;
        at_gate(scene).await?;
        let old = node_of(&scene.placeholder().await?.1);
        let services = &scene.stack.services;
        services.kill(Service::PlaceholderManager)?;
        scene.cordon(&old, true).await?;
        services.start_service(Service::PlaceholderManager)?;
        services.wait_ready().await?;
        let new = node_of(&scene.moved_from(&old).await?);
        open(scene).await?;
        scene.succeeds("three").await?;
        assert_eq!(nodes_by_task(scene).await?["three"], [new]);
        scene.nothing_left_but(&[]).await
    })
}

/// Seconds from the node event until a placeholder is bound to another node, of a run at its gate; `None` where none is.
async fn seconds(scene: &Scene<'_>, event: NodeEvent) -> anyhow::Result<Option<f64>> {
    scene.pool(2).await?;
    let mut run = gated(scene, "pipelineruns", MOVABLE_STORAGE_CLASS).into_json();
    run["metadata"]["annotations"] = json!({});
    scene
        .send("POST", "tekton.dev/v1/pipelineruns", &run)
        .await?
        .accepted()?;
    at_gate(scene).await?;
    let old = node_of(&scene.placeholder().await?.1);
    let since = Instant::now();
    scene.strike(&old, event).await?;
    let moved = tokio::time::timeout(PATIENCE, scene.moved_from(&old)).await;
    let seconds = match moved {
        Ok(moved) => {
            moved?;
            Some(since.elapsed().as_secs_f64())
        }
        Err(_) => None,
    };
    let runs = scene.api::<PipelineRun>();
    runs.delete("three", &DeleteParams::background()).await?;
    Ok(seconds)
}

#[test]
fn n1_seconds_until_a_placeholder_is_bound_elsewhere() -> Outcome {
    shared(async |scene| {
        let mut all = Vec::new();
        for event in NodeEvent::ALL {
            let mut of_event = Vec::new();
            for _ in 0..4 {
                let scene = scene.stack.scene().await?;
                let seconds = seconds(&scene, event).await?;
                of_event.push(seconds.with_context(|| format!("{event}: not moved"))?);
            }
            println!("{event}: {of_event:.2?} s");
            all.extend(of_event);
        }
        all.sort_by(f64::total_cmp);
        let (p50, worst) = (all[all.len() / 2], all[all.len() - 1]);
        println!("of {}: p50 {p50:.2} s, worst {worst:.2} s", all.len());
        Ok(())
    })
}

#[test]
fn n1_the_same_with_tektons_built_in_assistant() -> Outcome {
    let config = Config {
        nodes: 1,
        tekton_coschedule: "pipelineruns".to_owned(),
        ..Config::default()
    };
    alone(config, async |scene| {
        stream::iter(NodeEvent::ALL)
            .map(async |event| {
                let scene = scene.stack.scene().await?;
                let seconds = seconds(&scene, event).await?;
                println!("{event}: {seconds:.2?} s");
                anyhow::Ok(())
            })
            .buffer_unordered(AT_ONCE)
            .try_collect()
            .await
    })
}
