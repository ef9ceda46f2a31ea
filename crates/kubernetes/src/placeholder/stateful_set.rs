//! Builds the StatefulSet of a placeholder from its specification. The specification is valid, so building cannot fail.
//!
//! Sources for the fields and labels: TEP-0135, "Placeholder pod + inter-pod affinity" and "Co-locating volumes" (P1, P3, P5, V1,
//! V2, V8).

use std::collections::BTreeMap;

use coscheduler_core::plan::{ClaimTemplateSpec, PlaceholderSpec};
use k8s_openapi::api::apps::v1::{StatefulSet, StatefulSetSpec, StatefulSetUpdateStrategy};
use k8s_openapi::api::core::v1::{
    Capabilities, Container, PersistentVolumeClaim, PersistentVolumeClaimSpec,
    PersistentVolumeClaimVolumeSource, PodSchedulingGate, PodSecurityContext, PodSpec,
    PodTemplateSpec, ResourceRequirements, SeccompProfile, SecurityContext, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference};

use coscheduler_core::config::Reserves;
use coscheduler_core::labels::{
    AFFINITY_ASSISTANT, COMPONENT, INSTANCE, MANAGED_BY, PIPELINE_RUN_UID, TEKTON_COSCHEDULER,
};
use coscheduler_core::names::claim_name;
use coscheduler_core::reconcile::reserve::GATE;
use coscheduler_core::volumes::Volumes;

use crate::affinity::affinity;
use crate::needs;
use crate::placeholder::size::limits;

/// Any user except root is suitable, because the container writes no files.
const USER: i64 = 65_532;
/// The seconds that the placeholder may take to stop. Its process stops immediately on SIGTERM. With 0 seconds, the pod would be
/// gone before the kubelet unmounts its volumes. The next pod would then find these volumes still attached to the old node.
const GRACE_SECONDS: i64 = 1;

/// These annotations keep autoscalers from removing a node that is not full while a run uses it (N7). Sources: Karpenter,
/// "Disruption", "Pod-Level Controls"; Cluster Autoscaler, FAQ, "What types of pods can prevent CA from removing a node?".
pub(super) const KEEPS_NODE: [(&str, &str); 2] = [
    ("karpenter.sh/do-not-disrupt", "true"),
    ("cluster-autoscaler.kubernetes.io/safe-to-evict", "false"),
];

/// The PipelineRun that owns a placeholder.
#[derive(Clone, Copy, Debug)]
pub struct Owner<'a> {
    /// The namespace of the run and of its placeholders.
    pub namespace: &'a str,
    /// The name of the run.
    pub name: &'a str,
    /// The uid of the run.
    pub uid: &'a str,
}

/// The StatefulSet of a placeholder. `volumes` has the decisions about the placeholder's existing claims.
///
/// An owner reference makes the run the controller of the StatefulSet. The reference does not set `blockOwnerDeletion`: with the
/// admission plugin `OwnerReferencesPermissionEnforcement`, this would need the right to update finalizers of PipelineRuns.
pub fn build(owner: Owner<'_>, spec: &PlaceholderSpec, volumes: &Volumes) -> StatefulSet {
    let all_labels = with_owner(spec.labels.clone(), owner);
    StatefulSet {
        metadata: ObjectMeta {
            name: Some(spec.name.to_string()),
            namespace: Some(owner.namespace.to_owned()),
            labels: Some(all_labels.clone()),
            owner_references: Some(vec![OwnerReference {
                controller: Some(true),
                ..reference(owner)
            }]),
            ..ObjectMeta::default()
        },
        spec: Some(StatefulSetSpec {
            replicas: Some(1),
            selector: LabelSelector {
                match_labels: Some(selector(&spec.name.to_string())),
                ..LabelSelector::default()
            },
            template: PodTemplateSpec {
                metadata: Some(ObjectMeta {
                    labels: Some(all_labels),
                    annotations: Some(keeps_node()),
                    ..ObjectMeta::default()
                }),
                spec: Some(pod_spec(spec, volumes)),
            },
            update_strategy: Some(StatefulSetUpdateStrategy {
                type_: Some("OnDelete".to_owned()),
                ..StatefulSetUpdateStrategy::default()
            }),
            volume_claim_templates: Some(
                spec.claim_templates
                    .iter()
                    .map(|template| claim(owner, template))
                    .collect(),
            ),
            ..StatefulSetSpec::default()
        }),
        status: None,
    }
}

