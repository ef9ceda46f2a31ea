//! The input of [`reconcile`](crate::reconcile): a run and its objects, as they were at one moment.

mod pod;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::pipeline_run::{OwnerReference, PipelineRun};
use crate::plan::{Plan, Reason};
use crate::reconcile::evacuate::Node;
use crate::reconcile::room::{Needs, Room};
use crate::violation::Violation;
use crate::volumes::SeenClaim;

pub use pod::{PlaceholderLabels, Pod, PodPhase, Unscheduled};

/// The plan of a run, or the faults that rule one out.
pub type Planned = Result<Plan, Vec<Violation>>;

/// A run and its objects.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    /// The time of the observation.
    pub now: Timestamp,
    /// True if this replica holds the Lease: only the holder moves placeholders and reports why runs wait.
    pub leads: bool,
    /// True if an `Ensure` waits for the outcome.
    pub called: bool,
    /// How long a scale-up of the cluster delays moves (N4).
    pub scale_up_hold: Duration,
    /// Says whether the run still needs its objects.
    pub presence: RunPresence,
    /// The run and its plan, if the run is known.
    pub run: Option<(Arc<PipelineRun>, Arc<Planned>)>,
    /// Its placeholders, by name.
    pub placeholders: BTreeMap<String, Arc<Placeholder>>,
    /// Its TaskRun pods that have not ended, those of its child runs included, and its placeholders' pods, by name.
    pub pods: BTreeMap<String, Arc<Pod>>,
    /// The claims that are deleted with the run.
    pub claims: Vec<Arc<KnownClaim>>,
    /// The existing claims that its placeholders stand for or its pods use, by name.
    pub volumes: BTreeMap<String, SeenClaim>,
    /// Pods of other runs that use one of these claims.
    pub sharing: Vec<Arc<Pod>>,
    /// Kubernetes' last warning Event about each placeholder, by the placeholder's name.
    pub refused: BTreeMap<String, Reason>,
    /// Kubernetes' last warning Event about each claim, by the claim's name.
    pub not_provisioned: BTreeMap<String, Reason>,
    /// True if a ResourceQuota of its namespace counts CPU or memory.
    pub has_quota: bool,
    /// Every node, by name.
    pub nodes: Arc<BTreeMap<String, Arc<Room>>>,
    /// How long earlier observations have seen the same.
    pub since: BTreeMap<Sight, Duration>,
    /// Answers to [`Step::Ask`](crate::reconcile::Step::Ask), by the pod's uid.
    pub answers: BTreeMap<String, Answer>,
}

/// The state of a run, as far as its objects depend on it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RunPresence {
    /// Not done yet.
    Active,
    /// Completed, failed, cancelled, stopped or timed out.
    Done,
    /// Deleted, or being deleted.
    #[default]
    Gone,
}

/// One version of an object, for a write with preconditions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ObjectRef {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.resourceVersion`.
    pub resource_version: String,
    /// True if `metadata.deletionTimestamp` is set.
    pub deleting: bool,
}

/// A placeholder, independent of the Kubernetes object that implements it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Placeholder {
    /// The object.
    pub object: ObjectRef,
    /// Its namespace.
    pub namespace: String,
    /// Its controller: a PipelineRun, unless another program or a user created the object.
    pub controller: Option<OwnerReference>,
    /// The uid of the PipelineRun that owns it; empty once nothing owns it.
    pub run_uid: String,
    /// When it was created.
    pub created: Option<Timestamp>,
    /// The claims that it mounts.
    pub claims: Vec<String>,
    /// The requirements of its next pod on a node.
    pub needs: Needs,
    /// Its node affinity, as Kubernetes JSON.
    pub node_affinity: serde_json::Value,
    /// The move under way.
    pub moving: Option<Move>,
    /// True if its controller has observed the newest version of the object, and makes the next pod from it.
    pub observed: bool,
    /// Earlier actions on it.
    pub record: Record,
}

impl Placeholder {
    /// The name of the PipelineRun that controls it; empty if nothing does.
    pub fn run_name(&self) -> &str {
        let controller = self.controller.as_ref();
        controller.map_or("", |controller| controller.name.as_str())
    }
}

/// A move of a placeholder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Move {
    /// The nodes that may take it, by name.
    pub nodes: Vec<String>,
    /// The node affinity that it had before, as Kubernetes JSON.
    pub before: serde_json::Value,
}

/// Earlier actions on a placeholder. The manager stores them on the placeholder, in the request of the action or right before it,
/// so that every replica knows them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Record {
    /// Evictions from nodes that turn pods away (N1).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evacuated: Option<Done>,
    /// Moves to make room (N2).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub moved: Option<Done>,
    /// Further tries to create its pod (N3).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retried: Option<Done>,
    /// Nodes that the scheduler did not choose, with the time.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub refused: BTreeMap<String, Timestamp>,
}

/// A count of one kind of action, with the last time and reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    /// The number of times.
    pub times: u32,
    /// The last time.
    pub last: Timestamp,
    /// The reason, in words.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
}

