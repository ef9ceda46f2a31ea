//! Runs whose next pod has no room on the placeholder's node. The pool has two nodes, and only the second one has room.

use anyhow::{Context as _, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::PostParams;
use serde_json::json;

use crate::Scene;
use crate::look::{is_placeholder, node};
use crate::runs::{Run, run};

/// A run named `run`: task one with a claim of this storage class, and a gate after it.
pub fn gated(scene: &Scene<'_>, mode: &str, class: &str) -> Run {
    run("run")
        .in_mode(mode)
        .in_pool_of(scene)
        .template_of_class("source", class)
        .task("one", &["source"], &[])
        .gate(&["one"])
}

/// Creates two nodes with these CPUs and maximum numbers of pods, submits a run, and waits until the run is at its gate. The
/// second node is cordoned until the placeholder is bound to the first node.
///
/// # Errors
///
/// The run does not reach its gate, or its placeholder is on another node.
pub async fn submit(scene: &Scene<'_>, sizes: [(&str, u32); 2], run: Run) -> anyhow::Result<()> {
    scene.pool_of(&sizes).await?;
    scene.cordon(&scene.pool_node(2), true).await?;
    scene.submit(run).await?;
    scene.at_gate("run").await?;
    let (_, placeholder) = scene.placeholder().await?;
    ensure!(node(&placeholder) == Some(scene.pool_node(1).as_str()));
    scene.cordon(&scene.pool_node(2), false).await
}

/// Waits until the pod of a task is unschedulable, and returns this pod.
///
/// # Errors
///
/// No such pod appears in time. The error describes the namespace.
pub async fn waits(scene: &Scene<'_>) -> anyhow::Result<Pod> {
    let waits =
        |pod: &Pod| !is_placeholder(pod) && coscheduler_kubernetes::pods::is_unschedulable(pod);
    let pods = scene
        .until_all::<Pod>("have a task that waits", |pods| {
            pods.iter().any(|pod| waits(pod))
        })
        .await?;
    let pod = pods.iter().find(|pod| waits(pod));
    Ok(pod.context("it has gone")?.as_ref().clone())
}

/// Creates a pod of no run on a node. Its name is `stranger-` and the node's name.
///
/// # Errors
///
/// The API server refuses the pod.
pub async fn stranger(scene: &Scene<'_>, node: &str, cpu: &str) -> anyhow::Result<()> {
    let pods = scene.api::<Pod>();
    let stranger = stranger_on(node, cpu)?;
    pods.create(&PostParams::default(), &stranger).await?;
    Ok(())
}

/// The pod that [`stranger`] creates.
///
/// # Errors
///
/// None: this pod is always valid.
pub fn stranger_on(node: &str, cpu: &str) -> anyhow::Result<Pod> {
    let asks = json!({"requests": {"cpu": cpu}});
    let stranger = json!({
        "metadata": {"name": format!("stranger-{node}")},
        "spec": {
            "nodeName": node,
            "containers": [{"name": "c", "image": "example/image", "resources": asks}],
        },
    });
    Ok(serde_json::from_value(stranger)?)
}
