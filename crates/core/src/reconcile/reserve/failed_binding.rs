//! Placeholders that the scheduler could not bind to the node that it had chosen. The scheduler assumes that each binding
//! succeeds, so it may have bound pods of the run to this node meanwhile. The placeholder must then be on the same node
//! (`docs/decisions/making-room.md`).

use std::time::Duration;

use super::Placed;
use crate::event_texts;
use crate::observed::{Observed, Pod, Sight};
use crate::reconcile::tell::refusals::waits_for_claim;
use crate::reconcile::{Decision, evict};

/// For this time, the scheduler does not try a pod again that it could not bind.
const BACKOFF: Duration = Duration::from_secs(1);
/// After the scheduler could not bind a placeholder, it normally needs at most this time to bind the pods for which it had
/// chosen the same node. (While a claim is provisioned for such a pod, kube-scheduler looks at the claim once a second.)
pub(super) const SETTLED: Duration = Duration::from_secs(3);

/// Notes each placeholder that the scheduler could not bind, until the scheduler binds the placeholder or finds no node for it.
pub(super) fn remember(observed: &Observed, decision: &mut Decision) {
    for (name, own) in &observed.placeholders {
        let failure = Sight::Failed(name.clone());
        let pod = observed.pods.values().find(|pod| pod.is_of(own));
        let unscheduled = pod.and_then(|pod| pod.unscheduled.as_ref());
        let has_failed = unscheduled.is_some_and(|it| it.failed);
        let is_over = pod.is_some_and(|pod| pod.node.is_some() || pod.is_refused());
        if has_failed || (observed.since.contains_key(&failure) && !is_over) {
            decision.sights.insert(failure);
        }
    }
}

impl Placed<'_> {
    /// Decides for a placeholder whose pod the scheduler could not bind. If the scheduler has bound pods of the run meanwhile,
    /// the placeholder must be bound to the node of these pods. Normally the scheduler tries this node first
    /// (`status.nominatedNodeName`). The placeholder then only has to give its reservation up, because with the reservation it
    /// may not fit beside the pods. But if the placeholder is isolated and another placeholder waits for a node, the other
    /// placeholder may take this node at once. Then, after the first failure, the manager may delete the isolated placeholder's
    /// pod before the scheduler has bound the pods of the run.
    pub(super) fn return_to_pods(&self, decision: &mut Decision) {
        let is_early = !decision.lasts(self.observed, self.failure(), BACKOFF);
        let is_contested = self.spec.is_isolated() && self.observed.has_rivals;
        let Some(home) = self.home() else {
            let is_urgent = is_early && is_contested && self.own.gated && self.has_choice();
            if is_urgent && self.may_part(decision) {
                let reason = event_texts::placeholder_not_bound(self.spec.name.as_str());
                decision.steps.push(evict(self, None, reason));
            }
            return;
        };
        let unscheduled = self.pod.unscheduled.as_ref();
        let nominated = unscheduled.and_then(|it| it.nominated.as_deref());
        let may_part = self.has_choice() && (nominated != Some(&home) || is_contested);
        // After the backoff, the scheduler may be binding the pod beside the others.
        let may_act = is_early || decision.lasts(self.observed, self.failure(), SETTLED);
        let reason = self.other_nodes().filter(|_| may_part && may_act);
        let anew = reason.map(|reason| evict(self, None, reason));
        // With `Reserves::Peak`, the room for pods to come is lost too: to be on the node of the others is more important.
        let less = self.less(&self.own.needs.requests);
        let less = less.map(|size| self.shrink(size, None));
        let step = if is_contested {
            anew.or(less)
        } else {
            less.or(anew)
        };
        decision.steps.extend(step);
    }

    /// True if the scheduler could not bind the placeholder a moment ago, and may be binding pods of the run to the node that it
    /// had chosen for the placeholder: the scheduler assumes that each binding succeeds.
    pub(super) fn may_part(&self, decision: &mut Decision) -> bool {
        decision.sights.contains(&self.failure())
            && self.waiting().any(may_be_bound)
            && !decision.lasts(self.observed, self.failure(), SETTLED)
    }

    pub(super) fn failure(&self) -> Sight {
        Sight::Failed(self.own.object.name.clone())
    }
}

/// True if the scheduler may be binding the pod. If it has found no node for a pod, it normally tries the pod again only after
/// the pod's placeholder is bound. The exception is a pod that waits for one of its claims. New versions of the scheduler
/// nominate the node to which they are binding a pod.
fn may_be_bound(pod: &Pod) -> bool {
    let Some(unscheduled) = &pod.unscheduled else {
        return true;
    };
    let said = unscheduled.message.as_deref();
    unscheduled.nominated.is_some() || said.is_some_and(waits_for_claim)
}
