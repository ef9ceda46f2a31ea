//! The namespace, and the ConfigMap that the services read. The launcher creates them if they are absent, and never changes
//! them, because they belong to the operator.

use std::collections::BTreeMap;

use anyhow::Context as _;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};

use super::deploy;

/// The namespace of the services and their ConfigMap.
pub const NAMESPACE: &str = "coscheduler-system";
/// The name of the ConfigMap with the flags.
pub const CONFIG_MAP: &str = "coscheduler-config";

const TEKTON_NAMESPACE: &str = "tekton-pipelines";
const TEKTON_FLAGS: &str = "feature-flags";

/// Creates the namespace if it is absent. If `mode` is set, also creates the ConfigMap if it is absent, with this mode and
/// `flags`.
pub(super) async fn ensure(
    client: &Client,
    mode: Option<&str>,
    flags: BTreeMap<String, String>,
) -> anyhow::Result<()> {
    let mut namespaces = deploy::namespace()?.into_iter();
    let namespace = namespaces.next().unwrap_or_default();
    let namespace: Namespace =
        serde_json::from_value(namespace).context("failed to read deploy/base/namespace.yaml")?;
    let created = Api::all(client.clone())
        .create(&PostParams::default(), &namespace)
        .await;
    unless_present(created).with_context(|| format!("failed to create namespace {NAMESPACE}"))?;

    let Some(mode) = mode else { return Ok(()) };
    let mut data = flags;
    data.insert("coschedule".to_owned(), mode.to_owned());
    let config_map = ConfigMap {
        metadata: ObjectMeta {
            name: Some(CONFIG_MAP.to_owned()),
            namespace: Some(NAMESPACE.to_owned()),
            ..ObjectMeta::default()
        },
        data: Some(data),
        ..ConfigMap::default()
    };
    let created = Api::namespaced(client.clone(), NAMESPACE)
        .create(&PostParams::default(), &config_map)
        .await;
    unless_present(created)
        .with_context(|| format!("failed to create ConfigMap {NAMESPACE}/{CONFIG_MAP}"))
}

/// A warning if the ConfigMap is not valid. Services that start with such a ConfigMap run, but coschedule nothing.
pub(super) async fn flags_warning(client: &Client) -> anyhow::Result<Option<String>> {
    let data = data(client, NAMESPACE, CONFIG_MAP)
        .await?
        .unwrap_or_default();
    let Err(violations) = coscheduler_core::config::check(&data) else {
        return Ok(None);
    };
    let violations: Vec<_> = violations.iter().map(ToString::to_string).collect();
    Ok(Some(format!(
        "ConfigMap {NAMESPACE}/{CONFIG_MAP} is not valid, so that nothing is coscheduled: {}",
        violations.join("; ")
    )))
}

/// A warning if Tekton's own affinity assistant is enabled. This function checks only a Tekton in namespace `tekton-pipelines`.
pub(super) async fn tekton_warning(client: &Client) -> anyhow::Result<Option<String>> {
    let Some(flags) = data(client, TEKTON_NAMESPACE, TEKTON_FLAGS).await? else {
        return Ok(None);
    };
    Ok(match flags.get("coschedule").map(String::as_str) {
        Some("disabled") => None,
        other => Some(format!(
            "ConfigMap {TEKTON_NAMESPACE}/{TEKTON_FLAGS} has coschedule: {}; it must be disabled, or Tekton's own affinity \
             assistant interferes",
            other.unwrap_or("(absent, which means workspaces)")
        )),
    })
}

/// The data of a ConfigMap; `None` if there is no such ConfigMap.
async fn data(
    client: &Client,
    namespace: &str,
    name: &str,
) -> anyhow::Result<Option<BTreeMap<String, String>>> {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let config_map = api
        .get_opt(name)
        .await
        .with_context(|| format!("failed to read ConfigMap {namespace}/{name}"))?;
    Ok(config_map.map(|config_map| config_map.data.unwrap_or_default()))
}

fn unless_present<K>(created: kube::Result<K>) -> kube::Result<()> {
    match created {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
        Err(error) => Err(error),
    }
}
