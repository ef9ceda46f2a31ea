//! Subcommands `explain` and `events` of the kubectl plugin: the cause for which a run waits, and the Events about the run.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use coscheduler_core::event_texts::{ReasonCode, Severity};
use coscheduler_kubernetes::pipeline_run::PipelineRun;
use coscheduler_kubernetes::pods;
use coscheduler_proto::placeholder::ExplainRequest;
use coscheduler_proto::placeholder::placeholder_service_client::PlaceholderServiceClient;
use futures::future::try_join_all;
use integration_tests::look::{self, is_done, is_placeholder};
use integration_tests::plugin::{PASSING, explain, explanation, grant, plugin, with_rights};
use integration_tests::runs::{Run, run};
use integration_tests::sets::only_pods;
use integration_tests::{Scene, grpc, shared_with_overrides};
use k8s_openapi::api::core::v1::{Pod, ResourceQuota};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use serde_json::{Value, json};
use testbed::services::{OPERATOR, Service};
use testbed::{
    CUSTOM_STATUS, Config, LOCAL_STORAGE_CLASS, MOVABLE_STORAGE_CLASS, STATUS_ANNOTATION,
};

type Outcome = anyhow::Result<()>;

/// Runs a test on the stack of this file.
fn shared(test: impl AsyncFnOnce(Scene<'static>) -> Outcome) -> Outcome {
    // More nodes than placeholders, so that an isolated run finds one without a placeholder.
    let config = Config {
        nodes: 12,
        ..Config::default()
    };
    shared_with_overrides(config, |_| (), test)
}

/// A run of one task, which uses a claim.
fn one_task() -> Run {
    run("run")
        .template("source")
        .task("one", &["source"], &[])
        .in_mode("pipelineruns")
}

/// Within this time, `explain` and the Event name the cause (normally 5 s).
const NAMED: Duration = Duration::from_secs(45);

/// The first pod without a node in an answer of `explain`.
fn waiting_pod(found: &Value) -> Option<&str> {
    let mut waiting = found["tasks"].as_array()?.iter();
    let first = waiting.find(|it| it["node"].is_null() && it["pod"].is_string())?;
    first["pod"].as_str()
}

/// Waits until `explain` names this cause of run `run`, with its evidence, and until the Event about it says the same. The
/// kubelet, Tekton and others write the Events about the causes that tekton-coscheduler does not report.
async fn explained(scene: &Scene<'_>, reason: &str) -> Outcome {
    let begin = Instant::now();
    let mut found = Value::Null;
    look::until(&format!("explain names {reason}"), async || {
        found = explanation(scene, "run").await?;
        // The manager may know the cause before Tekton has written the pod's name into the TaskRun.
        let has_pod = !OF_TASK_RUNS.contains(&reason) || waiting_pod(&found).is_some();
        Ok(has_pod && found["cause"]["reason"] == reason)
    })
    .await
    .with_context(|| format!("the last answer: {found}"))?;
    let named = begin.elapsed();
    let code = ReasonCode::read(reason).context("no code")?;
    if code.told().is_some() {
        // The scheduler's message may change, for example when another test adds a node. Each text has an Event of its own.
        let says = |told: &[(String, String)], text: &str| {
            let text = without_cordons(text);
            let mut told = told.iter();
            told.any(|(code, note)| code == reason && without_cordons(note) == text)
        };
        let told = scene.told("run", reason).await?;
        let message = found["cause"]["message"].as_str().unwrap();
        assert!(says(&told, message), "{message}: {told:?}");
        if OF_TASK_RUNS.contains(&reason) {
            // If there is room for only one of two pods, either pod may wait.
            let task_run = waiting_pod(&found).and_then(|pod| pod.strip_suffix("-pod"));
            let task_run = ("TaskRun", task_run.context("no pod waits")?);
            let of_task_run = scene.told_about(task_run, reason).await?;
            let mut told = told.iter().filter(|(code, _)| code == reason);
            let both = told.any(|(_, note)| says(&of_task_run, note));
            assert!(both, "{of_task_run:?}");
        }
        let (services, service) = (&scene.stack.services, Service::PlaceholderManager);
        let channel = grpc::connect(services, service, OPERATOR).await?;
        let mut manager = PlaceholderServiceClient::new(channel);
        let mut answer = None;
        look::until(&format!("the manager names {reason}"), async || {
            let asked = ExplainRequest {
                namespace: scene.namespace.clone(),
                name: "run".to_owned(),
            };
            answer = Some(manager.explain(asked).await?.into_inner());
            let told = scene.told_so_far("run").await?;
            let cause = answer.as_ref().and_then(|it| it.cause.as_ref());
            Ok(cause.is_some_and(|it| it.code == reason && says(&told, &it.message)))
        })
        .await
        .with_context(|| format!("the last answer: {answer:?}"))?;
    }
    let told = begin.elapsed();
    println!("{reason} was named after {named:?}, told after {told:?}");
    ensure!(told < NAMED, "{reason}: {told:?}");
    let cause = &found["cause"];
    let (message, evidence) = (cause["message"].as_str().unwrap(), &cause["evidence"]);
    ensure!(!evidence["value"].as_str().unwrap().is_empty(), "{found}");
    let remedy = REMEDIES.iter().any(|remedy| message.contains(remedy));
    ensure!(remedy, "{message}");
    let mut shown = String::new();
    look::until(&format!("explain shows {reason}"), async || {
        let output = explain(scene, "run", &[]).await?;
        shown = without_cordons(&String::from_utf8(output.stdout)?);
        let told = scene.told_so_far("run").await?;
        let told = told.iter().filter(|(code, _)| code == reason);
        let mut texts = told.map(|(_, note)| note.as_str()).chain([message]);
        let has_text = texts.any(|text| shown.contains(&without_cordons(text)));
        let waits = format!("waits: {reason}");
        Ok(has_text && shown.contains(&waits) && shown.contains("evidence: "))
    })
    .await
    .with_context(|| shown)?;
    let shown = begin.elapsed();
    ensure!(shown < NAMED, "{reason}: shown after {shown:?}");
    Ok(())
}

/// The message without the scheduler's words about cordoned nodes. Other tests cordon nodes of their pools, and this changes
/// the message.
fn without_cordons(message: &str) -> String {
    let cordoned = "node(s) were unschedulable";
    let message = message.replace(&format!(", {cordoned}"), "");
    message.replace(&format!("{cordoned}, "), "")
}

/// The causes for which a pod of a TaskRun waits, and which the manager reports.
const OF_TASK_RUNS: [&str; 8] = [
    "ReferenceMissing",
    "PlaceholderUnschedulable",
    "NoIsolatedNode",
    "WaitsForOwnPods",
    "PodUnschedulable",
    "ClaimMissing",
    "ClaimInUse",
    "VolumeOutOfReach",
];

/// The beginnings of the remedies.
const REMEDIES: [&str; 15] = [
    " remove spec.status",
    "Raise the quota",
    "raise the quota",
    "Change the LimitRange",
    "Change the podTemplate",
    "Create the missing object",
    "An autoscaler may add a node",
    "Wait ",
    "The run continues ",
    "Uncordon ",
    "Add a node",
    "Create the claim",
    "Create the run again",
    "Correct the fault ",
    "Read the kubelet's message",
];

/// Creates an object of API group "" in the scene's namespace.
async fn create(scene: &Scene<'_>, resource: &str, object: &Value) -> Outcome {
    let path = format!("/api/v1/namespaces/{}/{resource}", scene.namespace);
    scene.send_to("POST", &path, object).await?.accepted()?;
    Ok(())
}

async fn quota(scene: &Scene<'_>, hard: Value) -> Outcome {
    let quota = json!({
        "apiVersion": "v1", "kind": "ResourceQuota",
        "metadata": {"name": "tight"}, "spec": {"hard": hard},
    });
    create(scene, "resourcequotas", &quota).await?;
    // Admission reads quotas from a cache, and quotas without a status have no effect.
    look::until("the quota has a status", async || {
        let quota = scene.api::<ResourceQuota>().get("tight").await?;
        Ok(quota.status.is_some_and(|status| status.hard.is_some()))
    })
    .await
}

async fn claim(scene: &Scene<'_>, class: &str, mode: &str) -> Outcome {
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "by-hand"},
        "spec": {
            "accessModes": [mode], "storageClassName": class,
            "resources": {"requests": {"storage": "1Gi"}},
        },
    });
    create(scene, "persistentvolumeclaims", &claim).await
}