/// [`KEEPS_NODE`] as annotations.
pub(super) fn keeps_node() -> BTreeMap<String, String> {
    KEEPS_NODE
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into()
}

/// The labels that select the pod of exactly one placeholder (P2).
pub fn selector(name: &str) -> BTreeMap<String, String> {
    BTreeMap::from([
        (COMPONENT.to_owned(), AFFINITY_ASSISTANT.to_owned()),
        (INSTANCE.to_owned(), name.to_owned()),
    ])
}

/// Adds two labels: the run's uid, and [`MANAGED_BY`]. The placeholder-manager finds its objects by these labels.
pub(super) fn with_owner(
    mut labels: BTreeMap<String, String>,
    owner: Owner<'_>,
) -> BTreeMap<String, String> {
    labels.insert(PIPELINE_RUN_UID.to_owned(), owner.uid.to_owned());
    labels.insert(MANAGED_BY.to_owned(), TEKTON_COSCHEDULER.to_owned());
    labels
}

pub(super) fn reference(owner: Owner<'_>) -> OwnerReference {
    OwnerReference {
        api_version: "tekton.dev/v1".to_owned(),
        kind: "PipelineRun".to_owned(),
        name: owner.name.to_owned(),
        uid: owner.uid.to_owned(),
        ..OwnerReference::default()
    }
}

/// The claims that the manager creates itself for both kinds of placeholders, because only one pod may use such a claim (V8).
/// They have the same fields as claims that the StatefulSet controller creates, including the labels of the StatefulSet's
/// selector.
pub fn single_pod_claims(owner: Owner<'_>, spec: &PlaceholderSpec) -> Vec<PersistentVolumeClaim> {
    made(owner, spec, &spec.single_pod_claims).collect()
}

/// The claims that the StatefulSet controller makes for a placeholder. Without a StatefulSet, the manager creates them.
pub fn made_claims(owner: Owner<'_>, spec: &PlaceholderSpec) -> Vec<PersistentVolumeClaim> {
    made(owner, spec, &spec.claim_templates).collect()
}

/// The claims from `templates` of a placeholder, as the StatefulSet controller would make them.
pub(super) fn made<'a>(
    owner: Owner<'a>,
    spec: &'a PlaceholderSpec,
    templates: &'a [ClaimTemplateSpec],
) -> impl Iterator<Item = PersistentVolumeClaim> + 'a {
    templates.iter().map(move |template| {
        let mut claim = claim(owner, template);
        claim.metadata.name = Some(claim_name(&template.name, &spec.name));
        claim.metadata.namespace = Some(owner.namespace.to_owned());
        let labels = claim.metadata.labels.get_or_insert_default();
        labels.extend(selector(spec.name.as_str()));
        claim
    })
}

pub(super) fn pod_spec(spec: &PlaceholderSpec, volumes: &Volumes) -> PodSpec {
    let templates = spec.claim_templates.iter().map(|t| t.name.to_string());
    let bound = spec
        .claim_names
        .iter()
        .filter(|claim_name| !volumes.unmounted.contains(*claim_name))
        .enumerate()
        .map(|(index, claim_name)| (format!("claim-{index}"), claim_name));
    PodSpec {
        affinity: Some(affinity(
            shared(spec, "affinity"),
            spec.separation,
            &volumes.node_terms,
        )),
        image_pull_secrets: shared(spec, "imagePullSecrets"),
        node_selector: shared(spec, "nodeSelector"),
        priority_class_name: shared(spec, "priorityClassName"),
        runtime_class_name: shared(spec, "runtimeClassName"),
        scheduler_name: shared(spec, "schedulerName"),
        tolerations: shared(spec, "tolerations"),
        service_account_name: Some(spec.service_account_name.clone())
            .filter(|name| !name.is_empty()),
        scheduling_gates: match spec.reserves {
            Reserves::Nothing => None,
            Reserves::Placement | Reserves::Peak => Some(vec![PodSchedulingGate {
                name: GATE.to_owned(),
            }]),
        },
        automount_service_account_token: Some(false),
        enable_service_links: Some(false),
        termination_grace_period_seconds: Some(GRACE_SECONDS),
        security_context: Some(security_context(
            shared(spec, "securityContext").unwrap_or_default(),
        )),
        containers: vec![container(
            spec,
            templates
                .chain(bound.clone().map(|(name, _)| name))
                .collect(),
        )],
        volumes: Some(
            bound
                .map(|(name, claim_name)| volume(name, claim_name.clone()))
                .collect(),
        ),
        ..PodSpec::default()
    }
}

