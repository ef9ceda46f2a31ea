//! Nodes that stop taking pods while runs are on them (N1). Each case has two nodes of its own, on which the run's node selector
//! keeps its pods, so that no case changes the nodes of another case.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use coscheduler_core::observed::PodPhase;
use coscheduler_core::pod_template::PLACEHOLDER_CLASS;
use coscheduler_kubernetes::pipeline_run::PipelineRun;
use coscheduler_kubernetes::pods;
use futures::future::try_join_all;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use integration_tests::look::{LIMIT, condition, has_priority, is_placeholder, node};
use integration_tests::nodes::{NodeEvent, is_tainted};
use integration_tests::runs::{Run, run};
use integration_tests::stack::Stack;
use integration_tests::struck::{Waiting, first, gated};
use integration_tests::{Scene, alone, shared_with_overrides};
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use kube::api::{Patch, PatchParams};
use kube::runtime::wait::await_condition;
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use testbed::services::Service;
use testbed::{
    CUSTOM_STATUS, Config, LOCAL_STORAGE_CLASS, MOVABLE_STORAGE_CLASS, STATUS_ANNOTATION,
};

type Outcome = anyhow::Result<()>;

const BLOCKED: &str = "coscheduler.dev/blocked";
const MODES: [&str; 3] = ["workspaces", "pipelineruns", "isolate-pipelinerun"];
/// The number of cases that run at the same time.
const AT_ONCE: usize = 5;
/// The longest time of a move: five times the second that a move normally takes.
const MOVED: Duration = Duration::from_secs(5);
/// The longest time until Tekton has ended a run with `finally` after one of its tasks has lost its pod.
const FAILED: Duration = Duration::from_secs(30);
/// The longest time until Tekton uses a changed flag.
const LEARNS: Duration = Duration::from_secs(60);

