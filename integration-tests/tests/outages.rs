//! Services that crash or are down for a while. Runs are only delayed (N5).
//!
//! Function `outage` affects three runs: one whose placeholder is being created, one in its first task, and one whose last task ends
//! meanwhile. The crashes happen one after the other on a shared stack, because a service that is down is down for all tests
//! there. The long outages have a stack of their own. Another test checks what happens to new runs while the webhook is down.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::Context as _;
use coscheduler_core::annotations::{
    BLOCKED, CHOSEN_PLACEMENT, CHOSEN_RESERVES, GROUP, LET_GO, LET_GO_TIMES, MODE, OVERRIDE, PINNED,
};
use coscheduler_kubernetes::pipeline_run::PipelineRun;
use integration_tests::look::{LIMIT, node};
use integration_tests::metrics;
use integration_tests::runs::{Run, run};
use integration_tests::{Scene, alone, shared};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use testbed::Config;
use testbed::services::{CONFIGURATION_NAME, Service};
use tokio::sync::Mutex;

type Outcome = anyhow::Result<()>;

/// How long a service is down in a long outage.
const DOWN: Duration = Duration::from_secs(30);

/// Locked by the test whose service is down.
static TURN: Mutex<()> = Mutex::const_new(());

/// Kills a service while runs are in progress, and starts it again after `down`. Checks that every run succeeds on one node and
/// leaves nothing.
async fn outage(scene: &Scene<'_>, service: Service, down: Duration) -> Outcome {
    let services = &scene.stack.services;
    let [early, midst, ending] =
        ["early", "midst", "ending"].map(|when| format!("{when}-{service}"));
    let two = |name: &str| {
        run(name)
            .template("source")
            .template("cache")
            .task("one", &["source"], &[])
            .task("two", &["source", "cache"], &["one"])
            .finally("last", &[])
    };
    let one = |name: &str| run(name).template("source").task("one", &["source"], &[]);
    let under_way: [(Run, _); 2] = [
        (two(&midst).lasting("one", 4), &midst),
        (one(&ending).lasting("one", 5), &ending),
    ];
    for (run, name) in under_way {
        scene.submit(run).await?;
        scene
            .until_all::<Pod>("have a running task", |pods| {
                pods.iter().any(|pod| is_of(pod, name) && is_running(pod))
            })
            .await?;
    }
    scene.submit(two(&early)).await?;
    services.kill(service)?;
    tokio::time::sleep(down).await;
    services.start_service(service)?;
    services.wait_ready().await?;
    for (name, tasks) in [(&early, 3), (&midst, 3), (&ending, 1)] {
        scene
            .succeeds(name)
            .await
            .with_context(|| format!("without {service} for {down:?}"))?;
        let pods = scene.objects().await?.task_pods;
        let nodes: Vec<_> = pods
            .iter()
            .filter(|pod| is_of(pod, name))
            .map(|pod| node(pod).unwrap())
            .collect();
        // Each task has one pod: no task was retried.
        assert_eq!(nodes.len(), tasks, "{name}");
        assert_eq!(BTreeSet::from_iter(nodes).len(), 1, "{name}");
    }
    scene.nothing_left_but(&[]).await
}

fn is_of(pod: &Pod, run: &str) -> bool {
    let label = |key: &str| pod.labels().get(key).map(String::as_str);
    label("tekton.dev/pipelineRun") == Some(run) && label("tekton.dev/taskRun").is_some()
}

fn is_running(pod: &Pod) -> bool {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    phase == Some("Running")
}

fn crash(service: Service) -> Outcome {
    shared(async |scene| {
        let _turn = TURN.lock().await;
        outage(&scene, service, Duration::ZERO).await
    })
}

#[test]
fn n5_no_run_comes_to_harm_by_a_crash_of_the_config_service() -> Outcome {
    crash(Service::ConfigService)
}

#[test]
fn n5_no_run_comes_to_harm_by_a_crash_of_the_affinity_planner() -> Outcome {
    crash(Service::AffinityPlanner)
}

#[test]
fn n5_no_run_comes_to_harm_by_a_crash_of_the_placeholder_manager() -> Outcome {
    crash(Service::PlaceholderManager)
}

#[test]
fn n5_no_run_comes_to_harm_by_a_crash_of_the_watcher() -> Outcome {
    crash(Service::Watcher)
}

#[test]
fn n5_no_run_comes_to_harm_by_a_crash_of_the_admission_webhook() -> Outcome {
    crash(Service::AdmissionWebhook)
}

/// Sets the failure policy of the webhook for new PipelineRuns only, as docs/configuration.md describes.
async fn set_failure_policy(scene: &Scene<'_>, policy: &str) -> Outcome {
    let configurations: Api<MutatingWebhookConfiguration> = Api::all(scene.client.clone());
    let patch = Patch::Json::<()>(serde_json::from_value(json!([
        {"op": "test", "path": "/webhooks/1/name", "value": "pipelineruns.coscheduler.dev"},
        {"op": "replace", "path": "/webhooks/1/failurePolicy", "value": policy},
    ]))?);
    let params = PatchParams::default();
    let patched = configurations
        .patch(CONFIGURATION_NAME, &params, &patch)
        .await;
    Ok(patched.map(drop)?)
}

