//! Reads the tasks of a Pipeline: from `spec` of a Pipeline, or from `spec.pipelineSpec` or `status.pipelineSpec` of a run.
//! Admission needs the workspaces of the tasks for a warning, and for the names of claims. To estimate the requests of pods,
//! admission needs the order, the number and the contents of the tasks. This module leaves out the parts that it cannot read.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::params::Params;
use crate::sizes::TaskSpec;

/// A task of a Pipeline.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PipelineTask {
    /// `name`.
    pub name: String,
    /// The workspaces of the *Pipeline* that the task uses. A task can list a workspace in `workspaces`. An embedded task can
    /// also use a workspace that it does not list: Tekton then passes on the Pipeline's workspace with this name.
    pub workspaces: BTreeSet<String>,
    /// The Task that the task runs.
    pub work: Work,
    /// The tasks that this task waits for: the tasks in `runAfter`, and the tasks whose results it uses (Tekton v1.12.0,
    /// `pkg/apis/pipeline/v1/pipeline_types.go`, `Deps`).
    pub after: BTreeSet<String>,
    /// True if it is a task of `finally`.
    pub finally: bool,
    /// True if the task has `when`, so that Tekton may skip the task.
    pub is_conditional: bool,
    /// Its matrix, which gives the number of its TaskRuns.
    pub matrix: Matrix,
    /// `params`. The value of a parameter in `matrix` is not known.
    pub params: Params,
}

/// The Task that a Pipeline's task runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Work {
    /// An embedded Task.
    Embedded(TaskSpec),
    /// The Task of this name, in the run's namespace.
    Task(String),
    /// A custom task. Its own controller runs it.
    Custom,
    /// A child Pipeline. Its contents are not known.
    Pipeline,
    /// A Task that a resolver fetches, or a reference to another kind of task. Its contents are not known.
    #[default]
    Elsewhere,
}

/// The parts of a task's `matrix` that determine the number of combinations (Tekton v1.12.0,
/// `pkg/apis/pipeline/v1/matrix_types.go`, `CountCombinations`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Matrix {
    lists: Vec<List>,
    /// The number of combinations that `include` adds.
    included: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum List {
    OfLength(usize),
    /// `$(params.NAME[*])`: the parameter's name, and the length of the parameter's default in the Pipeline.
    OfParam(String, usize),
}

/// The tasks of a Pipeline's `spec`, including `finally`.
pub fn tasks(pipeline: &Value) -> Vec<PipelineTask> {
    let lists = [("tasks", false), ("finally", true)].into_iter();
    let lists = lists.filter_map(|(key, finally)| Some((pipeline.get(key)?.as_array()?, finally)));
    lists
        .flat_map(|(tasks, finally)| tasks.iter().map(move |task| (task, finally)))
        .map(|(task, finally)| read(task, finally, &pipeline["params"]))
        .collect()
}

fn read(task: &Value, finally: bool, params: &Value) -> PipelineTask {
    let mut named = BTreeSet::new();
    let mut workspaces = BTreeSet::new();
    for binding in task["workspaces"].as_array().into_iter().flatten() {
        let name = binding["name"].as_str().unwrap_or_default();
        let of_pipeline = binding["workspace"].as_str().filter(|of| !of.is_empty());
        named.insert(name.to_owned());
        workspaces.insert(of_pipeline.unwrap_or(name).to_owned());
    }
    let propagated = workspaces_used(&task["taskSpec"]);
    workspaces.extend(propagated.difference(&named).cloned());
    let mut own = Params::read(&task["params"]);
    own.hide(&task["matrix"]["params"]);
    let include = task["matrix"]["include"].as_array().into_iter().flatten();
    include.for_each(|item| own.hide(&item["params"]));
    PipelineTask {
        name: task["name"].as_str().unwrap_or_default().to_owned(),
        workspaces,
        work: work(task),
        after: waits_for(task),
        finally,
        is_conditional: task["when"].as_array().is_some_and(|when| !when.is_empty()),
        matrix: Matrix::read(&task["matrix"], params),
        params: own,
    }
}

fn work(task: &Value) -> Work {
    let (spec, reference) = (&task["taskSpec"], &task["taskRef"]);
    let text = |value: &Value, key: &str| value[key].as_str().unwrap_or_default().to_owned();
    let is_custom =
        |value: &Value| !text(value, "apiVersion").is_empty() && !text(value, "kind").is_empty();
    let (name, kind) = (text(reference, "name"), text(reference, "kind"));
    let fetched = !text(reference, "resolver").is_empty() || name.contains("://");
    if is_custom(spec) || is_custom(reference) {
        Work::Custom
    } else if task["pipelineSpec"].is_object() || task["pipelineRef"].is_object() {
        Work::Pipeline
    } else if spec.is_object() {
        Work::Embedded(TaskSpec::read(spec))
    } else if name.is_empty() || fetched || !["", "Task"].contains(&kind.as_str()) {
        Work::Elsewhere
    } else {
        Work::Task(name)
    }
}

