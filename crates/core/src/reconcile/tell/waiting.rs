//! Decides why a pod of a run waits for a node, from the scheduler's message. The kubectl plugin asks the same question.

use std::time::Duration;

use jiff::Timestamp;

use super::blocked_reason;
use super::refusals::{lacks_room, missing_claim, waits_for_other_pod, waits_for_volume};
use crate::annotations::BLOCKED;
use crate::observed::{Observed, Pod, elapsed};
use crate::pipeline_run::RunState;
use crate::plan::Reason;
use crate::reasons;
use crate::reconcile::make_room::tried_within;

/// Why a pod waits for a node.
#[derive(Debug, Clone, PartialEq)]
pub struct Wait {
    /// The cause.
    pub reason: Reason,
    /// If nothing changes, the scheduler's message counts as current after this time, and the cause may be another one then. Zero
    /// if the cause stays.
    pub recheck: Duration,
}

impl From<Reason> for Wait {
    fn from(reason: Reason) -> Self {
        let recheck = Duration::ZERO;
        Self { reason, recheck }
    }
}

/// Why each pod of the run waits for a node.
pub(super) fn waits(observed: &Observed) -> impl Iterator<Item = Wait> {
    let pods = observed.pods.values().map(AsRef::as_ref);
    let exists = |claim: &str| observed.volumes.contains_key(claim);
    let all = pods.clone();
    pods.filter_map(move |pod| wait(pod, all.clone(), exists, observed.now))
}

/// Why the run waits: what its annotation says, or why a pod of it waits for a node. `None` if it is done or being deleted.
pub fn cause(observed: &Observed) -> Option<Reason> {
    let (run, _) = observed.run.as_ref()?;
    if run.deletion || run.state == RunState::Done {
        return None;
    }
    let annotated = run.annotations.get(BLOCKED);
    let reported = annotated.and_then(|value| blocked_reason(value));
    reported.or_else(|| Some(waits(observed).next()?.reason))
}

/// Why `pod` waits for a node. `None` if it is bound, if it has our scheduling gate, if the scheduler has not tried it, or if it is
/// the pod of a placeholder and has no gate. `pods` are the pods of the run and its placeholders. `exists` tells whether a claim exists.
pub fn wait<'a>(
    pod: &Pod,
    pods: impl Iterator<Item = &'a Pod> + Clone,
    exists: impl Fn(&str) -> bool,
    now: Timestamp,
) -> Option<Wait> {
    let name = pod.object.name.as_str();
    if let Some(gate) = &pod.gate {
        return Some(reasons::scheduling_gated(name, gate).into());
    }
    if pod.placeholder.is_some() {
        return None;
    }
    let refused = pod.unscheduled.as_ref().filter(|it| it.no_node)?;
    let said = refused.message.as_deref().unwrap_or_default();
    if waits_for_volume(said) {
        return Some(reasons::claim_not_bound(name).into());
    }
    if waits_for_other_pod(said) {
        return Some(reasons::claim_in_use(name).into());
    }
    if let Some(claim) = missing_claim(said) {
        return Some(if exists(&claim) {
            reasons::waits_for_scheduler(name).into()
        } else {
            reasons::claim_missing(name, &claim).into()
        });
    }
    let Some(followed) = pod.follows.first() else {
        return Some(reasons::pod_unschedulable(name).into());
    };
    let is_followed = |it: &&Pod| {
        let labels = it.placeholder.as_ref();
        labels.is_some_and(|labels| labels.name == *followed)
    };
    let Some(placeholder) = pods.clone().find(is_followed) else {
        return Some(reasons::placeholder_missing(name, followed).into());
    };
    let Some(node) = placeholder.node.as_deref() else {
        return Some(reasons::waits_for_scheduler(name).into());
    };
    let bound = placeholder.bound.map(|bound| elapsed(bound, now));
    let recheck = bound.map(|bound| tried_within(said).saturating_sub(bound));
    if let Some(recheck) = recheck.filter(|it| !it.is_zero()) {
        let reason = reasons::waits_for_scheduler(name);
        return Some(Wait { reason, recheck });
    }
    if !lacks_room(said) {
        return Some(reasons::pod_cannot_follow(name, node).into());
    }
    let holds_room = |it: &Pod| {
        let is_there = it.placeholder.is_none() && it.node.as_deref() == Some(node);
        is_there && !it.phase.has_ended() && it.needs.requests.resources().next().is_some()
    };
    Some(if pods.clone().any(holds_room) {
        reasons::waits_for_own_pods(node).into()
    } else {
        reasons::no_room_beside_placeholder(name, node).into()
    })
}
