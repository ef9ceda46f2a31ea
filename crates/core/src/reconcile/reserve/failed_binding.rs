//! Placeholders that the scheduler could not bind to the node that it had chosen. The scheduler assumes that each binding
//! succeeds, so it may have bound pods of the run to this node meanwhile. The placeholder must then be on the same node
//! (`docs/decisions/making-room.md`).

use std::time::Duration;

use super::{Placed, on_node};
use crate::observed::{Observed, Pod, Sight};
use crate::reasons;
use crate::reconcile::tell::refusals::waits_for_claim;
use crate::reconcile::{Decision, Step, evict};

/// After the scheduler could not bind a placeholder, it has normally bound the pods that it had assumed beside the placeholder
/// within this time. (While a claim is provisioned for such a pod, kube-scheduler looks at the claim once a second.)
const SETTLED: Duration = Duration::from_secs(3);

/// Notes each placeholder that the scheduler could not bind, until the scheduler binds the placeholder or finds no node for it.
pub(super) fn remember(observed: &Observed, decision: &mut Decision) {
    for (name, own) in &observed.placeholders {
        let failure = Sight::Failed(name.clone());
        let pod = observed.pods.values().find(|pod| pod.is_of(own));
        let unscheduled = pod.and_then(|pod| pod.unscheduled.as_ref());
        let has_failed = unscheduled.is_some_and(|it| it.failed);
        let is_over =
            pod.is_some_and(|pod| pod.node.is_some()) || unscheduled.is_some_and(|it| it.no_node);
        if has_failed || (observed.since.contains_key(&failure) && !is_over) {
            decision.sights.insert(failure);
        }
    }
}

impl Placed<'_> {
    /// Deletes the pod that the scheduler could not bind, if pods of the run may be bound to the node that the scheduler had chosen
    /// for the placeholder. The next pod has the gate. So the scheduler does not choose another node for it before the node of
    /// these pods is known.
    pub(super) fn start_anew(&self, decision: &mut Decision) {
        let home = self.home().as_deref().map(on_node);
        let limit = &self.labels.limited_by;
        let goes_home = home.is_some() && *limit == home;
        if goes_home || (home.is_none() && !self.may_part(decision)) {
            return;
        }
        if !self.own.gated {
            let name = self.own.object.name.clone();
            decision.steps.push(Step::Gate(name));
        } else if self.own.observed {
            let reason = reasons::placeholder_not_bound(self.spec.name.as_str());
            decision.steps.push(evict(self.pod, None, reason));
        }
    }

    /// True if the scheduler could not bind the placeholder a moment ago, and may be binding pods of the run to the node that it
    /// had chosen for the placeholder: the scheduler assumes that each binding succeeds. If it has found no node for a pod, it
    /// normally tries this pod again only after the placeholder is bound, unless it missed one of the pod's claims.
    pub(super) fn may_part(&self, decision: &mut Decision) -> bool {
        let is_refused = |pod: &Pod| {
            let no_node = pod.unscheduled.as_ref().is_some_and(|it| it.no_node);
            no_node && !pod.scheduler_said().is_some_and(waits_for_claim)
        };
        decision.sights.contains(&self.failure())
            && self.followers().waiting().any(|pod| !is_refused(pod))
            && !decision.lasts(self.observed, self.failure(), SETTLED)
    }

    pub(super) fn failure(&self) -> Sight {
        Sight::Failed(self.own.object.name.clone())
    }
}
