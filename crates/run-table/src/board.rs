//! The present and past objects of a run, from the events of the watches. Module `watch` runs the watches, and module `screen`
//! shows the table.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::time::Duration;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::ResourceExt;
use kube::api::DynamicObject;
use kube::runtime::watcher::Event;

use crate::watch::Change;

/// The state of the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunResult {
    /// It has not ended. Contains Tekton's reason, which may be empty, or `created` while Tekton has set no condition.
    Running(String),
    /// It succeeded.
    Succeeded,
    /// It failed. Contains Tekton's reason and message.
    Failed(String),
    /// It was deleted.
    Gone,
}

impl RunResult {
    /// True if it has ended.
    pub fn is_over(&self) -> bool {
        match self {
            Self::Running(_) => false,
            Self::Succeeded | Self::Failed(_) | Self::Gone => true,
        }
    }
}

/// A pod of a TaskRun, deleted or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskPod {
    /// The name of the task in the pipeline.
    pub task: String,
    /// The last node that it was bound to.
    pub node: Option<String>,
}

/// The kinds of objects that must not exist after the run, in the order of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// The owner of a placeholder pod.
    StatefulSet,
    /// A placeholder pod.
    Placeholder,
    /// A PersistentVolumeClaim.
    Claim,
}

impl Kind {
    /// The name of the kind in the table.
    pub fn name(self) -> &'static str {
        match self {
            Self::StatefulSet => "StatefulSet",
            Self::Placeholder => "placeholder",
            Self::Claim => "claim",
        }
    }
}

/// The objects of one run, present and past.
#[derive(Debug)]
pub struct Board {
    pub(crate) name: String,
    run: Kept<DynamicObject>,
    pub(crate) sets: Kept<StatefulSet>,
    pub(crate) claims: Kept<PersistentVolumeClaim>,
    pub(crate) pods: Kept<Pod>,
    run_seen: bool,
    children: usize,
    task_pods: BTreeMap<String, TaskPod>,
    placeholder_nodes: BTreeSet<String>,
    passing: BTreeMap<(Kind, String), Option<Duration>>,
}

pub(crate) const TASK_RUN: &str = "tekton.dev/taskRun";
pub(crate) const PIPELINE_TASK: &str = "tekton.dev/pipelineTask";

impl Board {
    /// An empty board for the PipelineRun `name`.
    pub fn new(name: &str) -> Self {
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

    /// Applies one change; `at` is the time since the run was created.
    pub fn apply(&mut self, change: Change, at: Duration) {
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

    /// The objects that exist now and must not exist after the run.
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

    /// The objects that exist now and must not exist after the run, each as `kind name`.
    pub fn left(&self) -> Vec<String> {
        self.present()
            .into_iter()
            .map(|(kind, name)| format!("{} {name}", kind.name()))
            .collect()
    }

    /// True if the last list of every kind is complete. Otherwise, objects may exist that this board does not contain.
    pub fn is_complete(&self) -> bool {
        self.run.complete && self.sets.complete && self.claims.complete && self.pods.complete
    }

    /// The state of the run.
    pub fn result(&self) -> RunResult {
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

    /// The number of TaskRuns in the run's `status.childReferences`.
    pub fn children(&self) -> usize {
        self.children
    }

    /// Every TaskRun pod that the board has seen, by name.
    pub fn task_pods(&self) -> &BTreeMap<String, TaskPod> {
        &self.task_pods
    }

    /// Every node to which a placeholder was bound.
    pub fn placeholder_nodes(&self) -> &BTreeSet<String> {
        &self.placeholder_nodes
    }

    /// Every known object that must not exist after the run, with the time when the board noticed its deletion, or `None` while
    /// it exists. The time counts from the creation of the run.
    pub fn passing(&self) -> &BTreeMap<(Kind, String), Option<Duration>> {
        &self.passing
    }
}

/// The objects of one kind, as the events of its watch report them.
#[derive(Debug)]
pub(crate) struct Kept<K> {
    pub(crate) objects: BTreeMap<String, K>,
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

pub(crate) fn node(pod: &Pod) -> Option<String> {
    pod.spec.as_ref().and_then(|spec| spec.node_name.clone())
}

#[cfg(test)]
mod tests;
