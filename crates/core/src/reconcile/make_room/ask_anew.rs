//! Lets a placeholder that reserves room leave its node and ask the scheduler again (N7).

use super::choose::MOVES;
use super::{Contention, Decision, Step, Update};
use crate::config::Reserves;
use crate::observed::{Done, Pod, Record};
use crate::plan::{Reason, ReasonCode};
use crate::reasons;
use crate::volumes::NodeTerm;

impl Contention<'_> {
    /// True if a node that is added could take placeholder and pod: the placeholder then waits for it unbound, where an
    /// autoscaler sees it (N7).
    pub(super) fn can_ask_anew(&self, reason: &Reason) -> bool {
        let spec = self.observed.planned_as(&self.own);
        let reserves = spec.is_some_and(|spec| spec.reserves == Reserves::Placement);
        let lacks_room = matches!(
            reason.code,
            ReasonCode::PodFitsNoNode | ReasonCode::NodesFull | ReasonCode::PodUnschedulable
        );
        let volumes = self
            .own
            .needs
            .claims
            .iter()
            .filter_map(|claim| claim.volume.as_ref());
        let mut terms = volumes.flat_map(|volume| &volume.terms);
        reserves && lacks_room && self.moves() < MOVES && !terms.any(NodeTerm::is_of_one_node)
    }

    pub(super) fn ask_anew(&self, pod: &Pod, decision: &mut Decision) {
        let own = &self.own.object.name;
        let reason = reasons::placeholder_asks_anew(&pod.object.name, own, self.node);
        let before = self.own.record.moved.as_ref();
        decision.steps.push(Step::Evict {
            pod: self.pod.clone(),
            at_once: false,
            unless_exists: None,
            update: Some(Update {
                placeholder: own.clone(),
                record: Record {
                    moved: Done::again(before, self.observed.now, &reason.message),
                    ..self.own.record.clone()
                },
                reason: None,
            }),
            reason,
        });
    }
}