/// A run of one task, which uses claim `by-hand`.
fn by_hand() -> Run {
    let source = json!({"persistentVolumeClaim": {"claimName": "by-hand"}});
    let run = run("run").workspace("source", source);
    run.task("one", &["source"], &[]).in_mode("pipelineruns")
}

/// A run whose pod uses claim `by-hand`, which its placeholder does not mount, because the claim's name has a variable.
fn with_unknown_claim() -> Run {
    let mut object = one_task().into_json();
    let task = &mut object["spec"]["pipelineSpec"]["tasks"][0]["taskSpec"];
    task["params"] = json!([{"name": "claim", "default": "by-hand"}]);
    let source = json!({"claimName": "$(params.claim)"});
    task["volumes"] = json!([{"name": "unknown", "persistentVolumeClaim": source}]);
    Run::from_json(object)
}

/// Field `taskRunSpecs`: a podTemplate of task `one` alone.
fn of_one(pod_template: Value) -> Value {
    json!([{"pipelineTaskName": "one", "podTemplate": pod_template}])
}

/// Creates a pod that uses claim `by-hand`, and waits until it has a node.
async fn user_of_claim(scene: &Scene<'_>) -> Outcome {
    let source = json!({"claimName": "by-hand"});
    let user = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "user"},
        "spec": {
            "containers": [{"name": "c", "image": "example/image"}],
            "volumes": [{"name": "v", "persistentVolumeClaim": source}],
        },
    });
    create(scene, "pods", &user).await?;
    pod(scene, "have a node", |pod| pods::node(pod).is_some()).await?;
    Ok(())
}

