//! The placeholder's StatefulSet, built from a plan. Everything that could be wrong was refused before: building
//! cannot fail.
//!
//! Shape and labels: TEP-0135, "Placeholder pod + inter-pod affinity" and "Co-locating volumes" (P1, P3, P5, V1, V2, V8).

use std::collections::BTreeMap;

use coscheduler_core::plan::{ClaimTemplateSpec, PlaceholderSpec};
use k8s_openapi::api::apps::v1::{StatefulSet, StatefulSetSpec, StatefulSetUpdateStrategy};
use k8s_openapi::api::core::v1::{
    Capabilities, Container, PersistentVolumeClaim, PersistentVolumeClaimSpec,
    PersistentVolumeClaimVolumeSource, PodSecurityContext, PodSpec, PodTemplateSpec,
    ResourceRequirements, SeccompProfile, SecurityContext, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference};

use coscheduler_core::labels::{AFFINITY_ASSISTANT, COMPONENT, INSTANCE};
use coscheduler_core::names::claim_name;
use coscheduler_core::volumes::Volumes;

use crate::labels::{MANAGED_BY, PIPELINE_RUN_UID, TEKTON_COSCHEDULER};
use crate::scheduling::affinity;

/// Any user that is not root: the container writes nothing.
const USER: i64 = 65_532;
/// Seconds the placeholder gets to stop. Its process stops on SIGTERM at once; 0 would drop the pod before the kubelet
/// has let go of its volumes, and a StatefulSet's next pod would find them still attached elsewhere.
const GRACE_SECONDS: i64 = 1;

/// The PipelineRun that owns a placeholder.
#[derive(Clone, Copy, Debug)]
pub struct Owner<'a> {
    /// Namespace of the run and so of its placeholders.
    pub namespace: &'a str,
    /// Name of the run.
    pub name: &'a str,
    /// Uid of the run.
    pub uid: &'a str,
}

/// The StatefulSet of a placeholder. `volumes` says what was found out about its claims; nothing found out is
/// [`Volumes::default`].
///
/// Its owner reference is the controller's, without `blockOwnerDeletion`: where the admission plugin
/// `OwnerReferencesPermissionEnforcement` is on, that field needs the right to update the finalizers of PipelineRuns.
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
                    ..ObjectMeta::default()
                }),
                spec: Some(pod(spec, volumes)),
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

/// The labels that select exactly one placeholder (P2).
pub fn selector(name: &str) -> BTreeMap<String, String> {
    BTreeMap::from([
        (COMPONENT.to_owned(), AFFINITY_ASSISTANT.to_owned()),
        (INSTANCE.to_owned(), name.to_owned()),
    ])
}

/// The labels by which the placeholder-manager finds what it made.
fn with_owner(mut labels: BTreeMap<String, String>, owner: Owner<'_>) -> BTreeMap<String, String> {
    labels.insert(PIPELINE_RUN_UID.to_owned(), owner.uid.to_owned());
    labels.insert(MANAGED_BY.to_owned(), TEKTON_COSCHEDULER.to_owned());
    labels
}

fn reference(owner: Owner<'_>) -> OwnerReference {
    OwnerReference {
        api_version: "tekton.dev/v1".to_owned(),
        kind: "PipelineRun".to_owned(),
        name: owner.name.to_owned(),
        uid: owner.uid.to_owned(),
        ..OwnerReference::default()
    }
}

/// The claims that are made beside the StatefulSet and look as if it had made them (V8): its controller adds the labels
/// that it selects by.
pub fn single_pod_claims(owner: Owner<'_>, spec: &PlaceholderSpec) -> Vec<PersistentVolumeClaim> {
    spec.single_pod_claims
        .iter()
        .map(|template| {
            let mut claim = claim(owner, template);
            claim.metadata.name = Some(claim_name(&template.name, &spec.name));
            claim.metadata.namespace = Some(owner.namespace.to_owned());
            let labels = claim.metadata.labels.get_or_insert_default();
            labels.extend(selector(spec.name.as_str()));
            claim
        })
        .collect()
}

