//! Runs with tasks for two architectures (B1). Two nodes of the bed are amd64, and the other two are arm64 with a taint that
//! only the tasks for arm64 tolerate.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};

use coscheduler_kubernetes::pipeline_run::PipelineRun;
use integration_tests::look::{is_placeholder, node};
use integration_tests::runs::{Run, run};
use integration_tests::{Scene, alone_with};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use testbed::services::ServicesConfig;
use testbed::{Config, MOVABLE_STORAGE_CLASS};

type Outcome = anyhow::Result<()>;

const ARM64: [&str; 2] = ["node-2", "node-4"];

/// Runs a test on nodes of two architectures. A run may choose any mode.
fn on_two_architectures(test: impl AsyncFnOnce(&Scene<'_>) -> Outcome) -> Outcome {
    let config = Config {
        nodes: 4,
        ..Config::default()
    };
    let change = |services: &mut ServicesConfig| {
        services.mode = Some("pipelineruns".to_owned());
        let allowed = "workspaces, isolate-pipelinerun";
        services
            .flags
            .extend([("allowed-overrides".to_owned(), allowed.to_owned())]);
    };
    alone_with(config, change, async |scene| {
        let nodes: Api<Node> = Api::all(scene.client.clone());
        let arm64 = Patch::Merge(json!({
            "metadata": {"labels": {"kubernetes.io/arch": "arm64"}},
            "spec": {"taints": [{"key": "arch", "value": "arm64", "effect": "NoSchedule"}]},
        }));
        for name in ARM64 {
            nodes.patch(name, &PatchParams::default(), &arm64).await?;
        }
        test(scene).await
    })
}

/// An item of `taskRunSpecs`: the task runs on a node of this architecture.
fn on(task: &str, arch: &str) -> Value {
    let mut template = json!({"nodeSelector": {"kubernetes.io/arch": arch}});
    if arch == "arm64" {
        template["tolerations"] = json!([{"key": "arch", "operator": "Equal", "value": "arm64"}]);
    }
    json!({"pipelineTaskName": task, "podTemplate": template})
}

/// The nodes on which the pods of these tasks ran.
fn nodes_of(pods: &[Pod], run: &str, tasks: &[&str]) -> BTreeSet<String> {
    let labels = |pod: &Pod, key: &str| pod.labels().get(key).cloned().unwrap_or_default();
    let own = pods.iter().filter(|pod| {
        let task = labels(pod, "tekton.dev/pipelineTask");
        labels(pod, "tekton.dev/pipelineRun") == run && tasks.contains(&task.as_str())
    });
    own.map(|pod| node(pod).unwrap().to_owned()).collect()
}

fn is_arm64(nodes: &BTreeSet<String>) -> bool {
    nodes.iter().all(|node| ARM64.contains(&node.as_str()))
}

fn build(mode: &str) -> Run {
    // The tasks for arm64, which tolerate the taint, come first in the list. Tasks without a node selector do not tolerate it.
    let specs = [
        on("build-arm", "arm64"),
        on("test-arm", "arm64"),
        on("lint-arm", "arm64"),
        on("build-amd", "amd64"),
        on("test-amd", "amd64"),
    ];
    run(mode)
        .in_mode(mode)
        .template("amd")
        .template("arm")
        .spec("taskRunSpecs", json!(specs))
        .task("start", &[], &[])
        .task("build-amd", &["amd"], &["start"])
        .held("build-amd")
        .task("build-arm", &["arm"], &["start"])
        .held("build-arm")
        .task("lint-arm", &[], &["start"])
        .task("test-amd", &["amd"], &["build-amd"])
        .task("test-arm", &["arm"], &["build-arm"])
        .task("manifest", &[], &["test-amd", "test-arm"])
}

/// Each volume is tied to one node. So a placeholder on a node of the wrong architecture would block its tasks for ever.
#[test]
fn b1_tasks_of_two_architectures_run_at_the_same_time_each_architecture_on_one_node() -> Outcome {
    on_two_architectures(async |scene| {
        for mode in ["pipelineruns", "isolate-pipelinerun", "workspaces"] {
            scene.submit(build(mode)).await?;
            // Both builds run at the same time.
            scene
                .until_all::<Pod>("have both builds on nodes", |pods| {
                    let builds = ["build-amd", "build-arm"];
                    let bound = pods.iter().filter(|pod| node(pod).is_some());
                    let bound: Vec<Pod> = bound.map(|pod| Pod::clone(pod)).collect();
                    let on = |task: &&str| !nodes_of(&bound, mode, &[task]).is_empty();
                    builds.iter().all(on)
                })
                .await?;
            for task in ["build-amd", "build-arm"] {
                scene.end(mode, task).await?;
            }
            scene.succeeds(mode).await?;
            let pods = scene.objects().await?.task_pods;
            let amd = nodes_of(&pods, mode, &["build-amd", "test-amd"]);
            let arm = nodes_of(&pods, mode, &["build-arm", "test-arm"]);
            assert_eq!((amd.len(), arm.len()), (1, 1), "{mode}: {amd:?} {arm:?}");
            assert!(is_arm64(&arm) && !is_arm64(&amd), "{mode}: {amd:?} {arm:?}");
            if mode != "workspaces" {
                // A task without claims runs on the node of the other tasks of its architecture. Tasks without an architecture
                // run on the node of the first architecture, here amd64.
                assert_eq!(nodes_of(&pods, mode, &["lint-arm"]), arm, "{mode}");
                assert_eq!(nodes_of(&pods, mode, &["start", "manifest"]), amd, "{mode}");
                scene.nothing_left_but(&[]).await?;
            }
        }
        Ok(())
    })
}

/// Only one node at a time can use the claim, so the placeholder moves for each task. It may move more than five times, because
/// the count of its moves begins anew whenever a pod of the run ends.
#[test]
fn b1_n2_tasks_of_two_architectures_that_share_a_claim_take_turns_as_often_as_they_need() -> Outcome
{
    on_two_architectures(async |scene| {
        let names: Vec<String> = (0..8).map(|number| format!("task-{number}")).collect();
        let arch = |number: usize| {
            if number.is_multiple_of(2) {
                "amd64"
            } else {
                "arm64"
            }
        };
        let specs: Vec<_> = (names.iter().enumerate())
            .map(|(number, name)| on(name, arch(number)))
            .collect();
        // Task `lint` uses no claim, so it has a placeholder of its own.
        let lint = [on("lint", "arm64")];
        let specs: Vec<_> = specs.into_iter().chain(lint).collect();
        let mut turns = run("turns")
            .template_of_class("source", MOVABLE_STORAGE_CLASS)
            .spec("taskRunSpecs", json!(specs))
            .task("lint", &[], &[]);
        for (number, name) in names.iter().enumerate() {
            let before: Vec<_> = number
                .checked_sub(1)
                .map(|it| names[it].as_str())
                .into_iter()
                .collect();
            turns = turns.task(name, &["source"], &before);
        }
        let created: PipelineRun = scene.submit(turns).await?;
        scene.succeeds(&created.name_any()).await?;
        let pods = scene.objects().await?.task_pods;
        let on: BTreeMap<_, _> = (names.iter().enumerate())
            .map(|(number, name)| (number, is_arm64(&nodes_of(&pods, "turns", &[name]))))
            .collect();
        for (number, is_arm64) in on {
            assert_eq!(is_arm64, arch(number) == "arm64", "{number}");
        }
        scene.nothing_left_but(&[]).await
    })
}

/// With one free node of each architecture, two runs could each hold the node that the other needs.
#[test]
fn m4_b1_isolated_runs_of_two_architectures_take_their_nodes_in_the_same_order() -> Outcome {
    on_two_architectures(async |scene| {
        let nodes: Vec<String> = (1..=4).map(|number| format!("node-{number}")).collect();
        for name in &nodes {
            scene.cordon(name, true).await?;
        }
        let names: Vec<String> = (0..4).map(|number| format!("run-{number}")).collect();
        for (number, name) in names.iter().enumerate() {
            let mut specs = [on("amd", "amd64"), on("arm", "arm64")];
            if number.is_multiple_of(2) {
                specs.reverse();
            }
            let isolated = run(name)
                .in_mode("isolate-pipelinerun")
                .spec("taskRunSpecs", json!(specs))
                .task("amd", &[], &[])
                .task("arm", &[], &[]);
            scene.submit(isolated).await?;
        }
        scene
            .until_all::<Pod>("have a placeholder of each run", |pods| {
                pods.iter().filter(|pod| is_placeholder(pod)).count() >= names.len()
            })
            .await?;
        for name in &nodes[..2] {
            scene.cordon(name, false).await?;
        }
        for name in &names {
            scene.succeeds(name).await?;
        }
        scene.nothing_left_but(&[]).await
    })
}
