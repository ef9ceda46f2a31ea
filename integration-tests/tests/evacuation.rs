//! Nodes that begin to turn pods away while runs are on them (N1). Each case has two nodes of its own, which its pods come to
//! by node selector, so that it takes nobody else's from under them.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)]

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use coscheduler_kubernetes::pipeline_run::PipelineRun;
use futures::future::try_join_all;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use integration_tests::look::{is_placeholder, node};
use integration_tests::nodes::NodeEvent;
use integration_tests::runs::{Run, run};
use integration_tests::stack::Stack;
use integration_tests::{Scene, alone, shared_with_overrides};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
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
    let config = Config {
        nodes: 1,
        audit_log: true,
        ..Config::default()
    };
    shared_with_overrides(config, |_| {}, test)
}

/// Tasks one, two and three on one claim of this storage class.
fn three(scene: &Scene<'_>, mode: &str, class: &str) -> Run {
    first(scene, mode, class)
        .task("two", &["source"], &["one"])
        .task("three", &["source"], &["two"])
}

/// As [`three`], with a task without a pod behind task one, at which it waits.
fn gated(scene: &Scene<'_>, mode: &str, class: &str) -> Run {
    first(scene, mode, class)
        .gate(&["one"])
        .task("two", &["source"], &["gate"])
        .task("three", &["source"], &["two"])
}

