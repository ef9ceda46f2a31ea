//! Divides the tasks of a run into subsets, if the node selectors of some tasks contradict each other (B1). For example, some
//! tasks of a multi-architecture build have node selector `kubernetes.io/arch: amd64` in `taskRunSpecs`, and others have
//! `arm64`. No node can run both kinds of tasks, so each subset has a placeholder of its own. Most runs have no such tasks, and
//! so no subsets.
//!
//! One subset is the *main* subset: its placeholder has the name of the placeholder for the whole run. The node selector of the
//! main subset is the run's own, or else normally the first one in `taskRunSpecs` that contradicts another. All tasks that do
//! not contradict this node selector belong to the main subset. A claim that tasks of several subsets would use belongs to the
//! main subset, together with all tasks that use the claim, whatever their node selectors are. The main placeholder then has to
//! move to a node for such a task (N2). In mode `workspaces`, there is no main subset.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::mode::Mode;
use crate::names::hash;
use crate::pipeline_run::{PipelineRun, WorkspaceSource};
use crate::run_claims::{self, ClaimSource};
use crate::sizes::{self, Catalog};

/// The subsets of a run. The key is the part of a placeholder's name that identifies the subset. The key of the main subset is
/// empty. Except in mode `workspaces`, the map is empty if no tasks contradict each other.
pub type Subsets = BTreeMap<String, Subset>;

/// The key of the main subset.
pub(crate) const MAIN: &str = "";

/// `spec.nodeSelector` of a pod.
type NodeSelector = BTreeMap<String, String>;

/// A subset of a run's tasks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Subset {
    /// The node selector of its placeholder: the entries that all its tasks have.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: NodeSelector,
    /// The tolerations of its placeholder: those that all its tasks have.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<Value>,
    /// The names of its tasks. Empty for the main subset, which has all other tasks.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub tasks: BTreeSet<String>,
    /// The run's workspaces whose claims only its tasks use. Empty for the main subset, which has all other workspaces.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub workspaces: BTreeSet<String>,
}

impl Subset {
    /// The node selector and the tolerations that all these tasks have.
    fn common<'a>(mut tasks: impl Iterator<Item = &'a Selected<'a>>) -> Self {
        let Some(first) = tasks.next() else {
            return Self::default();
        };
        let mut common = Self {
            node_selector: first.selector.clone(),
            tolerations: first.tolerations.clone(),
            ..Self::default()
        };
        for task in tasks {
            let has = |key: &String, value: &String| task.selector.get(key) == Some(value);
            common.node_selector.retain(|key, value| has(key, value));
            common
                .tolerations
                .retain(|it| task.tolerations.contains(it));
        }
        common
    }

    /// The run's `podTemplate` with the node selector and the tolerations of this subset.
    pub(crate) fn pod_template(&self, of_run: Option<&Value>) -> Value {
        let mut template = of_run.cloned().unwrap_or_else(|| json!({}));
        template["nodeSelector"] = json!(self.node_selector);
        if !self.tolerations.is_empty() {
            template["tolerations"] = json!(self.tolerations);
        }
        template
    }
}

/// The key of the subset with this workspace.
pub(crate) fn of_workspace<'a>(subsets: &'a Subsets, workspace: &str) -> &'a str {
    let mut others = subsets.iter();
    let own = others.find(|(_, subset)| subset.workspaces.contains(workspace));
    own.map_or(MAIN, |(key, _)| key)
}

/// The key of the subset with this task.
pub(crate) fn of_task<'a>(subsets: &'a Subsets, task: &str) -> &'a str {
    let mut others = subsets.iter();
    let own = others.find(|(_, subset)| subset.tasks.contains(task));
    own.map_or(MAIN, |(key, _)| key)
}

