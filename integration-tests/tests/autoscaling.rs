//! Runs that an autoscaler can serve (N7): the real Karpenter adds a node for a run whose next task fits no node there is.
#![allow(clippy::unwrap_used, clippy::panic)]

use anyhow::ensure;
use coscheduler_core::quantity::Quantity;
use coscheduler_kubernetes::pipeline_run::PipelineRun;
use futures::future::try_join_all;
use integration_tests::look::{assert_succeeded, is_done};
use integration_tests::runs::{Run, run};
use integration_tests::{Scene, shared_with_overrides};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{ListParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::json;
use testbed::services::ServicesConfig;
use testbed::{Config, MOVABLE_STORAGE_CLASS};

type Outcome = anyhow::Result<()>;

const MODES: [&str; 3] = ["workspaces", "pipelineruns", "isolate-pipelinerun"];

/// On two nodes of two CPUs, with placeholders that reserve room.
fn shared(test: impl AsyncFnOnce(Scene<'static>) -> Outcome) -> Outcome {
    let config = Config {
        nodes: 2,
        node_cpu: "2".to_owned(),
        karpenter: true,
        ..Config::default()
    };
    let reserve = |services: &mut ServicesConfig| {
        services.flags = [("placeholder-reserves".to_owned(), "placement".to_owned())].into();
    };
    shared_with_overrides(config, reserve, test)
}

/// A second task that no node there is takes. With a claim that can follow, or none.
fn growing(name: &str, mode: &str, with_claim: bool) -> Run {
    let (run, uses): (_, &[&str]) = match with_claim {
        true => {
            let run = run(name).template_of_class("source", MOVABLE_STORAGE_CLASS);
            (run, &["source"])
        }
        false => (run(name), &[]),
    };
    run.in_mode(mode)
        .task("one", uses, &[])
        .asking("500m")
        .task("two", uses, &["one"])
        .asking("6")
}

/// The thousandths of CPU of the nodes that Karpenter added.
async fn added(scene: &Scene<'_>) -> anyhow::Result<i128> {
    let nodes = Api::<Node>::all(scene.client.clone());
    let nodes = nodes.list(&ListParams::default()).await?.items.into_iter();
    let cpus = nodes
        .filter(|node| node.labels().contains_key("karpenter.sh/nodepool"))
        .map(|node| {
            let capacity = node.status.unwrap().capacity.unwrap();
            let cpu: Quantity = capacity["cpu"].0.parse().unwrap();
            cpu.nano() / 1_000_000
        });
    Ok(cpus.sum())
}

async fn all_succeed(scene: &Scene<'_>, runs: usize) -> Outcome {
    let done = scene
        .until_all::<PipelineRun>("are done", |all| {
            all.iter().filter(|run| is_done(run)).count() == runs
        })
        .await?;
    done.iter().try_for_each(|run| assert_succeeded(run))
}

/// Pods of no run take half of each node.
async fn fill(scene: &Scene<'_>) -> Outcome {
    for node in ["node-1", "node-2"] {
        let asks = json!({"requests": {"cpu": "1"}});
        let stranger: Pod = serde_json::from_value(json!({
            "metadata": {"name": format!("stranger-{node}")},
            "spec": {
                "nodeName": node,
                "containers": [{"name": "c", "image": "example/image", "resources": asks}],
            },
        }))?;
        let pods = scene.api::<Pod>();
        pods.create(&PostParams::default(), &stranger).await?;
    }
    Ok(())
}

/// The room is gone when the run's next task needs it: the placeholder asks again.
async fn asks_again(scene: &Scene<'_>) -> Outcome {
    fill(scene).await?;
    let run = run("later")
        .in_mode("pipelineruns")
        .template_of_class("source", MOVABLE_STORAGE_CLASS)
        .task("one", &["source"], &[])
        .gate(&["one"])
        .task("two", &["source"], &["gate"])
        .asking("1500m");
    scene.submit(run).await?;
    scene.at_gate("later").await?;
    scene.open_gate("later").await?;
    scene.succeeds("later").await?;
    let told = scene.told("later", "PlaceholderMoved").await?;
    ensure!(told.len() == 1, "{told:?}");
    ensure!(added(scene).await? > 0, "a node was added");
    Ok(())
}

#[test]
fn n7_b3_an_autoscaler_adds_nodes_for_runs_whose_next_task_fits_none() -> Outcome {
    shared(async |scene| {
        asks_again(&scene).await?;
        let before = added(&scene).await?;
        for mode in MODES {
            for with_claim in [true, false] {
                let name = format!("{mode}-{with_claim}");
                scene.submit(growing(&name, mode, with_claim)).await?;
                scene.succeeds(&name).await?;
            }
        }
        let one_by_one = added(&scene).await? - before;
        ensure!(one_by_one > 0, "a node was added");
        let runs = (0..12).map(|number| {
            let mode = MODES[number % 3];
            growing(&format!("run-{number}"), mode, number % 2 == 0)
        });
        try_join_all(runs.map(|run| scene.submit(run))).await?;
        all_succeed(&scene, 19).await?;
        let at_once = added(&scene).await? - before - one_by_one;
        println!(
            "CPU added, in thousandths: {one_by_one} for 6 runs one by one, {at_once} for 12 at once"
        );
        scene.nothing_left_but(&[]).await
    })
}
