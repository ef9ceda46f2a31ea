//! Decides the next steps for a run, from one observation of it. This is a pure function: the same observation always gives the
//! same decision, so a decision may be repeated after any restart or step. An observation also says if this replica leads. Only a
//! leader moves placeholders and pods.

pub mod delete_claims;
pub mod evacuate;
pub mod requests;
pub mod reserve;
pub mod tell;

mod clean_up;
mod create;
mod make_room;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::observed::{
    Done, KnownClaim, ObjectRef, Observed, Placeholder, Pod, Record, RunPresence, Sight,
};
use crate::pipeline_run::OwnerReference;
use crate::plan::{PlaceholderSpec, Reason};

use requests::Amounts;
use reserve::Place;

/// The next steps for a run, and the messages to its author.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    /// The steps to take, in this order. Each is safe to repeat.
    pub steps: Vec<Step>,
    /// The progress of the clean-up.
    pub released: Option<Released>,
    /// The Events to publish, each once.
    pub events: Vec<Reason>,
    /// Why the run waits, for annotation `coscheduler.dev/blocked`; the outer `None` leaves the annotation as it is.
    pub blocked: Option<Option<Reason>>,
    /// Conditions that must last for some time before the manager acts on them.
    pub sights: BTreeSet<Sight>,
    /// When to look again if nothing changes before.
    pub again: Again,
}

/// When to look at a run again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Again {
    /// Once something changes.
    #[default]
    OnChange,
    /// After this time.
    After(Duration),
    /// After a backoff that grows with each reconcile, because no watch reports the change.
    Backoff,
}

/// The progress of a clean-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// Nothing is left.
    Done,
    /// Under way.
    InProgress,
    /// Some of the run's pods are pending or running.
    WaitingForPods,
    /// The run needs its objects.
    RunActive,
}

/// An action on the cluster.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Create this placeholder.
    Create(Box<PlaceholderSpec>),
    /// Delete this placeholder and its pod.
    Delete(ObjectRef),
    /// Delete the pod of a placeholder that no longer exists.
    DeleteOrphan(ObjectRef),
    /// Delete this claim.
    DeleteClaim(ObjectRef),
    /// List the namespace's pods, and remove the finalizer `pvc-protection` from each of these claims that only completed pods
    /// use ([`unprotectable`](delete_claims::unprotectable)).
    Unprotect(Vec<Arc<KnownClaim>>),
    /// Make the placeholder's controller retry to create its pod.
    Retry(Update),
    /// Set the requests of a placeholder's gated pod, then remove its gate, so that the scheduler binds it.
    Open {
        /// The placeholder's name.
        placeholder: String,
        /// The pod.
        pod: ObjectRef,
        /// Its requests: the first of these that the API server accepts. If it accepts none, the requests stay.
        sizes: Vec<Amounts>,
        /// The nodes that may take it.
        place: Place,
    },
    /// Make the next pod of the placeholder with this name start with the scheduling gate.
    Gate(String),
    /// Reduce the requests of a placeholder's pod.
    Shrink {
        /// The pod.
        pod: ObjectRef,
        /// Its new requests: CPU and memory.
        size: Amounts,
        /// The Event to publish afterwards.
        reason: Option<Reason>,
    },
    /// Delete exactly this version of a pod. Its node is gone or has a taint that the pod does not tolerate. Or the pod is a
    /// placeholder's, and its next pod asks the scheduler again.
    Evict {
        /// The pod.
        pod: ObjectRef,
        /// True to delete the pod without a grace period.
        at_once: bool,
        /// A node to ask the API server for first, because the cache of nodes may be stale. If the node exists, the pod stays.
        unless_exists: Option<String>,
        /// The record to write first, if the pod is a placeholder's.
        update: Option<Update>,
        /// The Event to publish afterwards.
        reason: Reason,
    },
    /// Ask the API server which run a waiting pod belongs to.
    Ask {
        /// The pod.
        pod: ObjectRef,
        /// Its TaskRun.
        task_run: OwnerReference,
        /// The uid of the run that its label names.
        run_uid: String,
    },
    /// Free a pod from its placeholder: change its TaskRun, then delete exactly this version of the pod.
    LetGo {
        /// The pod.
        pod: ObjectRef,
        /// Its TaskRun.
        task_run: OwnerReference,
        /// The placeholder that it follows.
        placeholder: String,
        /// How often it was let go, this time included.
        times: u32,
        /// The Event to publish afterwards.
        reason: Reason,
    },
}