/// Runs a test on a stack on which each run may choose its mode. One node belongs to no pool.
fn shared(test: impl AsyncFnOnce(Scene<'static>) -> Outcome) -> Outcome {
    let config = Config {
        nodes: 1,
        audit_log: true,
        ..Config::default()
    };
    shared_with_overrides(config, |_| {}, test)
}

/// A run with tasks one, two and three, which use one claim of this storage class.
fn three(scene: &Scene<'_>, mode: &str, class: &str) -> Run {
    first(scene, mode, class)
        .task("two", &["source"], &["one"])
        .task("three", &["source"], &["two"])
}

/// The nodes of the run's pods, by task. A task that was retried may have several nodes.
async fn nodes_by_task(scene: &Scene<'_>) -> anyhow::Result<BTreeMap<String, Vec<String>>> {
    let mut nodes = BTreeMap::<_, Vec<_>>::new();
    for pod in scene.objects().await?.task_pods {
        let task = pod.labels()["tekton.dev/pipelineTask"].clone();
        let node = node(&pod).unwrap_or("no node").to_owned();
        nodes.entry(task).or_default().push(node);
    }
    Ok(nodes)
}

/// Waits until the pod of a task runs, and returns this pod.
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

/// Runs `check` for each of `cases`, each in a namespace with two nodes of its own.
async fn each<C: Copy>(
    stack: &Stack,
    cases: impl IntoIterator<Item = C>,
    check: impl AsyncFn(&Scene<'_>, C) -> Outcome,
) -> Outcome {
    stream::iter(cases)
        .map(async |case| {
            let scene = stack.scene().await?;
            scene.pool(2).await?;
            check(&scene, case).await?;
            // Kubernetes evicts the pods of only one unready node every ten seconds. So these nodes are deleted: otherwise, other
            // cases would have to wait for them.
            for number in 1..=2 {
                let path = format!("/api/v1/nodes/{}", scene.pool_node(number));
                scene.send_to("DELETE", &path, &json!({})).await?;
            }
            Ok(())
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
    scene.at_gate("three").await?;
    let (_, before) = scene.placeholder().await?;
    let old = node_of(&before);
    scene.strike(&old, event).await?;
    let after = scene.moved_from(&old).await?;
    scene.open_gate("three").await?;
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
    scene.nothing_left_but(&[]).await
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
    scene.stack.history.exempt(&scene.namespace);
    let run = three(scene, mode, MOVABLE_STORAGE_CLASS).held("one");
    scene.submit(run).await?;
    let one = running(scene, "one").await?;
    let old = node_of(&one);
    scene.strike(&old, event).await?;
    let after = scene.moved_from(&old).await?;
    scene.end("three", "one").await?;
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

/// The events after which Kubernetes deletes the pods on a node.
const KILLING: [NodeEvent; 3] = [
    NodeEvent::NoExecute,
    NodeEvent::NotReady,
    NodeEvent::Deletion,
];

#[test]
fn n1_a_task_that_its_node_kills_is_tried_again_elsewhere() -> Outcome {
    shared(async |scene| {
        let cases = with_every_mode(&KILLING);
        each(scene.stack, cases, async |scene, (event, mode)| {
            killed(scene, event, mode)
                .await
                .with_context(|| format!("{event} in mode {mode}"))
        })
        .await
    })
}

/// If a node is not ready, Kubernetes deletes the pods with this toleration after one second. The default is five minutes.
fn short_lived() -> Value {
    json!({"tolerations": [{
        "key": "node.kubernetes.io/not-ready",
        "operator": "Exists",
        "effect": "NoExecute",
        "tolerationSeconds": 1,
    }]})
}

async fn killed(scene: &Scene<'_>, event: NodeEvent, mode: &str) -> Outcome {
    scene.stack.history.exempt(&scene.namespace);
    let run = three(scene, mode, MOVABLE_STORAGE_CLASS)
        .in_pool_with(scene, short_lived())
        .held("one");
    let mut run = run.into_json();
    run["spec"]["pipelineSpec"]["tasks"][0]["retries"] = 1.into();
    scene
        .send("POST", "tekton.dev/v1/pipelineruns", &run)
        .await?
        .accepted()?;
    let first = running(scene, "one").await?;
    let old = node_of(&first);
    // Kubernetes itself deletes the pods there: at once after a NoExecute taint, and within a minute after the deletion of the
    // node.
    scene.strike(&old, event).await?;
    let after = scene.moved_from(&old).await?;
    scene
        .until_all::<Pod>("have task one tried again", |pods| {
            let again = |pod: &Pod| {
                let task = pod.labels().get("tekton.dev/pipelineTask");
                task.is_some_and(|task| task == "one")
                    && pod.uid() != first.uid()
                    && pod.metadata.deletion_timestamp.is_none()
            };
            pods.iter().any(|pod| again(pod))
        })
        .await?;
    // Tekton may create two pods for the pod that was killed, one after the other: see docs/limits.md.
    let end_each = async {
        loop {
            scene.end("three", "one").await?;
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    tokio::select! {
        succeeded = scene.succeeds("three") => drop(succeeded?),
        failed = end_each => return failed,
    }
    let mut nodes = nodes_by_task(scene).await?;
    nodes.entry("one".to_owned()).or_default().dedup();
    for task in ["one", "two", "three"] {
        assert_eq!(nodes[task], [node_of(&after)], "{event}, {mode}: {task}");
    }
    scene.nothing_left_but(&[]).await
}

#[test]
fn n1_a_task_without_retries_that_its_node_kills_fails_its_run_at_once() -> Outcome {
    shared(async |scene| {
        each(scene.stack, KILLING, async |scene, event| {
            fails(scene, event).await.with_context(|| event.to_string())
        })
        .await
    })
}

async fn fails(scene: &Scene<'_>, event: NodeEvent) -> Outcome {
    scene.stack.history.exempt(&scene.namespace);
    let run = three(scene, "pipelineruns", MOVABLE_STORAGE_CLASS)
        .in_pool_with(scene, short_lived())
        .finally("last", &["source"])
        .held("one");
    scene.submit(run).await?;
    let one = running(scene, "one").await?;
    let old = node_of(&one);
    // Tekton must see that the pod has failed before the pod is deleted. Otherwise it may create the pod again: see
    // docs/limits.md. So a finalizer keeps the pod.
    let finalizers = async |finalizers: Value| {
        let patch = Patch::Merge(json!({"metadata": {"finalizers": finalizers}}));
        let pods = scene.api::<Pod>();
        pods.patch(&one.name_any(), &PatchParams::default(), &patch)
            .await
    };
    finalizers(json!(["example.dev/seen"])).await?;
    scene.strike(&old, event).await?;
    // Kubernetes itself decides when the pod fails.
    scene
        .until(&one.name_any(), "has failed", |pod: Option<&Pod>| {
            pod.is_some_and(|pod| pods::phase(pod) == PodPhase::Failed)
        })
        .await?;
    let since = Instant::now();
    let ended = scene.done("three").await?;
    let took = since.elapsed();
    ensure!(took < FAILED, "it took {took:?}");
    let end = condition(&ended).context("it has no condition")?;
    ensure!(end["reason"] == "Failed", "{end}");
    finalizers(Value::Null).await?;
    let nodes = nodes_by_task(scene).await?;
    let later: Vec<_> = nodes.keys().filter(|task| *task != "one").collect();
    assert_eq!(later, ["last"], "{event}");
    ensure!(!nodes["last"].contains(&old), "{event}: {nodes:?}");
    scene.nothing_left_but(&[]).await
}

#[test]
fn n1_tolerant_placeholders_stay_and_none_moves_back() -> Outcome {
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
            scene.at_gate("three").await?;
            nodes.push(scene.placeholder().await?.1);
        }
        let [prefers, bears, moves] = nodes.try_into().unwrap();
        preferring
            .taint(&node_of(&prefers), "PreferNoSchedule")
            .await?;
        bearing.taint(&node_of(&bears), "NoExecute").await?;
        bearing.cordon(&node_of(&bears), true).await?;
        // When this placeholder has moved, the manager has seen the earlier events too.
        moving.cordon(&node_of(&moves), true).await?;
        let moved = moving.moved_from(&node_of(&moves)).await?;
        moving.cordon(&node_of(&moves), false).await?;
        for (scene, stays) in [
            (&preferring, &prefers),
            (&bearing, &bears),
            (&moving, &moved),
        ] {
            scene.open_gate("three").await?;
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
            let old = node_of(&bound(scene, "one", "").await?);
            scene.cordon(&old, true).await?;
            let one = bound(scene, "one", &old).await?;
            let after = scene.moved_from(&old).await?;
            assert_eq!(node(&one), node(&after), "{mode}");
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
            scene.at_gate("three").await?;
            let (_, before) = scene.placeholder().await?;
            let old = node_of(&before);
            scene.cordon(&old, true).await?;
            scene
                .until_all::<Pod>("have a placeholder without a node", |pods| {
                    pods.iter()
                        .any(|pod| is_placeholder(pod) && is_unschedulable(pod))
                })
                .await?;
            scene.open_gate("three").await?;
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
        // The manager counts the first move only if the placeholder is more than two seconds older than its next pod.
        let run = gated(&scene, "pipelineruns", MOVABLE_STORAGE_CLASS).lasting("one", 4);
        scene.submit(run).await?;
        scene.at_gate("three").await?;
        let mut old = node_of(&scene.placeholder().await?.1);
        let since = Instant::now();
        for _ in 0..3 {
            scene.cordon(&old, true).await?;
            let new = node_of(&scene.moved_from(&old).await?);
            scene.cordon(&old, false).await?;
            old = new;
        }
        // The manager waits one second after the first move, and two seconds after the second.
        let pauses = Duration::from_secs(3);
        let took = since.elapsed();
        assert!(took >= pauses && took < pauses + 3 * MOVED, "{took:?}");
        scene.open_gate("three").await?;
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
        scene.at_gate("three").await?;
        let old = node_of(&scene.placeholder().await?.1);
        let services = &scene.stack.services;
        services.kill(Service::PlaceholderManager)?;
        scene.cordon(&old, true).await?;
        services.start_service(Service::PlaceholderManager)?;
        services.wait_ready().await?;
        let new = node_of(&scene.moved_from(&old).await?);
        scene.open_gate("three").await?;
        scene.succeeds("three").await?;
        assert_eq!(nodes_by_task(scene).await?["three"], [new]);
        scene.nothing_left_but(&[]).await
    })
}

/// Makes a node silent: another holder takes the node's Lease and never renews it.
async fn silence(scene: &Scene<'_>, node: &str) -> Outcome {
    let custom = json!({"metadata": {"annotations": {STATUS_ANNOTATION: CUSTOM_STATUS}}});
    let path = format!("/api/v1/nodes/{node}");
    scene.send_to("PATCH", &path, &custom).await?.accepted()?;
    let path = format!("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{node}");
    let taken = json!({"spec": {"holderIdentity": "nobody", "leaseDurationSeconds": 3600}});
    scene.send_to("PATCH", &path, &taken).await?.accepted()?;
    Ok(())
}

#[test]
fn n1_a_node_that_falls_silent_is_left_once_kubernetes_says_so() -> Outcome {
    shared(async |scene| {
        each(scene.stack, MODES, async |scene, mode| {
            let run = gated(scene, mode, MOVABLE_STORAGE_CLASS);
            scene.submit(run).await?;
            scene.at_gate("three").await?;
            let old = node_of(&scene.placeholder().await?.1);
            silence(scene, &old).await?;
            let nodes: Api<Node> = Api::all(scene.client.clone());
            let tainted = await_condition(nodes, &old, |node: Option<&Node>| {
                node.is_some_and(is_tainted)
            });
            tokio::time::timeout(LIMIT, tainted).await??;
            let since = Instant::now();
            let after = scene.moved_from(&old).await?;
            let took = since.elapsed();
            ensure!(took < MOVED, "{mode}: it took {took:?}");
            scene.open_gate("three").await?;
            scene.succeeds("three").await?;
            let nodes = nodes_by_task(scene).await?;
            for task in ["two", "three"] {
                assert_eq!(nodes[task], [node_of(&after)], "{mode}: {task}");
            }
            let told = scene.told("three", "PodEvacuated").await?;
            let unreachable = |(_, message): &(String, String)| message.contains("unreachable");
            ensure!(told.iter().any(unreachable), "{mode}: {told:?}");
            scene.nothing_left_but(&[]).await
        })
        .await
    })
}

/// Lets Pipelines contain Pipelines, and waits until Tekton's webhook accepts this.
async fn allow_nesting(scene: &Scene<'_>, nested: &Value) -> Outcome {
    let flags: Api<ConfigMap> = Api::namespaced(scene.client.clone(), "tekton-pipelines");
    let alpha = Patch::Merge(json!({"data": {"enable-api-fields": "alpha"}}));
    flags
        .patch("feature-flags", &PatchParams::default(), &alpha)
        .await?;
    let dry_run = "tekton.dev/v1/pipelineruns?dryRun=All";
    let taken = async {
        while scene.send("POST", dry_run, nested).await?.code >= 300 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(LEARNS, taken).await?
}

#[test]
fn n1_pods_of_a_pipeline_in_a_pipeline_follow() -> Outcome {
    let config = Config {
        nodes: 1,
        ..Config::default()
    };
    alone(config, async |scene| {
        scene.pool(2).await?;
        for number in [1, 2] {
            scene.untaint(&scene.pool_node(number)).await?;
        }
        let mut run = first(scene, "pipelineruns", MOVABLE_STORAGE_CLASS).into_json();
        run["metadata"]["annotations"] = json!({});
        let task = |name: &str, annotations: &Value, after: &[&str]| {
            json!({"name": name, "runAfter": after, "taskSpec": {
                "metadata": {"annotations": annotations},
                "steps": [{"name": "step", "image": "example/image", "command": ["true"]}],
            }})
        };
        let never = json!({STATUS_ANNOTATION: CUSTOM_STATUS});
        let tasks = [
            task("early", &never, &[]),
            task("late", &json!({}), &["early"]),
        ];
        run["spec"]["pipelineSpec"]["tasks"]
            .as_array_mut()
            .unwrap()
            .push(json!({"name": "inner", "runAfter": ["one"], "pipelineSpec": {"tasks": tasks}}));
        allow_nesting(scene, &run).await?;
        scene
            .send("POST", "tekton.dev/v1/pipelineruns", &run)
            .await?
            .accepted()?;
        let old = node_of(&bound(scene, "early", "").await?);
        scene.cordon(&old, true).await?;
        let early = bound(scene, "early", &old).await?;
        let new = node_of(&scene.moved_from(&old).await?);
        assert_eq!(node_of(&early), new);
        let starts = json!({"metadata": {"annotations": {STATUS_ANNOTATION: null}}});
        let pods = scene.api::<Pod>();
        pods.patch(
            &early.name_any(),
            &PatchParams::default(),
            &Patch::Merge(starts),
        )
        .await?;
        scene.succeeds("three").await?;
        let nodes = nodes_by_task(scene).await?;
        for task in ["early", "late"] {
            assert_eq!(nodes[task], std::slice::from_ref(&new), "{task}");
        }
        let told = scene.told("three", "PodEvacuated").await?;
        let of_early = |(_, message): &(String, String)| message.contains("early");
        ensure!(told.iter().any(of_early), "{told:?}");
        scene.nothing_left_but(&[]).await
    })
}

/// Waits until the pod of a task is bound to another node than `other_than`, and returns this pod.
async fn bound(scene: &Scene<'_>, task: &str, other_than: &str) -> anyhow::Result<Pod> {
    let is_bound = |pod: &Pod| {
        let of = pod.labels().get("tekton.dev/pipelineTask");
        of.is_some_and(|of| of == task) && node(pod).is_some_and(|node| node != other_than)
    };
    let what = format!("have task {task} bound to another node than {other_than:?}");
    let pods = scene
        .until_all::<Pod>(&what, |pods| pods.iter().any(|pod| is_bound(pod)))
        .await?;
    let pod = pods.iter().find(|pod| is_bound(pod));
    Ok(pod.context("it has gone")?.as_ref().clone())
}

#[test]
fn n1_a_placeholder_is_bound_elsewhere_within_seconds_of_the_node_event() -> Outcome {
    let config = Config {
        nodes: 1,
        ..Config::default()
    };
    // The test has a stack of its own, so that no other test slows it down.
    alone(config, async |scene| {
        scene.stack.allow_overrides().await?;
        for event in NodeEvent::ALL {
            let at_gate = MODES.map(|mode| Waiting::at_gate(scene.stack, Some(mode)));
            let waiting = try_join_all(at_gate).await?;
            for (mode, waiting) in MODES.iter().zip(waiting) {
                let took = waiting.moves(event, LIMIT).await?;
                ensure!(
                    took.is_some_and(|took| took < MOVED),
                    "{event}, {mode}: it took {took:?}"
                );
            }
        }
        Ok(())
    })
}

/// Without the class of evacuated placeholders, and without the right to read it, an evacuated placeholder keeps its class.
#[test]
fn n1_n8_an_evacuated_placeholder_gets_the_higher_class_with_component_placeholder_priority()
-> Outcome {
    let component =
        include_str!("../../deploy/components/placeholder-priority/priority-classes.yaml");
    let first_class = component.split("---").next().unwrap();
    shared(async |scene| {
        for (objects, expect) in [(first_class, 1), (component, 2)] {
            scene.stack.bed.apply(objects).await?;
            let scene = scene.stack.scene().await?;
            scene.pool(2).await?;
            let run = run("run")
                .in_mode("pipelineruns")
                .in_pool_with(&scene, json!({"priorityClassName": PLACEHOLDER_CLASS}))
                .task("one", &[], &[])
                .held("one");
            scene.submit(run).await?;
            let (_, placeholder) = scene.placeholder().await?;
            let old = node_of(&placeholder);
            let began = Instant::now();
            scene.cordon(&old, true).await?;
            let moved = scene.moved_from(&old).await?;
            let took = began.elapsed();
            ensure!(took < MOVED, "moved after {took:?}");
            has_priority(&moved, expect)?;
            scene.end("run", "one").await?;
            scene.succeeds("run").await?;
            scene.nothing_left_but(&[]).await?;
        }
        Ok(())
    })
}
