//! Decides why pods of a run wait for a node, from the scheduler's messages. The kubectl plugin uses this module too.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;

use super::blocked_reason;
use super::refusals::{lacks_room, missing_claim, waits_for_other_pod, waits_for_volume};
use crate::annotations::BLOCKED;
use crate::event_texts;
use crate::observed::{Observed, Pod, elapsed};
use crate::pipeline_run::RunState;
use crate::plan::{Reason, Severity};
use crate::reconcile::make_room::tried_within;

/// Why a pod waits for a node.
#[derive(Debug, Clone, PartialEq)]
pub struct Wait<'a> {
    /// The pod.
    pub pod: &'a Pod,
    /// The cause.
    pub reason: Reason,
    /// After this time, `reason` changes even if no object changes. Until then, the scheduler's message may be older than the
    /// placeholder's binding. Afterwards, an unchanged message counts as newer than the binding. Zero if `reason` does not
    /// depend on the age of the message.
    pub recheck: Duration,
}

/// The pods of a run and of its placeholders, and other facts that decide why they wait.
struct Pods<'a, E> {
    /// The pods of placeholders, by placeholder.
    placeholders: BTreeMap<&'a str, &'a Pod>,
    /// The nodes with TaskRun pods that request resources and have not ended.
    in_use: BTreeSet<&'a str>,
    exists: E,
    now: Timestamp,
}

/// The most important wait. Waits with a warning come first, then waits with a normal Event, then waits without an Event. `None`
/// if no pod waits. `exists` returns true for a claim that exists, or that will be made for the run.
pub fn first_wait<'a>(
    pods: impl Iterator<Item = &'a Pod> + Clone,
    exists: impl Fn(&str) -> bool,
    now: Timestamp,
) -> Option<Wait<'a>> {
    let placeholders = pods.clone().filter_map(|pod| {
        let labels = pod.placeholder.as_ref()?;
        Some((labels.name.as_str(), pod))
    });
    let in_use = pods.clone().filter(|pod| {
        let asks = pod.needs.requests.resources().next().is_some();
        pod.placeholder.is_none() && !pod.phase.has_ended() && asks
    });
    let known = Pods {
        placeholders: placeholders.collect(),
        in_use: in_use.filter_map(|pod| pod.node.as_deref()).collect(),
        exists,
        now,
    };
    let waits = pods.filter_map(|pod| known.wait(pod));
    waits.min_by_key(|wait| match wait.reason.code.told() {
        Some(Severity::Warning) => 0,
        Some(Severity::Normal) => 1,
        None => 2,
    })
}

/// Why the run waits. If the run is pending, this is the reason. Otherwise, it is the reason in the run's annotation, or, without
/// an annotation, the run's first wait. `None` in three cases: no run is known; the run is done or being deleted; or the run has
/// no annotation, and none of its pods waits.
pub fn cause(observed: &Observed) -> Option<Reason> {
    let (run, _) = observed.run.as_ref()?;
    if run.deletion || run.state == RunState::Done {
        return None;
    }
    if run.state == RunState::Pending {
        return Some(event_texts::pipeline_run_pending());
    }
    let annotated = run.annotations.get(BLOCKED);
    let reported = annotated.and_then(|value| blocked_reason(value));
    reported.or_else(|| Some(observed.first_wait()?.reason))
}

impl Observed {
    /// The most important wait of the run's pods (see [`first_wait`]). A pod does not count if the API server answered that it
    /// belongs to another run.
    pub(crate) fn first_wait(&self) -> Option<Wait<'_>> {
        let pods = self.pods.values().map(AsRef::as_ref).filter(|pod| {
            let answer = self.answers.get(&pod.object.uid);
            let of_run = pod.task_run().is_some() && answer.is_none_or(|answer| answer.own);
            of_run || (pod.placeholder.is_some() && self.owns(pod))
        });
        first_wait(pods, |claim| self.claim_exists(claim), self.now)
    }
}

impl<E: Fn(&str) -> bool> Pods<'_, E> {
    /// Why `pod` waits for a node. `None` in these cases:
    ///
    /// - The pod is bound.
    /// - Our scheduling gate is the only gate of the pod.
    /// - The scheduler has not tried to bind the pod yet, or makes room for it by preemption.
    /// - The pod is a placeholder's pod without a gate of another program.
    fn wait<'a>(&self, pod: &'a Pod) -> Option<Wait<'a>> {
        let of = |reason, recheck| {
            Some(Wait {
                pod,
                reason,
                recheck,
            })
        };
        let lasting = |reason| of(reason, Duration::ZERO);
        let name = pod.object.name.as_str();
        if let Some(gate) = &pod.gate {
            return lasting(event_texts::scheduling_gated(gate));
        }
        if pod.placeholder.is_some() {
            return None;
        }
        let refused = pod.unscheduled.as_ref().filter(|it| it.no_node)?;
        let said = refused.message.as_deref().unwrap_or_default();
        if waits_for_volume(said) {
            return lasting(event_texts::claim_not_bound(name));
        }
        if waits_for_other_pod(said) {
            return lasting(event_texts::claim_in_use());
        }
        if let Some(claim) = missing_claim(said) {
            return lasting(if (self.exists)(&claim) {
                event_texts::waits_for_scheduler(name)
            } else {
                event_texts::claim_missing(&claim)
            });
        }
        let mut last = None;
        for followed in &pod.follows {
            let Some(placeholder) = self.placeholders.get(followed.as_str()) else {
                return lasting(event_texts::placeholder_missing(name, followed));
            };
            let Some(node) = placeholder.node.as_deref() else {
                return lasting(event_texts::waits_for_scheduler(name));
            };
            last = last.max(Some((placeholder.bound, node)));
        }
        let Some((bound, node)) = last else {
            return lasting(event_texts::pod_unschedulable());
        };
        // The message may be older than the placeholder's binding. Times are in whole seconds.
        let bound = bound.filter(|bound| refused.written.is_none_or(|written| written <= *bound));
        let bound = bound.map(|bound| elapsed(bound, self.now));
        let recheck = bound.map(|bound| tried_within(said).saturating_sub(bound));
        if let Some(recheck) = recheck.filter(|it| !it.is_zero()) {
            return of(event_texts::waits_for_scheduler(name), recheck);
        }
        lasting(if lacks_room(said) && self.in_use.contains(node) {
            event_texts::waits_for_own_pods(node)
        } else {
            event_texts::pod_cannot_follow(name, node)
        })
    }
}