/// The purpose of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Purpose {
    /// To create placeholders, as an `Ensure` asks for.
    Ensure,
    /// To remove the scheduling gate of a placeholder's pod. Every replica may take such a step.
    Open,
    /// To clean up, as a `Release` asks for.
    Release,
    /// To move placeholders and pods. Only the leader takes such a step.
    Move,
}

impl Step {
    /// Its purpose.
    pub fn purpose(&self) -> Purpose {
        match self {
            Self::Create(_) => Purpose::Ensure,
            Self::Delete(_) | Self::DeleteOrphan(_) | Self::DeleteClaim(_) | Self::Unprotect(_) => {
                Purpose::Release
            }
            Self::Open { .. } => Purpose::Open,
            Self::Retry(_)
            | Self::Shrink { .. }
            | Self::Evict { .. }
            | Self::Gate(_)
            | Self::Ask { .. }
            | Self::LetGo { .. } => Purpose::Move,
        }
    }
}

/// An update of a placeholder's object.
#[derive(Clone, Debug, PartialEq)]
pub struct Update {
    /// The placeholder's name.
    pub placeholder: String,
    /// Its new record.
    pub record: Record,
}

/// Decides the next steps for a run.
pub fn reconcile(observed: &Observed) -> Decision {
    let mut decision = Decision::default();
    match observed.presence {
        RunPresence::Active => {
            decision.released = Some(Released::RunActive);
            create::create(observed, &mut decision);
            reserve::reserve(observed, &mut decision);
            if observed.leads {
                evacuate::evacuate(observed, &mut decision);
                let cause = make_room::make_room(observed, &mut decision);
                tell::tell(observed, cause, &mut decision);
            }
        }
        RunPresence::Done | RunPresence::Gone => {
            decision.released = Some(clean_up::clean_up(observed, &mut decision));
            if observed.leads {
                tell::tell(observed, None, &mut decision);
            }
        }
    }
    decision
}

impl Decision {
    /// Makes the next reconcile due after this time at the latest.
    fn look_in(&mut self, time: Duration) {
        self.again = match self.again {
            Again::After(sooner) => Again::After(sooner.min(time)),
            Again::OnChange | Again::Backoff => Again::After(time),
        };
    }

    /// True if `sight` has lasted for `time`. If not, the next reconcile is due when it will have lasted for `time`.
    fn lasts(&mut self, observed: &Observed, sight: Sight, time: Duration) -> bool {
        let left = self.lasts_in(observed, sight, time);
        if !left.is_zero() {
            self.look_in(left);
        }
        left.is_zero()
    }

    /// The time left until `sight` has lasted for `time`.
    fn lasts_in(&mut self, observed: &Observed, sight: Sight, time: Duration) -> Duration {
        let since = observed.since.get(&sight).copied().unwrap_or_default();
        self.sights.insert(sight);
        time.saturating_sub(since)
    }
}

/// How often the placeholders of a run leave their nodes to make room.
const MOVES: u32 = 5;

/// Deletes a placeholder's pod, so that its next pod asks the scheduler again. `record` is the placeholder's new record without
/// this step, which this function adds.
fn ask_again(
    observed: &Observed,
    own: &Placeholder,
    pod: &Pod,
    record: Record,
    reason: Reason,
) -> Step {
    let moved = Done::again(own.record.moved.as_ref(), observed.now, &reason.message);
    let update = Update {
        placeholder: own.object.name.clone(),
        record: Record { moved, ..record },
    };
    evict(pod, Some(update), reason)
}

/// Deletes a pod with its grace period.
fn evict(pod: &Pod, update: Option<Update>, reason: Reason) -> Step {
    Step::Evict {
        pod: pod.object.clone(),
        at_once: false,
        unless_exists: None,
        update,
        reason,
    }
}

/// The pause after `times` actions: it doubles each time, up to `longest`.
fn pause(times: u32, first: Duration, longest: Duration) -> Duration {
    let doubled = 2_u32.saturating_pow(times.saturating_sub(1));
    first.saturating_mul(doubled).min(longest)
}

#[cfg(test)]
mod tests;
