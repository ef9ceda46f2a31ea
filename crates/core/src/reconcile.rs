//! From a run as it was observed to the steps that bring it to where it should be. A pure function: every replica gives the
//! same answer, and asking again after any restart, or any step, is harmless.

mod create;
mod evacuate;
mod make_room;
mod tear_down;
mod tell;

use std::collections::BTreeSet;
use std::time::Duration;

use crate::observed::{Observed, Record, Sight};
use crate::pipeline_run::OwnerReference;
use crate::plan::{PlaceholderSpec, Reason};
use crate::teardown::{Claim, ObjectRef, RunPresence};

/// What is to be done about a run, and what there is to say about it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    /// In this order. Each is safe to repeat.
    pub steps: Vec<Step>,
    /// How far the clean-up is.
    pub released: Option<Released>,
    /// For the run's author, each once.
    pub events: Vec<Reason>,
    /// Why the run waits, for annotation `coscheduler.dev/blocked`; the outer `None` leaves the annotation as it is.
    pub blocked: Option<Option<Reason>>,
    /// What has to last before anything is done about it.
    pub sights: BTreeSet<Sight>,
    /// When to look again, should nothing change before.
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
    /// After a backoff that grows from look to look, as no object tells of it.
    Backoff,
}

/// How far a clean-up is.
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

/// Something to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Create this placeholder.
    Create(Box<PlaceholderSpec>),
    /// Delete this placeholder, its pod with it.
    Delete(ObjectRef),
    /// Delete a placeholder's pod that was left without its placeholder.
    DeleteOrphan(ObjectRef),
    /// Delete this claim.
    DeleteClaim(ObjectRef),
    /// Of these claims, remove the protection of those that a live list of the namespace's pods allows
    /// ([`unprotectable`](crate::teardown::unprotectable)).
    Unprotect(Vec<Claim>),
    /// Make the placeholder's controller try again to create its pod.
    Retry(Update),
    /// Delete exactly this version of a pod, whose node turns it away.
    Evict {
        /// The pod.
        pod: ObjectRef,
        /// Whether to drop the pod object at once.
        at_once: bool,
        /// A node to look for first, since the cache of nodes may be behind: if it exists, nothing is done.
        unless_exists: Option<String>,
        /// The placeholder to write the move on, where the pod is a placeholder's.
        update: Option<Update>,
        /// For the run's author once it is done.
        reason: Reason,
    },
    /// Send a placeholder to one of these nodes.
    Send {
        /// The placeholder with the move written on it.
        update: Update,
        /// The nodes, the best first.
        nodes: Vec<String>,
    },
    /// Delete a moved placeholder's pod from the node that it is to leave.
    Leave(ObjectRef),
    /// End a move.
    EndMove {
        /// The placeholder.
        update: Update,
        /// The pod to make anew, where it found no node.
        lost: Option<ObjectRef>,
    },
    /// Ask the API server whom a waiting pod belongs to, and whether a node is being added for it.
    Ask {
        /// The pod.
        pod: ObjectRef,
        /// Its TaskRun.
        task_run: OwnerReference,
        /// The uid of the run that it claims to belong to.
        run_uid: String,
    },
    /// Let a pod go without its placeholder: change its TaskRun, then delete exactly this version of the pod.
    LetGo {
        /// The pod.
        pod: ObjectRef,
        /// Its TaskRun.
        task_run: OwnerReference,
        /// The placeholder that it follows.
        placeholder: String,
        /// How often it was let go, this time included.
        times: u32,
        /// For the run's author once it is done.
        reason: Reason,
    },
}

/// An update of a placeholder's object.
#[derive(Clone, Debug, PartialEq)]
pub struct Update {
    /// The placeholder's name.
    pub placeholder: String,
    /// Its record from then on.
    pub record: Record,
    /// For the run's author once it is done.
    pub reason: Option<Reason>,
}

/// Decides what is to be done about a run now.
pub fn reconcile(observed: &Observed) -> Decision {
    let mut decision = Decision::default();
    match observed.presence {
        RunPresence::Active => {
            decision.released = Some(Released::RunActive);
            create::create(observed, &mut decision);
            if observed.leads {
                evacuate::evacuate(observed, &mut decision);
                let cause = make_room::make_room(observed, &mut decision);
                tell::tell(observed, cause, &mut decision);
            }
        }
        RunPresence::Done | RunPresence::Gone => {
            tear_down::tear_down(observed, &mut decision);
            if observed.leads {
                tell::tell(observed, None, &mut decision);
            }
        }
    }
    decision
}

impl Decision {
    /// Looks again after this time at the latest.
    fn look_in(&mut self, time: Duration) {
        self.again = match self.again {
            Again::After(sooner) => Again::After(sooner.min(time)),
            // A time that is known is no reason to look less often than without it.
            Again::OnChange | Again::Backoff => Again::After(time),
        };
    }

    /// Whether this has been seen for that long; if not, looks again once it has.
    fn lasts(&mut self, observed: &Observed, sight: Sight, time: Duration) -> bool {
        let left = self.lasts_in(observed, sight, time);
        if !left.is_zero() {
            self.look_in(left);
        }
        left.is_zero()
    }

    /// The time until this has been seen for that long.
    fn lasts_in(&mut self, observed: &Observed, sight: Sight, time: Duration) -> Duration {
        let since = observed.since.get(&sight).copied().unwrap_or_default();
        self.sights.insert(sight);
        time.saturating_sub(since)
    }
}

/// The pause after something was done `times` times: it doubles each time, up to `longest`.
fn pause(times: u32, first: Duration, longest: Duration) -> Duration {
    let doubled = 2_u32.saturating_pow(times.saturating_sub(1));
    first.saturating_mul(doubled).min(longest)
}

#[cfg(test)]
mod tests;
