//! The input of [`reconcile`](crate::reconcile): a run and its objects, as the manager saw them at one moment.

mod pod;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::config::Backend;
use crate::labels::HOSTNAME;
use crate::node::Node;
use crate::pipeline_run::{OwnerReference, PipelineRun};
use crate::plan::{PlaceholderSpec, Plan, Reason};
use crate::reconcile::apart::left_out;
use crate::violation::Violation;
use crate::volumes::{NodeTerm, Nodes, Operator, SeenClaim};

pub use pod::{Needs, PlaceholderLabels, Pod, PodPhase, Role, Unscheduled};

/// The plan of a run, or the violations that make a plan impossible.
pub type Planned = Result<Plan, Vec<Violation>>;

/// A run and its objects.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    /// The time of the observation.
    pub now: Timestamp,
    /// True if this replica holds the Lease. Only the holder moves placeholders and reports why runs wait.
    pub leads: bool,
    /// True if a call of `Ensure` waits for the outcome of this reconcile.
    pub called: bool,
    /// The progress of the run.
    pub presence: RunPresence,
    /// The run and its plan, if the run is known.
    pub run: Option<(Arc<PipelineRun>, Arc<Planned>)>,
    /// The run's placeholders, by name.
    pub placeholders: BTreeMap<String, Arc<Placeholder>>,
    /// The names of the placeholders that this replica created a moment ago and has not observed yet.
    pub created: BTreeSet<String>,
    /// The pods of the run's placeholders, and the TaskRun pods of the run and of its child runs. TaskRun pods that have ended
    /// are left out. The key is the pod's name.
    pub pods: BTreeMap<String, Arc<Pod>>,
    /// The names of the TaskRuns whose pod has ended. These TaskRuns belong to the run or to its child runs.
    pub ended: BTreeSet<String>,
    /// The claims that Tekton or this product created for the run.
    pub claims: Vec<Arc<KnownClaim>>,
    /// The existing claims that the run's placeholders or pods use. The key is the claim's name.
    pub volumes: BTreeMap<String, SeenClaim>,
    /// Pods of other runs that use one of the claims in `volumes`, and have not ended.
    pub sharing: Vec<Arc<Pod>>,
    /// The reason in the last warning Event of Kubernetes about each placeholder. The key is the placeholder's name.
    pub refused: BTreeMap<String, Reason>,
    /// The reason in the last warning Event of Kubernetes about each claim. The key is the claim's name.
    pub not_provisioned: BTreeMap<String, Reason>,
    /// How long a placeholder may wait for a node with room for the [peak](crate::sizes::Demand::peak) of its pods. After this
    /// time, the placeholder asks for less room.
    pub peak_wait: Duration,
    /// True if a ResourceQuota of the run's namespace limits CPU or memory.
    pub has_quota: bool,
    /// True if a placeholder of any run waits, because the scheduler has found no node for it. If the scheduler cannot bind a
    /// placeholder of this run to a node, the waiting placeholder may get this node.
    pub has_rivals: bool,
    /// Every node, by name.
    pub nodes: Arc<Nodes>,
    /// For each condition that earlier observations contained: how long the condition has lasted.
    pub since: BTreeMap<Sight, Duration>,
    /// The API server's answers to [`Step::Ask`](crate::reconcile::Step::Ask). The key is the pod's uid.
    pub answers: BTreeMap<String, Answer>,
}

/// The progress of a run. Only an active run needs its placeholders and claims.
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

/// The identity and the version of an object. A write can require that the object still has this uid and this version.
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
    /// The Kubernetes objects that make it up.
    pub backend: Backend,
    /// The owner reference with `controller: true`. It names a PipelineRun, unless another program or a user created the object.
    pub controller: Option<OwnerReference>,
    /// The uid of the PipelineRun that owns it. Empty if no PipelineRun owns it.
    pub run_uid: String,
    /// The time of its creation.
    pub created: Option<Timestamp>,
    /// The claims that it mounts.
    pub claims: Vec<String>,
    /// Its next pod's requirements on a node.
    pub needs: Needs,
    /// The PriorityClass of its next pod.
    pub priority_class: Option<String>,
    /// True if its next pod starts with the scheduling gate [`GATE`](crate::reconcile::reserve::GATE).
    pub gated: bool,
    /// True if its Kubernetes object asks for no pod yet. When a placeholder that is only a pod ([`Backend::Pod`]) has to move,
    /// the manager first creates the object in this state, and then deletes the pod.
    pub parked: bool,
    /// True if the Kubernetes controller that creates the placeholder's pods has observed the newest version of the object. The
    /// controller then creates the next pod from this version.
    pub observed: bool,
    /// The manager's earlier actions on the placeholder.
    pub record: Record,
}

