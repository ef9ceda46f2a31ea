//! `deploy/base` on a test bed. kubectl applies and deletes it, as an operator does. The services run as processes on this
//! machine, because the bed's nodes run no real pods.

use std::fmt::Debug;
use std::path::Path;

use anyhow::{Context as _, ensure};
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use k8s_openapi::api::core::v1::Service;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use testbed::TestBed;
use testbed::services::{CONFIGURATION_NAME, NAMESPACE, Services, ServicesConfig};
use tokio::process::Command;

/// Calls the bed's kubectl, and returns its output.
///
/// # Errors
///
/// kubectl fails. The error contains its output.
pub async fn kubectl(bed: &TestBed, arguments: &[&str]) -> anyhow::Result<String> {
    let output = Command::new(bed.kubectl_path())
        .arg("--kubeconfig")
        .arg(bed.kubeconfig())
        .args(arguments)
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."))
        .kill_on_drop(true)
        .output()
        .await
        .context("failed to start kubectl")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(
        output.status.success(),
        "kubectl {arguments:?} failed: {}{text}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(text)
}

/// Writes an overlay of one component and of `resources`, which are folders in `deploy`. Returns the path of the overlay's
/// folder.
///
/// # Errors
///
/// The overlay cannot be written.
pub fn overlay(bed: &TestBed, resources: &[&str], component: &str) -> anyhow::Result<String> {
    let folder = bed.dir().join(component);
    std::fs::create_dir(&folder)?;
    let folder = folder.canonicalize()?;
    // kustomize takes no absolute path.
    let up = "../".repeat(folder.components().count() - 1);
    let deploy = format!("{}/../deploy", env!("CARGO_MANIFEST_DIR"));
    let deploy = format!("{up}{}", deploy.trim_start_matches('/'));
    let resources = resources.iter().map(|name| format!("{deploy}/{name}"));
    let kustomization = json!({
        "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
        "resources": resources.collect::<Vec<_>>(),
        "components": [format!("{deploy}/components/{component}")],
    });
    std::fs::write(folder.join("kustomization.yaml"), kustomization.to_string())?;
    Ok(folder.display().to_string())
}

/// Defines a kind of another project, such as cert-manager, in version `v1`. The definition has no schema, so the API server
/// accepts any fields.
///
/// # Errors
///
/// The API server refuses it.
pub async fn define(bed: &TestBed, group: &str, kind: &str, plural: &str) -> anyhow::Result<()> {
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{group}")},
        "spec": {
            "group": group, "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural, "singular": plural.trim_end_matches('s')},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}],
        },
    });
    bed.apply(&definition.to_string()).await?;
    Ok(())
}

/// The folder of the installation.
pub const BASE: &str = "deploy/base";

/// Starts the services as processes under the installed accounts. The admission-webhook is not ready before [`lead_here`].
///
/// # Errors
///
/// A service does not start.
pub async fn serve(bed: &TestBed, replicas: u16) -> anyhow::Result<Services> {
    let config = ServicesConfig {
        installed: true,
        replicas,
        ..ServicesConfig::new(bed.kubeconfig())?
    };
    Services::launch(config).await
}

/// Calls [`lead`], and then waits until the API server reaches the webhooks.
///
/// # Errors
///
/// The API server does not reach the webhooks in time.
pub async fn lead_here(client: &Client, services: &Services) -> anyhow::Result<()> {
    lead(client, services).await?;
    services.register().await
}

/// Makes the installed Service and the installed webhook configurations lead to a process on this machine.
///
/// # Errors
///
/// The API server refuses a change.
pub async fn lead(client: &Client, services: &Services) -> anyhow::Result<()> {
    let here = json!({"spec": {"type": "ExternalName", "externalName": "localhost"}});
    Api::<Service>::namespaced(client.clone(), NAMESPACE)
        .patch(
            "admission-webhook",
            &PatchParams::default(),
            &Patch::Merge(here),
        )
        .await
        .context("failed to change the Service")?;
    lead_webhooks_here::<MutatingWebhookConfiguration>(client, services).await?;
    lead_webhooks_here::<ValidatingWebhookConfiguration>(client, services).await
}

async fn lead_webhooks_here<K>(client: &Client, services: &Services) -> anyhow::Result<()>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Serialize,
{
    let configurations: Api<K> = Api::all(client.clone());
    let configuration = serde_json::to_value(configurations.get(CONFIGURATION_NAME).await?)?;
    let port = services.ports().admission();
    let webhooks: Vec<_> = configuration["webhooks"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|webhook| {
            json!({"name": webhook["name"], "clientConfig": {"service": {
                "name": "admission-webhook", "namespace": NAMESPACE, "port": port,
            }}})
        })
        .collect();
    configurations
        .patch(
            CONFIGURATION_NAME,
            &PatchParams::default(),
            &Patch::Strategic(json!({"webhooks": webhooks})),
        )
        .await
        .with_context(|| format!("failed to change the {}", K::kind(&())))?;
    Ok(())
}
