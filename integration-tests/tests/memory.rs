//! The memory and the work of the services beside many ended pods and runs (N8). The test creates one of each, and stores copies
//! of it in etcd, because the creation of all would take minutes.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stderr)]

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use coscheduler_kubernetes::pipeline_run::{PipelineRun, to_json};
use futures::future::try_join_all;
use integration_tests::audit::Request;
use integration_tests::etcd::{Etcd, copy};
use integration_tests::look::until;
use integration_tests::metrics::{scrape, sum};
use integration_tests::runs::run;
use integration_tests::{Scene, alone};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use testbed::Config;
use testbed::services::Service;

type Outcome = anyhow::Result<()>;

/// The number of ended pods or runs.
const ENDED: usize = 2_000;
/// The number of pods that have not ended yet, at the same time.
const ACTIVE: usize = 50;
/// The number of ended runs with an annotation that would lead to an Event on an active run.
const OVERRIDDEN: usize = 200;
/// The number of claims of each ended pod.
const VOLUMES: usize = 11;
/// The most memory that each ended pod or run may add to a service, in bytes.
const MOST: u64 = 4 * 1024;
/// The size of the annotation that Tekton Chains writes on a run, in bytes.
const SIGNATURE: usize = 20_000;

/// The number of large reviews at the same time.
const REVIEWS: usize = 4;
/// The time between two readings of the memory.
const SAMPLE: Duration = Duration::from_millis(5);
/// The manifest that contains the memory limit of the webhook.
const DEPLOYMENT: &str = include_str!("../../deploy/base/admission-webhook/deployment.yaml");

/// The memory of each service ([`integration_tests::stack::Stack::memory`]).
type Memory = BTreeMap<Service, u64>;

fn memory(scene: &Scene<'_>) -> anyhow::Result<Memory> {
    let of = |service| anyhow::Ok((service, scene.stack.memory(service)?));
    Service::ALL.into_iter().map(of).collect()
}

/// Checks how much the memory of each service has grown since `before`, for each ended pod or run.
fn check(when: &str, before: &Memory, after: &Memory) -> Outcome {
    for (service, after) in after {
        let each = after.saturating_sub(before[service]) / ENDED as u64;
        eprintln!(
            "{when}: {service} from {} to {} KiB, {each} bytes each",
            before[service] / 1024,
            after / 1024
        );
    }
    for (service, after) in after {
        let each = after.saturating_sub(before[service]) / ENDED as u64;
        ensure!(each <= MOST, "{when}: {service} keeps {each} bytes of each");
    }
    Ok(())
}

/// Restarts the services that cache objects, and lets them serve a run, so that their caches are complete.
async fn start_again(scene: &Scene<'_>, name: &str) -> Outcome {
    let services = &scene.stack.services;
    let keep = [
        Service::PlaceholderManager,
        Service::Watcher,
        Service::AdmissionWebhook,
    ];
    for service in keep {
        if services.is_running(service)? {
            services.terminate(service).await?;
        }
    }
    for service in keep {
        services.start_service(service)?;
    }
    services.wait_ready().await?;
    serve(scene, name).await
}

/// Creates a run and waits until its objects are deleted. By then, the services have seen all earlier objects.
async fn serve(scene: &Scene<'_>, name: &str) -> Outcome {
    let one = run(name).template("source").task("one", &["source"], &[]);
    scene.submit(one).await?;
    scene.succeeds(name).await?;
    scene.nothing_left_but(&[]).await
}

/// Copies of the object `PREFIX-0` with the names `PREFIX-1` and so on, so that there are `number` objects with the original.
/// Each copy contains its own name instead of the original's, and has a group of its own.
fn copies(
    of: &Value,
    number: usize,
    folder: &str,
    scene: &Scene<'_>,
) -> impl Iterator<Item = (String, Value)> {
    let first = of["metadata"]["name"].as_str().unwrap_or_default();
    let prefix = first.trim_end_matches('0');
    (1..number).map(move |index| {
        let name = format!("{prefix}{index}");
        let renamed = of.to_string().replace(first, &name);
        let renamed = serde_json::from_str(&renamed).unwrap();
        let mut copy = copy(&renamed, &name);
        if let Some(group) = copy["metadata"]["annotations"].get_mut("coscheduler.dev/group") {
            *group = json!(format!("{index:010x}"));
        }
        (format!("{folder}/{}/{name}", scene.namespace), copy)
    })
}