impl Placeholder {
    /// The name in owner reference `controller`, normally of a PipelineRun. Empty if there is no such reference.
    pub fn run_name(&self) -> &str {
        let controller = self.controller.as_ref();
        controller.map_or("", |controller| controller.name.as_str())
    }

    /// The placeholder with the requests and the PriorityClass of its specification. A placeholder of [`Backend::Pod`] needs
    /// these, because the manager changes the requests of its pod, and [`Pod::to_placeholder`] reads no PriorityClass.
    pub fn as_planned(&self, spec: &PlaceholderSpec) -> Self {
        let mut own = self.clone();
        own.needs.requests = spec.requests();
        let class = spec.pod_template.get("priorityClassName");
        own.priority_class = class.and_then(|it| it.as_str()).map(str::to_owned);
        own
    }
}

/// The manager's earlier actions on a placeholder. The manager stores them in an annotation of the placeholder, so that every
/// replica knows them. The manager writes the annotation right before the action. A retry needs no other action: the write itself
/// makes Kubernetes try again to create the pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Record {
    /// Deletions of its pod because the node was cordoned, tainted or gone (N1).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evacuated: Option<Done>,
    /// Deletions of its pod so that the scheduler chooses a node anew: the old node had no room for a waiting pod (N2), or the
    /// placeholder could not give up its reservation (B3).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub moved: Option<Done>,
    /// Retries of the creation of its pod (N3).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retried: Option<Done>,
    /// The node that the placeholder last left because a pod waited for room (N2). The placeholder's next pods prefer other
    /// nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left: Option<String>,
    /// The number of the run's pods that had ended when the placeholder last left its node because a pod waited for room. If more
    /// pods have ended since then, the run made progress. Earlier moves then do not count any more.
    #[serde(skip_serializing_if = "is_zero")]
    pub ended: u32,
    /// True if the placeholder could not give up its reservation (B3). Its next pods then reserve nothing.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub keeps_room: bool,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// The number of actions of one kind, with the time and the reason of the last action.
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
    /// The actions in `before`, and one more action with time `now` and reason `why`.
    pub fn again(before: Option<&Self>, now: Timestamp, why: impl Into<String>) -> Option<Self> {
        Some(Self {
            times: before.map_or(0, |done| done.times).saturating_add(1),
            last: now,
            why: why.into(),
        })
    }

    /// The time between the last action and `now`. If a replica with a fast clock wrote the time of the last action, `now` may
    /// be earlier than this time. The difference counts even then, so that a written time far in the future causes no long
    /// pause.
    pub fn age(&self, now: Timestamp) -> Duration {
        now.duration_since(self.last).unsigned_abs()
    }

    /// The part of `pause` that is left at time `now`. The pause begins with the last action.
    pub fn rests(&self, now: Timestamp, pause: Duration) -> Duration {
        pause.saturating_sub(self.age(now))
    }
}

/// The time from `then` to `now`. Zero if `then` is later than `now`. (The two times may come from the clocks of different
/// machines, so `then` may be later.)
pub fn elapsed(then: Timestamp, now: Timestamp) -> Duration {
    now.duration_since(then).try_into().unwrap_or_default()
}

impl Observed {
    /// The placeholders that the plan requires. Empty if there is no valid plan.
    pub fn planned(&self) -> &[PlaceholderSpec] {
        match self.run.as_ref().map(|(_, planned)| planned.as_ref()) {
            Some(Ok(plan)) => plan.action.placeholders(),
            Some(Err(_)) | None => &[],
        }
    }

    /// The planned placeholder with this name.
    pub fn spec(&self, placeholder: &str) -> Option<&PlaceholderSpec> {
        let mut planned = self.planned().iter();
        planned.find(|spec| spec.name.as_str() == placeholder)
    }

    /// All claims of a placeholder, mounted or not, except the claims that it leaves out. It leaves out claims only if no node
    /// can reach the volumes of all claims together.
    pub(crate) fn claims_of(&self, spec: &PlaceholderSpec, pod: &Pod) -> BTreeSet<String> {
        let all: BTreeSet<_> = pod.claims.iter().cloned().chain(spec.claims()).collect();
        &all - &left_out(self, spec)
    }

