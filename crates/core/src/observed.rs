//! A run and what belongs to it, as seen at one moment: everything that [`reconcile`](crate::reconcile) decides by.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::evacuate::{Node, Role, Toleration};
use crate::pipeline_run::{OwnerReference, PipelineRun};
use crate::plan::{Plan, Reason, Separation};
use crate::rescue::room::{Needs, Room};
use crate::teardown::{Claim, ObjectRef, PodPhase, RunPresence};
use crate::violation::Violation;
use crate::volumes::SeenClaim;

/// The plan of a run, or why there is none.
pub type Planned = Result<Plan, Vec<Violation>>;

/// A run and what belongs to it.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    /// When it was seen.
    pub now: Timestamp,
    /// Whether this replica moves placeholders and informs authors.
    pub leads: bool,
    /// Whether an `Ensure` waits for the outcome.
    pub called: bool,
    /// For how long a node that is about to be added holds moves back (N4).
    pub scale_up_hold: Duration,
    /// Whether the run still needs its objects.
    pub presence: RunPresence,
    /// The run, where it is known, and its plan.
    pub run: Option<(Arc<PipelineRun>, Arc<Planned>)>,
    /// Its placeholders, by name.
    pub placeholders: BTreeMap<String, Arc<Placeholder>>,
    /// Its TaskRun pods that have not ended, those of its child runs included, and its placeholders' pods, by name.
    pub pods: BTreeMap<String, Arc<Pod>>,
    /// The claims that go with the run.
    pub claims: Vec<Claim>,
    /// The claims that its placeholders stand for and that exist, by name.
    pub volumes: BTreeMap<String, SeenClaim>,
    /// Pods of other runs that use a claim of this one.
    pub sharing: Vec<Arc<Pod>>,
    /// Complaints of Kubernetes about the run's placeholders, by name.
    pub refused: BTreeMap<String, Reason>,
    /// Complaints of Kubernetes about the run's claims, by name.
    pub not_provisioned: BTreeMap<String, Reason>,
    /// Every node, by name.
    pub nodes: Arc<BTreeMap<String, Arc<Room>>>,
    /// For how long earlier looks have seen the same.
    pub since: BTreeMap<Sight, Duration>,
    /// Answers to [`Step::Ask`](crate::reconcile::Step::Ask), by the pod's uid.
    pub answers: BTreeMap<String, Answer>,
}

/// A placeholder, whatever Kubernetes makes it of.
#[derive(Clone, Debug, PartialEq)]
pub struct Placeholder {
    /// The object.
    pub object: ObjectRef,
    /// Its namespace.
    pub namespace: String,
    /// Its controller, which is a PipelineRun unless somebody else made it.
    pub controller: Option<OwnerReference>,
    /// The uid of the PipelineRun that owns it; empty once nothing owns it.
    pub run_uid: String,
    /// When it was created.
    pub created: Option<Timestamp>,
    /// The claims that it mounts.
    pub claims: Vec<String>,
    /// Its next pod's needs of a node.
    pub needs: Needs,
    /// Its node affinity, as Kubernetes JSON.
    pub node_affinity: serde_json::Value,
    /// The move under way.
    pub moving: Option<Move>,
    /// Whether its controller makes the next pod from the object as it is now.
    pub observed: bool,
    /// What was done with it.
    pub record: Record,
}

/// A move of a placeholder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Move {
    /// The nodes that may take it, by name.
    pub nodes: Vec<String>,
    /// The node affinity that it had before, as Kubernetes JSON.
    pub before: serde_json::Value,
}

/// What was done with a placeholder, and when. It is stored on the placeholder, in the request that does it, so that every
/// replica knows.
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
    /// Nodes that the scheduler did not take, and when.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub refused: BTreeMap<String, Timestamp>,
}

/// How often something was done, when last, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    /// How often.
    pub times: u32,
    /// When last.
    pub last: Timestamp,
    /// Why, in words.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
}

impl Done {
    /// `before` and once more.
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

/// The time from `then` to `now`; none where the clocks of two machines disagree about the order.
pub fn elapsed(then: Timestamp, now: Timestamp) -> Duration {
    now.duration_since(then).try_into().unwrap_or_default()
}

/// A pod of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Pod {
    /// The pod.
    pub object: ObjectRef,
    /// Its namespace.
    pub namespace: String,
    /// The uid of its run, by its label.
    pub run_uid: String,
    /// Its controller.
    pub controller: Option<OwnerReference>,
    /// Whether it is a placeholder's.
    pub placeholder: Option<PlaceholderLabels>,
    /// The placeholders whose node it has to share, by its required affinity.
    pub follows: Vec<String>,
    /// Its phase.
    pub phase: PodPhase,
    /// Whether a container has ever started.
    pub started: bool,
    /// The node that it is bound to.
    pub node: Option<String>,
    /// The scheduler's last word on it, while it has no node.
    pub unscheduled: Option<Unscheduled>,
    /// When it was created.
    pub created: Option<Timestamp>,
    /// The claims that it uses.
    pub claims: Vec<String>,
    /// Its needs of a node, claims aside.
    pub needs: Needs,
    /// How it keeps away from placeholders.
    pub separation: Separation,
}

