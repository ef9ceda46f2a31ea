//! The order in which a run's objects go away: its pods first, then placeholders and their pods, then the claims.
//!
//! A step is decided from what is seen now and nothing else, so it can be asked for again at any
//! time, after any restart.

use std::collections::BTreeSet;

use crate::annotations::{MODE, PART_OF, TEKTON_AUTO_CLEANUP_PVC};
use crate::names::tekton_claim_name;
use crate::pipeline_run::{PipelineRun, WorkspaceSource};

/// What is left of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leftovers {
    /// Whether the run still needs it.
    pub run: RunPresence,
    /// TaskRun pods of the run that are pending or running.
    pub active_pods: usize,
    /// The placeholders.
    pub placeholders: Vec<ObjectRef>,
    /// Placeholder pods, whatever their phase.
    pub placeholder_pods: Vec<PlaceholderPod>,
    /// Claims made for the run that go with it: the placeholders' own, and [`auto_cleaned`] ones. A claim the user brought
    /// must not be among them.
    pub claims: Vec<Claim>,
}

/// Whether a run still needs its objects.
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

/// An object as it was seen, for a write with preconditions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ObjectRef {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.resourceVersion`.
    pub resource_version: String,
    /// Whether `metadata.deletionTimestamp` is set.
    pub deleting: bool,
}

/// A placeholder's pod as it was seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlaceholderPod {
    /// The pod.
    pub pod: ObjectRef,
    /// Whether nothing owns it, so that nothing else will delete it: the placeholder was deleted
    /// with `--cascade=orphan`.
    pub orphaned: bool,
}

/// A claim as it was seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.resourceVersion`.
    pub resource_version: String,
    /// Whether `metadata.deletionTimestamp` is set.
    pub deleting: bool,
    /// Whether finalizer `kubernetes.io/pvc-protection` is set.
    pub protected: bool,
}

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Nothing: the run needs its objects.
    Keep,
    /// Nothing until the run's last pods have ended.
    WaitForPods {
        /// How many there are.
        count: usize,
    },
    /// Delete this placeholder, with its uid as precondition; others may be left.
    DeletePlaceholder(ObjectRef),
    /// Delete these pods, with uid as precondition: their placeholder went without them.
    DeleteOrphans(Vec<ObjectRef>),
    /// Nothing until placeholders and their pods are gone.
    WaitForPlaceholder,
    /// Delete some claims and unprotect others, in one pass.
    ClearClaims {
        /// Delete these, with uid as precondition.
        delete: Vec<ObjectRef>,
        /// Of these, unprotect what [`unprotectable`] allows after a live list of the namespace's
        /// pods.
        unprotect: Vec<Claim>,
    },
    /// Nothing until the claims, deleted and unprotected, are gone.
    WaitForClaims,
    /// Nothing: all is gone.
    Done,
}

/// A pod that may use claims.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodUse {
    /// `status.phase`.
    pub phase: PodPhase,
    /// The claims its volumes name.
    pub claims: Vec<String>,
}

/// `status.phase` of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodPhase {
    /// Not all containers have started.
    Pending,
    /// At least one container runs.
    Running,
    /// Ended well.
    Succeeded,
    /// Ended badly.
    Failed,
    /// Not known, or not a phase of this version.
    Unknown,
}

impl PodPhase {
    /// Reads `status.phase`; what is missing or new is [`PodPhase::Unknown`].
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

/// The next step of tearing a run's objects down (P6, V4).
///
/// Nothing goes while the run is active or one of its pods is pending or running. Then the
/// placeholder goes, and only when it and its pods are gone the claims do: a claim deleted under a
/// live placeholder would be made again. The decision depends on what is seen alone, so it is the
/// same whatever restarted in between. A pod whose placeholder went without it is deleted once none
/// is left that could adopt it.
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

/// The claims that Tekton made of a run's own `volumeClaimTemplate`s (V3) and that its author wants gone when it is done,
/// by name. Tekton itself deletes none while its own assistants are off. Only a claim that Tekton made for this very run
/// may be deleted: what is called so may be somebody else's (V4).
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
    /// Whether only the protection keeps a deleted claim.
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

/// The claims whose protection may be removed (V4): deleted, still protected, and every pod that
/// names them has succeeded or failed. `pods` must be a live list of the namespace, not a cache.
///
/// Kubernetes itself keeps the protection as long as a completed pod exists, and completed TaskRun
/// pods exist for long.
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
