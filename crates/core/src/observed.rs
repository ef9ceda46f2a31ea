//! The input of [`reconcile`](crate::reconcile): a run and its objects, as the manager saw them at one moment.

mod pod;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::pipeline_run::{OwnerReference, PipelineRun};
use crate::plan::{Plan, Reason};
use crate::reconcile::evacuate::Node;
use crate::violation::Violation;
use crate::volumes::{NodeTerm, SeenClaim};

pub use pod::{Needs, PlaceholderLabels, Pod, PodPhase, Unscheduled};

/// The plan of a run, or the violations that make a plan impossible.
pub type Planned = Result<Plan, Vec<Violation>>;

/// A run and its objects.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    /// The time of the observation.
    pub now: Timestamp,
    /// True if this replica holds the Lease. Only the holder moves placeholders and reports why runs wait.
    pub leads: bool,
    /// True if a call of `Ensure` waits for the outcome.
    pub called: bool,
    /// Says whether the run still needs its objects.
    pub presence: RunPresence,
    /// The run and its plan, if the run is known.
    pub run: Option<(Arc<PipelineRun>, Arc<Planned>)>,
    /// The run's placeholders, by name.
    pub placeholders: BTreeMap<String, Arc<Placeholder>>,
    /// Pods by name: those TaskRun pods of the run and of its child runs that have not ended yet, and the pods of the run's
    /// placeholders.
    pub pods: BTreeMap<String, Arc<Pod>>,
    /// The names of the TaskRuns whose pod has ended, of the run and of its child runs.
    pub ended: BTreeSet<String>,
    /// The claims that Tekton or this product created for the run.
    pub claims: Vec<Arc<KnownClaim>>,
    /// The existing claims, by name, that the run's placeholders or pods use.
    pub volumes: BTreeMap<String, SeenClaim>,
    /// Pods of other runs that use one of the claims in `volumes`.
    pub sharing: Vec<Arc<Pod>>,
    /// The last warning Event of Kubernetes about each placeholder, by the placeholder's name.
    pub refused: BTreeMap<String, Reason>,
    /// The last warning Event of Kubernetes about each claim, by the claim's name.
    pub not_provisioned: BTreeMap<String, Reason>,
    /// True if a ResourceQuota of the run's namespace counts CPU or memory.
    pub has_quota: bool,
    /// Every node, by name.
    pub nodes: Arc<BTreeMap<String, Arc<Node>>>,
    /// For each condition in earlier observations: how long it has lasted.
    pub since: BTreeMap<Sight, Duration>,
    /// The API server's answers to [`Step::Ask`](crate::reconcile::Step::Ask), by the uid of the pod.
    pub answers: BTreeMap<String, Answer>,
}

/// The progress of a run: it decides if the run still needs its objects.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RunPresence {
    /// The run is not done.
    Active,
    /// The run completed, failed, timed out, or was cancelled or stopped.
    Done,
    /// The run does not exist, or is being deleted.
    #[default]
    Gone,
}

/// The identity and the version of an object. A write can require that the object still has both.
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

/// A placeholder. The type does not depend on the kind of Kubernetes object that implements placeholders.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Placeholder {
    /// The identity and version of the Kubernetes object.
    pub object: ObjectRef,
    /// The placeholder's namespace.
    pub namespace: String,
    /// The controller among its owners. It is a PipelineRun, unless another program or a user created the object.
    pub controller: Option<OwnerReference>,
    /// The uid of the PipelineRun that owns it. Empty if no PipelineRun owns it.
    pub run_uid: String,
    /// The time of its creation.
    pub created: Option<Timestamp>,
    /// The claims that it mounts.
    pub claims: Vec<String>,
    /// The requirements that its next pod will have on a node.
    pub needs: Needs,
    /// True if its next pod starts with the scheduling gate [`GATE`](crate::reconcile::reserve::GATE).
    pub gated: bool,
    /// True if its controller has observed the newest version of the object, and makes the next pod from it.
    pub observed: bool,
    /// The manager's earlier actions on it.
    pub record: Record,
}

impl Placeholder {
    /// The name of the PipelineRun that controls it. Empty if it has no controller.
    pub fn run_name(&self) -> &str {
        let controller = self.controller.as_ref();
        controller.map_or("", |controller| controller.name.as_str())
    }
}

/// Earlier actions on a placeholder. The manager stores them on the placeholder, in the request of the action or right before it,
/// so that every replica knows them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Record {
    /// Evictions of its pod from nodes that are cordoned, tainted or gone (N1).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evacuated: Option<Done>,
    /// Moves to a node with room for a waiting pod (N2).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub moved: Option<Done>,
    /// Retries of the creation of its pod (N3).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retried: Option<Done>,
    /// The node that it left in its last move (N2). Its next pod prefers other nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left: Option<String>,
    /// True if it could not give its room up (B3). Its next pods ask for none.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub keeps_room: bool,
}

/// The number of actions of one kind, with the time and the reason of the last one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    /// The number of actions.
    pub times: u32,
    /// The time of the last action.
    pub last: Timestamp,
    /// The reason of the last action, in words.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
}

impl Done {
    /// Counts one more action in addition to those in `before`.
    pub fn again(before: Option<&Self>, now: Timestamp, why: impl Into<String>) -> Option<Self> {
        Some(Self {
            times: before.map_or(0, |done| done.times).saturating_add(1),
            last: now,
            why: why.into(),
        })
    }

