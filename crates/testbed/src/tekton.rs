//! Starts Tekton's controller and webhook, with Tekton's own manifests and the service accounts in them. The API server reaches
//! the webhook through an ExternalName Service. Each bed writes its own port into the webhook configurations, so that beds can
//! run side by side. Tekton keeps this port when it patches the configurations.
//!
//! Both processes listen on all interfaces, because Tekton has no setting for the address.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{DynamicObject, ListParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::Config;
use crate::authority::Authority;
use crate::control_plane::{Site, flag};
use crate::credentials::Identity;
use crate::files::read;
use crate::manifests;
use crate::waiting::{served, until};

const NAMESPACE: &str = "tekton-pipelines";
const WEBHOOK_SERVICE: &str = "tekton-pipelines-webhook";
const WEBHOOK_SECRET: &str = "webhook-certs";

/// How long Tekton's controller, and Tekton's webhook, may each take to start.
const TEKTON_TIMEOUT: Duration = Duration::from_secs(90);

/// Applies Tekton's manifests and starts its processes.
pub(crate) async fn start(site: &Site, client: &Client, config: &Config) -> Result<()> {
    let [.., webhook_port] = site.ports.ports;
    let mut objects = site.binaries.tekton_manifests()?;
    objects.push(webhook_service(webhook_port));
    certify(site, &mut objects)?;
    for object in &mut objects {
        adapt(object, config, webhook_port);
    }
    manifests::apply(client, &objects, manifests::FIELD_MANAGER).await?;
    served(&site.processes, client).await?;
    start_controller(site)?;
    start_webhook(site, webhook_port)
}

/// Waits until Tekton's webhook answers. Then waits until Tekton's controller holds its Lease.
pub(crate) async fn wait(site: &Site, client: &Client) -> Result<()> {
    wait_for_webhook(site, client).await?;
    let leases: Api<Lease> = Api::namespaced(client.clone(), NAMESPACE);
    until(
        &site.processes,
        "Tekton's controller to lead",
        TEKTON_TIMEOUT,
        async || {
            let leases = leases.list(&ListParams::default()).await?;
            Ok(leases.items.iter().any(is_controller_lease))
        },
    )
    .await
}

/// True if this is the Lease of the controller's PipelineRun reconciler, and it has a holder.
fn is_controller_lease(lease: &Lease) -> bool {
    let name = lease.metadata.name.as_deref().unwrap_or_default();
    let holder = lease
        .spec
        .as_ref()
        .and_then(|spec| spec.holder_identity.as_deref());
    name.contains("pipelinerun.reconciler") && holder.is_some_and(|holder| !holder.is_empty())
}

/// Creates a certificate for the webhook, and writes it into the webhook's Secret and the CustomResourceDefinitions. Otherwise,
/// the webhook would create a certificate itself and update these definitions, and the API server would set up their kinds a
/// second time.
fn certify(site: &Site, objects: &mut [Value]) -> Result<()> {
    let folder = site.folder.join("credentials").join(WEBHOOK_SERVICE);
    let authority = Authority::new()?;
    authority.issue_service(&folder, NAMESPACE, WEBHOOK_SERVICE)?;
    let bundle = json!(ByteString(authority.pem().into_bytes()));
    let mut has_secret = false;
    for object in objects {
        if object["kind"] == "Secret" && object["metadata"]["name"] == WEBHOOK_SECRET {
            has_secret = true;
            object["stringData"] = json!({
                "ca-cert.pem": authority.pem(),
                "server-cert.pem": read(&folder.join("tls.crt"))?,
                "server-key.pem": read(&folder.join("tls.key"))?,
            });
        }
        if has_conversion(object) {
            let client = &mut object["spec"]["conversion"]["webhook"]["clientConfig"];
            client["caBundle"] = bundle.clone();
            // The webhook adds this path if it is missing.
            client["service"]["path"] = json!("/resource-conversion");
        }
    }
    ensure!(
        has_secret,
        "Tekton's manifests have no Secret {WEBHOOK_SECRET}"
    );
    Ok(())
}