/// A pod like those that Tekton creates for a TaskRun with [`VOLUMES`] workspaces.
fn task_pod(name: &str, like: &Pod) -> Value {
    let claims: Vec<_> = (0..VOLUMES)
        .map(|number| format!("{name}-claim-{number}"))
        .collect();
    let volumes: Vec<_> = claims
        .iter()
        .map(|claim| json!({"name": format!("ws-{claim}"), "persistentVolumeClaim": {"claimName": claim}}))
        .collect();
    let mounts: Vec<_> = claims
        .iter()
        .map(|claim| json!({"name": format!("ws-{claim}"), "mountPath": format!("/workspace/{claim}")}))
        .collect();
    let step = |step: &str| {
        json!({
            "name": step, "image": "example/image", "command": ["/tekton/bin/entrypoint"],
            "args": ["-wait_file", "/tekton/run/0/out", "-entrypoint", "sh", "--", "-c", "x".repeat(500)],
            "env": (0..10).map(|number| json!({"name": format!("VARIABLE_{number}"), "value": "some value"})).collect::<Vec<_>>(),
            "resources": {"requests": {"cpu": "100m", "memory": "100Mi"}},
            "volumeMounts": mounts, "terminationMessagePath": "/tekton/termination",
        })
    };
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name, "labels": like.labels(), "annotations": like.annotations(),
            "ownerReferences": like.owner_references(),
        },
        "spec": {
            // Neither the scheduler nor a kubelet handles this pod.
            "schedulerName": "none", "restartPolicy": "Never", "volumes": volumes,
            "initContainers": [step("prepare"), step("place-scripts")],
            "containers": [step("step-one"), step("step-two"), step("step-three")],
        },
    })
}

/// The status of a pod that has succeeded, with a message of 4 KiB for each container.
fn succeeded() -> Value {
    let of = |name: &str| {
        json!({
            "name": name, "image": "example/image", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"terminated": {"exitCode": 0, "reason": "Completed", "message": "x".repeat(4096)}},
        })
    };
    json!({"status": {
        "phase": "Succeeded", "containerStatuses": [of("step-one"), of("step-two"), of("step-three")],
    }})
}

#[test]
fn n8_two_thousand_pods_that_have_ended_add_at_most_four_kibibytes_each() -> Outcome {
    alone(Config::default(), async |scene| {
        let one = run("done").task("one", &[], &[]);
        scene.submit(one).await?;
        scene.succeeds("done").await?;
        let pods = scene
            .until_all::<Pod>("is one", |pods| pods.len() == 1)
            .await?;
        let like = pods.into_iter().next().context("no pod")?;
        start_again(scene, "before").await?;
        let before = memory(scene)?;
        let etcd = Etcd::of(&scene.stack.bed)?;
        let pods = scene.api::<Pod>();
        let created = serde_json::from_value(task_pod("ended-0", &like))?;
        let created = pods.create(&PostParams::default(), &created).await?;
        let ended = Patch::Merge(succeeded());
        let ended = pods
            .patch_status("ended-0", &PatchParams::default(), &ended)
            .await?;
        let of = |pod: &Pod| Vec::from_iter(copies(&json!(pod), ENDED, "/registry/pods", scene));
        for (created, ended) in of(&created).chunks(ACTIVE).zip(of(&ended).chunks(ACTIVE)) {
            etcd.put(created.iter().cloned()).await?;
            etcd.put(ended.iter().cloned()).await?;
        }
        serve(scene, "live").await?;
        let live = check("while they end", &before, &memory(scene)?);
        start_again(scene, "after").await?;
        check("after a start", &before, &memory(scene)?).and(live)
    })
}

