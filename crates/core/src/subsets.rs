//! The subsets of a run's tasks that contradict each other about the node (B1). For example, some tasks of a multi-architecture
//! build have node selector `kubernetes.io/arch: amd64` in `taskRunSpecs`, and others have `arm64`. No node can run both, so
//! each subset has a placeholder of its own. Most runs have no such tasks, and then no subsets.
//!
//! One subset is the *main* subset: its placeholder is the run's own. It also has all tasks that agree with it, and all claims
//! that tasks of more than one subset use. A task that uses such a claim belongs to the main subset too, whatever its node
//! selector is: the placeholder has to move for it (N2).

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::mode::Mode;
use crate::names::hash;
use crate::pipeline_run::{PipelineRun, WorkspaceSource};
use crate::sizes::{self, Catalog};

/// The subsets of a run. The key is the part of a placeholder's name that identifies the subset. The key of the main subset is
/// empty. The map is empty if no tasks contradict each other.
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

/// The subset with this workspace.
pub(crate) fn of_workspace<'a>(subsets: &'a Subsets, workspace: &str) -> &'a str {
    let mut others = subsets.iter();
    let own = others.find(|(_, subset)| subset.workspaces.contains(workspace));
    own.map_or(MAIN, |(key, _)| key)
}

/// The subset with this task.
pub(crate) fn of_task<'a>(subsets: &'a Subsets, task: &str) -> &'a str {
    let mut others = subsets.iter();
    let own = others.find(|(_, subset)| subset.tasks.contains(task));
    own.map_or(MAIN, |(key, _)| key)
}

/// The subsets of a new run. In mode `workspaces`, there is no placeholder for the whole run. So there is
/// no main subset, and tasks with different node selectors are in different subsets even if they do not contradict each other.
pub(crate) fn of_run(run: &PipelineRun, mode: Mode, catalog: Option<&Catalog>) -> Subsets {
    let tasks = Selected::all(run);
    let template = |field| run.pod_template.as_ref().and_then(|it| it.get(field));
    let of_run = template("nodeSelector")
        .map(node_selector)
        .unwrap_or_default();
    let selectors = tasks.values().map(|it| &it.selector);
    let contested = match mode {
        Mode::Workspaces => selectors.flat_map(BTreeMap::keys).cloned().collect(),
        _ => contested(selectors.chain([&of_run])),
    };
    if contested.is_empty() {
        return Subsets::new();
    }
    let part = |selector: &NodeSelector| {
        let mut part = selector.clone();
        part.retain(|key, _| contested.contains(key));
        part
    };
    let main = match mode {
        Mode::Workspaces | Mode::Disabled => None,
        Mode::PipelineRuns | Mode::IsolatePipelineRun => {
            let mut parts = run
                .task_run_specs
                .iter()
                .filter_map(|it| tasks.get(it.task.as_str()));
            let first = parts.find_map(|it| Some(part(&it.selector)).filter(|it| !it.is_empty()));
            Some(part(&of_run)).filter(|it| !it.is_empty()).or(first)
        }
    };
    let mut members: BTreeMap<NodeSelector, BTreeSet<&str>> = BTreeMap::new();
    for (name, task) in &tasks {
        let part = part(&task.selector);
        if !part.is_empty() && main.as_ref().is_none_or(|main| contradict(main, &part)) {
            members.entry(part).or_default().insert(name);
        }
    }
    let users = users(run, catalog);
    let workspaces = keep_claims_together(&mut members, &users);
    members.retain(|_, tasks| !tasks.is_empty());
    if members.is_empty() {
        return Subsets::new();
    }
    let own_tolerations = tolerations(template("tolerations"));
    let subset = |part: &NodeSelector, names: &BTreeSet<&str>| {
        let of = || names.iter().filter_map(|name| tasks.get(*name));
        let common = of()
            .map(|task| task.selector.clone())
            .reduce(|mut common, other| {
                common.retain(|key, value| other.get(key) == Some(value));
                common
            });
        let tolerations = of().map(|task| {
            task.tolerations
                .clone()
                .unwrap_or_else(|| own_tolerations.clone())
        });
        let tolerations = tolerations.reduce(|mut common, other| {
            common.retain(|it| other.contains(it));
            common
        });
        Subset {
            node_selector: common.unwrap_or_else(|| part.clone()),
            tolerations: tolerations.unwrap_or_else(|| own_tolerations.clone()),
            ..Subset::default()
        }
    };
    let mut subsets = Subsets::new();
    for (part, names) in &members {
        let text: Vec<_> = part
            .iter()
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        let own = workspaces.iter().filter(|(_, of)| *of == part);
        let subset = Subset {
            tasks: names.iter().map(|name| (*name).to_owned()).collect(),
            workspaces: own.map(|(workspace, _)| workspace.clone()).collect(),
            ..subset(part, names)
        };
        subsets.insert(hash(&text.join(",")), subset);
    }
    if let Some(main) = main {
        let agreeing = tasks
            .iter()
            .filter(|(_, task)| part(&task.selector) == main);
        let names = agreeing.map(|(name, _)| *name).collect();
        let mut subset = subset(&main, &names);
        subset.node_selector = of_run;
        subset.node_selector.extend(main);
        subsets.insert(MAIN.to_owned(), subset);
    }
    subsets
}

