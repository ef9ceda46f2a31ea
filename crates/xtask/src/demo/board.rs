//! Where everything of a run is, and where it has been: a pure reducer over what the watches say. It knows what belongs
//! together on the screen and what must be gone at the end; it neither watches nor shows.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::time::Duration;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::ResourceExt;
use kube::api::DynamicObject;
use kube::runtime::watcher::Event;

use super::watch::Change;

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

/// The kinds of what must not stay, in the order they are shown in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    StatefulSet,
    Placeholder,
    Claim,
}

impl Kind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::StatefulSet => "StatefulSet",
            Self::Placeholder => "placeholder",
            Self::Claim => "claim",
        }
    }
}

#[derive(Debug)]
pub(super) struct Board {
    pub(super) name: String,
    run: Kept<DynamicObject>,
    pub(super) sets: Kept<StatefulSet>,
    pub(super) claims: Kept<PersistentVolumeClaim>,
    pub(super) pods: Kept<Pod>,
    run_seen: bool,
    children: usize,
    task_pods: BTreeMap<String, TaskPod>,
    placeholder_nodes: BTreeSet<String>,
    passing: BTreeMap<(Kind, String), Option<Duration>>,
}

pub(super) const TASK_RUN: &str = "tekton.dev/taskRun";
pub(super) const PIPELINE_TASK: &str = "tekton.dev/pipelineTask";
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
        for thing in &present {
            self.passing.insert(thing.clone(), None);
        }
        for (thing, gone) in &mut self.passing {
            if gone.is_none() && !present.contains(thing) {
                *gone = Some(at);
            }
        }
    }

    /// What is there now and must not stay.
    fn present(&self) -> BTreeSet<(Kind, String)> {
        let placeholders = self
            .pods
            .objects
            .values()
            .filter(|pod| !pod.labels().contains_key(TASK_RUN));
        let sets = self
            .sets
            .objects
            .keys()
            .map(|name| (Kind::StatefulSet, name.clone()));
        let placeholders = placeholders.map(|pod| (Kind::Placeholder, pod.name_any()));
        let claims = self
            .claims
            .objects
            .keys()
            .map(|name| (Kind::Claim, name.clone()));
        sets.chain(placeholders).chain(claims).collect()
    }

    /// What is there now and must not stay, as `kind name`.
    pub(super) fn left(&self) -> Vec<String> {
        self.present()
            .into_iter()
            .map(|(kind, name)| format!("{} {name}", kind.name()))
            .collect()
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

    /// Everything that was seen and must not stay, and when it was first seen gone.
    pub(super) fn passing(&self) -> &BTreeMap<(Kind, String), Option<Duration>> {
        &self.passing
    }
}

/// The objects of one kind, kept as its watch says.
#[derive(Debug)]
pub(super) struct Kept<K> {
    pub(super) objects: BTreeMap<String, K>,
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

pub(super) fn node(pod: &Pod) -> Option<String> {
    pod.spec.as_ref().and_then(|spec| spec.node_name.clone())
}

#[cfg(test)]
#[path = "board_tests.rs"]
mod tests;
