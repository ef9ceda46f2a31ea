//! The tasks of an embedded Pipeline (`spec.pipelineSpec`) and the workspaces that they use, for a warning at creation. Parts that
//! cannot be read cause no warning.

use std::collections::BTreeSet;

use serde_json::Value;

/// A task of a Pipeline.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PipelineTask {
    /// `name`.
    pub name: String,
    /// The workspaces of the *Pipeline* that it uses: those that it names, and those that an embedded task uses without declaring
    /// them, which Tekton passes on by name.
    pub workspaces: BTreeSet<String>,
}

/// The tasks of `spec.pipelineSpec`, `finally` included.
pub(crate) fn tasks(pipeline: &Value) -> Vec<PipelineTask> {
    let lists = ["tasks", "finally"].into_iter();
    let tasks = lists.filter_map(|key| pipeline.get(key)?.as_array());
    tasks.flatten().map(task).collect()
}

fn task(task: &Value) -> PipelineTask {
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
    PipelineTask {
        name: task["name"].as_str().unwrap_or_default().to_owned(),
        workspaces,
    }
}

/// The names in all `$(workspaces.<name>.…)` of a task's spec.
pub fn workspaces_used(task_spec: &Value) -> BTreeSet<String> {
    let mut used = BTreeSet::new();
    collect(task_spec, &mut used);
    used
}

fn collect(value: &Value, used: &mut BTreeSet<String>) {
    match value {
        Value::String(text) => {
            let variables = text.split("$(workspaces.").skip(1);
            used.extend(variables.filter_map(|rest| {
                let name = rest.split(['.', ')']).next()?;
                (!name.is_empty()).then(|| name.to_owned())
            }));
        }
        Value::Array(items) => items.iter().for_each(|item| collect(item, used)),
        Value::Object(fields) => fields.values().for_each(|field| collect(field, used)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
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