/// The subsets of a new run. In mode `workspaces`, there is no placeholder for the whole run. So there is no main subset, and
/// tasks with different node selectors are in different subsets even if they do not contradict each other.
pub(crate) fn of_run(run: &PipelineRun, mode: Mode, catalog: Option<&Catalog>) -> Subsets {
    let is_whole = mode != Mode::Workspaces;
    let template = |field| run.pod_template.as_ref().and_then(|it| it.get(field));
    let of_run = template("nodeSelector")
        .map(node_selector)
        .unwrap_or_default();
    let own_tolerations = template("tolerations").and_then(Value::as_array);
    let own_tolerations = own_tolerations.cloned().unwrap_or_default();
    let tasks = Selected::all(run, &own_tolerations);
    let selectors = tasks.iter().map(|task| &task.selector);
    let contested = match is_whole {
        true => contested(selectors.chain([&of_run])),
        false => selectors.flat_map(BTreeMap::keys).cloned().collect(),
    };
    // Pods of several subsets may mount the claims that the run has outside of workspaces. So a run with such claims has no
    // subsets, except in mode `workspaces`.
    if contested.is_empty() || (is_whole && !run_claims::of_volumes(run, catalog).is_empty()) {
        return Subsets::new();
    }
    let part = |selector: &NodeSelector| {
        let mut part = selector.clone();
        part.retain(|key, _| contested.contains(key));
        part
    };
    let known = sizes::tasks(run, catalog);
    let is_selected = |name: &str| tasks.iter().any(|task| task.name == name);
    let all_selected = !known.is_empty() && known.iter().all(|task| is_selected(&task.name));
    let main = is_whole.then(|| {
        // The main subset also has the tasks without a node selector. Normally they have only the run's tolerations.
        let suits = |task: &&Selected<'_>| {
            let mut tolerations = task.tolerations.iter();
            let ordinary = tolerations.all(|it| own_tolerations.contains(it));
            (all_selected || ordinary) && !part(&task.selector).is_empty()
        };
        let first = tasks.iter().find(suits).map(|task| part(&task.selector));
        Some(part(&of_run)).filter(|it| !it.is_empty()).or(first)
    });
    let main = main.flatten();
    let mut members: Vec<(NodeSelector, Vec<&Selected<'_>>)> = Vec::new();
    for task in &tasks {
        let part = part(&task.selector);
        if part.is_empty() || main.as_ref().is_some_and(|main| !contradict(main, &part)) {
            continue;
        }
        let suits = |own: &NodeSelector| match is_whole {
            true => !contradict(own, &part),
            false => *own == part,
        };
        match members.iter_mut().find(|(own, _)| suits(own)) {
            Some((own, tasks)) => {
                own.extend(part);
                tasks.push(task);
            }
            None => members.push((part, vec![task])),
        }
    }
    let candidates: usize = members.iter().map(|(_, tasks)| tasks.len()).sum();
    let claims = Claim::all(run, catalog);
    let assigned = assign(&mut members, &claims, is_whole);
    members.retain(|(_, tasks)| !tasks.is_empty());
    let mut subsets = Subsets::new();
    for (own, tasks) in &members {
        let text: Vec<_> = own
            .iter()
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        let workspaces = assigned.iter().filter(|(_, of)| *of == own);
        let subset = Subset {
            tasks: tasks.iter().map(|task| task.name.to_owned()).collect(),
            workspaces: workspaces.map(|(workspace, _)| workspace.clone()).collect(),
            ..Subset::common(tasks.iter().copied())
        };
        subsets.insert(hash(&text.join(",")), subset);
    }
    // The main placeholder has to move between nodes if its tasks contradict each other, or if the tasks are not known and may
    // use its claims. Then the main placeholder takes no task's node selector.
    let kept: usize = members.iter().map(|(_, tasks)| tasks.len()).sum();
    let must_move = kept < candidates || (known.is_empty() && !claims.is_empty());
    if let (Some(main), false, false) = (main, must_move, subsets.is_empty()) {
        let mut subset = Subset {
            node_selector: of_run,
            tolerations: own_tolerations.clone(),
            ..Subset::default()
        };
        if all_selected {
            let agreeing = tasks.iter().filter(|task| part(&task.selector) == main);
            subset.tolerations = Subset::common(agreeing).tolerations;
        }
        subset.node_selector.extend(main);
        subsets.insert(MAIN.to_owned(), subset);
    }
    subsets
}

/// A task with a node selector of its own.
#[derive(Debug)]
struct Selected<'a> {
    name: &'a str,
    /// The node selector of its pods. It replaces the node selector of the run (Tekton v1.12.0,
    /// `pkg/apis/pipeline/pod/template.go`, `MergePodTemplateWithDefault`).
    selector: NodeSelector,
    /// The tolerations of its pods.
    tolerations: Vec<Value>,
}