async fn pod(scene: &Scene<'_>, what: &str, is: impl Fn(&Pod) -> bool) -> anyhow::Result<Pod> {
    let pods = scene
        .until_all::<Pod>(what, |pods| pods.iter().any(|pod| is(pod)))
        .await?;
    let pod = pods.iter().find(|pod| is(pod));
    Ok(pod.context("it has gone")?.as_ref().clone())
}

/// Writes an Event about a pod, as another program does.
async fn event(scene: &Scene<'_>, pod: &Pod, source: &str, reason: &str) -> Outcome {
    let event = json!({
        "apiVersion": "v1", "kind": "Event",
        "metadata": {"name": format!("{}.{reason}", pod.name_any())},
        "involvedObject": {
            "apiVersion": "v1", "kind": "Pod", "namespace": scene.namespace,
            "name": pod.name_any(), "uid": pod.uid(),
        },
        "reason": reason, "message": "Pod should schedule on: nodeclaim/new", "type": "Normal",
        "source": {"component": source}, "lastTimestamp": Timestamp::now(),
    });
    create(scene, "events", &event).await
}

/// The pod of a task that never starts on its node.
async fn never_starts(scene: &Scene<'_>) -> anyhow::Result<Pod> {
    let never = json!([{
        "pipelineTaskName": "one",
        "metadata": {"annotations": {STATUS_ANNOTATION: CUSTOM_STATUS}},
    }]);
    let run = one_task().spec("taskRunSpecs", never);
    scene.submit(run.in_mode("disabled")).await?;
    pod(scene, "have a node", |pod| pods::node(pod).is_some()).await
}

