//! The parts of a PersistentVolumeClaim that clean-up needs.

use coscheduler_core::teardown::Claim;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

/// The finalizer that keeps a claim while a pod refers to it.
/// Source: Kubernetes `pkg/volume/util/finalizer.go`, `PVCProtectionFinalizer`.
pub const PROTECTION: &str = "kubernetes.io/pvc-protection";

/// The claim as `core` sees it.
pub fn view(claim: &PersistentVolumeClaim) -> Claim {
    let metadata = &claim.metadata;
    Claim {
        name: metadata.name.clone().unwrap_or_default(),
        uid: metadata.uid.clone().unwrap_or_default(),
        resource_version: metadata.resource_version.clone().unwrap_or_default(),
        deleting: metadata.deletion_timestamp.is_some(),
        protected: finalizers(claim).any(|finalizer| finalizer == PROTECTION),
    }
}

/// Whether a StatefulSet made the claim for the PipelineRun with this uid: its template has the owner reference.
pub fn is_owned_by(claim: &PersistentVolumeClaim, uid: &str) -> bool {
    owners(claim).any(|owner| owner.kind == "PipelineRun" && owner.uid == uid)
}

/// Whether Tekton made the claim from a `volumeClaimTemplate` of the PipelineRun with this uid: the run is its controller
/// (Tekton v1.12.0, `pkg/reconciler/volumeclaim/pvchandler.go`). An author's own claim has no such owner (V4).
pub fn is_made_by_tekton(claim: &PersistentVolumeClaim, uid: &str) -> bool {
    let mut controllers = owners(claim).filter(|owner| owner.controller == Some(true));
    controllers.any(|owner| owner.kind == "PipelineRun" && owner.uid == uid)
}

/// The claim's finalizers without [`PROTECTION`].
pub fn finalizers_without_protection(claim: &PersistentVolumeClaim) -> Vec<String> {
    finalizers(claim)
        .filter(|finalizer| *finalizer != PROTECTION)
        .map(str::to_owned)
        .collect()
}

/// Drops the parts that no decision depends on, before a claim goes into a cache.
pub fn trim(claim: &mut PersistentVolumeClaim) {
    claim.metadata.managed_fields = None;
    claim.metadata.annotations = None;
    claim.status = None;
    claim.spec = claim.spec.take().map(|spec| PersistentVolumeClaimSpec {
        access_modes: spec.access_modes,
        volume_name: spec.volume_name,
        ..PersistentVolumeClaimSpec::default()
    });
}

fn owners(claim: &PersistentVolumeClaim) -> impl Iterator<Item = &OwnerReference> {
    claim.metadata.owner_references.iter().flatten()
}

fn finalizers(claim: &PersistentVolumeClaim) -> impl Iterator<Item = &str> {
    let finalizers = claim.metadata.finalizers.iter().flatten();
    finalizers.map(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_claim_is_read_with_its_protection_and_owner() {
        let claim: PersistentVolumeClaim = serde_json::from_value(json!({
            "metadata": {
                "name": "c", "uid": "u", "resourceVersion": "4",
                "finalizers": [PROTECTION, "example.com/keep"],
                "ownerReferences": [{"apiVersion": "tekton.dev/v1", "kind": "PipelineRun", "name": "r", "uid": "run"}],
            },
        }))
        .unwrap();
        assert!(view(&claim).protected);
        assert!(!view(&claim).deleting);
        assert!(is_owned_by(&claim, "run"));
        assert!(!is_owned_by(&claim, "other"));
        assert_eq!(finalizers_without_protection(&claim), ["example.com/keep"]);
    }

    #[test]
    fn v4_a_claim_that_tekton_made_has_its_run_as_controller() {
        let owned = |controller: bool, kind: &str| -> PersistentVolumeClaim {
            serde_json::from_value(json!({"metadata": {"ownerReferences": [
                {"apiVersion": "tekton.dev/v1", "kind": kind, "name": "r", "uid": "run", "controller": controller},
            ]}}))
            .unwrap()
        };
        assert!(is_made_by_tekton(&owned(true, "PipelineRun"), "run"));
        assert!(!is_made_by_tekton(&owned(true, "PipelineRun"), "other"));
        assert!(!is_made_by_tekton(&owned(false, "PipelineRun"), "run"));
        assert!(!is_made_by_tekton(&owned(true, "TaskRun"), "run"));
        assert!(!is_made_by_tekton(&PersistentVolumeClaim::default(), "run"));
    }

    #[test]
    fn trimming_keeps_what_is_read() {
        let mut claim: PersistentVolumeClaim = serde_json::from_value(json!({
            "metadata": {"name": "c", "annotations": {"a": "b"}},
            "spec": {"accessModes": ["ReadWriteOncePod"], "volumeName": "pv", "storageClassName": "fast"},
            "status": {"phase": "Bound"},
        }))
        .unwrap();
        trim(&mut claim);
        assert_eq!(
            serde_json::to_value(claim).unwrap(),
            json!({
                "apiVersion": "v1", "kind": "PersistentVolumeClaim",
                "metadata": {"name": "c"},
                "spec": {"accessModes": ["ReadWriteOncePod"], "volumeName": "pv"},
            })
        );
    }
}