    /// The part of `pause` that is still left at `now`, if the pause began with the last action.
    pub fn rests(&self, now: Timestamp, pause: Duration) -> Duration {
        pause.saturating_sub(elapsed(self.last, now))
    }
}

/// The time from `then` to `now`. Zero if `then` is later: the two times may come from different machines' clocks.
pub fn elapsed(then: Timestamp, now: Timestamp) -> Duration {
    now.duration_since(then).try_into().unwrap_or_default()
}

impl Observed {
    /// The placeholders that the plan requires. Empty if there is no valid plan.
    pub fn planned(&self) -> &[crate::plan::PlaceholderSpec] {
        match self.run.as_ref().map(|(_, planned)| planned.as_ref()) {
            Some(Ok(plan)) => plan.action.placeholders(),
            Some(Err(_)) | None => &[],
        }
    }

    /// The planned placeholders that have a pod, with this pod. Objects that are being deleted do not count.
    pub(crate) fn placed(
        &self,
    ) -> impl Iterator<Item = (&crate::plan::PlaceholderSpec, &Placeholder, &Pod)> {
        self.planned().iter().filter_map(|spec| {
            let own = self.placeholders.get(spec.name.as_str())?;
            let pod = self.pod_of(own)?;
            (!own.object.deleting && !pod.object.deleting).then_some((spec, &**own, &**pod))
        })
    }

    /// The claims that a placeholder stands for, mounted or not.
    pub(crate) fn claims_of(spec: &crate::plan::PlaceholderSpec, pod: &Pod) -> BTreeSet<String> {
        pod.claims.iter().cloned().chain(spec.claims()).collect()
    }

    /// The claims of a placeholder with volumes that only one node reaches.
    pub(crate) fn tied(&self, spec: &crate::plan::PlaceholderSpec, pod: &Pod) -> Vec<String> {
        let claims = Self::claims_of(spec, pod).into_iter();
        let tied = claims.filter(|claim| {
            let seen = self.volumes.get(claim);
            let volume = seen.and_then(|seen| seen.volume.as_ref());
            // Terms are alternatives.
            let mut nodes = volume
                .iter()
                .flat_map(|it| &it.terms)
                .map(NodeTerm::one_node);
            let first = nodes.next().flatten();
            first.is_some() && nodes.all(|node| node == first)
        });
        tied.collect()
    }

    /// The node of this name.
    pub fn node(&self, name: &str) -> Option<&Node> {
        self.nodes.get(name).map(AsRef::as_ref)
    }

    /// The pod that the placeholder's object controls. Labels are no proof, because anybody can set them.
    pub fn pod_of(&self, placeholder: &Placeholder) -> Option<&Arc<Pod>> {
        let pods = self.pods.values();
        let mut own = pods.filter(|pod| pod.is_of(placeholder));
        own.next()
    }

    /// The placeholder pod that has the name of this placeholder's pod, even if it has another controller.
    pub fn pod_named_for(&self, placeholder: &str) -> Option<&Arc<Pod>> {
        let mut pods = self.pods.values();
        pods.find(|pod| {
            let labels = pod.placeholder.as_ref();
            labels.is_some_and(|labels| labels.name == placeholder)
        })
    }

    /// True if the pod belongs to one of the run's placeholders, or is a TaskRun's pod with an affinity to one of them. The label
    /// with the run's uid is no proof, because anybody can set it.
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

/// A claim. Tekton, a user or this product may have created it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownClaim {
    /// The identity and version of the object.
    pub object: ObjectRef,
    /// The claim's namespace.
    pub namespace: String,
    /// `metadata.finalizers`.
    pub finalizers: Vec<String>,
    /// The PipelineRun among its owners.
    pub owner: Option<OwnerReference>,
    /// True if its controller is a PipelineRun. Only claims that Tekton created have such a controller.
    pub by_tekton: bool,
    /// True if this product created it.
    pub by_us: bool,
    /// True if only one pod at a time may use it (`ReadWriteOncePod`).
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

/// The finalizer that keeps a claim until no pod uses it.
/// Source: Kubernetes `pkg/volume/util/finalizer.go`, `PVCProtectionFinalizer`.
pub const PROTECTION: &str = "kubernetes.io/pvc-protection";

/// A condition. The manager acts on it only after several observations have seen it for some time.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Sight {
    /// The planned placeholder with this name does not exist.
    Missing(String),
    /// The placeholder with this name has no pod.
    NoPod(String),
    /// The placeholder pod with this uid still has our scheduling gate.
    Gated(String),
    /// The run waits for a placeholder. The text is the name of the Event with the cause.
    Waits(String),
    /// The waiting pod with this name needs a step, for example a move of its placeholder.
    Wanted(String),
    /// The kubelet has not acted on a resize of the pod with this uid.
    Resizing(String),
    /// The scheduler finds no node for the pod with this uid and these requests.
    Refused(String, String),
}

/// The API server's answer to a question about a waiting pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The time of the answer.
    pub at: Timestamp,
    /// True if the pod's TaskRun really belongs to the run that the pod's label names.
    pub own: bool,
    /// How often the manager has allowed this TaskRun to run without its placeholder.
    pub let_go: u32,
}
