//! Deletes pods from nodes that are gone or cordoned, or that have a taint that the pod does not tolerate (N1). Kubernetes then
//! binds the placeholder's next pod to another node. Tekton creates the deleted TaskRun pods again, and they run on the
//! placeholder's new node. There is no pause before the first deletion of a placeholder's pod. The pauses before later deletions
//! grow, so that a placeholder does not move all the time if its nodes become bad again and again.

use std::time::Duration;

use super::{Decision, Eviction, Step, control, pause};
use crate::config::Backend;
use crate::event_texts;
use crate::node::{Node, Toleration, is_silent, misplaced};
use crate::observed::{Done, Observed, Placeholder, Pod, Record, Role, Sight, elapsed};
use crate::pod_template::{EVACUATED_CLASS, PLACEHOLDER_CLASS};

/// The pause between the first two moves of a placeholder. Each further pause is twice as long, up to [`LONGEST_PAUSE`].
pub(super) const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The first pod of a placeholder is normally created within this time after the placeholder's object.
const FIRST_POD: Duration = Duration::from_secs(2);
/// The time limit for changing a placeholder's PriorityClass. After the change, the placeholder's controller has the same time to
/// observe it. Normally, the change and its observation together take a tenth of a second.
pub const RAISED: Duration = Duration::from_secs(1);
/// The longest pause between two moves.
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Deletes those pods of the run that must not be on their nodes.
pub(super) fn evacuate(observed: &Observed, decision: &mut Decision) {
    let own = observed.pods.values().filter(|pod| observed.owns(pod));
    let (placeholders, others): (Vec<_>, Vec<_>) = own.partition(|pod| pod.placeholder.is_some());
    // Task pods leave first, so that their volumes are free when a placeholder's next pod is bound to another node.
    for pod in others.into_iter().chain(placeholders) {
        leave(observed, pod, decision);
    }
}

fn leave(observed: &Observed, pod: &Pod, decision: &mut Decision) {
    let (Some(node), Some(role)) = (&pod.node, pod.role()) else {
        return;
    };
    let known = observed.node(node);
    let Some((cause, at_once)) = evict(role, &pod.needs.tolerations, known) else {
        return;
    };
    let reason = event_texts::pod_evacuated(&pod.object.name, node, &cause);
    let placeholder = match role {
        Role::Placeholder => observed.placeholders.values().find(|own| pod.is_of(own)),
        Role::NeverStarted | Role::Started => None,
    };
    let raise = placeholder.is_some_and(|own| raises(own));
    let is_only_a_pod = placeholder.is_some_and(|own| own.backend == Backend::Pod);
    // Perhaps an earlier reconcile or another program is deleting the pod already. If the pod may keep its grace period, only
    // the Event is left to publish, unless the placeholder needs the higher PriorityClass or a controller for its next pod.
    if pod.object.deleting && !at_once {
        decision.events.push(reason.clone());
        if !raise && !is_only_a_pod {
            return;
        }
    }
    let moved = placeholder.and_then(|own| moved(own, pod));
    if let Some(done) = &moved {
        let rest = done.rests(observed.now, pause(done.times, FIRST_PAUSE, LONGEST_PAUSE));
        if !rest.is_zero() {
            return decision.look_in(rest);
        }
    }
    let raised = placeholder.filter(|own| own.priority_class.as_deref() == Some(EVACUATED_CLASS));
    if raised.is_some_and(|own| !own.observed) {
        let sight = Sight::Raised(pod.object.uid.clone());
        if !decision.lasts(observed, sight, RAISED) {
            return;
        }
    }
    let spec = placeholder.and_then(|own| observed.spec(&own.object.name));
    // Without its specification, the placeholder cannot get a controller, so the pod stays.
    if is_only_a_pod && spec.is_none() {
        return;
    }
    let recorded = placeholder.filter(|_| moved.is_some() || is_only_a_pod);
    let record = recorded.map(|own| Record {
        evacuated: Done::again(moved.as_ref(), observed.now, &reason.message),
        ..own.record.clone()
    });
    decision.steps.push(Step::Evict(Eviction {
        pod: pod.object.clone(),
        at_once,
        unless_exists: known.is_none().then(|| node.clone()),
        own: placeholder.cloned(),
        raise,
        record,
        control: placeholder
            .zip(spec)
            .and_then(|(own, spec)| control(observed, own, spec)),
        reason,
    }));
}

/// True if the placeholder still has the lower PriorityClass. The manager then sets the higher class for the placeholder's next
/// pod, so that the scheduler binds this pod before the placeholders of new runs (N8).
fn raises(own: &Placeholder) -> bool {
    let has_first = own.priority_class.as_deref() == Some(PLACEHOLDER_CLASS);
    has_first && !own.object.deleting
}

/// The number of times that this module has deleted a placeholder's pod, and the time of the last deletion. `None` if there was
/// no deletion. If the placeholder has a controller, its record leaves out the first deletion. So without component
/// `placeholder-priority`, a drain of a node with hundreds of placeholders needs no patch for each placeholder. Instead, a pod
/// that is more than [`FIRST_POD`] younger than its placeholder's object counts as one deletion.
pub(super) fn moved(own: &Placeholder, pod: &Pod) -> Option<Done> {
    let made_anew = || {
        let (own, pod) = (own.created?, pod.created?);
        let done = Done {
            times: 1,
            // Kubernetes rounds a creation time down to whole seconds.
            last: pod.checked_add(Duration::from_secs(1)).unwrap_or(pod),
            why: String::new(),
        };
        (elapsed(own, pod) > FIRST_POD).then_some(done)
    };
    own.record.evacuated.clone().or_else(made_anew)
}

/// The cause for which a pod must leave its node, and `true` if the pod is to be deleted without a grace period. `None` if the
/// pod may stay. `node` is `None` if the node does not exist.
///
/// - A pod that has started may finish.
/// - A pod that never started is deleted without a grace period. With a grace period, the kubelet would report the pod as failed,
///   and Tekton would fail the TaskRun. If the pod just disappears, Tekton creates it again (Tekton v1.12.0,
///   `pkg/reconciler/taskrun`).
/// - If a placeholder's node is gone or does not answer, the placeholder's pod is deleted without a grace period. No kubelet
///   there would confirm that the pod has ended, and Kubernetes would create no new pod without this confirmation.
fn evict(role: Role, tolerations: &[Toleration], node: Option<&Node>) -> Option<(String, bool)> {
    let cause = misplaced(tolerations, node)?;
    match role {
        Role::Placeholder => Some((cause, is_silent(node))),
        Role::NeverStarted => Some((cause, true)),
        Role::Started => None,
    }
}

#[cfg(test)]
mod tests;
