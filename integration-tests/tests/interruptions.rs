//! Services that are killed during the steps of a placeholder that reserves room (N5, B3).
#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::Arc;

use anyhow::Context as _;
use coscheduler_core::config::Reserves;
use coscheduler_kubernetes::needs::asks;
use coscheduler_kubernetes::pods::is_unschedulable;
use futures::future::try_join_all;
use integration_tests::cramped::stranger;
use integration_tests::look::{is_placeholder, node};
use integration_tests::refusing::Refusal;
use integration_tests::runs::{Run, run};
use integration_tests::sets::only_pods;
use integration_tests::stack::Stack;
use integration_tests::{Scene, alone};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use testbed::services::Service;
use testbed::{Config, MOVABLE_STORAGE_CLASS};

type Outcome = anyhow::Result<()>;

const MODES: [&str; 3] = ["workspaces", "pipelineruns", "isolate-pipelinerun"];

/// A CEL expression that is false for a resize of a placeholder that is not bound.
const SIZING: &str = "!variables.resizes || has(object.spec.nodeName)";
/// A CEL expression that is false for a change that removes a scheduling gate.
const OPENING: &str = "variables.creates || !has(oldObject.spec.schedulingGates) || \
                       has(object.spec.schedulingGates)";
/// A CEL expression that is false for a resize of a placeholder without a gate. Such a resize gives room up. If the scheduler
/// could not bind the placeholder at first, the manager may give room up before the placeholder is bound.
const HAND_OVER: &str = "!variables.resizes || has(object.spec.schedulingGates)";
/// A CEL expression that is false for the creation of a placeholder's pod.
const CREATION: &str = "!variables.creates || request.kind.kind != 'Pod' || \
                        !object.metadata.name.startsWith('affinity-assistant-')";
/// A CEL expression that is false for the creation of a StatefulSet.
const SUCCESSION: &str = "!variables.creates || request.kind.kind != 'StatefulSet'";
/// A CEL expression that is false for a change after which a StatefulSet has a replica.
const START: &str =
    "variables.creates || request.kind.kind != 'StatefulSet' || object.spec.replicas == 0";

/// A step of the manager. The test prevents the end of the step until the services have been killed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    /// The placeholder, which will be a pod without a StatefulSet, does not exist yet.
    Creation,
    /// The placeholder has its gate, and the requests of its template.
    Sizing,
    /// The placeholder has its gate, and requests the room of the run.
    Gate,
    /// The placeholder waits for a node.
    Waiting,
    /// The placeholder is bound, and still requests the room of the run.
    HandOver,
    /// As [`Self::HandOver`], with `placeholder-reserves: peak`: the first task has no room yet.
    Peak,
    /// The placeholder, which is a pod without a StatefulSet, must leave its node, but has no StatefulSet yet.
    Succession,
    /// The placeholder's first pod is gone, and its StatefulSet has no replicas yet.
    Start,
    /// The placeholder has left its node, and has a gate again.
    Move,
}

/// The steps of the manager. The first pod of a placeholder without a StatefulSet has its room and no gate from the beginning.
fn steps() -> Vec<Step> {
    let own: &[_] = if only_pods() {
        &[Step::Creation, Step::Succession, Step::Start]
    } else {
        &[Step::Sizing, Step::Gate]
    };
    [
        own,
        &[Step::Waiting, Step::HandOver, Step::Peak, Step::Move],
    ]
    .concat()
}

impl Step {
    /// True if the placeholder leaves the first node of the pool.
    fn moves(self) -> bool {
        matches!(self, Self::Succession | Self::Start | Self::Move)
    }
}

/// A run with a task of one CPU, and then two tasks that request three CPUs together. All tasks use the same claim, so each mode
/// gives them one placeholder.
fn three(scene: &Scene<'_>, mode: &str) -> Run {
    run("run")
        .in_mode(mode)
        .in_pool_of(scene)
        .template_of_class("source", MOVABLE_STORAGE_CLASS)
        .task("one", &["source"], &[])
        .asking("1")
        .held("one")
        .task("two", &["source"], &["one"])
        .asking("2")
        .held("two")
        .task("three", &["source"], &["one"])
        .asking("1")
}

fn is_gated(pod: &Pod) -> bool {
    let gates = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.scheduling_gates.as_ref());
    gates.is_some_and(|gates| !gates.is_empty())
}

/// True if the placeholder requests more CPU than for itself.
fn holds(pod: &Pod) -> bool {
    asks(pod).milli_cpu > 50
}

