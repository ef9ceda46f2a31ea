//! Decides which claims of a run are deleted, and when. Also decides when finalizer `pvc-protection` is removed from a claim
//! (V4). Module `delete_claims` of the manager carries out these decisions.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{Again, Decision, Released, Step};
use crate::annotations::{MODE, PART_OF, TEKTON_AUTO_CLEANUP_PVC};
use crate::names::tekton_claim_name;
use crate::observed::{KnownClaim, PodPhase};
use crate::pipeline_run::{PipelineRun, WorkspaceSource};

/// The phase and the claims of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodUse {
    /// `status.phase`.
    pub phase: PodPhase,
    /// The names of the claims that the pod's volumes use.
    pub claims: Vec<String>,
}

/// Deletes the claims. When all of them are being deleted, adds the step that removes the finalizer from claims that only
/// completed pods use. Returns the progress.
pub(super) fn delete_claims(claims: &[Arc<KnownClaim>], decision: &mut Decision) -> Released {
    if claims.is_empty() {
        return Released::Done;
    }
    let left = claims.iter().filter(|claim| !claim.object.deleting);
    let deletes = left.map(|claim| Step::DeleteClaim(claim.object.clone()));
    decision.steps.extend(deletes);
    let held = claims.iter().filter(|claim| is_held(claim));
    let held: Vec<_> = held.cloned().collect();
    if decision.steps.is_empty() && !held.is_empty() {
        decision.steps.push(Step::Unprotect(held));
        // If a pod that does not belong to the run stops using a claim, no watch queues the run.
        decision.again = Again::Backoff;
    }
    Released::InProgress
}

/// True if `claim`, which `run` owns, is deleted when the run has ended. Either this product created or adopted the claim. Or
/// Tekton created it, and the run's annotation asks for the deletion. A claim that the author created is never deleted.
pub fn goes_with(claim: &KnownClaim, run: Option<&PipelineRun>) -> bool {
    let given_up = || run.is_some_and(|run| auto_cleaned(run).contains(&claim.object.name));
    claim.by_us || (claim.by_tekton && given_up())
}

/// The names of the claims that Tekton creates from a run's own `volumeClaimTemplate`s (V3), if the run has annotation
/// `tekton.dev/auto-cleanup-pvc: "true"`. Tekton itself does not delete these claims while its own affinity assistants are off.
/// Another program or a user may also have created a claim with such a name (V4).
fn auto_cleaned(run: &PipelineRun) -> Vec<String> {
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

/// The claims from which finalizer `pvc-protection` may be removed. Such a claim is being deleted, still has the finalizer, and
/// every pod that uses it has succeeded or failed. `pods` must be a live list of the namespace, not a cache.
///
/// Kubernetes itself keeps the finalizer while a completed pod exists, and completed TaskRun pods exist for a long time.
pub fn unprotectable<'a>(
    claims: &'a [Arc<KnownClaim>],
    pods: &[PodUse],
) -> Vec<&'a Arc<KnownClaim>> {
    let in_use: BTreeSet<&str> = pods
        .iter()
        .filter(|pod| !pod.phase.has_ended())
        .flat_map(|pod| pod.claims.iter().map(String::as_str))
        .collect();
    let held = claims.iter().filter(|claim| is_held(claim));
    held.filter(|claim| !in_use.contains(claim.object.name.as_str()))
        .collect()
}

/// True if the claim is being deleted, and finalizer `pvc-protection` still keeps it.
fn is_held(claim: &KnownClaim) -> bool {
    claim.object.deleting && claim.is_protected()
}

#[cfg(test)]
mod tests;
