//! The order of the clean-up after a run: its pods end first, then placeholders and their pods are deleted, then the claims.
//!
//! Each step depends only on the objects that exist now, so any replica may repeat it at any time.

use std::collections::BTreeSet;

use crate::annotations::{MODE, PART_OF, TEKTON_AUTO_CLEANUP_PVC};
use crate::names::tekton_claim_name;
use crate::pipeline_run::{PipelineRun, WorkspaceSource};

/// The objects of a run that still exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leftovers {
    /// Says whether the run still needs them.
    pub run: RunPresence,
    /// TaskRun pods of the run that are pending or running.
    pub active_pods: usize,
    /// The placeholders.
    pub placeholders: Vec<ObjectRef>,
    /// Placeholder pods, whatever their phase.
    pub placeholder_pods: Vec<PlaceholderPod>,
    /// Claims that are deleted with the run: the placeholders' own, and [`auto_cleaned`] ones. Existing claims of the author must
    /// not be among them.
    pub claims: Vec<Claim>,
}

/// The state of a run, as far as its objects depend on it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RunPresence {
    /// Not done yet.
    Active,
    /// Completed, failed, cancelled, stopped or timed out.
    Done,
    /// Deleted, or being deleted.
    #[default]
    Gone,
}

/// One version of an object, for a write with preconditions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ObjectRef {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.resourceVersion`.
    pub resource_version: String,
    /// True if `metadata.deletionTimestamp` is set.
    pub deleting: bool,
}

/// A placeholder's pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlaceholderPod {
    /// The pod.
    pub pod: ObjectRef,
    /// True if it has no controller, because the placeholder was deleted with `--cascade=orphan`. Nothing but this product deletes
    /// it then.
    pub orphaned: bool,
}

/// A claim of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.resourceVersion`.
    pub resource_version: String,
    /// True if `metadata.deletionTimestamp` is set.
    pub deleting: bool,
    /// True if finalizer `kubernetes.io/pvc-protection` is set.
    pub protected: bool,
}

/// A step of the clean-up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Keep everything: the run needs its objects.
    Keep,
    /// Wait until the run's last pods have ended.
    WaitForPods {
        /// The number of these pods.
        count: usize,
    },
    /// Delete this placeholder, with its uid as precondition. Others may be left.
    DeletePlaceholder(ObjectRef),
    /// Delete these orphaned pods, with their uids as precondition.
    DeleteOrphans(Vec<ObjectRef>),
    /// Wait until placeholders and their pods are gone.
    WaitForPlaceholder,
    /// Delete claims, or unprotect them.
    ClearClaims {
        /// Delete these, with their uids as precondition.
        delete: Vec<ObjectRef>,
        /// Unprotect those of these that [`unprotectable`] allows, by a live list of the namespace's pods.
        unprotect: Vec<Claim>,
    },
    /// Wait until the claims, deleted and unprotected, are gone.
    WaitForClaims,
    /// The clean-up is complete.
    Done,
}

/// The phase and the claims of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodUse {
    /// `status.phase`.
    pub phase: PodPhase,
    /// The claims that its volumes name.
    pub claims: Vec<String>,
}

/// `status.phase` of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodPhase {
    /// Not all containers have started.
    Pending,
    /// At least one container runs.
    Running,
    /// All containers have succeeded.
    Succeeded,
    /// All containers have ended, and at least one failed.
    Failed,
    /// Missing, or a phase of a later version of Kubernetes.
    Unknown,
}

impl PodPhase {
    /// Reads `status.phase`.
    pub fn read(text: Option<&str>) -> Self {
        match text {
            Some("Pending") => Self::Pending,
            Some("Running") => Self::Running,
            Some("Succeeded") => Self::Succeeded,
            Some("Failed") => Self::Failed,
            Some(_) | None => Self::Unknown,
        }
    }
}