pub(super) fn volume(name: String, claim_name: String) -> Volume {
    Volume {
        name,
        persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
            claim_name,
            read_only: None,
        }),
        ..Volume::default()
    }
}

/// The security context of the pod template, and the fields that Pod Security `restricted` requires in addition (P3, P5). The
/// plan has already removed the fields that `restricted` forbids ([`pod_template`](coscheduler_core::pod_template)).
fn security_context(run: PodSecurityContext) -> PodSecurityContext {
    PodSecurityContext {
        run_as_non_root: Some(true),
        run_as_user: run.run_as_user.or(Some(USER)),
        run_as_group: run.run_as_group.or(Some(USER)),
        seccomp_profile: run.seccomp_profile.or_else(|| {
            Some(SeccompProfile {
                type_: "RuntimeDefault".to_owned(),
                ..SeccompProfile::default()
            })
        }),
        ..run
    }
}

fn container(spec: &PlaceholderSpec, volumes: Vec<String>) -> Container {
    let requests = BTreeMap::from([
        ("cpu".to_owned(), Quantity(spec.cpu.clone())),
        ("memory".to_owned(), Quantity(spec.memory.clone())),
    ]);
    let limits = match spec.reserves {
        Reserves::Nothing => requests.clone(),
        Reserves::Placement | Reserves::Peak => limits(&needs::amounts(Some(&requests))),
    };
    Container {
        name: AFFINITY_ASSISTANT.to_owned(),
        image: Some(spec.image.clone()),
        resources: Some(ResourceRequirements {
            requests: Some(requests),
            limits: Some(limits),
            ..ResourceRequirements::default()
        }),
        security_context: Some(SecurityContext {
            allow_privilege_escalation: Some(false),
            capabilities: Some(Capabilities {
                drop: Some(vec!["ALL".to_owned()]),
                add: None,
            }),
            read_only_root_filesystem: Some(true),
            ..SecurityContext::default()
        }),
        volume_mounts: Some(
            volumes
                .into_iter()
                .map(|name| VolumeMount {
                    mount_path: format!("/workspace/{name}"),
                    name,
                    read_only: Some(true),
                    ..VolumeMount::default()
                })
                .collect(),
        ),
        ..Container::default()
    }
}

/// A field of the placeholder's pod template (P3). A field with a wrong type is left out, because Tekton's own validation denies
/// such a run.
fn shared<T: serde::de::DeserializeOwned>(spec: &PlaceholderSpec, field: &str) -> Option<T> {
    serde_json::from_value(spec.pod_template.get(field)?.clone()).ok()
}

/// The claim template. As in TEP-0135, its owner reference sets neither `controller` nor `blockOwnerDeletion`.
fn claim(owner: Owner<'_>, template: &ClaimTemplateSpec) -> PersistentVolumeClaim {
    let labels = with_owner(template.labels.clone(), owner);
    PersistentVolumeClaim {
        metadata: ObjectMeta {
            name: Some(template.name.to_string()),
            labels: Some(labels),
            annotations: Some(template.annotations.clone()).filter(|map| !map.is_empty()),
            owner_references: Some(vec![reference(owner)]),
            ..ObjectMeta::default()
        },
        spec: Some(claim_spec(template)),
        status: None,
    }
}

/// The claim's `spec`, as the author wrote it. If a field has a wrong type, the result is empty, and the API server refuses the
/// claim. `core` has checked only the fields that this product reads.
fn claim_spec(template: &ClaimTemplateSpec) -> PersistentVolumeClaimSpec {
    serde_json::from_value(template.spec.clone()).unwrap_or_default()
}

#[cfg(test)]
pub(super) mod tests;
