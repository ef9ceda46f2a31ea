//! Where everything of a run is, and where it has been: a pure reducer over what the watches say. It knows what belongs
//! together on the screen and what must be gone at the end; it neither watches nor prints.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::time::Duration;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::ResourceExt;
use kube::api::DynamicObject;
use kube::runtime::watcher::Event;

use super::watch::Change;

/// One line of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) kind: &'static str,
    pub(super) name: String,
    pub(super) state: String,
    pub(super) node: String,
}

/// How the run stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RunResult {
    /// Not over; Tekton's reason, if it gave one.
    Running(String),
    Succeeded,
    /// Tekton's reason and message.
    Failed(String),
    /// Somebody deleted it.
    Gone,
}

impl RunResult {
    pub(super) fn is_over(&self) -> bool {
        match self {
            Self::Running(_) => false,
            Self::Succeeded | Self::Failed(_) | Self::Gone => true,
        }
    }
}

/// A pod of a task, wherever it is by now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TaskPod {
    pub(super) task: String,
    pub(super) node: Option<String>,
}

/// Something that had to go, and when it was first seen gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Passing {
    pub(super) kind: &'static str,
    pub(super) gone: Option<Duration>,
}

#[derive(Debug)]
pub(super) struct Board {
    name: String,
    run: Kept<DynamicObject>,
    sets: Kept<StatefulSet>,
    claims: Kept<PersistentVolumeClaim>,
    pods: Kept<Pod>,
    run_seen: bool,
    children: usize,
    task_pods: BTreeMap<String, TaskPod>,
    placeholder_nodes: BTreeSet<String>,
    passing: BTreeMap<String, Passing>,
}

const TASK_RUN: &str = "tekton.dev/taskRun";
const PIPELINE_TASK: &str = "tekton.dev/pipelineTask";
/// Set by the scheduler on a claim that waits for its first consumer.
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";

impl Board {
    /// The board of the PipelineRun `name`.
    pub(super) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            run: Kept::default(),
            sets: Kept::default(),
            claims: Kept::default(),
            pods: Kept::default(),
            run_seen: false,
            children: 0,
            task_pods: BTreeMap::new(),
            placeholder_nodes: BTreeSet::new(),
            passing: BTreeMap::new(),
        }
    }

    /// Takes one change in, `at` after the run was submitted.
    pub(super) fn apply(&mut self, change: Change, at: Duration) {
        match change {
            Change::Run(event) => self.run.apply(event),
            Change::Set(event) => self.sets.apply(event),
            Change::Claim(event) => self.claims.apply(event),
            Change::Pod(event) => self.pods.apply(event),
        }
        self.remember(at);
    }

    fn remember(&mut self, at: Duration) {
        if let Some(run) = self.run.objects.values().next() {
            self.run_seen = true;
            self.children = task_runs(run);
        }
        for pod in self.pods.objects.values() {
            let node = node(pod);
            match pod.labels().get(TASK_RUN) {
                Some(task_run) => {
                    let task = pod.labels().get(PIPELINE_TASK).unwrap_or(task_run).clone();
                    let seen = self
                        .task_pods
                        .entry(pod.name_any())
                        .or_insert(TaskPod { task, node: None });
                    seen.node = node.or(seen.node.take());
                }
                None => self.placeholder_nodes.extend(node),
            }
        }
        let present = self.present();
        for (name, kind) in &present {
            self.passing
                .insert(name.clone(), Passing { kind, gone: None });
        }
        for (name, passing) in &mut self.passing {
            if passing.gone.is_none() && !present.contains_key(name) {
                passing.gone = Some(at);
            }
        }
    }

    /// What is there now and must not stay; key `kind/name`.
    fn present(&self) -> BTreeMap<String, &'static str> {
        let placeholders = self
            .pods
            .objects
            .values()
            .filter(|pod| !pod.labels().contains_key(TASK_RUN));
        let named = |kind: &'static str| move |name: String| (format!("{kind} {name}"), kind);
        self.sets
            .objects
            .keys()
            .cloned()
            .map(named("StatefulSet"))
            .chain(
                placeholders
                    .map(ResourceExt::name_any)
                    .map(named("placeholder")),
            )
            .chain(self.claims.objects.keys().cloned().map(named("claim")))
            .collect()
    }

    /// Names of what is there now and must not stay.
    pub(super) fn left(&self) -> Vec<String> {
        self.present().into_keys().collect()
    }

    /// Whether every kind has been listed since its watch last broke: before that, nothing seen proves nothing there.
    pub(super) fn is_complete(&self) -> bool {
        self.run.complete && self.sets.complete && self.claims.complete && self.pods.complete
    }

    pub(super) fn result(&self) -> RunResult {
        let Some(run) = self.run.objects.values().next() else {
            return if self.run_seen {
                RunResult::Gone
            } else {
                RunResult::Running("created".to_owned())
            };
        };
        let conditions = run
            .data
            .pointer("/status/conditions")
            .and_then(|conditions| conditions.as_array());
        let succeeded = conditions
            .into_iter()
            .flatten()
            .find(|condition| condition["type"] == "Succeeded");
        let Some(condition) = succeeded else {
            return RunResult::Running("created".to_owned());
        };
        let text = |field: &str| condition[field].as_str().unwrap_or_default().to_owned();
        match condition["status"].as_str() {
            Some("True") => RunResult::Succeeded,
            Some("False") => RunResult::Failed(format!("{}: {}", text("reason"), text("message"))),
            Some(_) | None => RunResult::Running(text("reason")),
        }
    }

    /// How many TaskRuns Tekton made for the run.
    pub(super) fn children(&self) -> usize {
        self.children
    }

    /// Every pod of a task that was seen, by name.
    pub(super) fn task_pods(&self) -> &BTreeMap<String, TaskPod> {
        &self.task_pods
    }

    /// Every node a placeholder was seen on.
    pub(super) fn placeholder_nodes(&self) -> &BTreeSet<String> {
        &self.placeholder_nodes
    }

    /// Everything that was seen and must not stay, by `kind name`.
    pub(super) fn passing(&self) -> &BTreeMap<String, Passing> {
        &self.passing
    }

    /// The table: the run, what holds it together, and its tasks in the order of their creation.
    pub(super) fn rows(&self) -> Vec<Row> {
        let state = match self.result() {
            RunResult::Running(reason) => reason,
            RunResult::Succeeded => "Succeeded".to_owned(),
            RunResult::Failed(why) => why,
            RunResult::Gone => "deleted".to_owned(),
        };
        let mut rows = vec![row("PipelineRun", self.name.clone(), state, None)];
        rows.extend(
            self.sets
                .objects
                .values()
                .map(|set| row("StatefulSet", set.name_any(), set_state(set), None)),
        );
        let (mut tasks, placeholders): (Vec<&Pod>, Vec<&Pod>) = self
            .pods
            .objects
            .values()
            .partition(|pod| pod.labels().contains_key(TASK_RUN));
        rows.extend(
            placeholders
                .iter()
                .map(|pod| row("placeholder", pod.name_any(), pod_state(pod), node(pod))),
        );
        rows.extend(self.claims.objects.values().map(|claim| {
            let node = claim.annotations().get(SELECTED_NODE).cloned();
            row("claim", claim.name_any(), claim_state(claim), node)
        }));
        tasks.sort_by_key(|pod| {
            (
                pod.metadata.creation_timestamp.clone().map(|time| time.0),
                pod.name_any(),
            )
        });
        rows.extend(tasks.iter().map(|pod| {
            let task = pod.labels().get(PIPELINE_TASK).cloned();
            row(
                "task",
                task.unwrap_or_else(|| pod.name_any()),
                pod_state(pod),
                node(pod),
            )
        }));
        rows
    }
}