/// The next step of the clean-up after a run (P6, V4).
///
/// Nothing is deleted while the run is active or one of its pods is pending or running. Placeholders are deleted first, and
/// claims only after these and their pods: a live placeholder would create its claims again. An orphaned pod is deleted when no
/// placeholder is left that could adopt it.
pub fn next_step(leftovers: &Leftovers) -> Step {
    match leftovers.run {
        RunPresence::Active => return Step::Keep,
        RunPresence::Done | RunPresence::Gone => {}
    }
    if leftovers.active_pods > 0 {
        return Step::WaitForPods {
            count: leftovers.active_pods,
        };
    }
    if let Some(own) = leftovers.placeholders.iter().find(|own| !own.deleting) {
        return Step::DeletePlaceholder(own.clone());
    }
    if !leftovers.placeholders.is_empty() {
        return Step::WaitForPlaceholder;
    }
    if leftovers.placeholder_pods.is_empty() {
        clear_claims(&leftovers.claims)
    } else {
        clear_orphans(&leftovers.placeholder_pods)
    }
}

fn clear_orphans(pods: &[PlaceholderPod]) -> Step {
    let orphans: Vec<_> = pods
        .iter()
        .filter(|placeholder| placeholder.orphaned && !placeholder.pod.deleting)
        .map(|placeholder| placeholder.pod.clone())
        .collect();
    if orphans.is_empty() {
        Step::WaitForPlaceholder
    } else {
        Step::DeleteOrphans(orphans)
    }
}

/// The names of the claims that Tekton creates from a run's own `volumeClaimTemplate`s (V3), if the author asks to delete them
/// with the run. Tekton itself deletes none while its own affinity assistants are off. The caller must check that Tekton created
/// the claim for this run, because another claim may have the same name (V4).
pub fn auto_cleaned(run: &PipelineRun) -> Vec<String> {
    let asked_for = run
        .annotations
        .get(TEKTON_AUTO_CLEANUP_PVC)
        .is_some_and(|value| value == "true");
    let ours = run.annotations.contains_key(MODE) && !run.annotations.contains_key(PART_OF);
    if !asked_for || !ours || run.uid.is_empty() {
        return Vec::new();
    }
    run.workspaces
        .iter()
        .filter_map(|binding| match &binding.source {
            WorkspaceSource::ClaimTemplate(template) => {
                let name = template.name.as_deref();
                Some(tekton_claim_name(&binding.name, name, &run.uid))
            }
            WorkspaceSource::Claim { .. } | WorkspaceSource::Other => None,
        })
        .collect()
}

fn clear_claims(claims: &[Claim]) -> Step {
    if claims.is_empty() {
        return Step::Done;
    }
    let delete: Vec<_> = claims
        .iter()
        .filter(|claim| !claim.deleting)
        .map(Claim::to_ref)
        .collect();
    let unprotect: Vec<_> = claims
        .iter()
        .filter(|claim| claim.is_held())
        .cloned()
        .collect();
    if delete.is_empty() && unprotect.is_empty() {
        Step::WaitForClaims
    } else {
        Step::ClearClaims { delete, unprotect }
    }
}

impl Claim {
    /// True if the claim is deleted, but its protection keeps it.
    fn is_held(&self) -> bool {
        self.deleting && self.protected
    }

    fn to_ref(&self) -> ObjectRef {
        ObjectRef {
            name: self.name.clone(),
            uid: self.uid.clone(),
            resource_version: self.resource_version.clone(),
            deleting: self.deleting,
        }
    }
}

/// The claims whose protection may be removed (V4): they are deleted, still protected, and every pod that names them has
/// succeeded or failed. `pods` must be a live list of the namespace, not a cache.
///
/// Kubernetes itself keeps the protection while a completed pod exists, and completed TaskRun pods exist for long.
pub fn unprotectable(claims: &[Claim], pods: &[PodUse]) -> Vec<ObjectRef> {
    let in_use: BTreeSet<&str> = pods
        .iter()
        .filter(|pod| !pod.phase.has_ended())
        .flat_map(|pod| pod.claims.iter().map(String::as_str))
        .collect();
    claims
        .iter()
        .filter(|claim| claim.is_held() && !in_use.contains(claim.name.as_str()))
        .map(Claim::to_ref)
        .collect()
}

impl PodPhase {
    fn has_ended(self) -> bool {
        match self {
            Self::Succeeded | Self::Failed => true,
            Self::Pending | Self::Running | Self::Unknown => false,
        }
    }
}

#[cfg(test)]
mod tests;