async fn until(
    scene: &Scene<'_>,
    what: &str,
    is: impl Fn(&Pod) -> bool,
) -> anyhow::Result<Arc<Pod>> {
    let is = |pod: &Arc<Pod>| is_placeholder(pod) && is(pod);
    let pods = scene
        .until_all::<Pod>(what, |pods| pods.iter().any(is))
        .await?;
    pods.into_iter().find(is).context("it is gone")
}

/// Brings a run to the step.
async fn begin(scene: &Scene<'_>, step: Step, mode: &str) -> Outcome {
    match step {
        Step::Creation => {
            two_nodes(scene).await?;
            scene.refuse(Refusal::TooLarge, CREATION).await?;
            scene.submit(three(scene, mode)).await?;
            scene.told("run", "AdmissionDenied").await?;
        }
        Step::Sizing => {
            two_nodes(scene).await?;
            scene.refuse(Refusal::TooLarge, SIZING).await?;
            scene.submit(three(scene, mode)).await?;
            until(scene, "are gated", |pod| is_gated(pod) && !holds(pod)).await?;
            scene.told("run", "AdmissionDenied").await?;
        }
        Step::Gate => {
            two_nodes(scene).await?;
            scene.refuse(Refusal::TooLarge, OPENING).await?;
            scene.submit(three(scene, mode)).await?;
            until(scene, "are gated and sized", |pod| {
                is_gated(pod) && holds(pod)
            })
            .await?;
            scene.told("run", "AdmissionDenied").await?;
        }
        Step::Waiting => {
            two_nodes(scene).await?;
            scene.cordon(&scene.pool_node(1), true).await?;
            scene.submit(three(scene, mode)).await?;
            until(scene, "wait", |pod| is_unschedulable(pod) && holds(pod)).await?;
        }
        Step::HandOver => {
            scene.pool_of(&[("8", 110)]).await?;
            scene.refuse(Refusal::TooLarge, HAND_OVER).await?;
            scene.submit(three(scene, mode)).await?;
            until(scene, "hold room", |pod| node(pod).is_some() && holds(pod)).await?;
        }
        Step::Peak => {
            // Of the 3.5 CPUs, the placeholder requests three, so it must give room up before task one can be bound.
            scene.pool_of(&[("3500m", 110)]).await?;
            scene.refuse(Refusal::TooLarge, HAND_OVER).await?;
            let run = three(scene, mode).reserving(Reserves::Peak);
            scene.submit(run).await?;
            until(scene, "hold room", |pod| node(pod).is_some() && holds(pod)).await?;
            scene
                .until_all::<Pod>("wait for this room", |pods| {
                    pods.iter()
                        .any(|pod| !is_placeholder(pod) && is_unschedulable(pod))
                })
                .await?;
        }
        Step::Succession => {
            must_leave(scene, mode, SUCCESSION).await?;
            scene.told("run", "AdmissionDenied").await?;
        }
        Step::Start => {
            must_leave(scene, mode, START).await?;
            let left = |pods: &[Arc<Pod>]| !pods.iter().any(|pod| is_placeholder(pod));
            scene.until_all::<Pod>("leave their node", left).await?;
            scene
                .until_all::<StatefulSet>("exist", |sets| !sets.is_empty())
                .await?;
        }
        Step::Move => {
            let first = must_leave(scene, mode, OPENING).await?;
            let left = |pod: &Pod| is_gated(pod) && pod.uid() != first.uid();
            until(scene, "have left their node", left).await?;
        }
    }
    Ok(())
}

/// Creates two nodes. Only the first one has room for the whole run and its placeholder. The second node is emptier, so the
/// scheduler prefers it for a placeholder that has lost its reservation. The second node has room for task one. Otherwise, the
/// placeholder would have a preferred node affinity to the first node. The second node has no room for task two: a waiting
/// placeholder requests at least as much as task two, and must not fit there.
async fn two_nodes(scene: &Scene<'_>) -> Outcome {
    scene.pool_of(&[("8", 110), ("1500m", 110)]).await?;
    stranger(scene, &scene.pool_node(1), "3").await
}

/// Checks that the step has not ended yet.
async fn is_at(scene: &Scene<'_>, step: Step) -> Outcome {
    let pods = scene.objects().await?.placeholders;
    let is = match (step, pods.as_slice()) {
        (Step::Creation | Step::Start, pods) => pods.is_empty(),
        (Step::Sizing, [pod]) => is_gated(pod) && !holds(pod),
        (Step::Gate | Step::Move, [pod]) => is_gated(pod),
        (Step::Waiting, [pod]) => is_unschedulable(pod) && holds(pod),
        (Step::HandOver | Step::Peak, [pod]) => node(pod).is_some() && holds(pod),
        (Step::Succession, [pod]) => node(pod) == Some(&scene.pool_node(1)),
        _ => false,
    };
    anyhow::ensure!(is, "the step has ended: {pods:?}");
    Ok(())
}