/// What a placeholder's pod says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlaceholderLabels {
    /// The placeholder's name.
    pub name: String,
    /// Whether this product made it and nothing owns it any more.
    pub orphaned: bool,
}

/// Condition `PodScheduled` with status `False`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unscheduled {
    /// Whether its reason is `Unschedulable`: the scheduler has found no node.
    pub no_node: bool,
    /// Its message.
    pub message: Option<String>,
}

impl Pod {
    /// What it is to its run while it is bound to a node; `None` once it has ended.
    pub fn role(&self) -> Option<Role> {
        match self.phase {
            PodPhase::Succeeded | PodPhase::Failed => None,
            _ if self.placeholder.is_some() => Some(Role::Placeholder),
            PodPhase::Pending if !self.started => Some(Role::NeverStarted),
            PodPhase::Pending | PodPhase::Running | PodPhase::Unknown => Some(Role::Started),
        }
    }

    /// The TaskRun that it was made for.
    pub fn task_run(&self) -> Option<&OwnerReference> {
        let controller = self.controller.as_ref();
        controller.filter(|controller| controller.kind == "TaskRun")
    }

    /// The taints that it tolerates.
    pub fn tolerations(&self) -> &[Toleration] {
        &self.needs.tolerations
    }
}

impl Observed {
    /// The placeholders that should exist.
    pub fn planned(&self) -> &[crate::plan::PlaceholderSpec] {
        match self.run.as_ref().map(|(_, planned)| planned.as_ref()) {
            Some(Ok(plan)) => plan.action.placeholders(),
            Some(Err(_)) | None => &[],
        }
    }

    /// The node of this name.
    pub fn node(&self, name: &str) -> Option<&Node> {
        self.nodes.get(name).map(|room| &room.node)
    }

    /// A placeholder's pod. Anybody may write labels; its controller is what counts.
    pub fn pod_of(&self, placeholder: &Placeholder) -> Option<&Arc<Pod>> {
        let pods = self.pods.values();
        let mut own = pods.filter(|pod| pod.is_of(placeholder));
        own.next()
    }

    /// Whether the pod belongs to the run and concerns this product: a label is anybody's to write.
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

impl Pod {
    /// Whether it is the placeholder's own pod.
    pub fn is_of(&self, placeholder: &Placeholder) -> bool {
        let controller = self.controller.as_ref();
        self.placeholder.is_some() && controller.is_some_and(|it| it.uid == placeholder.object.uid)
    }
}

/// A claim, whoever made it.
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
    /// Whether a PipelineRun is its controller: Tekton made it.
    pub by_tekton: bool,
    /// Whether this product made it.
    pub by_us: bool,
    /// Whether only one pod may use it at a time (`ReadWriteOncePod`).
    pub single_pod: bool,
    /// The name of the volume that it is bound to.
    pub volume: Option<String>,
}

impl KnownClaim {
    /// As the clean-up sees it.
    pub fn to_teardown(&self) -> Claim {
        Claim {
            name: self.object.name.clone(),
            uid: self.object.uid.clone(),
            resource_version: self.object.resource_version.clone(),
            deleting: self.object.deleting,
            protected: self
                .finalizers
                .iter()
                .any(|finalizer| finalizer == PROTECTION),
        }
    }

    /// Its finalizers but [`PROTECTION`].
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

/// Something that has to last before anything is done about it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Sight {
    /// A planned placeholder does not exist.
    Missing(String),
    /// The placeholder of this name has no pod.
    NoPod(String),
    /// The run waits for a reason, by the name of its Event.
    Waits(String),
    /// A step is wanted for the waiting pod of this name.
    Wanted(String),
    /// A node has room for a waiting pod, which the scheduler leaves.
    RoomLeft {
        /// The pod's name.
        pod: String,
        /// The node's name.
        node: String,
    },
    /// The pod with this uid, of a placeholder that is being moved, has found no node.
    Lost(String),
}

/// The API server's answer about a waiting pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// When.
    pub at: Timestamp,
    /// Whether the pod's TaskRun belongs to the run that the pod's label names.
    pub own: bool,
    /// How often its TaskRun was let go.
    pub let_go: u32,
    /// When the cluster autoscaler first said that it adds a node for the pod.
    pub scale_up: Option<Timestamp>,
}