fn is_registration(object: &Value) -> bool {
    object["kind"]
        .as_str()
        .is_some_and(|kind| kind.ends_with("WebhookConfiguration"))
}

/// True if this is a CustomResourceDefinition whose versions the webhook converts.
fn has_conversion(object: &Value) -> bool {
    object["kind"] == "CustomResourceDefinition" && object["spec"].get("conversion").is_some()
}

/// Changes Tekton's manifests for a test bed.
fn adapt(object: &mut Value, config: &Config, webhook_port: u16) {
    let kind = object["kind"].as_str().unwrap_or_default().to_owned();
    let name = object["metadata"]["name"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    if is_registration(object) {
        if let Some(webhooks) = object["webhooks"].as_array_mut() {
            for webhook in webhooks {
                webhook["clientConfig"]["service"]["port"] = json!(webhook_port);
            }
        }
        return;
    }
    if kind == "CustomResourceDefinition" {
        without_descriptions(object);
    }
    if has_conversion(object) {
        object["spec"]["conversion"]["webhook"]["clientConfig"]["service"]["port"] =
            json!(webhook_port);
    } else if kind == "ConfigMap" && name == "feature-flags" {
        object["data"]["coschedule"] = json!(config.tekton_coschedule);
    } else if kind == "ConfigMap" && name == "config-observability" {
        object["data"]["metrics-protocol"] = json!("none");
    } else if kind == "ConfigMap" && name.starts_with("config-leader-election") {
        // Each of Tekton's reconcilers has a Lease, and would renew it every ten seconds. No bed starts Tekton a second time.
        object["data"] =
            json!({"lease-duration": "6m", "renew-deadline": "4m", "retry-period": "1m"});
    } else if kind == "ConfigMap" && name == "config-logging" {
        // At its default level, info, Tekton writes several lines for each request and each reconcile.
        let zap = json!({"level": "warn", "encoding": "json", "outputPaths": ["stdout"], "errorOutputPaths": ["stderr"]});
        object["data"] = json!({"zap-logger-config": zap.to_string()});
    }
}

/// Removes the descriptions from the schemas of a CustomResourceDefinition. They are three quarters of its text, and the API
/// server reads and writes this text many times while a bed boots. Only `kubectl explain` shows descriptions.
fn without_descriptions(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            // A property with the name `description` is no text, but an object.
            fields.retain(|name, value| name != "description" || !value.is_string());
            fields.values_mut().for_each(without_descriptions);
        }
        Value::Array(items) => items.iter_mut().for_each(without_descriptions),
        _ => {}
    }
}

fn webhook_service(port: u16) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": WEBHOOK_SERVICE, "namespace": NAMESPACE},
        "spec": {
            "type": "ExternalName",
            "externalName": "localhost",
            "ports": [{"name": "https-webhook", "port": port}],
        },
    })
}

fn start_controller(site: &Site) -> Result<()> {
    let mut command = site.command("tekton-controller");
    command.arg(flag(
        "kubeconfig",
        site.credentials
            .kubeconfig(Identity::TektonController)
            .display(),
    ));
    command.args(["--kube-api-qps=200", "--kube-api-burst=400"]);
    // No image is ever pulled, but Tekton needs a name for each.
    for image in [
        "entrypoint",
        "nop",
        "sidecarlogresults",
        "workingdirinit",
        "shell",
    ] {
        command.arg(flag(
            &format!("{image}-image"),
            format!("testbed.invalid/{image}"),
        ));
    }
    command.arg("--shell-image-win=testbed.invalid/shell-win");
    for (name, value) in [
        ("CONFIG_DEFAULTS_NAME", "config-defaults"),
        (
            "CONFIG_LEADERELECTION_NAME",
            "config-leader-election-controller",
        ),
        ("CONFIG_SPIRE", "config-spire"),
    ] {
        command.env(name, value);
    }
    environment(&mut command, "controller");
    site.processes.spawn("tekton-controller", command)
}

