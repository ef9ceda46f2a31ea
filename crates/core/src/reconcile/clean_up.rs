//! Deletes the objects of a run that has ended (P6): first its placeholders, then their pods, then its claims.
//!
//! Nothing is deleted while a pod of one of the run's TaskRuns is pending or running. Claims are deleted after the placeholders
//! and their pods, because a placeholder that exists would create its claims again. A placeholder's pod without a controller is
//! deleted when no placeholder is left that could adopt the pod. Each step depends only on the objects that exist now, so any
//! replica may repeat it at any time.

use super::claims_to_delete::delete_claims;
use super::{Decision, Released, Step};
use crate::observed::Observed;

/// Adds the next steps of the clean-up to the decision. Returns the progress of the clean-up.
pub(super) fn clean_up(observed: &Observed, decision: &mut Decision) -> Released {
    if observed.pods.values().any(|pod| pod.placeholder.is_none()) {
        return Released::WaitingForPods;
    }
    let placeholders = observed.placeholders.values();
    let left = placeholders.filter(|own| !own.object.deleting);
    let deletes = left.map(|own| Step::Delete(own.object.clone()));
    decision.steps.extend(deletes);
    if observed.placeholders.is_empty() {
        if observed.pods.is_empty() {
            return delete_claims(&observed.claims, decision);
        }
        let pods = observed.pods.values().filter(|pod| !pod.object.deleting);
        let orphans = pods.filter(|pod| pod.placeholder.as_ref().is_some_and(|it| it.orphaned));
        let steps = orphans.map(|pod| Step::DeleteOrphan(pod.object.clone()));
        decision.steps.extend(steps);
    }
    Released::InProgress
}