impl<'a> Selected<'a> {
    /// The tasks with node selectors of their own, in the order of `taskRunSpecs`. If several items name a task, Tekton uses the
    /// last one. A task without tolerations of its own has the run's.
    fn all(run: &'a PipelineRun, of_run: &[Value]) -> Vec<Self> {
        let items = run.task_run_specs.iter().enumerate();
        let last = items.filter(|(index, item)| {
            let mut later = run.task_run_specs.iter().skip(index + 1);
            !later.any(|other| other.task == item.task)
        });
        let selected = last.filter_map(|(_, item)| {
            Some(Self {
                name: &item.task,
                selector: item.node_selector.clone()?,
                tolerations: item.tolerations.clone().unwrap_or_else(|| of_run.to_vec()),
            })
        });
        selected.collect()
    }
}

/// Reads a node selector. Leaves out malformed entries, which the API server denies.
pub(crate) fn node_selector(value: &Value) -> NodeSelector {
    let entries = value.as_object().into_iter().flatten();
    let texts = entries.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())));
    texts.collect()
}

/// The keys for which two of these node selectors have different values.
fn contested<'a>(selectors: impl Iterator<Item = &'a NodeSelector>) -> BTreeSet<String> {
    let mut values: BTreeMap<&String, BTreeSet<&String>> = BTreeMap::new();
    for (key, value) in selectors.flatten() {
        values.entry(key).or_default().insert(value);
    }
    let contested = values.into_iter().filter(|(_, values)| values.len() > 1);
    contested.map(|(key, _)| key.clone()).collect()
}

/// True if no node can have the labels of both node selectors.
fn contradict(one: &NodeSelector, other: &NodeSelector) -> bool {
    one.iter()
        .any(|(key, value)| other.get(key).is_some_and(|it| it != value))
}

/// A claim of the run.
struct Claim {
    /// The run's workspaces that are bound to the claim.
    workspaces: BTreeSet<String>,
    /// The names of the tasks that use the claim.
    users: BTreeSet<String>,
}

impl Claim {
    fn all(run: &PipelineRun, catalog: Option<&Catalog>) -> Vec<Self> {
        let names = run_claims::of_run(run, catalog);
        let mut claims: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for binding in &run.workspaces {
            let written = match &binding.source {
                WorkspaceSource::Claim { claim_name } => claim_name.as_str(),
                WorkspaceSource::ClaimTemplate(_) => "",
                WorkspaceSource::Other => continue,
            };
            let identity = match names.get(&binding.name).map(|claim| &claim.source) {
                Some(ClaimSource::Name(name)) => format!("claim/{name}"),
                Some(ClaimSource::Template(_)) => format!("template/{}", binding.name),
                None => format!("unknown/{written}"),
            };
            claims
                .entry(identity)
                .or_default()
                .insert(binding.name.clone());
        }
        let tasks = sizes::tasks(run, catalog);
        let users = |workspaces: &BTreeSet<String>| {
            let users = tasks
                .iter()
                .filter(|task| !task.workspaces.is_disjoint(workspaces));
            users.map(|task| task.name.clone()).collect()
        };
        let claims = claims.into_values();
        claims
            .map(|workspaces| Self {
                users: users(&workspaces),
                workspaces,
            })
            .collect()
    }
}

/// Assigns each claim to the subset that has all tasks that use the claim. If no subset has all of them, and `is_whole` is true
/// (the mode is not `workspaces`), moves these tasks to the main subset. Returns the assigned workspaces.
fn assign(
    members: &mut [(NodeSelector, Vec<&Selected<'_>>)],
    claims: &[Claim],
    is_whole: bool,
) -> BTreeMap<String, NodeSelector> {
    loop {
        let mut assigned = BTreeMap::new();
        let mut removed = false;
        for claim in claims.iter().filter(|claim| !claim.users.is_empty()) {
            let has_all = |tasks: &[&Selected<'_>]| {
                let names: BTreeSet<&str> = tasks.iter().map(|task| task.name).collect();
                claim.users.iter().all(|user| names.contains(user.as_str()))
            };
            if let Some((own, _)) = members.iter().find(|(_, tasks)| has_all(tasks)) {
                let workspaces = claim.workspaces.iter();
                assigned.extend(workspaces.map(|it| (it.clone(), own.clone())));
            } else if is_whole {
                for (_, tasks) in members.iter_mut() {
                    let before = tasks.len();
                    tasks.retain(|task| !claim.users.contains(task.name));
                    removed |= tasks.len() < before;
                }
            }
        }
        if !removed {
            return assigned;
        }
    }
}

#[cfg(test)]
mod tests;
