use super::*;
use coscheduler_core::config::{Backend, Reserves};
use coscheduler_core::mode::IsolationScope;
use coscheduler_core::separation::Separation;
use serde_json::json;

pub(in crate::placeholder) fn spec() -> PlaceholderSpec {
    PlaceholderSpec {
        subset: String::new(),
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
        reserves: Reserves::Nothing,
        backend: Backend::Controlled,
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
    let pod = serde_json::to_value(pod_spec(&spec, &Volumes::default())).unwrap();
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

/// Compares the whole object, so that every change of a field makes this test fail.
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
                    "metadata": {"labels": labels, "annotations": {
                        "karpenter.sh/do-not-disrupt": "true",
                        "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
                    }},
                    "spec": {
                        "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{
                            "weight": 100,
                            "podAffinityTerm": {
                                "labelSelector": {
                                    "matchLabels": {"app.kubernetes.io/component": "affinity-assistant"},
                                    "matchExpressions": [{"key": "tekton.dev/taskRun", "operator": "DoesNotExist"}],
                                },
                                "namespaceSelector": {},
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
        serde_json::to_value(pod_spec(&spec, &Volumes::default())).unwrap()["securityContext"]
            .take()
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
    let pod = pod_spec(&spec, &Volumes::default());
    assert_eq!(pod.tolerations, None);
    assert_eq!(pod.node_selector.unwrap()["disk"], "ssd");
}

#[test]
fn m4_separation_reaches_the_pod() {
    let spec = PlaceholderSpec {
        separation: Separation::Isolate(IsolationScope::Cluster),
        ..spec()
    };
    let pod = pod_spec(&spec, &Volumes::default());
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
    };
    let pod = serde_json::to_value(pod_spec(&spec, &volumes)).unwrap();
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