fn first(scene: &Scene<'_>, mode: &str, class: &str) -> Run {
    run("three")
        .in_mode(mode)
        .in_pool_of(scene)
        .template_of_class("source", class)
        .task("one", &["source"], &[])
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
            check(&scene, case).await?;
            // Of the nodes that are not ready, Kubernetes evicts from one every ten seconds: nobody is to wait for these.
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
    let since = Instant::now();
    scene.strike(&old, event).await?;
    let after = scene.moved_from(&old).await?;
    println!(
        "{event}, {mode}: bound elsewhere after {:?}",
        since.elapsed()
    );
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

/// What kills the tasks on a node sooner or later.
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

async fn killed(scene: &Scene<'_>, event: NodeEvent, mode: &str) -> Outcome {
    // Kubernetes gives pods five minutes on a node that is not ready unless they say otherwise.
    let shortly = json!({"tolerations": [{
        "key": "node.kubernetes.io/not-ready",
        "operator": "Exists",
        "effect": "NoExecute",
        "tolerationSeconds": 1,
    }]});
    let run = three(scene, mode, MOVABLE_STORAGE_CLASS)
        .in_pool_with(scene, shortly)
        .held("one");
    let mut run = run.into_json();
    run["spec"]["pipelineSpec"]["tasks"][0]["retries"] = 1.into();
    scene
        .send("POST", "tekton.dev/v1/pipelineruns", &run)
        .await?
        .accepted()?;
    let first = running(scene, "one").await?;
    let old = node_of(&first);
    // Kubernetes itself deletes what runs there: after a NoExecute taint at once, after a deletion within a minute.
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
    scene.end("three", "one").await?;
    scene.succeeds("three").await?;
    let mut nodes = nodes_by_task(scene).await?;
    // Tekton may have made two pods for the one that was killed, see docs/limits.md.
    nodes.entry("one".to_owned()).or_default().dedup();
    for task in ["one", "two", "three"] {
        assert_eq!(nodes[task], [node_of(&after)], "{event}, {mode}: {task}");
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
            scene.at_gate("three").await?;
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
        let run = gated(&scene, "pipelineruns", MOVABLE_STORAGE_CLASS);
        scene.submit(run).await?;
        scene.at_gate("three").await?;
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

/// Lets nobody hear of a node any more: its Lease is somebody else's, who never renews it.
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
            let since = Instant::now();
            silence(scene, &old).await?;
            let after = scene.moved_from(&old).await?;
            println!("{mode}: bound elsewhere after {:?}", since.elapsed());
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

/// Lets pipelines be in pipelines, and waits until that is so.
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
    tokio::time::timeout(PATIENCE, taken).await?
}

#[test]
fn n1_pods_of_a_pipeline_in_a_pipeline_follow() -> Outcome {
    let config = Config {
        nodes: 1,
        ..Config::default()
    };
    alone(config, async |scene| {
        scene.pool(2).await?;
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

/// Waits until a task's pod is bound to another node than that, and answers it.
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

/// How often each case is measured. `TIMES=20` takes seven minutes.
fn times() -> anyhow::Result<usize> {
    match std::env::var("TIMES") {
        Ok(times) => times.parse().context("TIMES is no number"),
        Err(_) => Ok(2),
    }
}

/// Runs at their gates, as often as each case is measured in each of `modes`; in the one of Tekton's own flag where they do
/// not choose one.
async fn measured<'a>(
    stack: &'a Stack,
    event: NodeEvent,
    modes: &[&'static str],
    chosen: bool,
) -> anyhow::Result<Vec<(&'static str, Measured<'a>)>> {
    let times = times()?;
    let cases = modes.iter().flat_map(|mode| vec![*mode; times]);
    stream::iter(cases)
        .map(async |mode| {
            let scene = stack.scene().await?;
            scene.pool(2).await?;
            let mut run = gated(&scene, mode, MOVABLE_STORAGE_CLASS).into_json();
            if !chosen {
                run["metadata"]["annotations"] = json!({});
            }
            scene
                .send("POST", "tekton.dev/v1/pipelineruns", &run)
                .await?
                .accepted()?;
            scene.at_gate("three").await?;
            let old = node_of(&scene.placeholder().await?.1);
            Ok((mode, Measured { scene, event, old }))
        })
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await
}

/// A run at its gate, the node of its placeholder, and what is to happen to that.
struct Measured<'a> {
    scene: Scene<'a>,
    event: NodeEvent,
    old: String,
}

impl Measured<'_> {
    /// Seconds from the node event until a placeholder is bound to another node; infinitely many where none is.
    async fn seconds(&self) -> anyhow::Result<f64> {
        let Self { scene, event, old } = self;
        let since = Instant::now();
        scene.strike(old, *event).await?;
        let moved = tokio::time::timeout(PATIENCE, scene.moved_from(old)).await;
        let seconds = since.elapsed().as_secs_f64();
        let runs = scene.api::<PipelineRun>();
        runs.delete("three", &DeleteParams::background()).await?;
        match moved {
            Ok(moved) => moved.map(|_| seconds),
            Err(_) => Ok(f64::INFINITY),
        }
    }
}

fn print(event: NodeEvent, mode: &str, mut seconds: Vec<f64>) {
    seconds.sort_by(f64::total_cmp);
    let (p50, worst) = (seconds[seconds.len() / 2], seconds[seconds.len() - 1]);
    let count = seconds.len();
    let stayed = seconds
        .iter()
        .filter(|seconds| seconds.is_infinite())
        .count();
    println!(
        "{event}, {mode}: p50 {p50:.2} s, worst {worst:.2} s of {count}, {stayed} not within {PATIENCE:?}"
    );
}

#[test]
fn n1_seconds_until_a_placeholder_is_bound_elsewhere() -> Outcome {
    let config = Config {
        nodes: 1,
        ..Config::default()
    };
    // On a stack of its own, so that no other test is in the way.
    alone(config, async |scene| {
        scene.stack.allow_overrides().await?;
        for event in NodeEvent::ALL {
            let mut of_modes = BTreeMap::<_, Vec<_>>::new();
            for (mode, case) in measured(scene.stack, event, &MODES, true).await? {
                let seconds = case.seconds().await?;
                ensure!(seconds.is_finite(), "{event}, {mode}: not moved");
                of_modes.entry(mode).or_default().push(seconds);
            }
            for (mode, seconds) in of_modes {
                print(event, mode, seconds);
            }
        }
        Ok(())
    })
}

#[test]
fn n1_the_same_with_tektons_built_in_assistant() -> Outcome {
    // Each of them takes minutes.
    let modes = match std::env::var("TIMES") {
        Ok(_) => &MODES[..],
        Err(_) => &["pipelineruns"],
    };
    for mode in modes {
        let config = Config {
            nodes: 1,
            tekton_coschedule: (*mode).to_owned(),
            ..Config::default()
        };
        alone(config, async |scene| {
            let mut cases = Vec::new();
            for event in NodeEvent::ALL {
                cases.extend(measured(scene.stack, event, &[mode], false).await?);
            }
            // Most of them wait for nothing.
            let seconds = cases.iter().map(async |(_, case)| case.seconds().await);
            let seconds = try_join_all(seconds).await?;
            let mut of_events = HashMap::<_, Vec<_>>::new();
            for ((_, case), seconds) in cases.iter().zip(seconds) {
                of_events.entry(case.event).or_default().push(seconds);
            }
            for (event, seconds) in of_events {
                print(event, &format!("Tekton's {mode}"), seconds);
            }
            Ok(())
        })?;
    }
    Ok(())
}