/// Each cause that a test can make.
const CAUSES: [&str; 18] = [
    "PipelineRunPending",
    "QuotaExceeded",
    "LimitRangeViolated",
    "ReferenceMissing",
    "PlaceholderUnschedulable",
    "NodeBeingAdded",
    "NoIsolatedNode",
    "WaitsForOwnPods",
    "TaskRunHasNoPod",
    "PodUnschedulable",
    "ClaimNotBound",
    "ClaimMissing",
    "ClaimInUse",
    "VolumeOutOfReach",
    "ClaimsNotMovable",
    "VolumeNotMounted",
    "SandboxNotCreated",
    "ContainerCannotStart",
];

/// Makes run `run` wait for this cause.
async fn wait_for(scene: &Scene<'_>, cause: &str) -> Outcome {
    match cause {
        "PipelineRunPending" => {
            scene
                .submit(one_task().spec("status", json!("PipelineRunPending")))
                .await?;
        }
        "QuotaExceeded" => {
            quota(scene, json!({"pods": "0"})).await?;
            scene.submit(one_task()).await?;
        }
        "LimitRangeViolated" => {
            let limits = json!({
                "apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "tight"},
                "spec": {"limits": [{"type": "Container", "max": {"cpu": "1m"}}]},
            });
            create(scene, "limitranges", &limits).await?;
            scene.submit(one_task()).await?;
        }
        "ReferenceMissing" => {
            scene.submit(by_hand()).await?;
        }
        "PlaceholderUnschedulable" => {
            scene.submit(one_task().in_pool_of(scene)).await?;
        }
        "NodeBeingAdded" => {
            scene.submit(one_task().in_pool_of(scene)).await?;
            let waits = |pod: &Pod| is_placeholder(pod) && pods::is_unschedulable(pod);
            let placeholder = pod(scene, "have a placeholder that waits", waits).await?;
            event(scene, &placeholder, "karpenter", "Nominated").await?;
        }
        "NoIsolatedNode" => {
            scene.pool(1).await?;
            let first = run("first").template("source").in_pool_of(scene);
            let first = first.task("one", &["source"], &[]).held("one");
            scene.submit(first.in_mode("pipelineruns")).await?;
            scene.placeholder().await?;
            let isolated = one_task().in_mode("isolate-pipelinerun");
            scene.submit(isolated.in_pool_of(scene)).await?;
        }
        "WaitsForOwnPods" => {
            scene.pool_of(&[("4", 110)]).await?;
            let run = one_task().asking("3").held("one");
            let run = run.task("two", &["source"], &[]).asking("3");
            scene.submit(run.held("two").in_pool_of(scene)).await?;
        }
        "TaskRunHasNoPod" => {
            quota(scene, json!({"pods": "0"})).await?;
            scene.submit(one_task().in_mode("disabled")).await?;
        }
        "PodUnschedulable" => {
            // A task without claims has no placeholder in this mode.
            let run = run("run").task("one", &[], &[]).in_mode("workspaces");
            let nowhere = json!({"nodeSelector": {"example.dev/none": "here"}});
            scene
                .submit(run.spec("taskRunSpecs", of_one(nowhere)))
                .await?;
        }
        "ClaimNotBound" => {
            claim(scene, "missing", "ReadWriteOnce").await?;
            scene.submit(with_unknown_claim()).await?;
        }
        "ClaimMissing" => {
            scene.submit(with_unknown_claim()).await?;
        }
        "VolumeOutOfReach" => {
            claim(scene, LOCAL_STORAGE_CLASS, "ReadWriteOnce").await?;
            // The volume is created on the node of this pod, which is not in the pool.
            user_of_claim(scene).await?;
            scene.pool(1).await?;
            scene.submit(by_hand().in_pool_of(scene)).await?;
        }
        "ClaimsNotMovable" => {
            scene.pool(1).await?;
            let run = run("run").template_of_class("source", LOCAL_STORAGE_CLASS);
            let run = run
                .task("one", &["source"], &[])
                .held("one")
                .in_pool_of(scene);
            scene.submit(run.in_mode("pipelineruns")).await?;
            pod(scene, "run", |pod| {
                !is_placeholder(pod) && pods::has_started(pod)
            })
            .await?;
            scene.cordon(&scene.pool_node(1), true).await?;
        }
        "ClaimInUse" => {
            claim(scene, MOVABLE_STORAGE_CLASS, "ReadWriteOncePod").await?;
            user_of_claim(scene).await?;
            scene.submit(by_hand()).await?;
        }
        "VolumeNotMounted" => {
            let bound = never_starts(scene).await?;
            event(scene, &bound, "kubelet", "FailedMount").await?;
        }
        "SandboxNotCreated" => {
            let bound = never_starts(scene).await?;
            event(scene, &bound, "kubelet", "FailedCreatePodSandBox").await?;
        }
        "ContainerCannotStart" => {
            let bound = never_starts(scene).await?;
            // A container's state counts more than an Event, which may be old.
            event(scene, &bound, "kubelet", "FailedMount").await?;
            let waiting = json!({"reason": "ErrImagePull", "message": "no such image"});
            let status = json!({"status": {"containerStatuses": [{
                "name": "step-step", "image": "example/image", "imageID": "", "ready": false,
                "restartCount": 0, "state": {"waiting": waiting},
            }]}});
            let (namespace, name) = (&scene.namespace, bound.name_any());
            let path = format!("/api/v1/namespaces/{namespace}/pods/{name}/status");
            scene.send_to("PATCH", &path, &status).await?.accepted()?;
        }
        _ => panic!("{cause}"),
    }
    Ok(())
}

