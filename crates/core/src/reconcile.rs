//! Decides the next steps for a run, from one observation of the run. Function `reconcile` is pure: the same observation always
//! gives the same decision. So a service may decide again at any time, for example after a restart or after each step. Field
//! `leads` of the observation is true on the leader. Only the leader moves placeholders and pods.

pub mod claims_to_delete;
pub mod evacuate;
pub mod reserve;
pub mod tell;

pub(crate) mod apart;
mod clean_up;
mod create;
pub mod make_room;
mod suitable_nodes;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::config::Backend;
use crate::observed::{
    Done, KnownClaim, ObjectRef, Observed, Placeholder, Record, RunPresence, Sight,
};
use crate::pipeline_run::OwnerReference;
use crate::plan::{PlaceholderSpec, Reason};
use crate::requests::Amounts;

use reserve::{Place, Placed};

/// The next steps for a run, and the messages to its author.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    /// The steps to take, in this order. The manager may safely repeat each step.
    pub steps: Vec<Step>,
    /// The progress of the clean-up. Function `reconcile` always sets this field.
    pub released: Option<Released>,
    /// The Events to publish. As long as a replica remembers the run, it publishes each Event only once.
    pub events: Vec<Reason>,
    /// The causes why TaskRuns of the run wait, for Events about these TaskRuns.
    pub of_task_runs: Vec<(OwnerReference, Reason)>,
    /// The reason why the run waits, for annotation `coscheduler.dev/blocked`. `Some(None)` removes the annotation. `None` leaves
    /// the annotation as it is.
    pub blocked: Option<Option<Reason>>,
    /// The conditions that hold now and must last for some time before the manager acts on them.
    pub sights: BTreeSet<Sight>,
    /// The time of the next reconcile, if no watch reports a change before.
    pub again: Again,
}

/// The time of a run's next reconcile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Again {
    /// When a watch reports a change that concerns the run.
    #[default]
    OnChange,
    /// After this time.
    After(Duration),
    /// After a backoff that grows with each reconcile. The run waits for a change that no watch reports.
    Backoff,
}

/// The progress of a clean-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// Nothing is left to delete.
    Done,
    /// Some objects still have to be deleted.
    InProgress,
    /// Some of the run's pods are pending or running.
    WaitingForPods,
    /// There is no clean-up, because the run is active.
    RunActive,
}

/// An action on the cluster.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Create a placeholder.
    Create {
        /// Its specification.
        spec: Box<PlaceholderSpec>,
        /// If the manager creates the pod without the scheduling gate: the requests to try for the pod, in this order. The pod
        /// gets the first requests that the API server accepts. If the API server accepts none, the pod gets the requests of
        /// the specification. `None` if the pod is created as the specification says, with or without the gate.
        sizes: Option<Vec<Amounts>>,
    },
    /// Delete this placeholder and its pod.
    Delete(ObjectRef),
    /// Delete the pod of a placeholder that no longer exists.
    DeleteOrphan(ObjectRef),
    /// Delete this claim.
    DeleteClaim(ObjectRef),
    /// List the namespace's pods. Then remove the finalizer `pvc-protection` from these claims. A claim keeps the finalizer if a
    /// pod that has not completed uses the claim ([`unprotectable`](claims_to_delete::unprotectable)).
    Unprotect(Vec<Arc<KnownClaim>>),
    /// Write this record to the placeholder's object. This makes the placeholder's controller retry the creation of the pod.
    Retry(Arc<Placeholder>, Record),
    /// Set the requests of a placeholder's gated pod. Then remove the gate, so that the scheduler binds the pod.
    Open {
        /// The placeholder.
        own: Arc<Placeholder>,
        /// The pod.
        pod: ObjectRef,
        /// The requests to try, in this order. The pod gets the first requests that the API server accepts. If the API server
        /// accepts none, the pod keeps its requests.
        sizes: Vec<Amounts>,
        /// The nodes that may take the pod.
        place: Place,
        /// True if the placeholder perhaps had another pod before, and the manager knows no node to which the new pod must return. The
        /// scheduler may have bound pods of the run to the node of the previous pod, and the watch may not have reported these
        /// bindings yet. So the manager first lists the pods. If the list shows such a new binding, the gate stays.
        unless_followed: bool,
    },
    /// Make the next pod of the placeholder start with the scheduling gate.
    Gate(Arc<Placeholder>),
    /// Make the controller of the placeholder create the placeholder's pod.
    Start(Arc<Placeholder>),
    /// Reduce the requests of a placeholder's pod.
    Shrink {
        /// The pod. If the version is empty, the manager reduces any version of this pod.
        pod: ObjectRef,
        /// The pod's new requests for CPU and memory.
        size: Amounts,
        /// The Event to publish afterwards.
        reason: Option<Reason>,
    },
    /// Delete a pod.
    Evict(Eviction),
    /// Ask the API server which run a waiting pod belongs to.
    Ask {
        /// The pod.
        pod: ObjectRef,
        /// Its TaskRun.
        task_run: OwnerReference,
        /// The uid of the run that the pod's label names.
        run_uid: String,
    },
    /// Let a pod run without its placeholder: change its TaskRun, then delete exactly this version of the pod. Tekton then
    /// creates the pod again, normally without the affinity.
    LetGo {
        /// The pod.
        pod: ObjectRef,
        /// Its TaskRun.
        task_run: OwnerReference,
        /// The name of the placeholder that the pod follows.
        placeholder: String,
        /// The number of times that the manager has taken this step for the TaskRun, including this time.
        times: u32,
        /// The Event to publish afterwards.
        reason: Reason,
    },
}

