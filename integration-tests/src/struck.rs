//! Runs that wait between two tasks while an event happens to their placeholder's node. Also measures the time until the
//! placeholder is bound to another node.

use std::time::{Duration, Instant};

use coscheduler_kubernetes::pipeline_run::PipelineRun;
use kube::api::DeleteParams;
use serde_json::json;
use testbed::MOVABLE_STORAGE_CLASS;

use crate::Scene;
use crate::look::node;
use crate::nodes::NodeEvent;
use crate::runs::{Run, run};
use crate::stack::Stack;

/// The name of the run that [`first`] and [`gated`] build.
pub const RUN: &str = "three";

/// A run on the scene's pool with task one, which uses a claim of this storage class. The caller adds tasks two and three.
pub fn first(scene: &Scene<'_>, mode: &str, class: &str) -> Run {
    run(RUN)
        .in_mode(mode)
        .in_pool_of(scene)
        .template_of_class("source", class)
        .task("one", &["source"], &[])
}

/// As [`first`], with a gate after task one, and tasks two and three after the gate.
pub fn gated(scene: &Scene<'_>, mode: &str, class: &str) -> Run {
    first(scene, mode, class)
        .gate(&["one"])
        .task("two", &["source"], &["gate"])
        .task("three", &["source"], &["two"])
}

/// A run at its gate, on two nodes of its own.
pub struct Waiting<'a> {
    /// The scene of the run.
    pub scene: Scene<'a>,
    /// The node of the run's placeholder.
    pub node: String,
}

impl<'a> Waiting<'a> {
    /// Brings a run to its gate. The run chooses `mode`, or no mode if `mode` is `None`.
    ///
    /// # Errors
    ///
    /// The run does not reach its gate.
    pub async fn at_gate(stack: &'a Stack, mode: Option<&str>) -> anyhow::Result<Self> {
        let scene = stack.scene().await?;
        scene.pool(2).await?;
        let run = gated(&scene, mode.unwrap_or_default(), MOVABLE_STORAGE_CLASS);
        scene
            .submit(match mode {
                Some(_) => run,
                None => run.metadata("annotations", json!({})),
            })
            .await?;
        scene.at_gate(RUN).await?;
        let (_, placeholder) = scene.placeholder().await?;
        let node = node(&placeholder).unwrap_or_default().to_owned();
        Ok(Self { scene, node })
    }

    /// Makes the event happen to the placeholder's node. Returns the time until the placeholder is bound to another node; `None`
    /// if this takes longer than `limit`. Then deletes the run.
    ///
    /// # Errors
    ///
    /// The API server refuses a request.
    pub async fn moves(
        &self,
        event: NodeEvent,
        limit: Duration,
    ) -> anyhow::Result<Option<Duration>> {
        let since = Instant::now();
        self.scene.strike(&self.node, event).await?;
        let moved = tokio::time::timeout(limit, self.scene.moved_from(&self.node)).await;
        let took = since.elapsed();
        let runs = self.scene.api::<PipelineRun>();
        runs.delete(RUN, &DeleteParams::background()).await?;
        match moved {
            Ok(moved) => moved.map(|_| Some(took)),
            Err(_) => Ok(None),
        }
    }
}