fn start_webhook(site: &Site, port: u16) -> Result<()> {
    let mut command = site.command("tekton-webhook");
    command.arg(flag(
        "kubeconfig",
        site.credentials
            .kubeconfig(Identity::TektonWebhook)
            .display(),
    ));
    for (name, value) in [
        (
            "CONFIG_LEADERELECTION_NAME",
            "config-leader-election-webhook",
        ),
        (
            "WEBHOOK_ADMISSION_CONTROLLER_NAME",
            "webhook.pipeline.tekton.dev",
        ),
        ("WEBHOOK_SERVICE_NAME", WEBHOOK_SERVICE),
        ("WEBHOOK_SECRET_NAME", WEBHOOK_SECRET),
    ] {
        command.env(name, value);
    }
    command.env("WEBHOOK_PORT", port.to_string());
    environment(&mut command, "webhook");
    site.processes.spawn("tekton-webhook", command)
}

/// Sets the environment variables that Tekton's controller and webhook both need.
fn environment(command: &mut std::process::Command, pod: &str) {
    for (name, value) in [
        ("SYSTEM_NAMESPACE", NAMESPACE),
        ("KUBERNETES_MIN_VERSION", "v1.28.0"),
        ("CONFIG_LOGGING_NAME", "config-logging"),
        ("CONFIG_OBSERVABILITY_NAME", "config-observability"),
        ("CONFIG_FEATURE_FLAGS_NAME", "feature-flags"),
        ("METRICS_DOMAIN", "tekton.dev/pipeline"),
        ("POD_NAME", pod),
        // 0 means any free port. No kubelet probes these processes.
        ("PROBES_PORT", "0"),
        ("PROFILING_PORT", "0"),
    ] {
        command.env(name, value);
    }
}

/// Waits until the webhook has written its certificate into every webhook configuration. Then waits until it converts and
/// defaults a PipelineRun of the old API version.
async fn wait_for_webhook(site: &Site, client: &Client) -> Result<()> {
    let mutating: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    let validating: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    until(
        &site.processes,
        "Tekton's webhook to write its certificate",
        TEKTON_TIMEOUT,
        async || {
            let mut bundles = Vec::new();
            for found in mutating.list(&ListParams::default()).await? {
                bundles.extend(
                    found
                        .webhooks
                        .into_iter()
                        .flatten()
                        .map(|hook| hook.client_config.ca_bundle),
                );
            }
            for found in validating.list(&ListParams::default()).await? {
                bundles.extend(
                    found
                        .webhooks
                        .into_iter()
                        .flatten()
                        .map(|hook| hook.client_config.ca_bundle),
                );
            }
            Ok(bundles.iter().all(Option::is_some))
        },
    )
    .await?;

    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk(
        "tekton.dev",
        "v1beta1",
        "PipelineRun",
    ));
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), "default", &kind);
    let probe: DynamicObject = serde_json::from_value(json!({
        "apiVersion": "tekton.dev/v1beta1",
        "kind": "PipelineRun",
        "metadata": {"generateName": "probe-"},
        "spec": {"pipelineRef": {"name": "probe"}},
    }))
    .context("failed to describe a PipelineRun")?;
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    until(
        &site.processes,
        "Tekton's webhook to answer",
        TEKTON_TIMEOUT,
        async || {
            let created = api.create(&dry_run, &probe).await?;
            Ok(created.data["spec"].get("timeouts").is_some())
        },
    )
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_without_descriptions_keeps_a_property_of_that_name() {
        let mut schema = json!({
            "description": "a text",
            "properties": {"description": {"type": "string", "description": "another text"}},
            "anyOf": [{"description": "a third text", "required": ["description"]}],
        });
        without_descriptions(&mut schema);
        let expected = json!({
            "properties": {"description": {"type": "string"}},
            "anyOf": [{"required": ["description"]}],
        });
        assert_eq!(schema, expected);
    }
}
