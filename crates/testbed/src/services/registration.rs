//! The objects of a launcher in the cluster: accounts, rights and Leases of the services, the webhook's Secret, and the webhook
//! configurations with the address of the local admission-webhook. All of them have the launcher's label. If one of these
//! objects exists without this label, the launcher does not start. It never deletes such an object, so an installation is safe.

use std::pin::pin;
use std::time::Duration;

use anyhow::{Context as _, bail};
use coscheduler_core::annotations::{GROUP, SIZES};
use futures::StreamExt as _;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use kube::api::{DynamicObject, ObjectMeta, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::watch_object;
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::deploy::{self, LAUNCHER, MANAGED_BY, MANAGED_BY_LABEL};
use crate::manifests;

/// The name of the MutatingWebhookConfiguration and of the ValidatingWebhookConfiguration.
pub const CONFIGURATION_NAME: &str = "coscheduler.dev";

/// The port for calls that use only the names of the webhook configurations.
const NO_PORT: u16 = 0;

/// The time between two attempts to reach the webhooks.
const PERIOD: Duration = Duration::from_millis(100);
/// How long the admission-webhook may take to learn the objects on which the resource requests of pods depend. The
/// admission-webhook may be ready before it knows these objects.
const CATALOG: Duration = Duration::from_secs(10);

/// Fails if one of the objects exists but no launcher made it. Most likely, it belongs to an installation in the cluster.
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

/// Applies the services' accounts, rights and Leases, and the webhook's Secret. Objects of an earlier launcher are taken over.
pub(super) async fn apply_rights(client: &Client, launcher: &str) -> anyhow::Result<()> {
    manifests::apply(client, &deploy::rights(launcher)?, MANAGED_BY).await
}

/// Applies the webhook configurations with this loopback port. Configurations of an earlier launcher are taken over.
pub(super) async fn apply_webhooks(
    client: &Client,
    port: u16,
    launcher: &str,
) -> anyhow::Result<()> {
    let configurations = deploy::webhook_configurations(port, launcher)?;
    manifests::apply(client, &configurations, MANAGED_BY).await
}

/// Waits until the API server calls the webhooks and reaches them. It learns their certificate and their rules a moment after
/// the admission-webhook has written them into the configurations. Also waits a while until the admission-webhook knows the
/// objects on which the resource requests of pods depend.
pub(super) async fn reached(client: &Client) -> anyhow::Result<()> {
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("tekton.dev", "v1", "PipelineRun"));
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), "default", &kind);
    let probe: DynamicObject = serde_json::from_value(json!({
        "apiVersion": "tekton.dev/v1",
        "kind": "PipelineRun",
        // Our webhook removes or replaces this value in every run.
        "metadata": {"generateName": "coscheduler-probe-", "annotations": {GROUP: "probe"}},
        // The spec is inline, because our webhook would wait two seconds for a Pipeline that does not exist.
        "spec": {"pipelineSpec": {"tasks": [{
            "name": "probe",
            "taskSpec": {"steps": [{"name": "probe", "image": "probe"}]},
        }]}},
    }))
    .context("failed to describe a PipelineRun")?;
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let patience = Instant::now() + CATALOG;
    loop {
        match api.create(&dry_run, &probe).await {
            Err(kube::Error::Api(status))
                if status.message.contains("failed calling webhook")
                    && status.message.contains(CONFIGURATION_NAME) =>
            {
                sleep(PERIOD).await;
            }
            Ok(run) if run.annotations().get(GROUP).is_some_and(|it| it == "probe") => {
                sleep(PERIOD).await;
            }
            Ok(run) if has_unknown_requests(&run) && Instant::now() < patience => {
                sleep(PERIOD).await;
            }
            // A refusal for another reason does not come from our webhooks.
            Ok(_) | Err(kube::Error::Api(_)) => return Ok(()),
            Err(error) => return Err(error).context("failed to create a PipelineRun as a dry run"),
        }
    }
}

/// True if the run is coscheduled, and admission did not know the requests of its pods.
fn has_unknown_requests(run: &DynamicObject) -> bool {
    let sizes = run.annotations().get(SIZES);
    sizes.is_some_and(|sizes| !sizes.contains("requests"))
}

/// Deletes the webhook configurations, unless another launcher has taken them over. The mutating configuration is deleted
/// first, because the API server refuses runs while the webhooks in this configuration do not answer. The validating
/// configuration has failurePolicy `Ignore`.
pub(super) async fn remove_own_webhooks(client: &Client, launcher: &str) -> anyhow::Result<()> {
    remove_own(
        client,
        launcher,
        &deploy::webhook_configurations(NO_PORT, launcher)?,
    )
    .await
}

/// Deletes the accounts, rights and Leases, and the webhook's Secret, unless another launcher has taken them over.
pub(super) async fn remove_own_rights(client: &Client, launcher: &str) -> anyhow::Result<()> {
    remove_own(client, launcher, &deploy::rights(launcher)?).await
}

async fn remove_own(client: &Client, launcher: &str, objects: &[Value]) -> anyhow::Result<()> {
    let own = |metadata: &ObjectMeta| launched_by(metadata, launcher);
    manifests::delete(client, objects, own).await?;
    Ok(())
}

/// Waits until the webhook configuration is gone or belongs to another launcher.
pub(super) async fn lost(client: &Client, launcher: &str) {
    let mut states = pin!(watch_object(api(client), CONFIGURATION_NAME).default_backoff());
    while let Some(state) = states.next().await {
        // An error of the watch does not mean that the configuration is gone.
        let Ok(existing) = state else { continue };
        if !existing.is_some_and(|existing| launched_by(&existing.metadata, launcher)) {
            return;
        }
    }
}

/// Deletes all objects of any launcher, the webhook configurations first. Returns one sentence for each deleted object, and one
/// if the MutatingWebhookConfiguration of an installation stays. If this gives no sentence, returns one that says that nothing
/// was there.
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