#[test]
fn n5_without_a_webhook_runs_are_refused_or_admitted_as_disabled_as_the_operator_chose() -> Outcome
{
    shared(async |scene| {
        let _turn = TURN.lock().await;
        let two = |name: &str| {
            run(name)
                .template("source")
                .task("one", &["source"], &[])
                .task("two", &["source"], &["one"])
        };
        let services = &scene.stack.services;
        services.kill(Service::AdmissionWebhook)?;
        let refused = scene.submit(two("refused")).await.unwrap_err().to_string();
        assert!(
            refused.contains("pipelineruns.coscheduler.dev"),
            "{refused}"
        );

        set_failure_policy(&scene, "Ignore").await?;
        let admitted = async {
            // The API server uses the new policy after a moment.
            loop {
                match scene.submit(two("admitted")).await {
                    Ok(admitted) => break admitted,
                    Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
                }
            }
        };
        let admitted = tokio::time::timeout(LIMIT, admitted).await?;
        assert!(admitted.annotations().is_empty(), "{admitted:?}");
        let source = &admitted.spec["workspaces"][0];
        assert!(source["volumeClaimTemplate"].is_object(), "{source}");
        scene.succeeds("admitted").await?;
        let pods = scene.objects().await?.task_pods;
        assert_eq!(pods.len(), 2);
        for pod in &pods {
            assert_eq!(pod.spec.as_ref().unwrap().affinity, None);
        }

        // While the webhook is down, the API server refuses a new run with an annotation that only our services may write. So
        // no service believes such an annotation.
        let create = async |annotations: Value| {
            let object = two("annotated").metadata("annotations", annotations);
            let resource = "tekton.dev/v1/pipelineruns?dryRun=All";
            scene.send("POST", resource, &object.into_json()).await
        };
        for key in PINNED.into_iter().chain([BLOCKED, LET_GO, LET_GO_TIMES]) {
            let answer = create(json!({key: "forged"})).await?;
            let refused = answer.refusal().unwrap_or_default();
            let webhook = "annotated-pipelineruns.coscheduler.dev";
            assert!(refused.contains(webhook), "{key}: {refused:?}");
        }
        let pinned = scene.plan(two("annotated")).await?.annotations;
        assert_eq!(pinned[MODE], "pipelineruns");
        assert!(create(json!(pinned)).await?.refusal().is_some());
        let chosen = json!({OVERRIDE: "pipelineruns", CHOSEN_PLACEMENT: "pack", CHOSEN_RESERVES: "peak", "example.dev/mine": "1"});
        let created = create(chosen.clone()).await?.accepted()?.object;
        assert_eq!(created["metadata"]["annotations"], chosen);

        // The run stays as it was admitted, and the next run is coscheduled again.
        services.start_service(Service::AdmissionWebhook)?;
        services.wait_ready().await?;
        let replaced = create(json!(pinned)).await?.accepted()?.object;
        let replaced = &replaced["metadata"]["annotations"];
        assert_eq!(replaced[MODE], "pipelineruns");
        assert_ne!(replaced[GROUP], json!(pinned[GROUP]));
        set_failure_policy(&scene, "Fail").await?;
        scene.submit(two("pinned")).await?;
        scene.succeeds("pinned").await?;
        let stays = scene.stack.history.stays(&scene.namespace).await?;
        let placeholders = stays.iter().filter(|stay| stay.placeholder);
        let of_runs: BTreeSet<_> = placeholders.map(|stay| stay.run.as_str()).collect();
        assert_eq!(of_runs, BTreeSet::from(["pinned"]));
        Ok(())
    })
}

#[test]
fn n5_any_one_service_down_for_half_a_minute_delays_runs_and_nothing_else() -> Outcome {
    alone(Config::default(), async |scene| {
        for service in Service::ALL {
            outage(scene, service, DOWN).await?;
        }
        anyhow::Ok(())
    })
}

#[test]
fn n6_a_run_reported_again_without_news_costs_no_request() -> Outcome {
    let config = Config {
        audit_log: true,
        ..Config::default()
    };
    alone(config, async |scene| {
        let name = "steady";
        let steady = run(name)
            .template("source")
            .task("one", &["source"], &[])
            .lasting("one", 600);
        scene.submit(steady).await?;
        scene
            .until_all::<Pod>("have a running task", |pods| {
                pods.iter().any(|pod| is_of(pod, name) && is_running(pod))
            })
            .await?;
        let manager = scene
            .stack
            .services
            .http_address(Service::PlaceholderManager);
        let ensured = async || {
            let method = [("grpc_method", "Ensure"), ("grpc_code", "OK")];
            let metrics = metrics::scrape(&manager).await?;
            anyhow::Ok(metrics::sum(&metrics, "grpc_server_handled_total", &method))
        };
        let version = async || {
            let run = scene.api::<PipelineRun>().get(name).await?;
            anyhow::Ok(run.resource_version())
        };
        // The run has not changed between two reports, so the second report contained nothing new.
        let quiet = async {
            loop {
                let (mark, before, reports) = (scene.mark()?, version().await?, ensured().await?);
                while ensured().await? < reports + 2.0 {
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
                if version().await? == before {
                    return anyhow::Ok(mark);
                }
            }
        };
        let mark = tokio::time::timeout(Duration::from_secs(300), quiet)
            .await
            .context("the run was not reported again while it stayed as it was")??;
        let asked: Vec<_> = scene
            .requests_since(mark)?
            .into_iter()
            .filter(|request| {
                Service::ALL
                    .into_iter()
                    .any(|service| request.is_by(service))
            })
            // Watches and requests for Leases do not count, because they depend on the time.
            .filter(|request| request.verb != "watch" && request.object.resource != "leases")
            .collect();
        assert!(asked.is_empty(), "{asked:#?}");
        anyhow::Ok(())
    })
}