#[test]
fn b2_b5_explain_names_the_cause_its_evidence_and_a_remedy() -> Outcome {
    shared(async |scene| {
        try_join_all(CAUSES.map(async |reason| {
            let scene = scene.stack.scene().await?;
            Box::pin(wait_for(&scene, reason)).await.context(reason)?;
            explained(&scene, reason).await
        }))
        .await?;
        Ok(())
    })
}

/// Placeholders leave their nodes, and then tasks follow them.
#[test]
fn b2_b5_no_cause_is_named_while_placeholders_move() -> Outcome {
    shared(async |scene| {
        scene.pool(3).await?;
        let names: Vec<String> = (0..20).map(|number| format!("run-{number}")).collect();
        for (name, mode) in names
            .iter()
            .zip(["workspaces", "pipelineruns"].iter().cycle())
        {
            let run = run(name).template_of_class("source", MOVABLE_STORAGE_CLASS);
            let run = run.gate(&[]).in_pool_of(&scene);
            let run = run.task("one", &["source"], &["gate"]);
            scene.submit(run.in_mode(mode)).await?;
        }
        let bound = |pods: &[Arc<Pod>], away_from: Option<&str>| {
            let nodes = pods
                .iter()
                .filter(|pod| is_placeholder(pod))
                .map(|pod| pods::node(pod));
            let nodes: Vec<_> = nodes
                .flatten()
                .filter(|node| Some(*node) != away_from)
                .collect();
            nodes.len() == names.len()
        };
        let moves = async {
            scene
                .until_all("are bound", |pods| bound(pods, None))
                .await?;
            for number in 1..=2 {
                let node = scene.pool_node(number);
                scene.cordon(&node, true).await?;
                let away = |pods: &[Arc<Pod>]| bound(pods, Some(node.as_str()));
                scene.until_all("are bound to other nodes", away).await?;
                scene.cordon(&node, false).await?;
            }
            // Tasks wait while their placeholders leave. A task that runs already stays on the cordoned node.
            scene.stack.history.exempt(&scene.namespace);
            for name in &names {
                scene.at_gate(name).await?;
                scene.open_gate(name).await?;
            }
            scene.cordon(&scene.pool_node(3), true).await?;
            try_join_all(names.iter().map(|name| scene.succeeds(name))).await
        };
        let looks = async {
            for name in names.iter().cycle() {
                let found = explanation(&scene, name).await?;
                let reason = found["cause"]["reason"].as_str();
                ensure!(reason.is_none_or(|it| PASSING.contains(&it)), "{found}");
            }
            Ok(())
        };
        tokio::select! {
            looks = looks => looks?,
            moved = moves => drop(moved?),
        }
        let mut moved = 0;
        for name in &names {
            for (reason, note) in scene.told_so_far(name).await? {
                let severity = ReasonCode::read(&reason).and_then(ReasonCode::told);
                ensure!(
                    severity != Some(Severity::Warning),
                    "{name}: {reason}: {note}"
                );
                moved += usize::from(reason == "PodEvacuated");
            }
        }
        println!("{moved} placeholders left their nodes");
        ensure!(2 * moved > names.len(), "{moved}");
        Ok(())
    })
}

