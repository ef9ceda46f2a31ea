//! What a launcher registers in the cluster: accounts and rights of the services, and the webhook configuration that leads the
//! API server to this machine's admission-webhook. All of it is known by a label: only what a launcher made is ever taken
//! over or removed, so an installation in the cluster is safe from a launcher on somebody's desk.

use std::pin::pin;
use std::time::Duration;

use anyhow::{Context as _, bail};
use futures::StreamExt as _;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use kube::api::{DynamicObject, ObjectMeta, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::watch_object;
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::deploy::{self, LAUNCHER, MANAGED_BY, MANAGED_BY_LABEL};
use crate::manifests;

/// Name of the MutatingWebhookConfiguration.
pub const CONFIGURATION_NAME: &str = "coscheduler.dev";

/// Where nothing but the names of the configurations matters.
const NO_PORT: u16 = 0;

/// Between two questions whether the webhooks are reached.
const PAUSE: Duration = Duration::from_millis(100);

/// An error if something of ours exists that no launcher made: an installation in the cluster, most likely.
pub(super) async fn refuse_foreign(client: &Client) -> anyhow::Result<()> {
    let mut objects = deploy::webhook_configurations(NO_PORT, "")?;
    objects.extend(deploy::rights("")?);
    let existing = manifests::existing(client, &objects).await?;
    match existing
        .iter()
        .find(|(_, found)| !made_by_launcher(&found.metadata))
    {
        Some((object, _)) => bail!("{}", foreign(&manifests::what(object))),
        None => Ok(()),
    }
}

fn foreign(what: &str) -> String {
    format!(
        "{what} exists and was not made by local services (label {MANAGED_BY_LABEL} is not {MANAGED_BY}): the services \
         seem to be installed in this cluster; remove that installation first"
    )
}

/// Makes the services' accounts and rights, and the webhook's Secret, taking over what an earlier launcher made.
pub(super) async fn apply_rights(client: &Client, launcher: &str) -> anyhow::Result<()> {
    manifests::apply(client, &deploy::rights(launcher)?, MANAGED_BY).await
}

/// Registers the webhooks at that loopback port, taking over what an earlier launcher registered.
pub(super) async fn apply_webhooks(
    client: &Client,
    port: u16,
    launcher: &str,
) -> anyhow::Result<()> {
    let configurations = deploy::webhook_configurations(port, launcher)?;
    manifests::apply(client, &configurations, MANAGED_BY).await
}

/// Waits until the API server reaches the webhooks: it learns of their certificate a moment after they do.
pub(super) async fn reached(client: &Client) -> anyhow::Result<()> {
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("tekton.dev", "v1", "PipelineRun"));
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), "default", &kind);
    let probe: DynamicObject = serde_json::from_value(json!({
        "apiVersion": "tekton.dev/v1",
        "kind": "PipelineRun",
        "metadata": {"generateName": "coscheduler-probe-"},
        "spec": {"pipelineRef": {"name": "probe"}},
    }))
    .context("failed to describe a PipelineRun")?;
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    loop {
        match api.create(&dry_run, &probe).await {
            Err(kube::Error::Api(status))
                if status.message.contains("failed calling webhook")
                    && status.message.contains(CONFIGURATION_NAME) =>
            {
                sleep(PAUSE).await;
            }
            // Whatever else the cluster has to say about it is not about our webhooks.
            Ok(_) | Err(kube::Error::Api(_)) => return Ok(()),
            Err(error) => return Err(error).context("failed to try a PipelineRun out"),
        }
    }
}

/// Removes the webhook configurations, unless another launcher has taken them over meanwhile: the mutating one first. The other
/// is in nobody's way for a moment: without an answer, a ConfigMap is let in.
pub(super) async fn remove_own_webhooks(client: &Client, launcher: &str) -> anyhow::Result<()> {
    remove_own(
        client,
        launcher,
        &deploy::webhook_configurations(NO_PORT, launcher)?,
    )
    .await
}

/// Removes the accounts and rights, and the webhook's Secret, unless another launcher has taken them over meanwhile.
pub(super) async fn remove_own_rights(client: &Client, launcher: &str) -> anyhow::Result<()> {
    remove_own(client, launcher, &deploy::rights(launcher)?).await
}

async fn remove_own(client: &Client, launcher: &str, objects: &[Value]) -> anyhow::Result<()> {
    let own = |metadata: &ObjectMeta| launched_by(metadata, launcher);
    manifests::delete(client, objects, own).await?;
    Ok(())
}

/// Waits until the webhook configuration is gone or no longer ours.
pub(super) async fn lost(client: &Client, launcher: &str) {
    let mut states = pin!(watch_object(api(client), CONFIGURATION_NAME).default_backoff());
    while let Some(state) = states.next().await {
        // An API server that does not answer has not taken anything away.
        let Ok(existing) = state else { continue };
        if !existing.is_some_and(|existing| launched_by(&existing.metadata, launcher)) {
            return;
        }
    }
}

/// Removes everything that any launcher made, the webhook configuration first; one sentence for each, and for what was
/// left alone.
pub(super) async fn remove_all(client: &Client) -> anyhow::Result<Vec<String>> {
    let webhooks = deploy::webhook_configurations(NO_PORT, "")?;
    let mut done = remove(client, &webhooks).await?;
    done.extend(remove(client, &deploy::rights("")?).await?);
    if get(client).await?.is_some() {
        done.push(format!(
            "left MutatingWebhookConfiguration {CONFIGURATION_NAME} alone: local services did not make it"
        ));
    }
    if done.is_empty() {
        done.push("nothing of local services was there".to_owned());
    }
    Ok(done)
}

async fn remove(client: &Client, objects: &[Value]) -> anyhow::Result<Vec<String>> {
    let removed = manifests::delete(client, objects, made_by_launcher).await?;
    let sentence = |object: &Value| format!("removed {}", manifests::what(object));
    Ok(removed.into_iter().map(sentence).collect())
}

fn api(client: &Client) -> Api<MutatingWebhookConfiguration> {
    Api::all(client.clone())
}

async fn get(client: &Client) -> anyhow::Result<Option<MutatingWebhookConfiguration>> {
    api(client)
        .get_opt(CONFIGURATION_NAME)
        .await
        .with_context(|| {
            format!("failed to read MutatingWebhookConfiguration {CONFIGURATION_NAME}")
        })
}

fn made_by_launcher(metadata: &ObjectMeta) -> bool {
    let labels = metadata.labels.as_ref();
    labels
        .and_then(|labels| labels.get(MANAGED_BY_LABEL))
        .is_some_and(|value| value == MANAGED_BY)
}

fn launched_by(metadata: &ObjectMeta, launcher: &str) -> bool {
    let annotations = metadata.annotations.as_ref();
    annotations
        .and_then(|annotations| annotations.get(LAUNCHER))
        .is_some_and(|value| value == launcher)
}
