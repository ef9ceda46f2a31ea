//! The namespace and the ConfigMap the services read. Created if absent; what exists is the operator's and is never
//! changed.

use std::collections::BTreeMap;

use anyhow::Context as _;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};

/// Namespace of the services' configuration.
pub const NAMESPACE: &str = "coscheduler-system";
/// Name of the ConfigMap with the flags.
pub const CONFIG_MAP: &str = "coscheduler-config";

/// Creates the namespace and, with `mode`, a ConfigMap that asks for it.
pub(super) async fn ensure(client: &Client, mode: Option<&str>) -> anyhow::Result<()> {
    let namespace = Namespace {
        metadata: ObjectMeta {
            name: Some(NAMESPACE.to_owned()),
            ..ObjectMeta::default()
        },
        ..Namespace::default()
    };
    let created = Api::all(client.clone())
        .create(&PostParams::default(), &namespace)
        .await;
    unless_present(created).with_context(|| format!("failed to create namespace {NAMESPACE}"))?;

    let Some(mode) = mode else { return Ok(()) };
    let config_map = ConfigMap {
        metadata: ObjectMeta {
            name: Some(CONFIG_MAP.to_owned()),
            namespace: Some(NAMESPACE.to_owned()),
            ..ObjectMeta::default()
        },
        data: Some(BTreeMap::from([("coschedule".to_owned(), mode.to_owned())])),
        ..ConfigMap::default()
    };
    let created = Api::namespaced(client.clone(), NAMESPACE)
        .create(&PostParams::default(), &config_map)
        .await;
    unless_present(created)
        .with_context(|| format!("failed to create ConfigMap {NAMESPACE}/{CONFIG_MAP}"))
}

fn unless_present<K>(created: kube::Result<K>) -> kube::Result<()> {
    match created {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
        Err(error) => Err(error),
    }
}
