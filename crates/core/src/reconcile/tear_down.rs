//! Deletes the objects of a run that has ended (P6, V4), in the order of [`next_step`](crate::teardown::next_step).

use super::{Again, Decision, Released, Step};
use crate::observed::Observed;
use crate::teardown::{self, Leftovers, PlaceholderPod, next_step};

/// Takes the next step of the clean-up.
pub(super) fn tear_down(observed: &Observed, decision: &mut Decision) {
    let placeholder_pods = observed.pods.values().filter_map(|pod| {
        let labels = pod.placeholder.as_ref()?;
        Some(PlaceholderPod {
            pod: pod.object.clone(),
            orphaned: labels.orphaned,
        })
    });
    let placeholder_pods: Vec<_> = placeholder_pods.collect();
    let placeholders = observed.placeholders.values();
    let leftovers = Leftovers {
        run: observed.presence,
        active_pods: observed.pods.len() - placeholder_pods.len(),
        placeholders: placeholders.map(|own| own.object.clone()).collect(),
        placeholder_pods,
        claims: observed.claims.clone(),
    };
    let mut released = Released::InProgress;
    match next_step(&leftovers) {
        teardown::Step::Keep => released = Released::RunActive,
        teardown::Step::WaitForPods { .. } => released = Released::WaitingForPods,
        teardown::Step::Done => released = Released::Done,
        teardown::Step::WaitForPlaceholder | teardown::Step::WaitForClaims => {}
        teardown::Step::DeletePlaceholder(own) => decision.steps.push(Step::Delete(own)),
        teardown::Step::DeleteOrphans(orphans) => {
            let steps = orphans.into_iter().map(Step::DeleteOrphan);
            decision.steps.extend(steps);
        }
        teardown::Step::ClearClaims { delete, unprotect } if delete.is_empty() => {
            decision.steps.push(Step::Unprotect(unprotect));
            // No watch queues this run when pods of others stop using a claim.
            decision.again = Again::Backoff;
        }
        teardown::Step::ClearClaims { delete, .. } => {
            decision
                .steps
                .extend(delete.into_iter().map(Step::DeleteClaim));
        }
    }
    decision.released = Some(released);
}