fn pod(spec: &PlaceholderSpec, volumes: &Volumes) -> PodSpec {
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
                .map(|(name, claim_name)| Volume {
                    name,
                    persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                        claim_name: claim_name.clone(),
                        read_only: None,
                    }),
                    ..Volume::default()
                })
                .collect(),
        ),
        ..PodSpec::default()
    }
}

/// What the run asks for, over what every placeholder has. What Pod Security `restricted` forbids is not among it any
/// more ([`pod_template`](coscheduler_core::pod_template)); what it demands is here (P3, P5).
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
    let resources = BTreeMap::from([
        ("cpu".to_owned(), Quantity(spec.cpu.clone())),
        ("memory".to_owned(), Quantity(spec.memory.clone())),
    ]);
    Container {
        name: AFFINITY_ASSISTANT.to_owned(),
        image: Some(spec.image.clone()),
        resources: Some(ResourceRequirements {
            requests: Some(resources.clone()),
            limits: Some(resources),
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

/// A field that the placeholder shares with the run's pods (P3). One that is not of its Kubernetes type is left out,
/// alone: Tekton's own validation refuses such a run.
fn shared<T: serde::de::DeserializeOwned>(spec: &PlaceholderSpec, field: &str) -> Option<T> {
    serde_json::from_value(spec.pod_template.get(field)?.clone()).ok()
}

/// A claim template. Its owner reference has neither `controller` nor `blockOwnerDeletion`, as in TEP-0135.
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

/// The author's claim spec. What does not fit the type is left to the API server to refuse: `core` has checked the
/// fields this product reads.
fn claim_spec(template: &ClaimTemplateSpec) -> PersistentVolumeClaimSpec {
    serde_json::from_value(template.spec.clone()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use coscheduler_core::mode::IsolationScope;
    use coscheduler_core::plan::Separation;
    use serde_json::json;

    fn spec() -> PlaceholderSpec {
        PlaceholderSpec {
            name: "affinity-assistant-0123456789".parse().unwrap(),
            labels: BTreeMap::from([("team".to_owned(), "ci".to_owned())]),
            claim_templates: vec![ClaimTemplateSpec {
                name: "pvc-0123456789".parse().unwrap(),
                workspace: "source".to_owned(),
                spec: json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}),
                labels: BTreeMap::from([("tekton.dev/workspace".to_owned(), "source".to_owned())]),
                annotations: BTreeMap::new(),
            }],
            single_pod_claims: vec![],
            claim_names: vec!["brought".to_owned()],
            unmounted_claim_names: vec!["made-by-tekton".to_owned()],
            separation: Separation::Spread,
            cpu: "50m".to_owned(),
            memory: "100Mi".to_owned(),
            image: "pause".to_owned(),
            pod_template: serde_json::Map::new(),
            service_account_name: String::new(),
        }
    }

    #[test]
    fn p3_what_decides_where_the_runs_pods_may_run_holds_for_the_placeholder_too() {
        let template = json!({
            "affinity": {
                "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                    {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]},
                ]}},
                "podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
                    {"weight": 1, "podAffinityTerm": {"topologyKey": "zone"}},
                ]},
            },
            "imagePullSecrets": [{"name": "registry"}],
            "nodeSelector": {"arch": "arm64"},
            "priorityClassName": "high",
            "runtimeClassName": "sandboxed",
            "schedulerName": "other",
            "tolerations": [{"key": "ci", "operator": "Exists"}],
        });
        let spec = PlaceholderSpec {
            pod_template: template.as_object().cloned().unwrap(),
            service_account_name: "builder".to_owned(),
            ..spec()
        };
        let pod = serde_json::to_value(pod(&spec, &Volumes::default())).unwrap();
        for key in [
            "imagePullSecrets",
            "nodeSelector",
            "priorityClassName",
            "runtimeClassName",
            "schedulerName",
            "tolerations",
        ] {
            assert_eq!(pod[key], template[key], "{key}");
        }
        assert_eq!(pod["serviceAccountName"], "builder");
        assert_eq!(pod["automountServiceAccountToken"], false);
        assert_eq!(
            pod["affinity"]["nodeAffinity"],
            template["affinity"]["nodeAffinity"]
        );
        let apart =
            pod["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
                .as_array()
                .unwrap();
        let weights: Vec<_> = apart.iter().map(|term| term["weight"].as_i64()).collect();
        assert_eq!(weights, [Some(1), Some(100)]);
    }

    /// The whole object: a field that is added, dropped or changed shows here.
    #[test]
    fn the_stateful_set_is_exactly_this() {
        let owner = Owner {
            namespace: "ci",
            name: "run",
            uid: "u",
        };
        let labels = json!({
            "team": "ci",
            "tekton.dev/pipelineRunUID": "u",
            "app.kubernetes.io/managed-by": "tekton-coscheduler",
        });
        let selector = json!({
            "app.kubernetes.io/component": "affinity-assistant",
            "app.kubernetes.io/instance": "affinity-assistant-0123456789",
        });
        let resources = json!({"cpu": "50m", "memory": "100Mi"});
        assert_eq!(
            serde_json::to_value(build(owner, &spec(), &Volumes::default())).unwrap(),
            json!({
                "apiVersion": "apps/v1",
                "kind": "StatefulSet",
                "metadata": {
                    "name": "affinity-assistant-0123456789",
                    "namespace": "ci",
                    "labels": labels,
                    "ownerReferences": [{
                        "apiVersion": "tekton.dev/v1", "kind": "PipelineRun", "name": "run", "uid": "u",
                        "controller": true,
                    }],
                },
                "spec": {
                    "replicas": 1,
                    "selector": {"matchLabels": selector},
                    "updateStrategy": {"type": "OnDelete"},
                    "template": {
                        "metadata": {"labels": labels},
                        "spec": {
                            "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{
                                "weight": 100,
                                "podAffinityTerm": {
                                    "labelSelector": {"matchLabels": {"app.kubernetes.io/component": "affinity-assistant"}},
                                    "topologyKey": "kubernetes.io/hostname",
                                },
                            }]}},
                            "automountServiceAccountToken": false,
                            "enableServiceLinks": false,
                            "terminationGracePeriodSeconds": 1,
                            "securityContext": {
                                "runAsNonRoot": true, "runAsUser": 65532, "runAsGroup": 65532,
                                "seccompProfile": {"type": "RuntimeDefault"},
                            },
                            "containers": [{
                                "name": "affinity-assistant",
                                "image": "pause",
                                "resources": {"limits": resources, "requests": resources},
                                "securityContext": {
                                    "allowPrivilegeEscalation": false,
                                    "capabilities": {"drop": ["ALL"]},
                                    "readOnlyRootFilesystem": true,
                                },
                                "volumeMounts": [
                                    {"name": "pvc-0123456789", "mountPath": "/workspace/pvc-0123456789", "readOnly": true},
                                    {"name": "claim-0", "mountPath": "/workspace/claim-0", "readOnly": true},
                                ],
                            }],
                            "volumes": [{"name": "claim-0", "persistentVolumeClaim": {"claimName": "brought"}}],
                        },
                    },
                    "volumeClaimTemplates": [{
                        "apiVersion": "v1",
                        "kind": "PersistentVolumeClaim",
                        "metadata": {
                            "name": "pvc-0123456789",
                            "labels": {
                                "tekton.dev/workspace": "source",
                                "tekton.dev/pipelineRunUID": "u",
                                "app.kubernetes.io/managed-by": "tekton-coscheduler",
                            },
                            "ownerReferences": [{
                                "apiVersion": "tekton.dev/v1", "kind": "PipelineRun", "name": "run", "uid": "u",
                            }],
                        },
                        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
                    }],
                },
            })
        );
    }

    fn owner() -> Owner<'static> {
        Owner {
            namespace: "ci",
            name: "run",
            uid: "u",
        }
    }

    #[test]
    fn p3_the_runs_security_context_is_laid_over_the_placeholders_own() {
        let of = |context: serde_json::Value| {
            let template = json!({"securityContext": context});
            let spec = PlaceholderSpec {
                pod_template: template.as_object().cloned().unwrap(),
                ..spec()
            };
            serde_json::to_value(pod(&spec, &Volumes::default())).unwrap()["securityContext"].take()
        };
        assert_eq!(
            of(json!({"runAsUser": 1000, "fsGroup": 7, "supplementalGroups": [8]})),
            json!({
                "runAsNonRoot": true, "runAsUser": 1000, "runAsGroup": 65532, "fsGroup": 7, "supplementalGroups": [8],
                "seccompProfile": {"type": "RuntimeDefault"},
            })
        );
        assert_eq!(
            of(
                json!({"seccompProfile": {"type": "Localhost", "localhostProfile": "p"}, "runAsGroup": 0})
            ),
            json!({
                "runAsNonRoot": true, "runAsUser": 65532, "runAsGroup": 0,
                "seccompProfile": {"type": "Localhost", "localhostProfile": "p"},
            })
        );
    }

    #[test]
    fn p3_a_field_of_the_wrong_type_is_left_out_alone() {
        let template = json!({"tolerations": [{"key": 7}], "nodeSelector": {"disk": "ssd"}});
        let spec = PlaceholderSpec {
            pod_template: template.as_object().cloned().unwrap(),
            ..spec()
        };
        let pod = pod(&spec, &Volumes::default());
        assert_eq!(pod.tolerations, None);
        assert_eq!(pod.node_selector.unwrap()["disk"], "ssd");
    }

    #[test]
    fn m4_separation_reaches_the_pod() {
        let spec = PlaceholderSpec {
            separation: Separation::Isolate(IsolationScope::Cluster),
            ..spec()
        };
        let pod = pod(&spec, &Volumes::default());
        assert_eq!(pod.affinity, Some(affinity(None, spec.separation, &[])));
    }

    #[test]
    fn v8_a_claim_for_one_pod_is_no_volume_and_its_nodes_are_required() {
        let spec = PlaceholderSpec {
            claim_names: ["single", "brought"].map(str::to_owned).to_vec(),
            ..spec()
        };
        let volumes = Volumes {
            unmounted: ["single".to_owned()].into(),
            node_terms: vec![vec![coscheduler_core::volumes::NodeTerm::default()]],
            conflict: None,
        };
        let pod = serde_json::to_value(pod(&spec, &volumes)).unwrap();
        assert_eq!(
            pod["volumes"],
            json!([{"name": "claim-0", "persistentVolumeClaim": {"claimName": "brought"}}])
        );
        assert_eq!(
            pod["containers"][0]["volumeMounts"]
                .as_array()
                .unwrap()
                .len(),
            2
        );
        assert!(pod["affinity"]["nodeAffinity"].is_object());
    }

    #[test]
    fn v8_a_claim_made_beside_the_set_looks_like_one_of_the_set() {
        let spec = PlaceholderSpec {
            single_pod_claims: vec![ClaimTemplateSpec {
                name: "single-0123456789".parse().unwrap(),
                workspace: "source".to_owned(),
                spec: json!({"accessModes": ["ReadWriteOncePod"]}),
                labels: BTreeMap::from([("tekton.dev/workspace".to_owned(), "source".to_owned())]),
                annotations: BTreeMap::from([("a".to_owned(), "b".to_owned())]),
            }],
            ..spec()
        };
        assert_eq!(
            serde_json::to_value(single_pod_claims(owner(), &spec)).unwrap(),
            json!([{
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {
                    "name": "single-0123456789-affinity-assistant-0123456789-0",
                    "namespace": "ci",
                    "labels": {
                        "tekton.dev/workspace": "source",
                        "tekton.dev/pipelineRunUID": "u",
                        "app.kubernetes.io/managed-by": "tekton-coscheduler",
                        "app.kubernetes.io/component": "affinity-assistant",
                        "app.kubernetes.io/instance": "affinity-assistant-0123456789",
                    },
                    "annotations": {"a": "b"},
                    "ownerReferences": [{
                        "apiVersion": "tekton.dev/v1", "kind": "PipelineRun", "name": "run", "uid": "u",
                    }],
                },
                "spec": {"accessModes": ["ReadWriteOncePod"]},
            }])
        );
    }
}
