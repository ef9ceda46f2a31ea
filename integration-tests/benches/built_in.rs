//! Compares our services with Tekton's own affinity assistant when the node of a run is lost or full, for `cargo xtask bench`.
//! Prints times and checks none of them, because they depend on the machine, and because Tekton's assistant is not part of this
//! project. `cargo xtask bench compare` measures runs on healthy nodes.
#![allow(missing_docs, clippy::print_stdout)]

use std::time::{Duration, Instant};

use anyhow::Context as _;
use futures::future::try_join_all;
use integration_tests::cramped::{gated, stranger, submit};
use integration_tests::nodes::NodeEvent;
use integration_tests::stack::Stack;
use integration_tests::struck::Waiting;
use integration_tests::{Scene, alone};
use serde_json::json;
use testbed::{Config, LOCAL_STORAGE_CLASS, MOVABLE_STORAGE_CLASS};

type Outcome = anyhow::Result<()>;

const MODE: &str = "pipelineruns";
/// How often each node event happens, on each side.
const TIMES: usize = 2;
/// The longest time that a measurement waits for a run.
const PATIENCE: Duration = Duration::from_secs(60);

fn main() -> Outcome {
    for tekton in [false, true] {
        // If Tekton's own flag is set, our services leave each run to Tekton.
        let config = Config {
            nodes: 1,
            tekton_coschedule: if tekton { MODE } else { "disabled" }.to_owned(),
            ..Config::default()
        };
        let of = if tekton {
            "Tekton's assistant"
        } else {
            "our services"
        };
        alone(config, async |scene| {
            moves(scene.stack, of).await?;
            contention(scene.stack, of).await
        })?;
    }
    Ok(())
}

/// Prints the times from a node event until the placeholder is bound elsewhere. All runs are measured at the same time, because
/// most placeholders of Tekton's assistant never move.
async fn moves(stack: &Stack, of: &str) -> Outcome {
    let each = NodeEvent::ALL.map(async |event| {
        let waiting = (0..TIMES).map(|_| Waiting::at_gate(stack, None));
        let waiting = try_join_all(waiting).await?;
        let took = waiting.iter().map(|run| run.moves(event, PATIENCE));
        let took = try_join_all(took).await?;
        let moved: Vec<_> = took.iter().flatten().collect();
        println!(
            "{event}, {of}: bound elsewhere after {moved:.2?}, {} of {TIMES} not within {PATIENCE:?}",
            TIMES - moved.len()
        );
        anyhow::Ok(())
    });
    try_join_all(each).await.map(drop)
}

/// A reason why the next pod has no room on its placeholder's node.
#[derive(Clone, Copy, Debug)]
enum Contention {
    NodeTooSmall,
    PodLimit,
    TaskWithoutVolumes,
}

impl Contention {
    /// Submits the run, and returns when its second task is about to find no room.
    async fn begin(self, scene: &Scene<'_>) -> Outcome {
        let run = |class| gated(scene, MODE, class).metadata("annotations", json!({}));
        match self {
            Self::NodeTooSmall => {
                let run = run(MOVABLE_STORAGE_CLASS)
                    .task("two", &["source"], &["gate"])
                    .asking("4");
                submit(scene, [("2", 110), ("8", 110)], run).await
            }
            Self::PodLimit => {
                let run = run(MOVABLE_STORAGE_CLASS).task("two", &["source"], &["gate"]);
                submit(scene, [("8", 2), ("8", 2)], run).await?;
                stranger(scene, &scene.pool_node(1), "0").await
            }
            Self::TaskWithoutVolumes => {
                let run = run(LOCAL_STORAGE_CLASS)
                    .task("two", &[], &["gate"])
                    .asking("4");
                submit(scene, [("2", 110), ("8", 110)], run).await
            }
        }
    }
}

/// Prints the time from the opening of the gate until the run has succeeded.
async fn contention(stack: &Stack, of: &str) -> Outcome {
    use Contention::{NodeTooSmall, PodLimit, TaskWithoutVolumes};
    let cases = [NodeTooSmall, PodLimit, TaskWithoutVolumes].map(async |case| {
        let scene = stack.scene().await?;
        case.begin(&scene).await?;
        scene.open_gate("run").await?;
        let since = Instant::now();
        match tokio::time::timeout(PATIENCE, scene.succeeds("run")).await {
            Ok(succeeded) => {
                succeeded.with_context(|| format!("{case:?}, {of}"))?;
                println!("{case:?}, {of}: succeeded after {:.1?}", since.elapsed());
            }
            Err(_) => println!("{case:?}, {of}: still waits after {PATIENCE:?}"),
        }
        anyhow::Ok(())
    });
    try_join_all(cases).await.map(drop)
}