#[test]
fn n8_two_thousand_runs_that_have_ended_cost_a_new_leader_next_to_nothing() -> Outcome {
    let config = Config {
        audit_log: true,
        ..Config::default()
    };
    alone(config, async |scene| {
        start_again(scene, "before").await?;
        let before = memory(scene)?;
        let services = &scene.stack.services;
        services.terminate(Service::PlaceholderManager).await?;
        services.terminate(Service::Watcher).await?;
        let etcd = Etcd::of(&scene.stack.bed)?;
        let runs = scene.api::<PipelineRun>();
        let store = async |name: &str, number| {
            let condition = json!({"type": "Succeeded", "status": "True", "lastTransitionTime": "2026-01-02T03:04:05Z"});
            let done = Patch::Merge(json!({"status": {"conditions": [condition]}}));
            let ended = runs
                .patch_status(name, &PatchParams::default(), &done)
                .await?;
            let ended = Value::Object(to_json(&ended));
            let folder = "/registry/tekton.dev/pipelineruns";
            etcd.put(copies(&ended, number, folder, scene)).await
        };
        let signature = ("chains.tekton.dev/payload", "x".repeat(SIGNATURE));
        let with = |key: &str, value: &str| json!({signature.0: signature.1, key: value});
        let pinned = run("pinned-0")
            .template("source")
            .task("one", &["source"], &[])
            .spec("status", json!("PipelineRunPending"))
            .metadata("annotations", with("tekton.dev/auto-cleanup-pvc", "true"));
        scene.submit(pinned).await?;
        // Otherwise, Tekton would overwrite the status that the test writes.
        let has_status = |runs: &[Arc<PipelineRun>]| {
            let mut runs = runs.iter();
            runs.any(|run| run.name_any() == "pinned-0" && !run.status.is_empty())
        };
        scene
            .until_all("include one with a status", has_status)
            .await?;
        store("pinned-0", ENDED).await?;
        // The override has no effect on this run, because Tekton does not manage it.
        let old = run("old-0")
            .task("one", &[], &[])
            .spec("managedBy", json!("example.com/other"))
            .metadata(
                "annotations",
                with("coscheduler.dev/coschedule", "workspaces"),
            );
        scene.submit(old).await?;
        store("old-0", OVERRIDDEN).await?;
        let mark = scene.mark()?;
        start_again(scene, "after").await?;
        let asked = scene.requests_since(mark)?;
        let ours = |request: &&Request| {
            Service::ALL
                .into_iter()
                .any(|service| request.is_by(service))
        };
        let events = asked
            .iter()
            .filter(ours)
            .filter(|request| request.is_write() && request.object.resource == "events");
        let events = events.count();
        let reconciles = async |service, queue| {
            let metrics = scrape(&services.http_address(service)).await?;
            let name = "coscheduler_reconciles_total";
            anyhow::Ok(sum(&metrics, name, &[("queue", queue)]))
        };
        let reports = reconciles(Service::Watcher, "report").await?;
        let looks = reconciles(Service::PlaceholderManager, "runs").await?;
        eprintln!("{events} Events, {reports} reports, {looks} reconciles");
        ensure!(events == 0, "{events} Events");
        let most = OVERRIDDEN as f64 / 2.0;
        ensure!(
            reports < most && looks < most,
            "{reports} reports, {looks} reconciles"
        );
        check("after a start", &before, &memory(scene)?)?;

        // The lists were streaming lists, and not lists in pages of 20. The audit log has a watch only when the watch has ended.
        for service in [Service::PlaceholderManager, Service::Watcher] {
            services.terminate(service).await?;
            until(&format!("{service} has streamed a list"), async || {
                let asked = scene.requests_since(mark)?;
                let mut own = asked.iter().filter(|request| request.is_by(service));
                ensure!(
                    !own.clone().any(|it| it.uri.contains("limit=20")),
                    "{service}: pages"
                );
                let streams = |it: &Request| it.uri.contains("sendInitialEvents=true");
                anyhow::Ok(own.any(|it| streams(it) && it.answer.code == 200))
            })
            .await?;
        }
        Ok(())
    })
}

/// Sends a request until its review is answered in time. On a busy machine, the API server sometimes does not wait long enough
/// for the answer to a large review.
async fn in_time(mut send: impl AsyncFnMut() -> Outcome) -> Outcome {
    until("the review is answered in time", async || {
        match send().await {
            Err(error) if format!("{error:#}").contains("context deadline exceeded") => Ok(false),
            sent => sent.map(|()| true),
        }
    })
    .await
}

/// The review of an update contains the object twice.
#[test]
fn n8_reviews_of_large_runs_are_answered_within_the_webhooks_memory_limit() -> Outcome {
    alone(Config::default(), async |scene| {
        let runs = scene.api::<PipelineRun>();
        let pending = |name: &str| {
            let run = run(name).task("one", &[], &[]);
            run.spec("status", json!("PipelineRunPending"))
        };
        let param = |value: Value| json!([{"name": "large", "value": value}]);
        // etcd does not store much more.
        let large = pending("large").spec("params", param(json!("x".repeat(1_300_000))));
        in_time(async || scene.submit(large.clone()).await.map(drop)).await?;
        let note = json!({"metadata": {"annotations": {"coscheduler.dev/coschedule": "disabled"}}});
        let patch = Patch::Merge(note);
        let parameters = PatchParams::default();
        in_time(async || {
            runs.patch("large", &parameters, &patch).await?;
            Ok(())
        })
        .await?;

        // Together, these reviews have more bytes than the webhook reads at the same time.
        let reviews = (0..REVIEWS).map(async |number| {
            let many = param(json!(vec!["x".repeat(25); 100_000]));
            let many = pending(&format!("many-{number}")).spec("params", many);
            let many: PipelineRun = serde_json::from_value(many.into_json())?;
            let dry_run = PostParams {
                dry_run: true,
                ..PostParams::default()
            };
            in_time(async || {
                runs.create(&dry_run, &many).await?;
                Ok(())
            })
            .await
        });
        let mut most = 0;
        let mut answered = pin!(try_join_all(reviews));
        loop {
            tokio::select! {
                answered = &mut answered => break drop(answered?),
                () = tokio::time::sleep(SAMPLE) => {
                    most = most.max(scene.stack.memory(Service::AdmissionWebhook)?);
                }
            }
        }
        let limits = DEPLOYMENT.split_once("limits: {memory: ");
        let limit = limits.and_then(|(_, rest)| rest.split_once("Mi}"));
        let limit: u64 = limit.context("no limit")?.0.parse()?;
        let most = most >> 20;
        eprintln!("{most} MiB of {limit} MiB");
        ensure!(most < limit, "{most} MiB of {limit} MiB");
        Ok(())
    })
}
