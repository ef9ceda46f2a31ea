//! Evicts pods from nodes that are gone, or whose taints they do not tolerate (N1). Kubernetes then binds a placeholder to
//! another node, and pods that never started follow. The first eviction of a placeholder is immediate. Later ones wait longer and
//! longer, so that unstable nodes do not move it all the time.

use std::time::Duration;

use super::{Decision, Step, Update, pause};
use crate::evacuate::{Role, evict};
use crate::observed::{Done, Observed, Placeholder, Pod, Record, elapsed};
use crate::reasons;

/// The pause between the first two moves of a placeholder. Each further pause is twice as long.
pub(super) const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The first pod of a placeholder is created within this time.
const FIRST_POD: Duration = Duration::from_secs(2);
/// The longest pause between two moves.
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Evicts the run's misplaced pods.
pub(super) fn evacuate(observed: &Observed, decision: &mut Decision) {
    for pod in observed.pods.values() {
        if observed.owns(pod) {
            leave(observed, pod, decision);
        }
    }
}

fn leave(observed: &Observed, pod: &Pod, decision: &mut Decision) {
    let (Some(node), Some(role)) = (&pod.node, pod.role()) else {
        return;
    };
    let known = observed.node(node);
    let Some(eviction) = evict(role, pod.tolerations(), known) else {
        return;
    };
    let reason = reasons::pod_evacuated(&pod.object.name, node, &eviction.cause);
    // An earlier look or Kubernetes itself has deleted the pod.
    if pod.object.deleting && !eviction.at_once {
        decision.events.push(reason);
        return;
    }
    let placeholder = match role {
        Role::Placeholder => observed.placeholders.values().find(|own| pod.is_of(own)),
        Role::NeverStarted | Role::Started => None,
    };
    let moved = placeholder.and_then(|own| Some((own, moved(own, pod)?)));
    if let Some((_, done)) = &moved {
        let rest = done.rests(observed.now, pause(done.times, FIRST_PAUSE, LONGEST_PAUSE));
        if !rest.is_zero() {
            return decision.look_in(rest);
        }
    }
    let update = moved.map(|(own, done)| Update {
        placeholder: own.object.name.clone(),
        record: Record {
            evacuated: Done::again(Some(&done), observed.now, &reason.message),
            ..own.record.clone()
        },
        reason: None,
    });
    decision.steps.push(Step::Evict {
        pod: pod.object.clone(),
        at_once: eviction.at_once,
        unless_exists: known.is_none().then(|| node.clone()),
        update,
        reason,
    });
}

/// The moves of a placeholder so far. The first one is not written down: a pod that is younger than its placeholder tells of
/// it, so that a node with hundreds of placeholders is drained without a patch for each.
fn moved(own: &Placeholder, pod: &Pod) -> Option<Done> {
    let made_anew = || {
        let (own, pod) = (own.created?, pod.created?);
        let done = Done {
            times: 1,
            // Kubernetes cuts a creation time to whole seconds.
            last: pod.checked_add(Duration::from_secs(1)).unwrap_or(pod),
            why: String::new(),
        };
        (elapsed(own, pod) > FIRST_POD).then_some(done)
    };
    own.record.evacuated.clone().or_else(made_anew)
}
