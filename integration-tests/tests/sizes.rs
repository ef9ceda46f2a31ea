//! Compares the requests that admission pins with the requests of the pods that Tekton and the API server create.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::time::Duration;

use coscheduler_core::sizes::Sizes;
use coscheduler_kubernetes::needs::requests;
use coscheduler_kubernetes::pipeline_run::PipelineRun;
use integration_tests::look::LIMIT;
use integration_tests::runs::{Run, run};
use integration_tests::{Scene, alone};
use k8s_openapi::api::core::v1::{ConfigMap, LimitRange, Pod};
use k8s_openapi::api::node::v1::RuntimeClass;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use testbed::Config;

type Outcome = anyhow::Result<()>;

const PIPELINE_RUNS: &str = "tekton.dev/v1/pipelineruns";

fn step(name: &str, resources: Value) -> Value {
    json!({"name": name, "image": "example/image", "command": ["true"], "computeResources": resources})
}

fn asks(cpu: &str, memory: &str) -> Value {
    json!({"requests": {"cpu": cpu, "memory": memory}})
}

/// A task with three steps: one with requests, one with only a limit, and one with neither. It has a sidecar of each kind too.
fn mixed() -> Value {
    let limit = json!({"limits": {"memory": "128Mi"}});
    json!({
        "steps": [step("asks", asks("110m", "70Mi")), step("limited", limit.clone()), step("silent", json!({}))],
        "sidecars": [step("db", asks("90m", "20Mi")), step("limited", limit), step("silent", json!({}))],
    })
}

fn templated() -> Value {
    let mut task = mixed();
    task["stepTemplate"] =
        json!({"computeResources": {"requests": {"cpu": "30m"}, "limits": {"memory": "256Mi"}}});
    task
}

fn tasks() -> Value {
    let three = json!({"steps": [step("a", json!({})), step("b", json!({})), step("c", asks("15m", "15Mi"))]});
    let action =
        json!({"name": "action", "ref": {"name": "act"}, "computeResources": asks("60m", "60Mi")});
    json!([
        {"name": "mixed", "taskSpec": mixed()},
        {"name": "templated", "taskSpec": templated()},
        {"name": "overridden", "taskSpec": templated()},
        {"name": "level", "taskSpec": three},
        {"name": "level-limits", "taskSpec": three},
        {"name": "named", "taskRef": {"name": "build"}},
        {"name": "action", "taskSpec": {"steps": [action, step("silent", json!({}))]}},
        {"name": "overhead", "taskSpec": three},
        {"name": "matrix", "taskSpec": {"params": [{"name": "p"}], "steps": [step("a", asks("40m", "10Mi"))]},
         "matrix": {"params": [{"name": "p", "value": ["x", "y"]}]}},
    ])
}

fn task_run_specs() -> Value {
    json!([
        {"pipelineTaskName": "overridden",
         "stepSpecs": [{"name": "asks", "computeResources": {"requests": {"cpu": "210m"}}}],
         "sidecarSpecs": [{"name": "silent", "computeResources": asks("11m", "12Mi")}]},
        {"pipelineTaskName": "level", "computeResources": {"requests": {"cpu": "100m", "memory": "100"}, "limits": {"memory": "1Gi"}}},
        {"pipelineTaskName": "level-limits", "computeResources": {"limits": {"cpu": "300m"}}},
        {"pipelineTaskName": "overhead", "podTemplate": {"runtimeClassName": "heavy"}},
    ])
}

/// A run with each kind of task, embedded.
fn embedded() -> Run {
    run("embedded")
        .spec("pipelineSpec", json!({"tasks": tasks()}))
        .spec("taskRunSpecs", task_run_specs())
}

/// A run with the same tasks in a Pipeline.
fn by_name() -> Run {
    let mut object = run("by-name")
        .spec("taskRunSpecs", task_run_specs())
        .into_json();
    object["spec"]
        .as_object_mut()
        .unwrap()
        .remove("pipelineSpec");
    object["spec"]["pipelineRef"] = json!({"name": "all"});
    Run::from_json(object)
}

fn probe(name: &str) -> Run {
    let one = json!({"name": "one", "taskSpec": {"steps": [step("silent", json!({}))]}});
    run(name).spec("pipelineSpec", json!({"tasks": [one]}))
}

