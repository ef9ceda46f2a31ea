//! Pipelines in Pipelines, an alpha feature of Tekton. Tekton creates a child PipelineRun for such a task. The child has no
//! placeholder of its own, but uses the placeholder of its parent. This placeholder stays until the pods of the child have
//! ended.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::time::Duration;

use anyhow::Context as _;
use coscheduler_core::annotations::{GROUP, MODE, PART_OF, PINNED, TEKTON_AFFINITY_ASSISTANT};
use coscheduler_kubernetes::pipeline_run::PipelineRun;
use integration_tests::look::node;
use integration_tests::runs::{Run, run};
use integration_tests::sets::resource;
use integration_tests::{Scene, shared_with_overrides};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use testbed::services::Service;
use testbed::{Config, MOVABLE_STORAGE_CLASS, Releases};
use tokio::sync::OnceCell;

type Outcome = anyhow::Result<()>;

/// Runs a test on the shared stack, after Tekton accepts Pipelines in Pipelines.
fn nested(test: impl AsyncFnOnce(Scene<'static>) -> Outcome) -> Outcome {
    static ALPHA: OnceCell<()> = OnceCell::const_new();
    let config = Config {
        audit_log: true,
        ..Config::default()
    };
    shared_with_overrides(
        config,
        |_| {},
        async |scene| {
            let enable = async || {
                let flags: Api<ConfigMap> =
                    Api::namespaced(scene.client.clone(), "tekton-pipelines");
                let patch = Patch::Merge(json!({"data": {"enable-api-fields": "alpha"}}));
                flags
                    .patch("feature-flags", &PatchParams::default(), &patch)
                    .await?;
                let probe = parent("probe", &json!([task("only", 1)])).into_json();
                let taken = async {
                    while scene
                        .send("POST", "tekton.dev/v1/pipelineruns?dryRun=All", &probe)
                        .await?
                        .code
                        >= 300
                    {
                        tokio::time::sleep(Duration::from_millis(100)).await;
                    }
                    anyhow::Ok(())
                };
                tokio::time::timeout(Duration::from_secs(60), taken).await?
            };
            ALPHA.get_or_try_init(enable).await?;
            test(scene).await
        },
    )
}

fn task(name: &str, seconds: u32) -> Value {
    json!({"name": name, "taskSpec": {
        "metadata": {"annotations": {testbed::DURATION_ANNOTATION: format!("{seconds}s")}},
        "steps": [{"name": "step", "image": "example/image", "command": ["true"]}],
    }})
}

/// A run with a task of its own, and with a task that is a Pipeline of these tasks.
fn parent(name: &str, tasks: &Value) -> Run {
    let mut object = run(name)
        .template("source")
        .task("own", &["source"], &[])
        .into_json();
    object["spec"]["pipelineSpec"]["tasks"]
        .as_array_mut()
        .unwrap()
        .push(json!({"name": "inner", "pipelineSpec": {"tasks": tasks}}));
    let spec = object["spec"].clone();
    run(name)
        .spec("pipelineSpec", spec["pipelineSpec"].clone())
        .spec("workspaces", spec["workspaces"].clone())
}

#[test]
fn m3_pipelines_in_a_pipeline_run_on_its_node_and_leave_nothing_of_their_own() -> Outcome {
    nested(async |scene| {
        let custom =
            json!({"name": "custom", "taskRef": {"apiVersion": "example.dev/v1", "kind": "Wait"}});
        let deep = json!({"name": "deep", "pipelineSpec": {"tasks": [task("deepest", 2)]}});
        let mut late = task("late", 1);
        late["runAfter"] = json!(["early"]);
        let tasks = json!([task("early", 2), late, custom, deep]);
        let created = scene.submit(parent("whole", &tasks)).await?;
        let assistant = created.annotations()[TEKTON_AFFINITY_ASSISTANT].clone();
        let (set, placeholder) = scene.placeholder().await?;
        assert_eq!(set.name_any(), assistant);

        // The CustomRun of a child run has this annotation, and no other annotation of ours. This test acts as the controller
        // of the CustomRun.
        let custom_runs = "tekton.dev/v1beta1/customruns";
        let found = async {
            loop {
                let list = scene
                    .send("GET", custom_runs, &Value::Null)
                    .await?
                    .accepted()?;
                if let Some(item) = list.object["items"].get(0) {
                    return anyhow::Ok(item["metadata"].clone());
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        let found = tokio::time::timeout(Duration::from_secs(60), found).await??;
        let carried: Vec<_> = PINNED
            .into_iter()
            .filter_map(|key| Some((key, found["annotations"][key].as_str()?)))
            .collect();
        assert_eq!(carried, [(TEKTON_AFFINITY_ASSISTANT, assistant.as_str())]);
        let name = found["name"].as_str().unwrap();
        let succeeded = json!({"status": {"conditions": [{
            "type": "Succeeded", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z",
        }]}});
        scene
            .send("PATCH", &format!("{custom_runs}/{name}/status"), &succeeded)
            .await?
            .accepted()?;

        scene.succeeds("whole").await?;
        let runs = scene
            .api::<PipelineRun>()
            .list(&ListParams::default())
            .await?
            .items;
        assert_eq!(runs.len(), 3, "the run, its part, and that one's");
        for part in runs.iter().filter(|run| run.name_any() != "whole") {
            let annotations = part.annotations();
            let parent = &part.owner_references()[0].name;
            assert_eq!(annotations[PART_OF], *parent);
            for key in [MODE, GROUP, TEKTON_AFFINITY_ASSISTANT] {
                assert_eq!(annotations[key], created.annotations()[key], "{key}");
            }
        }
        let pods = scene.objects().await?.task_pods;
        assert_eq!(pods.len(), 4);
        for pod in &pods {
            assert_eq!(node(pod), node(&placeholder), "{}", pod.name_any());
            assert!(
                pod.spec.as_ref().unwrap().affinity.is_some(),
                "{}",
                pod.name_any()
            );
        }
        // According to the audit log, the manager created only one placeholder in this namespace.
        let written = scene.requests_since(integration_tests::audit::Mark::default())?;
        let sets: Vec<_> = written
            .iter()
            .filter(|request| request.is_by(Service::PlaceholderManager))
            .filter(|request| request.verb == "create" && request.object.resource == resource())
            .filter(|request| request.object.namespace == scene.namespace)
            .collect();
        assert_eq!(sets.len(), 1, "{sets:?}");
        scene.nothing_left_but(&[]).await
    })
}

#[test]
fn m1_m3_pods_of_parts_that_use_the_runs_claim_are_on_its_placeholders_node() -> Outcome {
    nested(async |scene| {
        let [_, tekton] = Releases::chosen()?.versions()?;
        if tekton.starts_with("v1.12.") {
            // This release gives child runs no workspaces.
            return Ok(());
        }
        let lent = |workspace: &str| json!([{"name": "lent", "workspace": workspace}]);
        let using = |name: &str, workspace: &str| {
            let mut task = task(name, 2);
            task["workspaces"] = lent(workspace);
            task["taskSpec"]["workspaces"] = json!([{"name": "lent"}]);
            task
        };
        let part = |name: &str, workspace: &str, tasks: Value| {
            let pipeline = json!({"workspaces": [{"name": "lent"}], "tasks": tasks});
            json!({"name": name, "workspaces": lent(workspace), "pipelineSpec": pipeline})
        };
        let deep = part("deep", "lent", json!([using("deepest", "lent")]));
        let inner = part("inner", "source", json!([using("early", "lent"), deep]));
        let tasks = json!([using("own", "source"), inner]);
        for mode in ["workspaces", "pipelineruns", "isolate-pipelinerun"] {
            // Every node reaches this volume, so only the affinity keeps the pods together.
            let lending = run(mode)
                .in_mode(mode)
                .template_of_class("source", MOVABLE_STORAGE_CLASS)
                .into_json();
            let mut pipeline = lending["spec"]["pipelineSpec"].clone();
            pipeline["tasks"] = tasks.clone();
            let lending = Run::from_json(lending).spec("pipelineSpec", pipeline);
            scene.submit(lending).await?;
            let (_, placeholder) = scene.placeholder().await?;
            scene.succeeds(mode).await?;
            let pods = scene.objects().await?.task_pods;
            assert_eq!(pods.len(), 3, "{mode}");
            for pod in &pods {
                let name = pod.name_any();
                assert_eq!(node(pod), node(&placeholder), "{mode}: {name}");
                let spec = pod.spec.as_ref().unwrap();
                assert!(spec.affinity.is_some(), "{mode}: {name}");
            }
            scene.nothing_left_but(&[]).await?;
            let delete = DeleteParams::foreground();
            scene.api::<PipelineRun>().delete(mode, &delete).await?;
            scene
                .until_all::<Pod>("are gone", |pods| pods.is_empty())
                .await?;
        }
        Ok(())
    })
}

#[test]
fn p6_the_placeholder_stays_until_the_pods_of_the_parts_have_ended() -> Outcome {
    nested(async |scene| {
        scene
            .submit(parent("parent", &json!([task("slow", 15)])))
            .await?;
        let running = |pod: &Pod, task: &str| {
            pod.labels()
                .get("tekton.dev/pipelineTask")
                .is_some_and(|name| name == task)
                && node(pod).is_some()
        };
        scene
            .until_all::<Pod>(
                "have the part's running and the parent's own ended",
                |pods| {
                    let ended = |pod: &Pod| {
                        coscheduler_kubernetes::pods::phase(pod)
                            == coscheduler_core::observed::PodPhase::Succeeded
                    };
                    pods.iter().any(|pod| running(pod, "slow"))
                        && pods.iter().any(|pod| running(pod, "own") && ended(pod))
                },
            )
            .await?;
        // When Tekton ends the run early, it does not wait for the child runs.
        let failed = json!({"status": {"conditions": [{
            "type": "Succeeded", "status": "False", "reason": "GivenUp", "message": "by the test",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }]}});
        scene
            .send("PATCH", "tekton.dev/v1/pipelineruns/parent/status", &failed)
            .await?
            .accepted()?;
        scene.until_sets("are gone", |sets| sets.is_empty()).await?;
        let pods = scene.objects().await?.task_pods;
        let slow = pods
            .iter()
            .find(|pod| running(pod, "slow"))
            .context("the part's pod is gone")?;
        let phase = slow
            .status
            .as_ref()
            .and_then(|status| status.phase.as_deref());
        assert_eq!(
            phase,
            Some("Succeeded"),
            "the placeholder went before the pod had ended"
        );
        scene.nothing_left_but(&[]).await
    })
}