impl Done {
    /// Counts one more action after `before`.
    pub fn again(before: Option<&Self>, now: Timestamp, why: impl Into<String>) -> Option<Self> {
        Some(Self {
            times: before.map_or(0, |done| done.times).saturating_add(1),
            last: now,
            why: why.into(),
        })
    }

    /// The time left until `pause` after the last time.
    pub fn rests(&self, now: Timestamp, pause: Duration) -> Duration {
        pause.saturating_sub(elapsed(self.last, now))
    }
}

/// The time from `then` to `now`; zero if the clocks of two machines disagree about the order.
pub fn elapsed(then: Timestamp, now: Timestamp) -> Duration {
    now.duration_since(then).try_into().unwrap_or_default()
}

impl Observed {
    /// The placeholders that should exist.
    pub fn planned(&self) -> &[crate::plan::PlaceholderSpec] {
        match self.run.as_ref().map(|(_, planned)| planned.as_ref()) {
            Some(Ok(plan)) => plan.action.placeholders(),
            Some(Err(_)) | None => &[],
        }
    }

    /// The plan of this placeholder; `None` if it should not exist.
    pub fn planned_as(&self, own: &Placeholder) -> Option<&crate::plan::PlaceholderSpec> {
        let mut planned = self.planned().iter();
        planned.find(|spec| spec.name.as_str() == own.object.name)
    }

    /// The node of this name.
    pub fn node(&self, name: &str) -> Option<&Node> {
        self.nodes.get(name).map(|room| &room.node)
    }

    /// A placeholder's pod, by its controller: anybody can set labels.
    pub fn pod_of(&self, placeholder: &Placeholder) -> Option<&Arc<Pod>> {
        let pods = self.pods.values();
        let mut own = pods.filter(|pod| pod.is_of(placeholder));
        own.next()
    }

    /// The pod that carries the name of this placeholder, whoever controls it.
    pub fn pod_named_for(&self, placeholder: &str) -> Option<&Arc<Pod>> {
        let mut pods = self.pods.values();
        pods.find(|pod| {
            let labels = pod.placeholder.as_ref();
            labels.is_some_and(|labels| labels.name == placeholder)
        })
    }

    /// True if the pod is a placeholder's, or a TaskRun's that follows one of the run's placeholders. The run's label alone is no
    /// proof, because anybody can set it.
    pub fn owns(&self, pod: &Pod) -> bool {
        match &pod.placeholder {
            Some(_) => self.placeholders.values().any(|own| pod.is_of(own)),
            None => {
                let names: BTreeSet<_> = pod.follows.iter().collect();
                let mut own = self.placeholders.keys();
                pod.task_run().is_some() && own.any(|name| names.contains(name))
            }
        }
    }
}

/// A claim, whoever created it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownClaim {
    /// The claim.
    pub object: ObjectRef,
    /// Its namespace.
    pub namespace: String,
    /// `metadata.finalizers`.
    pub finalizers: Vec<String>,
    /// The PipelineRun that owns it.
    pub owner: Option<OwnerReference>,
    /// True if a PipelineRun is its controller: Tekton created it.
    pub by_tekton: bool,
    /// True if this product created it.
    pub by_us: bool,
    /// True if only one pod may use it at a time (`ReadWriteOncePod`).
    pub single_pod: bool,
    /// The name of the volume that it is bound to.
    pub volume: Option<String>,
}

impl KnownClaim {
    /// True if [`PROTECTION`] is among its finalizers.
    pub fn is_protected(&self) -> bool {
        self.finalizers.iter().any(|it| it == PROTECTION)
    }

    /// Its finalizers without [`PROTECTION`].
    pub fn without_protection(&self) -> Vec<&str> {
        let finalizers = self.finalizers.iter().map(String::as_str);
        finalizers
            .filter(|finalizer| *finalizer != PROTECTION)
            .collect()
    }
}

/// The finalizer that keeps a claim while a pod refers to it.
/// Source: Kubernetes `pkg/volume/util/finalizer.go`, `PVCProtectionFinalizer`.
pub const PROTECTION: &str = "kubernetes.io/pvc-protection";

/// A condition that must last for some time before the manager acts on it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Sight {
    /// A planned placeholder does not exist.
    Missing(String),
    /// The placeholder of this name has no pod.
    NoPod(String),
    /// The pod of a placeholder, with this uid, has its scheduling gate.
    Gated(String),
    /// The run waits; the name of the Event that says why.
    Waits(String),
    /// The waiting pod with this name needs a step.
    Wanted(String),
    /// A node seems to have room for a waiting pod, but the scheduler does not bind the pod to it.
    RoomLeft {
        /// The pod's name.
        pod: String,
        /// The node's name.
        node: String,
    },
    /// The scheduler finds no node for the pod with this uid, whose placeholder is being moved.
    Lost(String),
}

/// The API server's answer about a waiting pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The time of the answer.
    pub at: Timestamp,
    /// True if the pod's TaskRun belongs to the run that the pod's label names.
    pub own: bool,
    /// How often the manager let its TaskRun go.
    pub let_go: u32,
    /// The time of the cluster autoscaler's first Event about a scale-up for the pod.
    pub scale_up: Option<Timestamp>,
}