/// The purpose of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Purpose {
    /// To create placeholders, as `Ensure` requires.
    Ensure,
    /// To remove the scheduling gate of a placeholder's pod. Every replica may take such a step.
    Open,
    /// To clean up, as `Release` requires.
    Release,
    /// To move placeholders and pods, and to retry, start or resize placeholders. Only the leader takes such a step.
    Move,
}

impl Step {
    /// The purpose of this step.
    pub fn purpose(&self) -> Purpose {
        match self {
            Self::Create { .. } => Purpose::Ensure,
            Self::Delete(_) | Self::DeleteOrphan(_) | Self::DeleteClaim(_) | Self::Unprotect(_) => {
                Purpose::Release
            }
            Self::Open { .. } => Purpose::Open,
            Self::Retry(..)
            | Self::Shrink { .. }
            | Self::Evict(_)
            | Self::Gate(_)
            | Self::Start(_)
            | Self::Ask { .. }
            | Self::LetGo { .. } => Purpose::Move,
        }
    }
}

/// The deletion of exactly this version of a pod. There are two possible causes. First: the pod's node is gone, is cordoned, or has
/// a taint that the pod does not tolerate. Second: the pod belongs to a placeholder, and the scheduler has to choose a node for the
/// placeholder's next pod.
#[derive(Clone, Debug, PartialEq)]
pub struct Eviction {
    /// The pod.
    pub pod: ObjectRef,
    /// True to delete the pod without a grace period.
    pub at_once: bool,
    /// The pod's node, if the cache does not have this node. The cache may be stale, so the manager first asks the API server for
    /// the node. If the node exists, the pod stays.
    pub unless_exists: Option<String>,
    /// The placeholder to which the pod belongs. `None` if it is the pod of a TaskRun.
    pub own: Option<Arc<Placeholder>>,
    /// True if the manager first tries to give the placeholder's next pod PriorityClass
    /// [`EVACUATED_CLASS`](crate::pod_template::EVACUATED_CLASS). If this succeeds and the placeholder has a controller, the
    /// pod stays until the next reconcile. In all other cases, for example if the class does not exist, this step also deletes
    /// the pod.
    pub raise: bool,
    /// The placeholder's new record, to write before the deletion. `None` if the record does not change.
    pub record: Option<Record>,
    /// The specification of the placeholder, if the placeholder is only this pod ([`Backend::Pod`]). Before the deletion, the
    /// manager creates a Kubernetes object for the placeholder. The object stores the record, and its controller creates the next
    /// pod.
    pub control: Option<Box<PlaceholderSpec>>,
    /// The Event to publish afterwards.
    pub reason: Reason,
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

/// Field [`Eviction::control`] for the pod of this placeholder.
fn control(
    observed: &Observed,
    own: &Placeholder,
    spec: &PlaceholderSpec,
) -> Option<Box<PlaceholderSpec>> {
    let is_only_a_pod = own.backend == Backend::Pod;
    is_only_a_pod.then(|| Box::new(create::without_left_out(observed, spec)))
}

impl Decision {
    /// Makes the next reconcile due after this time at the latest.
    fn look_in(&mut self, time: Duration) {
        self.again = match self.again {
            Again::After(sooner) => Again::After(sooner.min(time)),
            Again::OnChange | Again::Backoff => Again::After(time),
        };
    }

    /// True if condition `sight` has lasted for `time`. If not, makes the next reconcile due when the condition will have lasted
    /// for `time`.
    fn lasts(&mut self, observed: &Observed, sight: Sight, time: Duration) -> bool {
        let since = observed.since.get(&sight).copied().unwrap_or_default();
        self.sights.insert(sight);
        let left = time.saturating_sub(since);
        if !left.is_zero() {
            self.look_in(left);
        }
        left.is_zero()
    }
}

/// The greatest number of times that the placeholders of a run, counted together, leave their nodes because pods wait for room.
/// The count begins anew when another pod of the run has ended. If the requests of a bound placeholder are not reduced in time,
/// the manager deletes its pod, but only while the record of this one placeholder has fewer moves than this.
const MOVES: u32 = 5;

/// The step that deletes a placeholder's pod, so that the scheduler chooses a node for the next pod. `record` is the
/// placeholder's new record, to which this function adds the step.
fn ask_again(placed: &Placed<'_>, record: Record, reason: Reason) -> Step {
    let now = placed.observed.now;
    let moved = Done::again(record.moved.as_ref(), now, &reason.message);
    evict(placed, Some(Record { moved, ..record }), reason)
}

/// The step that deletes a placeholder's pod with its grace period.
fn evict(placed: &Placed<'_>, record: Option<Record>, reason: Reason) -> Step {
    Step::Evict(Eviction {
        pod: placed.pod.object.clone(),
        at_once: false,
        unless_exists: None,
        own: Some(placed.own.clone()),
        raise: false,
        record,
        control: control(placed.observed, placed.own, placed.spec),
        reason,
    })
}

/// The pause after `times` actions. The pause after the first action is `first`. It doubles with each action, up to `longest`.
fn pause(times: u32, first: Duration, longest: Duration) -> Duration {
    let doubled = 2_u32.saturating_pow(times.saturating_sub(1));
    first.saturating_mul(doubled).min(longest)
}

#[cfg(test)]
mod tests;
