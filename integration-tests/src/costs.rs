//! The requests that our services send to the API server for one run.

use std::time::Duration;

use coscheduler_core::annotations::SIZES;
use coscheduler_kubernetes::pipeline_run::PipelineRun;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::ResourceExt as _;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use testbed::Config;
use testbed::services::{Service, ServicesConfig};

use crate::audit::{Request, of_services};
use crate::configuration::admitted_until;
use crate::look::is_placeholder;
use crate::runs::{Run, run};
use crate::{Scene, alone_with, metrics};

/// The configuration of a bed with an audit log.
pub fn audited() -> Config {
    Config {
        audit_log: true,
        ..Config::default()
    }
}

/// A run of three tasks and two claim templates.
pub fn two_templates() -> Run {
    run("measured")
        .template("source")
        .template("cache")
        .task("one", &["source", "cache"], &[])
        .task("two", &["source"], &["one"])
        .finally("last", &["cache"])
}

/// A run of three tasks and one claim template.
pub fn one_claim() -> Run {
    run("measured")
        .template("source")
        .task("one", &["source"], &[])
        .task("two", &["source"], &["one"])
        .finally("last", &["source"])
}

/// Boots a bed in this mode, and creates `run` on it. Returns the requests of our services, from just before the run's creation
/// until the placeholders are gone and only the claims that Tekton made are left. `tektons` is the number of these claims.
///
/// # Errors
///
/// The run does not succeed, or its objects are not deleted in time.
pub fn ours(mode: &str, run: Run, tektons: usize) -> anyhow::Result<Vec<Request>> {
    let mut asked = Vec::new();
    let change = |services: &mut ServicesConfig| {
        services.mode = Some(mode.to_owned());
    };
    alone_with(audited(), change, async |scene| {
        caches_filled(scene).await?;
        let mark = scene.mark()?;
        scene.submit(run).await?;
        scene.succeeds("measured").await?;
        scene
            .until_all::<StatefulSet>("are gone", |sets| sets.is_empty())
            .await?;
        scene
            .until_all::<Pod>("have no placeholder", |pods| {
                !pods.iter().any(|pod| is_placeholder(pod))
            })
            .await?;
        scene
            .until_all::<PersistentVolumeClaim>("are as many as Tekton made", |claims| {
                claims.len() == tektons
            })
            .await?;
        // The last request may be answered a moment after its effect was seen.
        idle(scene).await?;
        asked = of_services(scene.requests_since(mark)?);
        anyhow::Ok(())
    })?;
    Ok(asked)
}

/// Waits until the webhook has filled its caches for the sizes of runs. The webhook may be ready before that. Without this wait,
/// the lists for these caches could be among the counted requests.
async fn caches_filled(scene: &Scene<'_>) -> anyhow::Result<()> {
    let probe = run("probe").task("one", &[], &[]).asking("1");
    let has_sizes = |run: &PipelineRun| run.annotations().contains_key(SIZES);
    admitted_until(&scene.api(), probe, has_sizes).await
}

/// Waits until the watcher and the manager work on no run, and no run is ready in their queues.
async fn idle(scene: &Scene<'_>) -> anyhow::Result<()> {
    for service in [Service::Watcher, Service::PlaceholderManager] {
        let address = scene.stack.services.http_address(service);
        let works = async || {
            let metrics = metrics::scrape(&address).await?;
            let keys =
                |stage| metrics::sum(&metrics, "coscheduler_queue_keys", &[("stage", stage)]);
            anyhow::Ok(keys("ready") + keys("working") > 0.0)
        };
        let ends = async {
            while works().await? {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            anyhow::Ok(())
        };
        tokio::time::timeout(Duration::from_secs(60), ends).await??;
    }
    Ok(())
}

/// On the active run `measured`, changes a label that concerns no service, and waits until the manager has answered another
/// `Ensure` or `Release`.
///
/// # Errors
///
/// The manager does not answer within a minute.
pub async fn reported_once_more(scene: &Scene<'_>) -> anyhow::Result<()> {
    let manager = scene
        .stack
        .services
        .http_address(Service::PlaceholderManager);
    let handled = async || {
        let metrics = metrics::scrape(&manager).await?;
        let of = |method| {
            let labels = [("grpc_method", method), ("grpc_code", "OK")];
            metrics::sum(&metrics, "grpc_server_handled_total", &labels)
        };
        anyhow::Ok(of("Ensure") + of("Release"))
    };
    let before = handled().await?;
    let patch = Patch::Merge(json!({"metadata": {"labels": {"example.com/touched": "yes"}}}));
    scene
        .api::<PipelineRun>()
        .patch("measured", &PatchParams::default(), &patch)
        .await?;
    let answered = async {
        while handled().await? <= before {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(Duration::from_secs(60), answered).await?
}