/// The task names in `runAfter` and in all variables `$(tasks.<name>.results.…)`, except variables inside an embedded task.
pub fn waits_for(task: &Value) -> BTreeSet<String> {
    let after = task["runAfter"].as_array().into_iter().flatten();
    let mut names: BTreeSet<_> = after
        .filter_map(|name| name.as_str().map(str::to_owned))
        .collect();
    let fields = task.as_object().into_iter().flatten();
    for (_, value) in fields.filter(|(key, _)| *key != "taskSpec") {
        each_variable(value, "$(tasks.", &mut |rest| {
            let (name, field) = rest.split_once('.')?;
            field
                .starts_with("results")
                .then(|| names.insert(name.to_owned()))
        });
    }
    names
}

/// The names in all variables `$(workspaces.<name>.…)` of a task's spec.
pub fn workspaces_used(task_spec: &Value) -> BTreeSet<String> {
    let mut used = BTreeSet::new();
    each_variable(task_spec, "$(workspaces.", &mut |rest| {
        let name = rest.split(['.', ')']).next()?;
        (!name.is_empty()).then(|| used.insert(name.to_owned()))
    });
    used
}

/// Calls `found` with the text after each occurrence of `prefix`.
fn each_variable(value: &Value, prefix: &str, found: &mut impl FnMut(&str) -> Option<bool>) {
    match value {
        Value::String(text) => {
            for rest in text.split(prefix).skip(1) {
                found(rest);
            }
        }
        Value::Array(items) => items.iter().for_each(|it| each_variable(it, prefix, found)),
        Value::Object(fields) => fields
            .values()
            .for_each(|it| each_variable(it, prefix, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

impl Matrix {
    fn read(matrix: &Value, params: &Value) -> Self {
        let items = |value: &'_ Value| value.as_array().cloned().unwrap_or_default();
        let named =
            |list: &[Value], name: &Value| list.iter().find(|it| it["name"] == *name).cloned();
        let (own, params) = (items(&matrix["params"]), items(params));
        let length = |value: &Value| value.as_array().map_or(0, Vec::len);
        let lists = own.iter().map(|param| {
            let variable = param["value"].as_str().unwrap_or_default();
            let of_param = variable.strip_prefix("$(params.");
            match of_param.and_then(|rest| rest.strip_suffix("[*])")) {
                Some(name) => {
                    let declared = named(&params, &name.into()).unwrap_or_default();
                    List::OfParam(name.to_owned(), length(&declared["default"]))
                }
                None => List::OfLength(length(&param["value"])),
            }
        });
        // An item of `include` adds a combination if one of its values is not in the list of its parameter.
        let is_new = |include: &Value| {
            let fits = |param: &Value| {
                let list = named(&own, &param["name"])?;
                Some(list["value"].as_array()?.contains(&param["value"]))
            };
            items(&include["params"])
                .iter()
                .any(|param| fits(param) == Some(false))
        };
        let include = items(&matrix["include"]);
        let included = include.iter().filter(|it| own.is_empty() || is_new(it));
        Self {
            lists: lists.collect(),
            included: included.count(),
        }
    }

    /// The number of combinations in a run with these parameters, at least one. A list that is not known yet, such as a task's
    /// result, counts as a list with one item.
    pub(crate) fn combinations(&self, params: &Params) -> usize {
        let length = |list: &List| match list {
            List::OfLength(length) => *length,
            List::OfParam(name, default) => match params.list_length(name) {
                0 => *default,
                length => length,
            },
        };
        let lists = self.lists.iter().map(|list| length(list).max(1));
        let product = lists.fold(1, usize::saturating_mul);
        let listed = if self.lists.is_empty() { 0 } else { product };
        listed.saturating_add(self.included).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn m2_the_workspaces_of_each_task_are_those_of_the_pipeline() {
        let pipeline = json!({
            "tasks": [
                {"name": "clone", "workspaces": [{"name": "output", "workspace": "source"}]},
                {"name": "build", "workspaces": [{"name": "source"}, {"name": "deps", "workspace": "cache"}]},
                {"name": "inline", "workspaces": [{"name": "out", "workspace": "source"}], "taskSpec": {"steps": [
                    {"script": "cp $(workspaces.out.path)/a $(workspaces.cache.path) # $(workspaces.)", "args": ["$(workspaces.models.bound)"]},
                ]}},
                {"name": "none"},
            ],
            "finally": [{"name": "report", "workspaces": [{"name": "source"}]}],
        });
        let read: Vec<_> = tasks(&pipeline)
            .into_iter()
            .map(|task| (task.name, Vec::from_iter(task.workspaces)))
            .collect();
        let expect = [
            ("clone", &["source"][..]),
            ("build", &["cache", "source"]),
            ("inline", &["cache", "models", "source"]),
            ("none", &[]),
            ("report", &["source"]),
        ];
        let expect = expect.map(|(name, workspaces)| {
            (
                name.to_owned(),
                workspaces.iter().map(|name| (*name).to_owned()).collect(),
            )
        });
        assert_eq!(read, expect);
    }

    #[test]
    fn what_is_malformed_is_not_read() {
        for pipeline in [
            json!(null),
            json!(7),
            json!({"tasks": {}}),
            json!({"tasks": []}),
        ] {
            assert_eq!(tasks(&pipeline), []);
        }
        let nameless = json!({"tasks": [7, {"workspaces": 3}]});
        assert!(
            tasks(&nameless)
                .iter()
                .all(|task| task.workspaces.is_empty())
        );
    }
}