/// A task with a node selector of its own.
#[derive(Debug, Clone, Default)]
struct Selected {
    /// The node selector of its pods. It replaces the run's (Tekton v1.12.0, `pkg/apis/pipeline/pod/template.go`,
    /// `MergePodTemplateWithDefault`).
    selector: NodeSelector,
    /// The tolerations of its pods. `None` if they are the run's.
    tolerations: Option<Vec<Value>>,
}

impl Selected {
    /// The tasks with node selectors of their own, by name. If several items of `taskRunSpecs` name a task, Tekton uses the
    /// last one.
    fn all(run: &PipelineRun) -> BTreeMap<&str, Self> {
        let mut all = BTreeMap::new();
        for item in &run.task_run_specs {
            all.remove(item.task.as_str());
            if let Some(selector) = &item.node_selector {
                let selected = Self {
                    selector: selector.clone(),
                    tolerations: item.tolerations.clone(),
                };
                all.insert(item.task.as_str(), selected);
            }
        }
        all
    }
}

/// Reads a node selector. Leaves out malformed entries, which the API server denies.
pub(crate) fn node_selector(value: &Value) -> NodeSelector {
    let entries = value.as_object().into_iter().flatten();
    let texts = entries.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())));
    texts.collect()
}

fn tolerations(value: Option<&Value>) -> Vec<Value> {
    value.and_then(Value::as_array).cloned().unwrap_or_default()
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

/// True if no node has the labels of both.
fn contradict(one: &NodeSelector, other: &NodeSelector) -> bool {
    one.iter()
        .any(|(key, value)| other.get(key).is_some_and(|it| it != value))
}

/// For each claim of the run: its workspaces, and the tasks that use it. The claim's identity is its name as the author wrote it.
fn users(
    run: &PipelineRun,
    catalog: Option<&Catalog>,
) -> Vec<(BTreeSet<String>, BTreeSet<String>)> {
    let mut claims: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for binding in &run.workspaces {
        let identity = match &binding.source {
            WorkspaceSource::Claim { claim_name } => format!("claim/{claim_name}"),
            WorkspaceSource::ClaimTemplate(_) => format!("template/{}", binding.name),
            WorkspaceSource::Other => continue,
        };
        claims
            .entry(identity)
            .or_default()
            .insert(binding.name.clone());
    }
    let tasks = sizes::tasks(run, catalog);
    let using = |workspaces: &BTreeSet<String>| {
        let tasks = tasks
            .iter()
            .filter(|task| !task.workspaces.is_disjoint(workspaces));
        tasks.map(|task| task.name.clone()).collect()
    };
    claims
        .into_values()
        .map(|workspaces| (workspaces.clone(), using(&workspaces)))
        .collect()
}

/// Assigns each claim to the subset that has all its users, and removes each task that uses another claim from its subset.
/// Returns the assigned workspaces.
fn keep_claims_together(
    members: &mut BTreeMap<NodeSelector, BTreeSet<&str>>,
    claims: &[(BTreeSet<String>, BTreeSet<String>)],
) -> BTreeMap<String, NodeSelector> {
    loop {
        let mut assigned = BTreeMap::new();
        let mut removed = false;
        for (workspaces, users) in claims.iter().filter(|(_, users)| !users.is_empty()) {
            let all =
                |tasks: &BTreeSet<&str>| users.iter().all(|user| tasks.contains(user.as_str()));
            match members.iter().find(|(_, tasks)| all(tasks)) {
                Some((part, _)) => {
                    assigned.extend(workspaces.iter().map(|it| (it.clone(), part.clone())));
                }
                None => {
                    for tasks in members.values_mut() {
                        let before = tasks.len();
                        tasks.retain(|task| !users.contains(*task));
                        removed |= tasks.len() < before;
                    }
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