/// Creates the Task, the StepAction and the Pipeline.
async fn prepare(scene: &Scene<'_>) -> Outcome {
    for (resource, kind, name, spec) in [
        ("tekton.dev/v1/tasks", "Task", "build", templated()),
        (
            "tekton.dev/v1/pipelines",
            "Pipeline",
            "all",
            json!({"tasks": tasks()}),
        ),
        (
            "tekton.dev/v1beta1/stepactions",
            "StepAction",
            "act",
            json!({"image": "example/image", "command": ["true"]}),
        ),
    ] {
        let version = resource.rsplit_once('/').unwrap().0;
        let object =
            json!({"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec});
        scene.send("POST", resource, &object).await?.accepted()?;
    }
    Ok(())
}

fn pinned(annotations: &std::collections::BTreeMap<String, String>) -> Sizes {
    Sizes::read(annotations).unwrap()
}

/// Waits until the webhook pins the requests `expect` for a step without requests, and until Tekton creates a pod with these
/// requests.
async fn settled(scene: &Scene<'_>, expect: &str) -> Outcome {
    let ours = async {
        loop {
            let resource = format!("{PIPELINE_RUNS}?dryRun=All");
            let mut knows = true;
            for asked in [probe("probe"), by_name(), embedded()] {
                let answer = scene
                    .send("POST", &resource, &asked.into_json())
                    .await?
                    .accepted()?;
                let stored: PipelineRun = serde_json::from_value(answer.object)?;
                let sizes = pinned(stored.annotations());
                let one = sizes.0.get("one").and_then(|one| one.requests.as_ref());
                knows &= one.is_none_or(|one| one.to_string() == expect);
                knows &=
                    !sizes.0.is_empty() && sizes.0.values().all(|task| task.requests.is_some());
            }
            if knows {
                return anyhow::Ok(());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(LIMIT, ours).await??;
    for attempt in 0..50 {
        let name = format!("probe-{attempt}");
        scene.submit(probe(&name)).await?;
        let pods = pods(scene, &name, 1).await?;
        if requests(&pods[0]).to_string() == expect {
            return Ok(());
        }
    }
    panic!("Tekton never made a pod that requests {expect:?}")
}

/// Waits until a run has `count` task pods, and returns them.
async fn pods(scene: &Scene<'_>, run: &str, count: usize) -> anyhow::Result<Vec<Pod>> {
    let of_task = |pod: &&std::sync::Arc<Pod>| {
        let labels = pod.labels();
        labels.contains_key("tekton.dev/pipelineTask")
            && labels
                .get("tekton.dev/pipelineRun")
                .is_some_and(|of| of == run)
    };
    let all = scene
        .until_all::<Pod>(&format!("have {count} of {run}"), |pods| {
            pods.iter().filter(of_task).count() == count
        })
        .await?;
    Ok(all
        .iter()
        .filter(of_task)
        .map(|pod| Pod::clone(pod))
        .collect())
}

/// Creates both runs, and compares the requests of each pod with the pinned requests of its task.
async fn check(scene: &Scene<'_>) -> Outcome {
    for asked in [embedded(), by_name()] {
        let name = asked.name().to_owned();
        let stored = scene.submit(asked).await?;
        let sizes = pinned(stored.annotations());
        let count: u32 = sizes.0.values().map(|task| task.pods).sum();
        assert_eq!((sizes.0.len(), count), (9, 10));
        for pod in pods(scene, &name, 10).await? {
            let task = &pod.labels()["tekton.dev/pipelineTask"];
            let expect = sizes.0[task].requests.as_ref().unwrap();
            assert_eq!(
                requests(&pod).to_string(),
                expect.to_string(),
                "{name}: {task}"
            );
        }
    }
    Ok(())
}

/// Checks that tasks with `when`, and tasks with a node selector of their own, have no pinned requests.
async fn left_out(scene: &Scene<'_>) -> Outcome {
    let tasks: Vec<_> = ["plain", "conditional", "choosy"]
        .map(|name| json!({"name": name, "taskSpec": {"steps": [step("a", asks("40m", "10Mi"))]}}))
        .into();
    let mut tasks = json!(tasks);
    tasks[1]["when"] = json!([{"input": "a", "operator": "in", "values": ["b"]}]);
    let choosy =
        json!([{"pipelineTaskName": "choosy", "podTemplate": {"nodeSelector": {"disk": "ssd"}}}]);
    let asked = run("left-out")
        .spec("pipelineSpec", json!({"tasks": tasks}))
        .spec("taskRunSpecs", choosy);
    let resource = format!("{PIPELINE_RUNS}?dryRun=All");
    let answer = scene.send("POST", &resource, &asked.into_json()).await?;
    let stored: PipelineRun = serde_json::from_value(answer.accepted()?.object)?;
    let sizes = pinned(stored.annotations());
    let known: Vec<_> = sizes
        .0
        .iter()
        .filter(|(_, task)| task.requests.is_some())
        .collect();
    assert!(
        matches!(known[..], [(name, _)] if name == "plain"),
        "{sizes:?}"
    );
    Ok(())
}

#[test]
fn b3_the_pinned_requests_are_those_of_the_pods_that_follow() -> Outcome {
    alone(Config::default(), async |scene| {
        let class: RuntimeClass = serde_json::from_value(json!({
            "metadata": {"name": "heavy"}, "handler": "heavy", "overhead": {"podFixed": {"cpu": "25m", "memory": "5Mi"}},
        }))?;
        let classes = Api::<RuntimeClass>::all(scene.client.clone());
        classes.create(&PostParams::default(), &class).await?;
        prepare(scene).await?;
        settled(scene, "").await?;
        check(scene).await?;
        left_out(scene).await?;

        let limited = scene.stack.scene().await?;
        let range: LimitRange = serde_json::from_value(json!({
            "metadata": {"name": "range"},
            "spec": {"limits": [{"type": "Container", "defaultRequest": {"cpu": "100m", "memory": "64Mi"}, "min": {"cpu": "10m"}}]},
        }))?;
        limited
            .api::<LimitRange>()
            .create(&PostParams::default(), &range)
            .await?;
        prepare(&limited).await?;
        settled(&limited, "cpu 100m, memory 64Mi").await?;
        check(&limited).await?;

        let configured = scene.stack.scene().await?;
        let defaults = "{default: {requests: {cpu: 20m, memory: 32Mi}}, prepare: {requests: {cpu: 120m, memory: 40Mi}}, \
                        prefix-sidecar: {limits: {memory: 48Mi}}}";
        let maps = Api::<ConfigMap>::namespaced(scene.client.clone(), "tekton-pipelines");
        let patch =
            Patch::Merge(json!({"data": {"default-container-resource-requirements": defaults}}));
        maps.patch("config-defaults", &PatchParams::default(), &patch)
            .await?;
        prepare(&configured).await?;
        settled(&configured, "cpu 120m, memory 40Mi").await?;
        check(&configured).await
    })
}
