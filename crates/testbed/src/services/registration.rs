//! The webhook registrations that lead the API server to this machine's admission-webhook, with loopback URLs and the
//! launcher's own CA. They are known by a label: only what a launcher made is ever taken over or removed, so an
//! installation in the cluster is safe from a launcher on somebody's desk.

use std::pin::pin;

use anyhow::{Context as _, bail};
use futures::StreamExt as _;
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{
    MatchCondition, MutatingWebhook, MutatingWebhookConfiguration, RuleWithOperations,
    WebhookClientConfig,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use kube::api::{DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, Preconditions};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::watch_object;
use kube::{Api, Client, ResourceExt as _};

use super::{NAMESPACE, Ports};

/// Name of the MutatingWebhookConfiguration.
pub const CONFIGURATION_NAME: &str = "coscheduler.dev";
/// Value of `app.kubernetes.io/managed-by` on registrations made by a launcher; also its field manager.
pub const MANAGED_BY: &str = "coscheduler-local-services";

const MANAGED_BY_LABEL: &str = "app.kubernetes.io/managed-by";
/// Only TaskRuns and CustomRuns that belong to a coscheduled run, or claim to, are sent.
const CARRIES_OUR_ANNOTATIONS: &str = "has(object.metadata.annotations) && object.metadata.annotations.exists(key, \
     key == 'pipeline.tekton.dev/affinity-assistant' || key.startsWith('coscheduler.dev/'))";

/// Only updates that touch what was pinned at creation are sent, so that cancelling, finalizers and status never depend
/// on us: an annotation of ours that differs or has gone, or other workspaces or `taskRunSpecs`.
fn touches_what_was_pinned() -> String {
    let ours =
        "(key == 'pipeline.tekton.dev/affinity-assistant' || key.startsWith('coscheduler.dev/'))";
    let annotations = |run: &str| {
        format!("(has({run}.metadata.annotations) ? {run}.metadata.annotations : {{}})")
    };
    let (now, before) = (annotations("object"), annotations("oldObject"));
    let differs = |field: &str| {
        let of = |run: &str| format!("(has({run}.spec.{field}) ? {run}.spec.{field} : [])");
        format!("{} != {}", of("object"), of("oldObject"))
    };
    [
        format!("{now}.exists(key, {ours} && !(key in {before} && {before}[key] == {now}[key]))"),
        format!("{before}.exists(key, {ours} && !(key in {now}))"),
        differs("workspaces"),
        differs("taskRunSpecs"),
    ]
    .join(" || ")
}

/// An error if a registration of our name exists that no launcher made: an installation in the cluster, most likely.
pub(super) async fn refuse_foreign(client: &Client) -> anyhow::Result<()> {
    match get(client).await? {
        Some(existing) if !made_by_launcher(&existing) => bail!(
            "MutatingWebhookConfiguration {CONFIGURATION_NAME} exists and was not made by local services \
             (label {MANAGED_BY_LABEL} is not {MANAGED_BY}): the services seem to be installed in this cluster; \
             remove that installation first"
        ),
        Some(_) | None => Ok(()),
    }
}

/// Registers the webhooks of the services on `ports`, taking over what an earlier launcher registered.
pub(super) async fn apply(client: &Client, ports: Ports, ca_pem: &str) -> anyhow::Result<()> {
    api(client)
        .patch(
            CONFIGURATION_NAME,
            &PatchParams::apply(MANAGED_BY).force(),
            &Patch::Apply(configuration(ports, ca_pem)),
        )
        .await
        .map(drop)
        .with_context(|| {
            format!("failed to apply MutatingWebhookConfiguration {CONFIGURATION_NAME}")
        })
}

/// Removes the registration, unless another launcher has taken it over meanwhile.
pub(super) async fn remove_own(client: &Client, ca_pem: &str) -> anyhow::Result<()> {
    // A conflict means that the object changed between the two calls: look again whose it is.
    for _ in 0..5 {
        let Some(existing) = get(client).await? else {
            return Ok(());
        };
        if !trusts(&existing, ca_pem) {
            return Ok(());
        }
        let unchanged = DeleteParams::default().preconditions(Preconditions {
            uid: existing.uid(),
            resource_version: existing.resource_version(),
        });
        match api(client).delete(CONFIGURATION_NAME, &unchanged).await {
            Ok(_) => return Ok(()),
            Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => {}
            Err(error) => return Err(error).context("the API server refused"),
        }
    }
    bail!("it keeps changing")
}

/// Waits until the registration is gone or no longer ours.
pub(super) async fn lost(client: &Client, ca_pem: &str) {
    let mut states = pin!(watch_object(api(client), CONFIGURATION_NAME).default_backoff());
    while let Some(state) = states.next().await {
        // An API server that does not answer has not taken anything away.
        let Ok(existing) = state else { continue };
        if !existing.is_some_and(|existing| trusts(&existing, ca_pem)) {
            return;
        }
    }
}

/// Removes every registration that any launcher made; one sentence for each, and for what was left alone.
pub(super) async fn remove_all(client: &Client) -> anyhow::Result<Vec<String>> {
    let ours = ListParams::default().labels(&format!("{MANAGED_BY_LABEL}={MANAGED_BY}"));
    let list = api(client)
        .list(&ours)
        .await
        .context("failed to list MutatingWebhookConfigurations")?;
    let mut done = Vec::new();
    for configuration in list {
        let name = configuration.name_any();
        match api(client).delete(&name, &DeleteParams::default()).await {
            Ok(_) => done.push(format!("removed MutatingWebhookConfiguration {name}")),
            Err(kube::Error::Api(status)) if status.is_not_found() => {}
            Err(error) => {
                return Err(error).with_context(|| {
                    format!("failed to remove MutatingWebhookConfiguration {name}")
                });
            }
        }
    }
    if get(client)
        .await?
        .is_some_and(|existing| !made_by_launcher(&existing))
    {
        done.push(format!(
            "left MutatingWebhookConfiguration {CONFIGURATION_NAME} alone: local services did not make it"
        ));
    }
    if done.is_empty() {
        done.push("no webhook registration of local services was there".to_owned());
    }
    Ok(done)
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

fn made_by_launcher(configuration: &MutatingWebhookConfiguration) -> bool {
    configuration
        .labels()
        .get(MANAGED_BY_LABEL)
        .is_some_and(|value| value == MANAGED_BY)
}

fn trusts(configuration: &MutatingWebhookConfiguration, ca_pem: &str) -> bool {
    configuration.webhooks.iter().flatten().any(|webhook| {
        let bundle = webhook.client_config.ca_bundle.as_ref();
        bundle.is_some_and(|ByteString(bundle)| bundle == ca_pem.as_bytes())
    })
}

fn configuration(ports: Ports, ca_pem: &str) -> MutatingWebhookConfiguration {
    MutatingWebhookConfiguration {
        metadata: ObjectMeta {
            name: Some(CONFIGURATION_NAME.to_owned()),
            labels: Some([(MANAGED_BY_LABEL.to_owned(), MANAGED_BY.to_owned())].into()),
            ..ObjectMeta::default()
        },
        webhooks: Some(vec![
            MutatingWebhook {
                rules: Some(vec![on("CREATE", "v1", &["pipelineruns"])]),
                ..webhook(
                    "pipelineruns.coscheduler.dev",
                    "/admit/pipelinerun",
                    ports,
                    ca_pem,
                )
            },
            MutatingWebhook {
                rules: Some(vec![on("UPDATE", "v1", &["pipelineruns"])]),
                match_conditions: Some(vec![MatchCondition {
                    name: "touches-what-was-pinned".to_owned(),
                    expression: touches_what_was_pinned(),
                }]),
                ..webhook(
                    "pipelinerun-updates.coscheduler.dev",
                    "/admit/pipelinerun",
                    ports,
                    ca_pem,
                )
            },
            MutatingWebhook {
                rules: Some(vec![
                    on("CREATE", "v1", &["taskruns"]),
                    on("CREATE", "v1beta1", &["customruns"]),
                ]),
                match_conditions: Some(vec![MatchCondition {
                    name: "carries-our-annotations".to_owned(),
                    expression: CARRIES_OUR_ANNOTATIONS.to_owned(),
                }]),
                ..webhook("runs.coscheduler.dev", "/admit/run", ports, ca_pem)
            },
        ]),
    }
}

/// What all webhooks share. `Fail` because a run that slipped past us unpinned would not be coscheduled, and Tekton
/// retries a refused TaskRun creation, so an outage only delays.
fn webhook(name: &str, path: &str, ports: Ports, ca_pem: &str) -> MutatingWebhook {
    MutatingWebhook {
        name: name.to_owned(),
        admission_review_versions: vec!["v1".to_owned()],
        client_config: WebhookClientConfig {
            url: Some(format!("https://127.0.0.1:{}{path}", ports.admission())),
            ca_bundle: Some(ByteString(ca_pem.as_bytes().to_vec())),
            service: None,
        },
        failure_policy: Some("Fail".to_owned()),
        match_policy: Some("Equivalent".to_owned()),
        namespace_selector: Some(LabelSelector {
            match_expressions: Some(vec![LabelSelectorRequirement {
                key: "kubernetes.io/metadata.name".to_owned(),
                operator: "NotIn".to_owned(),
                values: Some(vec![NAMESPACE.to_owned(), "kube-system".to_owned()]),
            }]),
            match_labels: None,
        }),
        reinvocation_policy: Some("Never".to_owned()),
        side_effects: "None".to_owned(),
        timeout_seconds: Some(10),
        ..MutatingWebhook::default()
    }
}

fn on(operation: &str, version: &str, resources: &[&str]) -> RuleWithOperations {
    RuleWithOperations {
        api_groups: Some(vec!["tekton.dev".to_owned()]),
        api_versions: Some(vec![version.to_owned()]),
        operations: Some(vec![operation.to_owned()]),
        resources: Some(
            resources
                .iter()
                .map(|&resource| resource.to_owned())
                .collect(),
        ),
        scope: Some("Namespaced".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_whole_registration() {
        let selector = json!({ "matchExpressions": [{
            "key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["coscheduler-system", "kube-system"],
        }] });
        let rule = |operation: &str, version: &str, resource: &str| {
            json!({
                "apiGroups": ["tekton.dev"], "apiVersions": [version], "operations": [operation],
                "resources": [resource], "scope": "Namespaced",
            })
        };
        let expected = json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "MutatingWebhookConfiguration",
            "metadata": {
                "name": "coscheduler.dev",
                "labels": { "app.kubernetes.io/managed-by": "coscheduler-local-services" },
            },
            "webhooks": [
                {
                    "name": "pipelineruns.coscheduler.dev",
                    "admissionReviewVersions": ["v1"],
                    "clientConfig": { "url": "https://127.0.0.1:9443/admit/pipelinerun", "caBundle": "Q0E=" },
                    "failurePolicy": "Fail", "matchPolicy": "Equivalent", "namespaceSelector": selector,
                    "reinvocationPolicy": "Never", "sideEffects": "None", "timeoutSeconds": 10,
                    "rules": [rule("CREATE", "v1", "pipelineruns")],
                },
                {
                    "name": "pipelinerun-updates.coscheduler.dev",
                    "admissionReviewVersions": ["v1"],
                    "clientConfig": { "url": "https://127.0.0.1:9443/admit/pipelinerun", "caBundle": "Q0E=" },
                    "failurePolicy": "Fail", "matchPolicy": "Equivalent", "namespaceSelector": selector,
                    "reinvocationPolicy": "Never", "sideEffects": "None", "timeoutSeconds": 10,
                    "rules": [rule("UPDATE", "v1", "pipelineruns")],
                    "matchConditions": [{
                        "name": "touches-what-was-pinned",
                        "expression": touches_what_was_pinned(),
                    }],
                },
                {
                    "name": "runs.coscheduler.dev",
                    "admissionReviewVersions": ["v1"],
                    "clientConfig": { "url": "https://127.0.0.1:9443/admit/run", "caBundle": "Q0E=" },
                    "failurePolicy": "Fail", "matchPolicy": "Equivalent", "namespaceSelector": selector,
                    "reinvocationPolicy": "Never", "sideEffects": "None", "timeoutSeconds": 10,
                    "rules": [rule("CREATE", "v1", "taskruns"), rule("CREATE", "v1beta1", "customruns")],
                    "matchConditions": [{
                        "name": "carries-our-annotations",
                        "expression": "has(object.metadata.annotations) && object.metadata.annotations.exists(key, \
                            key == 'pipeline.tekton.dev/affinity-assistant' || key.startsWith('coscheduler.dev/'))",
                    }],
                },
            ],
        });
        assert_eq!(
            serde_json::to_value(configuration(Ports::at(9100), "CA")).unwrap(),
            expected
        );
    }

    #[test]
    fn a_registration_is_ours_by_its_authority() {
        let registered = configuration(Ports::at(9100), "CA");
        assert!(trusts(&registered, "CA"));
        assert!(!trusts(&registered, "another launcher's"));
    }
}
