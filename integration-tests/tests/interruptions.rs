//! Services that are killed during the steps of a placeholder that reserves room (N5, B3).
#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::Arc;

use anyhow::Context as _;
use coscheduler_kubernetes::needs::asks;
use coscheduler_kubernetes::pods::is_unschedulable;
use futures::future::try_join_all;
use integration_tests::cramped::stranger;
use integration_tests::look::{is_placeholder, node};
use integration_tests::refusing::Refusal;
use integration_tests::runs::{Run, run};
use integration_tests::{Scene, alone};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use testbed::services::Service;
use testbed::{Config, MOVABLE_STORAGE_CLASS};

type Outcome = anyhow::Result<()>;

/// A CEL expression that is false for a resize of a placeholder that is not bound.
const SIZING: &str = "!variables.resizes || has(object.spec.nodeName)";
/// A CEL expression that is false for a change that removes a scheduling gate.
const OPENING: &str = "!has(oldObject.spec.schedulingGates) || has(object.spec.schedulingGates)";
/// A CEL expression that is false for a resize of a bound placeholder, which gives room up.
const HAND_OVER: &str = "!variables.resizes || !has(object.spec.nodeName)";

/// A step of the manager. The test prevents the end of the step until the services have been killed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    /// The placeholder has its gate, and the requests of its template.
    Sizing,
    /// The placeholder has its gate, and requests the room of the run.
    Gate,
    /// The placeholder waits for a node.
    Waiting,
    /// The placeholder is bound, and still requests the room of the run.
    HandOver,
    /// The placeholder has left its node, and has a gate again.
    Move,
}

const STEPS: [Step; 5] = [
    Step::Sizing,
    Step::Gate,
    Step::Waiting,
    Step::HandOver,
    Step::Move,
];

/// A run with a task of one CPU, and then two tasks that request three CPUs together.
fn three(scene: &Scene<'_>) -> Run {
    run("run")
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
async fn begin(scene: &Scene<'_>, step: Step) -> Outcome {
    match step {
        Step::Sizing => {
            scene.pool_of(&[("8", 110)]).await?;
            scene.refuse(Refusal::TooLarge, SIZING).await?;
            scene.submit(three(scene)).await?;
            until(scene, "are gated", |pod| is_gated(pod) && !holds(pod)).await?;
        }
        Step::Gate => {
            scene.pool_of(&[("8", 110)]).await?;
            scene.refuse(Refusal::TooLarge, OPENING).await?;
            scene.submit(three(scene)).await?;
            until(scene, "are gated and sized", |pod| {
                is_gated(pod) && holds(pod)
            })
            .await?;
            scene.told("run", "AdmissionDenied").await?;
        }
        Step::Waiting => {
            scene.pool_of(&[("8", 110)]).await?;
            scene.cordon(&scene.pool_node(1), true).await?;
            scene.submit(three(scene)).await?;
            until(scene, "wait", |pod| is_unschedulable(pod) && holds(pod)).await?;
        }
        Step::HandOver => {
            scene.pool_of(&[("8", 110)]).await?;
            scene.refuse(Refusal::TooLarge, HAND_OVER).await?;
            scene.submit(three(scene)).await?;
            until(scene, "hold room", |pod| node(pod).is_some() && holds(pod)).await?;
        }
        Step::Move => {
            scene.pool_of(&[("4", 110), ("8", 110)]).await?;
            scene.cordon(&scene.pool_node(2), true).await?;
            scene.submit(three(scene)).await?;
            let settled = |pod: &Pod| node(pod).is_some() && !holds(pod);
            let first = until(scene, "gave their room up", settled).await?;
            // After task one, less than two CPUs are free on this node, too little for task two.
            stranger(scene, &scene.pool_node(1), "2").await?;
            scene.cordon(&scene.pool_node(2), false).await?;
            scene.refuse(Refusal::TooLarge, OPENING).await?;
            scene.end("run", "one").await?;
            let left = |pod: &Pod| is_gated(pod) && pod.uid() != first.uid();
            until(scene, "have left their node", left).await?;
        }
    }
    Ok(())
}

/// Lets the manager end the step.
async fn release(scene: &Scene<'_>, step: Step) -> Outcome {
    match step {
        Step::Waiting => scene.cordon(&scene.pool_node(1), false).await,
        Step::Sizing | Step::Gate | Step::HandOver | Step::Move => scene.refuse_no_more().await,
    }
}

/// Checks that the run continues on the expected node and succeeds, and that nothing is left.
async fn ends_well(scene: &Scene<'_>, step: Step) -> Outcome {
    let open = |pod: &Pod| node(pod).is_some() && !is_gated(pod) && !holds(pod);
    let placeholder = until(scene, "are bound and hold no room", open).await?;
    let expected = scene.pool_node(if step == Step::Move { 2 } else { 1 });
    anyhow::ensure!(
        node(&placeholder) == Some(expected.as_str()),
        "{:?}",
        node(&placeholder)
    );
    if step != Step::Move {
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
        let alone = Service::ALL.iter().map(std::slice::from_ref);
        for killed in std::iter::once(&Service::ALL[..]).chain(alone) {
            let scenes = try_join_all(STEPS.map(|_| stack.scene())).await?;
            let scenes: Vec<_> = scenes.into_iter().zip(STEPS).collect();
            let about = |step: &Step| format!("{step:?}, killed: {killed:?}");
            try_join_all(
                scenes.iter().map(async |(scene, step)| {
                    begin(scene, *step).await.with_context(|| about(step))
                }),
            )
            .await?;
            for service in killed {
                stack.services.kill(*service)?;
            }
            try_join_all(scenes.iter().map(|(scene, step)| release(scene, *step))).await?;
            for service in killed {
                stack.services.start_service(*service)?;
            }
            try_join_all(scenes.iter().map(async |(scene, step)| {
                ends_well(scene, *step).await.with_context(|| about(step))
            }))
            .await?;
        }
        Ok(())
    })
}
