//! Compares our services with Tekton's own affinity assistant on the same runs, for `cargo xtask bench`. Prints figures and
//! checks none of them, because they depend on the machine, and because Tekton's assistant is not part of this project.
#![allow(missing_docs, clippy::print_stdout)]

use std::time::{Duration, Instant};

use anyhow::Context as _;
use coscheduler_kubernetes::pipeline_run::PipelineRun;
use futures::future::try_join_all;
use integration_tests::audit::{Request, end, requests, table};
use integration_tests::costs::{audited, one_claim, ours, two_templates};
use integration_tests::cramped::{gated, stranger, submit};
use integration_tests::look::{LIMIT, is_done, no_placeholder_left};
use integration_tests::nodes::NodeEvent;
use integration_tests::runs::Run;
use integration_tests::sides::Side;
use integration_tests::stack::Stack;
use integration_tests::struck::Waiting;
use integration_tests::{Scene, alone};
use kube::Api;
use kube::runtime::wait::await_condition;
use serde_json::json;
use testbed::{Config, LOCAL_STORAGE_CLASS, MOVABLE_STORAGE_CLASS};
use tokio::runtime::Runtime;

type Outcome = anyhow::Result<()>;

const MODE: &str = "pipelineruns";
/// How often each node event happens, on each side.
const TIMES: usize = 2;
/// The longest time that a measurement waits for a run.
const PATIENCE: Duration = Duration::from_secs(60);

fn main() -> Outcome {
    costs()?;
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

/// Prints the requests to the API server for a run.
fn costs() -> Outcome {
    for (mode, run, claims) in [
        (MODE, two_templates as fn() -> Run, 0),
        ("workspaces", one_claim, 1),
    ] {
        print(
            &format!("{mode}, our services"),
            &ours(mode, run(), claims)?,
        );
        for (flag, of) in [(mode, "with its assistant"), ("disabled", "without")] {
            print(
                &format!("{mode}, Tekton's controller {of}"),
                &Runtime::new()?.block_on(tektons(flag, run()))?,
            );
        }
    }
    Ok(())
}

fn print(title: &str, requests: &[Request]) {
    println!("{title}: {} requests", requests.len());
    for ((verb, object), count) in table(requests) {
        println!("  {count:3} {verb} {object}");
    }
}

/// The requests of Tekton's controller for StatefulSets, pods, claims and nodes during a run, without our services and without
/// watches.
async fn tektons(flag: &str, run: Run) -> anyhow::Result<Vec<Request>> {
    let side = Side::Tekton(flag.to_owned());
    let measured = side.measure(audited(), async |bed, _| {
        bed.create_namespace("measured", &[]).await?;
        let runs: Api<PipelineRun> = Api::namespaced(bed.client(), "measured");
        let mark = end(bed)?;
        run.create(runs.clone()).await?;
        let done = await_condition(runs, "measured", |run: Option<&PipelineRun>| {
            run.is_some_and(is_done)
        });
        tokio::time::timeout(LIMIT, done).await??;
        no_placeholder_left(&bed.client(), "measured").await?;
        requests(bed, mark)
    });
    let mut asked = measured.await?;
    let controller = "system:serviceaccount:tekton-pipelines:tekton-pipelines-controller";
    let about = ["statefulsets", "pods", "persistentvolumeclaims", "nodes"];
    asked.retain(|request| {
        request.user.username == controller
            && request.verb != "watch"
            && about.contains(&request.object.resource.as_str())
    });
    Ok(asked)
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