/// Makes a placeholder leave its node for the second node of the pool, while the API server refuses all changes for which the CEL
/// expression `allowed` is false. Returns the placeholder's pod on the first node.
async fn must_leave(scene: &Scene<'_>, mode: &str, allowed: &str) -> anyhow::Result<Arc<Pod>> {
    scene.pool_of(&[("4", 110), ("8", 110)]).await?;
    scene.cordon(&scene.pool_node(2), true).await?;
    scene.submit(three(scene, mode)).await?;
    let settled = |pod: &Pod| node(pod).is_some() && !holds(pod);
    let first = until(scene, "gave their room up", settled).await?;
    // After task one, less than two CPUs are free on this node, too little for task two.
    stranger(scene, &scene.pool_node(1), "2").await?;
    scene.cordon(&scene.pool_node(2), false).await?;
    scene.refuse(Refusal::TooLarge, allowed).await?;
    scene.end("run", "one").await?;
    Ok(first)
}

/// Lets the manager end the step.
async fn release(scene: &Scene<'_>, step: Step) -> Outcome {
    match step {
        Step::Waiting => scene.cordon(&scene.pool_node(1), false).await,
        _ => scene.refuse_no_more().await,
    }
}

/// Checks that the run continues on the expected node and succeeds, and that nothing is left.
async fn ends_well(scene: &Scene<'_>, step: Step) -> Outcome {
    if step == Step::Peak {
        // The placeholder holds the rest of the run's room until tasks two and three need it.
        scene.end("run", "one").await?;
    }
    let expected = scene.pool_node(if step.moves() { 2 } else { 1 });
    let is_there = |pod: &Pod| node(pod) == Some(expected.as_str());
    let open = |pod: &Pod| is_there(pod) && !is_gated(pod) && !holds(pod);
    until(scene, "are on the right node and hold no room", open).await?;
    if !step.moves() && step != Step::Peak {
        scene.end("run", "one").await?;
    }
    scene.end("run", "two").await?;
    scene.succeeds("run").await?;
    scene.nothing_left_but(&[]).await
}

#[test]
fn n5_b3_services_killed_in_the_middle_of_sizing_gate_hand_over_and_move_lose_nothing() -> Outcome {
    let config = Config {
        nodes: 1,
        ..Config::default()
    };
    alone(config, async |first| {
        let stack = first.stack;
        stack.allow_overrides().await?;
        kill_each(stack).await
    })
}

/// Brings a run to each step, kills services, and checks that each run continues. First kills all services, and then each one.
async fn kill_each(stack: &Stack) -> Outcome {
    let alone = Service::ALL.iter().map(std::slice::from_ref);
    for (round, killed) in std::iter::once(&Service::ALL[..]).chain(alone).enumerate() {
        // In six rounds, each step has each of the three modes twice.
        let modes = MODES.into_iter().cycle().skip(round);
        let scenes = try_join_all(steps().iter().map(|_| stack.scene())).await?;
        let scenes: Vec<_> = scenes
            .into_iter()
            .zip(steps().into_iter().zip(modes))
            .map(|(scene, (step, mode))| (scene, step, mode))
            .collect();
        let about = |step: &Step, mode: &str| format!("{step:?}, {mode}, killed: {killed:?}");
        // The manager gives a reservation up after ten seconds of refused resizes, so these scenes begin last.
        let (brief, others): (Vec<_>, Vec<_>) = scenes
            .iter()
            .partition(|(_, step, _)| matches!(step, Step::HandOver | Step::Peak));
        for group in [&others, &brief] {
            try_join_all(group.iter().map(async |(scene, step, mode)| {
                let begun = begin(scene, *step, mode).await;
                begun.with_context(|| about(step, mode))
            }))
            .await?;
        }
        for (scene, step, mode) in &scenes {
            let reached = is_at(scene, *step).await;
            reached.with_context(|| about(step, mode))?;
        }
        for service in killed {
            stack.services.kill(*service)?;
        }
        try_join_all(scenes.iter().map(|(scene, step, _)| release(scene, *step))).await?;
        for service in killed {
            stack.services.start_service(*service)?;
        }
        try_join_all(scenes.iter().map(async |(scene, step, mode)| {
            let ended = ends_well(scene, *step).await;
            ended.with_context(|| about(step, mode))
        }))
        .await?;
    }
    Ok(())
}
