//! The memory and the work of the services beside many pods and runs that have ended (N8).
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stderr)]

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use coscheduler_kubernetes::pipeline_run::PipelineRun;
use futures::TryStreamExt as _;
use integration_tests::audit::Request;
use integration_tests::metrics::{scrape, sum};
use integration_tests::runs::run;
use integration_tests::{Scene, alone};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use serde_json::{Value, json};
use testbed::Config;
use testbed::services::Service;

type Outcome = anyhow::Result<()>;

/// How many pods or runs have ended.
const ENDED: u32 = 2_000;
/// How many runs that have ended have an annotation that an active run would get an Event for.
const OVERRIDDEN: u32 = 200;
/// The claims of each of these pods.
const VOLUMES: usize = 11;
/// What each of them may add to the memory of a service, in bytes.
const MOST: u64 = 4 * 1024;
/// The requests of the test that are under way at a time.
const AT_ONCE: usize = 32;
/// The time between two looks.
const PAUSE: Duration = Duration::from_millis(100);
/// What Tekton Chains writes on a run, in bytes.
const SIGNATURE: usize = 20_000;

/// The memory of each service ([`integration_tests::stack::Stack::memory`]).
type Memory = BTreeMap<Service, u64>;

fn memory(scene: &Scene<'_>) -> anyhow::Result<Memory> {
    let of = |service| anyhow::Ok((service, scene.stack.memory(service)?));
    Service::ALL.into_iter().map(of).collect()
}

/// Checks how much memory each service has got since `before`.
fn check(when: &str, before: &Memory, after: &Memory) -> Outcome {
    for (service, after) in after {
        let each = after.saturating_sub(before[service]) / u64::from(ENDED);
        eprintln!(
            "{when}: {service} from {} to {} KiB, {each} bytes each",
            before[service] / 1024,
            after / 1024
        );
    }
    for (service, after) in after {
        let each = after.saturating_sub(before[service]) / u64::from(ENDED);
        ensure!(each <= MOST, "{when}: {service} keeps {each} bytes of each");
    }
    Ok(())
}

/// Calls `send` for each number, many at a time.
async fn each(number: u32, send: impl AsyncFn(u32) -> Outcome) -> Outcome {
    let all = futures::stream::iter((0..number).map(Ok));
    all.try_for_each_concurrent(AT_ONCE, |number| send(number))
        .await
}

/// Starts the services that keep objects again, and lets them serve a run, so that their caches are complete.
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

/// A run from its creation to its clean-up. The services have seen everything that was there before.
async fn serve(scene: &Scene<'_>, name: &str) -> Outcome {
    let one = run(name).template("source").task("one", &["source"], &[]);
    scene.submit(one).await?;
    scene.succeeds(name).await?;
    scene.nothing_left_but(&[]).await
}

/// A pod as Tekton makes it for a TaskRun with [`VOLUMES`] workspaces.
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
            // No scheduler and no kubelet sees it.
            "schedulerName": "none", "restartPolicy": "Never", "volumes": volumes,
            "initContainers": [step("prepare"), step("place-scripts")],
            "containers": [step("step-one"), step("step-two"), step("step-three")],
        },
    })
}

/// The status of a pod that has succeeded, with a message of 4 KiB.
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
        let path = format!("/api/v1/namespaces/{}/pods", scene.namespace);
        each(ENDED, async |number| {
            let name = format!("ended-{number}");
            let pod = task_pod(&name, &like);
            scene.send_to("POST", &path, &pod).await?.accepted()?;
            let status = format!("{path}/{name}/status");
            let patched = scene.send_to("PATCH", &status, &succeeded()).await?;
            patched.accepted().map(drop)
        })
        .await?;
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
        let runs = scene.api::<PipelineRun>();
        let end = async |name: &str| {
            let path = format!("tekton.dev/v1/pipelineruns/{name}/status");
            let condition = json!({"type": "Succeeded", "status": "True", "lastTransitionTime": "2026-01-02T03:04:05Z"});
            let done = json!({"status": {"conditions": [condition]}});
            scene
                .send("PATCH", &path, &done)
                .await?
                .accepted()
                .map(drop)
        };
        let signature = ("chains.tekton.dev/payload", "x".repeat(SIGNATURE));
        let with = |key: &str, value: &str| json!({signature.0: signature.1, key: value});
        each(ENDED, async |number| {
            let name = format!("pinned-{number}");
            let pinned = run(&name)
                .template("source")
                .task("one", &["source"], &[])
                .spec("status", json!("PipelineRunPending"))
                .metadata("annotations", with("tekton.dev/auto-cleanup-pvc", "true"));
            scene.submit(pinned).await?;
            // Tekton would write its status over ours.
            while runs.get(&name).await?.status.is_empty() {
                tokio::time::sleep(PAUSE).await;
            }
            end(&name).await
        })
        .await?;
        // The override has no effect on the run, because Tekton does not run it.
        each(OVERRIDDEN, async |number| {
            let name = format!("old-{number}");
            let old = run(&name)
                .task("one", &[], &[])
                .spec("managedBy", json!("example.com/other"))
                .metadata(
                    "annotations",
                    with("coscheduler.dev/coschedule", "workspaces"),
                );
            scene.submit(old).await?;
            end(&name).await
        })
        .await?;
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
        let most = f64::from(OVERRIDDEN) / 2.0;
        ensure!(
            reports < most && looks < most,
            "{reports} reports, {looks} reconciles"
        );
        check("after a start", &before, &memory(scene)?)
    })
}