#[test]
fn b2_b5_explain_finds_no_cause_for_runs_that_get_on() -> Outcome {
    shared(async |scene| {
        let modes = [
            "workspaces",
            "pipelineruns",
            "isolate-pipelinerun",
            "disabled",
        ];
        try_join_all(modes.map(async |mode| {
            let scene = scene.stack.scene().await?;
            let run = one_task().in_mode(mode).held("one");
            scene.submit(run.task("two", &["source"], &["one"])).await?;
            let started = |pod: &Pod| !is_placeholder(pod) && pods::has_started(pod);
            let looks = async {
                loop {
                    let found = explanation(&scene, "run").await?;
                    let reason = found["cause"]["reason"].as_str();
                    ensure!(reason.is_none_or(|it| PASSING.contains(&it)), "{found}");
                }
            };
            let one = tokio::select! {
                looks = looks => looks,
                one = pod(&scene, "have a task that runs", started) => one,
            }?;
            let found = explanation(&scene, "run").await?;
            assert_eq!(found["cause"], Value::Null, "{found}");
            assert_eq!(found["mode"], mode);
            assert_eq!(found["group"].is_null(), mode == "disabled", "{found}");
            assert_eq!(found["tasks"][0]["pod"], one.name_any(), "{found}");
            assert_eq!(found["tasks"][0]["node"].as_str(), pods::node(&one));
            let claims = found["claims"].as_array().unwrap();
            assert_eq!(claims.len(), 1, "{found}");
            assert_eq!(claims[0]["phase"], "Bound", "{found}");
            scene.end("run", "one").await?;
            scene.succeeds("run").await?;
            let found = explanation(&scene, "run").await?;
            assert_eq!(
                (&found["cause"], &found["done"], &found["failures"]),
                (&Value::Null, &json!(true), &json!([]))
            );
            Ok::<_, anyhow::Error>(())
        }))
        .await?;
        Ok(())
    })
}

#[test]
fn b2_explain_shows_why_the_tasks_of_a_run_failed() -> Outcome {
    shared(async |scene| {
        scene.submit(one_task().failing("one")).await?;
        scene
            .until("run", "is done", |run: Option<&PipelineRun>| {
                run.is_some_and(is_done)
            })
            .await?;
        let found = explanation(&scene, "run").await?;
        let failures = found["failures"].as_array().unwrap();
        let objects: Vec<_> = failures.iter().map(|it| &it["object"]).collect();
        assert_eq!(objects, ["PipelineRun run", "TaskRun run-one"], "{found}");
        let said = failures[1]["message"].as_str().unwrap();
        ensure!(said.contains("exited with code"), "{said}");
        let namespace = scene.namespace.as_str();
        let of_run = ["run", "-n", namespace];
        let text = with_rights("explain", scene.stack.bed.kubeconfig(), &of_run);
        let text = String::from_utf8(plugin(&text)?.stdout)?;
        ensure!(
            text.contains(&format!("TaskRun run-one failed: {said}")),
            "{text}"
        );
        Ok(())
    })
}

