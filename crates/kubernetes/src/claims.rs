//! Reads a claim, and keeps only the fields that decisions need.

use coscheduler_core::observed::KnownClaim;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;

use crate::objects;
use crate::ownership::is_ours;

/// Converts the claim. If Tekton created the claim from a `volumeClaimTemplate`, its controller is a PipelineRun (Tekton v1.12.0,
/// `pkg/reconciler/volumeclaim/pvchandler.go`). A claim that a user created has no such owner (V4).
pub fn view(claim: PersistentVolumeClaim) -> KnownClaim {
    let metadata = claim.metadata;
    let spec = claim.spec.unwrap_or_default();
    let controller = objects::controller(&metadata);
    KnownClaim {
        owner: objects::pipeline_run(&metadata),
        by_tekton: controller.is_some_and(|owner| owner.kind == "PipelineRun"),
        by_us: is_ours(&metadata),
        single_pod: spec
            .access_modes
            .is_some_and(|modes| modes.iter().any(|mode| mode == "ReadWriteOncePod")),
        volume: spec.volume_name.filter(|name| !name.is_empty()),
        finalizers: metadata.finalizers.clone().unwrap_or_default(),
        namespace: metadata.namespace.clone().unwrap_or_default(),
        object: objects::reference(metadata),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn read(value: Value) -> KnownClaim {
        view(serde_json::from_value(value).unwrap())
    }

    #[test]
    fn a_claim_is_read_with_its_protection_owner_and_volume() {
        let claim = read(json!({
            "metadata": {
                "namespace": "ci", "name": "c", "uid": "u", "resourceVersion": "4",
                "finalizers": ["kubernetes.io/pvc-protection", "example.com/keep"],
                "ownerReferences": [{"apiVersion": "tekton.dev/v1", "kind": "PipelineRun", "name": "r", "uid": "run"}],
            },
            "spec": {"accessModes": ["ReadWriteOncePod"], "volumeName": "pv"},
        }));
        assert!(claim.is_protected());
        assert!(!claim.object.deleting);
        assert_eq!(claim.owner.unwrap().uid, "run");
        assert_eq!(claim.volume.as_deref(), Some("pv"));
        assert!(claim.single_pod && !claim.by_us);
        let unbound = read(
            json!({"metadata": {}, "spec": {"accessModes": ["ReadWriteOnce"], "volumeName": ""}}),
        );
        assert_eq!((unbound.single_pod, unbound.volume), (false, None));
    }

    #[test]
    fn v4_a_claim_that_tekton_made_has_its_run_as_controller() {
        let by_tekton = |controller: bool, kind: &str| {
            read(json!({"metadata": {"ownerReferences": [
                {"apiVersion": "tekton.dev/v1", "kind": kind, "name": "r", "uid": "run", "controller": controller},
            ]}}))
            .by_tekton
        };
        assert!(by_tekton(true, "PipelineRun"));
        assert!(!by_tekton(false, "PipelineRun"));
        assert!(!by_tekton(true, "TaskRun"));
        assert!(!read(json!({"metadata": {}})).by_tekton);
    }
}