/// The objects of one kind, kept as its watch says.
#[derive(Debug)]
struct Kept<K> {
    objects: BTreeMap<String, K>,
    listing: BTreeMap<String, K>,
    complete: bool,
}

impl<K> Default for Kept<K> {
    fn default() -> Self {
        Self {
            objects: BTreeMap::new(),
            listing: BTreeMap::new(),
            complete: false,
        }
    }
}

impl<K: ResourceExt> Kept<K> {
    fn apply(&mut self, event: Event<K>) {
        match event {
            Event::Apply(object) => {
                self.objects.insert(object.name_any(), object);
            }
            Event::Delete(object) => {
                self.objects.remove(&object.name_any());
            }
            Event::Init => {
                self.listing.clear();
                self.complete = false;
            }
            Event::InitApply(object) => {
                self.listing.insert(object.name_any(), object);
            }
            Event::InitDone => {
                self.objects = mem::take(&mut self.listing);
                self.complete = true;
            }
        }
    }
}

fn row(kind: &'static str, name: String, state: String, node: Option<String>) -> Row {
    Row {
        kind,
        name,
        state,
        node: node.unwrap_or_default(),
    }
}

fn task_runs(run: &DynamicObject) -> usize {
    let children = run
        .data
        .pointer("/status/childReferences")
        .and_then(|children| children.as_array());
    children
        .into_iter()
        .flatten()
        .filter(|child| child["kind"] == "TaskRun")
        .count()
}

fn node(pod: &Pod) -> Option<String> {
    pod.spec.as_ref().and_then(|spec| spec.node_name.clone())
}

fn set_state(set: &StatefulSet) -> String {
    let ready = set
        .status
        .as_ref()
        .and_then(|status| status.ready_replicas)
        .unwrap_or(0);
    let wanted = set
        .spec
        .as_ref()
        .and_then(|spec| spec.replicas)
        .unwrap_or(1);
    or_terminating(set, format!("{ready}/{wanted} ready"))
}

fn claim_state(claim: &PersistentVolumeClaim) -> String {
    let phase = claim
        .status
        .as_ref()
        .and_then(|status| status.phase.clone());
    or_terminating(claim, phase.unwrap_or_else(|| "Pending".to_owned()))
}

fn pod_state(pod: &Pod) -> String {
    let status = pod.status.as_ref();
    let phase = status
        .and_then(|status| status.phase.clone())
        .unwrap_or_else(|| "Pending".to_owned());
    let conditions = status
        .and_then(|status| status.conditions.as_ref())
        .into_iter()
        .flatten();
    let unscheduled = conditions
        .filter(|condition| condition.type_ == "PodScheduled" && condition.status == "False")
        .find_map(|condition| condition.reason.clone());
    let containers = status
        .and_then(|status| status.container_statuses.as_ref())
        .into_iter()
        .flatten();
    let waiting = containers
        .filter_map(|container| container.state.as_ref()?.waiting.as_ref()?.reason.clone())
        .find(|reason| reason != "PodInitializing" && reason != "ContainerCreating");
    let state = match unscheduled.or(waiting) {
        Some(reason) => format!("{phase} ({reason})"),
        None => phase,
    };
    or_terminating(pod, state)
}

/// A finished pod that is being deleted is no news; anything else is.
fn or_terminating<K: ResourceExt>(object: &K, state: String) -> String {
    if object.meta().deletion_timestamp.is_some() {
        "Terminating".to_owned()
    } else {
        state
    }
}

#[cfg(test)]
#[path = "board_tests.rs"]
mod tests;