    /// These claims, as far as they exist.
    pub(crate) fn seen<'a>(&self, claims: impl IntoIterator<Item = &'a String>) -> Vec<SeenClaim> {
        let seen = claims.into_iter().filter_map(|it| self.volumes.get(it));
        seen.cloned().collect()
    }

    /// Those claims of a placeholder whose volume only one node can reach.
    pub(crate) fn tied(&self, spec: &PlaceholderSpec, pod: &Pod) -> Vec<String> {
        let claims = self.claims_of(spec, pod).into_iter();
        let tied = claims.filter(|claim| {
            let seen = self.volumes.get(claim);
            let volume = seen.and_then(|seen| seen.volume.as_ref());
            // The terms are alternatives: a node that meets one of them reaches the volume.
            let mut nodes = volume
                .iter()
                .flat_map(|it| &it.terms)
                .map(|term| term.one_node().or_else(|| self.named_by_value(term)));
            let first = nodes.next().flatten();
            first.is_some() && nodes.all(|node| node == first)
        });
        tied.collect()
    }

    /// The node that the term requires by a label of a storage driver, such as `topology.topolvm.io/node`. The label identifies
    /// a node if the term lists one value, only one node has this value, and the value is this node's name or its label
    /// [`HOSTNAME`].
    fn named_by_value<'a>(&self, term: &'a NodeTerm) -> Option<&'a str> {
        term.expressions.iter().find_map(|it| {
            let [value] = &it.values[..] else {
                return None;
            };
            let has_value = |node: &&Arc<Node>| node.labels.get(&it.key) == Some(value);
            let mut nodes = self.nodes.values().filter(has_value);
            let node = nodes.next()?;
            let named = node.name == *value || node.labels.get(HOSTNAME) == Some(value);
            let is_only = named && nodes.next().is_none();
            (is_only && it.operator == Operator::In).then_some(value.as_str())
        })
    }

    /// The node with this name. `None` if there is none.
    pub fn node(&self, name: &str) -> Option<&Node> {
        self.nodes.get(name).map(AsRef::as_ref)
    }

    /// The pod whose controller is the placeholder's object. This function does not read labels, because anybody can set them.
    pub fn pod_of(&self, placeholder: &Placeholder) -> Option<&Arc<Pod>> {
        let pods = self.pods.values();
        let mut own = pods.filter(|pod| pod.is_of(placeholder));
        own.next()
    }

    /// The pod with the name of this placeholder's pod. The pod's controller may be an object other than the placeholder's.
    pub fn pod_named_for(&self, placeholder: &str) -> Option<&Arc<Pod>> {
        let mut pods = self.pods.values();
        pods.find(|pod| {
            let labels = pod.placeholder.as_ref();
            labels.is_some_and(|labels| labels.name == placeholder)
        })
    }

    /// True if the pod is the pod of one of the run's placeholders, or if it belongs to a TaskRun and has an affinity to one of
    /// these placeholders. This is no proof: a pod of another run can have such an affinity too. Before a step for a TaskRun's
    /// pod, `Decision::confirms` asks the API server.
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
    /// True if its controller is a PipelineRun. Only claims that Tekton created have a PipelineRun as controller.
    pub by_tekton: bool,
    /// True if this product made or adopted it.
    pub by_us: bool,
    /// True if only one pod at a time may use it (`ReadWriteOncePod`).
    pub single_pod: bool,
    /// The name of the volume that it is bound to. `None` if it is not bound.
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

/// A condition that must last for some time before the manager acts on it. [`Observed::since`] contains the time that each
/// condition has lasted so far.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Sight {
    /// The planned placeholder with this name does not exist.
    Missing(String),
    /// The placeholder with this name has no pod.
    NoPod(String),
    /// The placeholder pod with this uid still has our scheduling gate.
    Gated(String),
    /// The run waits for a placeholder. The text is the name of the Event about the cause.
    Waits(String),
    /// The waiting pod with this name needs a step, for example a move of its placeholder.
    Wanted(String),
    /// The placeholder pod with this uid must leave its node. The placeholder has another PriorityClass for its next pod, but the
    /// controller that creates this pod has not observed the change.
    Raised(String),
    /// The bound placeholder pod with this uid and these requests has not given its room up yet.
    Resizing(String, String),
    /// The scheduler finds no node for the pod with this uid and these requests.
    Refused(String, String),
    /// The scheduler could not bind a pod of the placeholder with this name. Since then, the scheduler has neither bound the
    /// placeholder nor found that no node can take it.
    Failed(String),
}

/// The API server's answer about the TaskRun of a waiting pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// The time of the answer.
    pub at: Timestamp,
    /// True if the run that the pod's label names is the controller of the pod's TaskRun.
    pub own: bool,
    /// The number of times that the manager has allowed this TaskRun to run without its placeholder.
    pub let_go: u32,
}