#[test]
fn b2_b5_events_tells_what_happened_to_a_run_in_its_order() -> Outcome {
    shared(async |scene| {
        scene.submit(one_task()).await?;
        scene.succeeds("run").await?;
        scene.nothing_left_but(&[]).await?;
        let namespace = scene.namespace.as_str();
        let of = |format: &[&str]| {
            let arguments = [&["run", "-n", namespace][..], format].concat();
            plugin(&with_rights(
                "events",
                scene.stack.bed.kubeconfig(),
                &arguments,
            ))
        };
        let json: Value = serde_json::from_slice(&of(&["-o", "json"])?.stdout)?;
        let events = json["events"].as_array().unwrap();
        let times = events.iter().map(|it| it["time"].as_str().unwrap().parse());
        let times: Vec<Timestamp> = times.collect::<Result<_, _>>()?;
        assert!(times.is_sorted(), "{json}");
        // The placeholder and its pod do not exist any more.
        let run: PipelineRun = scene.api().get("run").await?;
        let placeholder = format!(
            "affinity-assistant-{}",
            run.annotations()["coscheduler.dev/group"]
        );
        let set = format!("StatefulSet/{placeholder}");
        let of_set = (!only_pods()).then_some((set, "SuccessfulCreate"));
        for (object, reason) in of_set.into_iter().chain([
            ("PipelineRun/run".to_owned(), "Succeeded"),
            (format!("Pod/{placeholder}-0"), "Scheduled"),
            ("TaskRun/run-one".to_owned(), "Succeeded"),
            ("Pod/run-one-pod".to_owned(), "Scheduled"),
        ]) {
            let is = |event: &Value| event["object"] == object && event["reason"] == reason;
            assert!(events.iter().any(is), "{object} {reason}: {json}");
        }
        let yaml: Value =
            serde_saphyr::from_str(std::str::from_utf8(&of(&["-o", "yaml"])?.stdout)?)?;
        assert_eq!(yaml, json);
        let table = String::from_utf8(of(&[])?.stdout)?;
        assert!(table.starts_with("TIME"), "{table}");
        assert_eq!(table.lines().count(), events.len() + 1, "{table}");
        Ok(())
    })
}

#[test]
fn b5_explain_and_events_work_with_few_rights_and_name_those_that_lack() -> Outcome {
    shared(async |scene| {
        scene.submit(one_task().held("one")).await?;
        let namespace = scene.namespace.as_str();
        let user = reader(&scene).await?;
        let of = |subcommand: &'static str, run: &str| {
            let arguments = [run, "-n", namespace, "-o", "json"];
            plugin(&with_rights(subcommand, &user, &arguments))
        };
        look::until("the user may read the run", async || {
            Ok(of("explain", "run")?.status.success())
        })
        .await?;
        let output = of("explain", "run")?;
        let errors = String::from_utf8_lossy(&output.stderr);
        for kind in ["pods and their nodes", "TaskRuns", "claims"] {
            let warning = format!("warning: {kind} are not shown: ");
            assert!(errors.contains(&warning), "{kind}: {errors}");
        }
        let json: Value = serde_json::from_slice(&output.stdout)?;
        assert_eq!(
            (&json["mode"], &json["cause"]),
            (&json!("pipelineruns"), &Value::Null)
        );
        assert_eq!(json.get("tasks"), None, "{json}");
        let text = plugin(&with_rights("explain", &user, &["run", "-n", namespace]))?;
        let text = String::from_utf8_lossy(&text.stdout);
        let lack = "cause not known: you are not allowed to read every object";
        assert!(text.contains(lack), "{text}");
        for (output, code, fault) in [
            (of("events", "run")?, 1, "failed to list Events"),
            (of("explain", "missing")?, 3, "\"missing\" not found"),
            (of("events", "missing")?, 3, "\"missing\" not found"),
        ] {
            let errors = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(code), "{errors}");
            assert!(errors.contains(fault), "{errors}");
            assert!(output.stdout.is_empty());
        }
        Ok(())
    })
}

/// A kubeconfig of a user who may only read the PipelineRuns of the namespace.
async fn reader(scene: &Scene<'_>) -> anyhow::Result<PathBuf> {
    let rules =
        json!([{"apiGroups": ["tekton.dev"], "resources": ["pipelineruns"], "verbs": ["get"]}]);
    grant(scene, &rules).await?;
    let bed = &scene.stack.bed;
    bed.kubeconfig_for(&scene.namespace, "default").await
}
