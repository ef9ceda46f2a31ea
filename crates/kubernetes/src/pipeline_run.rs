//! The PipelineRun as watched: metadata typed, spec and status as JSON. Unknown fields are kept as they are, so a newer
//! Tekton is read as well as the one this was written against.

use std::borrow::Cow;

use coscheduler_core::pipeline::workspaces_used;
use coscheduler_core::pipeline_run::PipelineRun as View;
use coscheduler_core::violation::Violation;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The parts of `status` that are read; the rest (resolved specs, child references, results) can be far larger than the
/// run itself.
const READ_STATUS: [&str; 1] = ["conditions"];
/// The parts of `spec` that are read.
const READ_SPEC: [&str; 4] = ["managedBy", "status", "taskRunTemplate", "workspaces"];
/// The parts of `spec` that are read beside them while a run is being created or updated, in part again: what follows
/// from them is pinned then.
const READ_ONCE: [&str; 4] = ["params", "pipelineRef", "pipelineSpec", "taskRunSpecs"];
/// The parts of each of `spec.taskRunSpecs` that are read.
const READ_TASK_RUN_SPEC: [&str; 2] = ["metadata", "pipelineTaskName"];
/// An annotation as large as the object, of no use here.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// A `tekton.dev/v1` PipelineRun.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PipelineRun {
    /// `apiVersion`; empty when the object came out of a list.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub api_version: String,
    /// `kind`; empty when the object came out of a list.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// Standard metadata.
    pub metadata: ObjectMeta,
    /// `spec` as JSON.
    #[serde(default)]
    pub spec: Map<String, Value>,
    /// `status` as JSON; empty before Tekton has seen the run.
    #[serde(default)]
    pub status: Map<String, Value>,
}

impl kube::Resource for PipelineRun {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "PipelineRun".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        "tekton.dev".into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "pipelineruns".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// Drops what nobody here reads, before an object goes into a cache or over the wire.
pub fn trim(run: &mut PipelineRun) {
    run.metadata.managed_fields = None;
    if let Some(annotations) = &mut run.metadata.annotations {
        annotations.remove(LAST_APPLIED);
    }
    run.spec.retain(|key, _| READ_SPEC.contains(&key.as_str()));
    run.status
        .retain(|key, _| READ_STATUS.contains(&key.as_str()));
}

/// The parts of a PipelineRun's JSON that `core` reads, for a question about one that is being created or updated.
/// Pipeline and task specs, which may be large and nested deeply, are not among them.
pub fn read_parts(object: &Value) -> Value {
    let mut metadata = object.get("metadata").cloned().unwrap_or_default();
    if let Some(fields) = metadata.as_object_mut() {
        fields.remove("managedFields");
        if let Some(annotations) = fields.get_mut("annotations").and_then(Value::as_object_mut) {
            annotations.remove(LAST_APPLIED);
        }
    }
    let mut parts = Map::new();
    for key in ["apiVersion", "kind"] {
        if let Some(value) = object.get(key) {
            parts.insert(key.to_owned(), value.clone());
        }
    }
    parts.insert("metadata".to_owned(), metadata);
    for (key, read) in [
        ("spec", READ_SPEC.as_slice()),
        ("status", READ_STATUS.as_slice()),
    ] {
        if let Some(value) = object.get(key) {
            parts.insert(key.to_owned(), only(value, read));
        }
    }
    if let (Some(whole), Some(spec)) = (
        object.get("spec"),
        parts.get_mut("spec").and_then(Value::as_object_mut),
    ) {
        for key in READ_ONCE {
            if let Some(value) = whole.get(key) {
                spec.insert(key.to_owned(), read_once(key, value));
            }
        }
    }
    Value::Object(parts)
}

fn read_once(key: &str, value: &Value) -> Value {
    match key {
        "taskRunSpecs" => each(value, |spec| only(spec, &READ_TASK_RUN_SPEC)),
        "params" => each(value, |param| only(param, &["name", "value"])),
        "pipelineRef" => only(value, &["name"]),
        "pipelineSpec" => pipeline_spec(value),
        _ => Value::Null,
    }
}

/// Of an embedded Pipeline: the defaults of parameters, and which task uses which workspace.
fn pipeline_spec(value: &Value) -> Value {
    let mut read = only(value, &["params", "tasks", "finally"]);
    for (key, part) in read.as_object_mut().into_iter().flatten() {
        *part = match key.as_str() {
            "params" => each(part, |param| only(param, &["name", "default"])),
            _ => each(part, pipeline_task),
        };
    }
    read
}

/// Of an embedded task's spec only the variables stay that name workspaces.
fn pipeline_task(task: &Value) -> Value {
    let mut read = only(task, &["name", "workspaces"]);
    let used = task
        .get("taskSpec")
        .map(workspaces_used)
        .unwrap_or_default();
    if let Some(fields) = read.as_object_mut().filter(|_| !used.is_empty()) {
        let variables = used.iter().map(|name| format!("$(workspaces.{name}.path)"));
        fields.insert("taskSpec".to_owned(), variables.collect());
    }
    read
}

/// Each item of a list; anything else as it is.
fn each(value: &Value, read: impl Fn(&Value) -> Value) -> Value {
    match value {
        Value::Array(items) => items.iter().map(read).collect(),
        other => other.clone(),
    }
}

/// An object without its other fields; anything else as it is, for `core` to refuse.
fn only(value: &Value, fields: &[&str]) -> Value {
    match value {
        Value::Object(object) => Value::Object(
            object
                .iter()
                .filter(|(key, _)| fields.contains(&key.as_str()))
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect(),
        ),
        other => other.clone(),
    }
}

/// The object as Kubernetes JSON, with the `apiVersion` and `kind` that list items lack.
pub fn to_json(run: &PipelineRun) -> Map<String, Value> {
    let mut object = Map::new();
    object.insert("apiVersion".to_owned(), "tekton.dev/v1".into());
    object.insert("kind".to_owned(), "PipelineRun".into());
    object.insert(
        "metadata".to_owned(),
        serde_json::to_value(&run.metadata).unwrap_or_default(),
    );
    object.insert("spec".to_owned(), Value::Object(run.spec.clone()));
    object.insert("status".to_owned(), Value::Object(run.status.clone()));
    object
}

/// Whether the run is done, by its condition alone: it may be asked of a run that cannot be read otherwise.
pub fn is_done(run: &PipelineRun) -> bool {
    let conditions = run.status.get("conditions").and_then(Value::as_array);
    conditions.into_iter().flatten().any(|condition| {
        let decided = matches!(condition["status"].as_str(), Some("True" | "False"));
        condition["type"] == "Succeeded" && decided
    })
}

/// The object as `core` sees it.
///
/// # Errors
///
/// Every field that cannot be read, by its JSON path.
pub fn view(run: &PipelineRun) -> Result<View, Vec<Violation>> {
    View::parse(&Value::Object(to_json(run)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_question_holds_what_core_reads_and_nothing_large() {
        let object = json!({
            "apiVersion": "tekton.dev/v1", "kind": "PipelineRun",
            "metadata": {"name": "run", "managedFields": [], "annotations": {LAST_APPLIED: "{}", "a": "b"}},
            "spec": {
                "params": [{"name": "cache", "value": "build-cache"}],
                "pipelineRef": {"name": "build", "resolver": "git", "params": []},
                "pipelineSpec": {
                    "description": "long", "params": [{"name": "p", "type": "string", "default": "d"}],
                    "tasks": [
                        {"name": "t", "taskRef": {"name": "x"}, "workspaces": [{"name": "w"}]},
                        {"name": "u", "taskSpec": {"steps": [{"script": "long; cd $(workspaces.source.path)"}]}},
                    ],
                    "finally": [{"name": "f", "params": []}], "results": [],
                },
                "workspaces": [{"name": "source"}],
                "taskRunSpecs": [{"pipelineTaskName": "t", "podTemplate": {}, "metadata": {"annotations": {}}}],
            },
            "status": {"pipelineSpec": {}},
        });
        assert_eq!(
            read_parts(&object),
            json!({
                "apiVersion": "tekton.dev/v1", "kind": "PipelineRun",
                "metadata": {"name": "run", "annotations": {"a": "b"}},
                "spec": {
                    "params": [{"name": "cache", "value": "build-cache"}],
                    "pipelineRef": {"name": "build"},
                    "pipelineSpec": {
                        "params": [{"name": "p", "default": "d"}],
                        "tasks": [
                            {"name": "t", "workspaces": [{"name": "w"}]},
                            {"name": "u", "taskSpec": ["$(workspaces.source.path)"]},
                        ],
                        "finally": [{"name": "f"}],
                    },
                    "workspaces": [{"name": "source"}],
                    "taskRunSpecs": [{"pipelineTaskName": "t", "metadata": {"annotations": {}}}],
                },
                "status": {},
            })
        );
        // What is malformed is left for core to refuse by name.
        let malformed =
            json!({"spec": {"taskRunSpecs": 7, "params": "x", "pipelineSpec": []}, "metadata": 8});
        assert_eq!(read_parts(&malformed), malformed);
        // And core reads the same from the parts as from the whole.
        let mut whole = View::parse(&object).unwrap();
        whole.annotations.remove(LAST_APPLIED);
        assert_eq!(View::parse(&read_parts(&object)), Ok(whole));
    }

    #[test]
    fn trimming_keeps_what_core_reads_and_nothing_large() {
        let mut run: PipelineRun = serde_json::from_value(json!({
            "metadata": {
                "name": "run", "namespace": "ci", "uid": "u", "resourceVersion": "7",
                "annotations": {LAST_APPLIED: "{}", "coscheduler.dev/mode": "pipelineruns"},
                "managedFields": [{"manager": "kubectl"}],
            },
            "spec": {"pipelineSpec": {"tasks": []}, "workspaces": [{"name": "source", "emptyDir": {}}]},
            "status": {"pipelineSpec": {}, "conditions": [{"type": "Succeeded", "status": "True"}]},
        }))
        .unwrap();
        trim(&mut run);
        assert_eq!(
            Value::Object(to_json(&run)),
            json!({
                "apiVersion": "tekton.dev/v1",
                "kind": "PipelineRun",
                "metadata": {
                    "name": "run", "namespace": "ci", "uid": "u", "resourceVersion": "7",
                    "annotations": {"coscheduler.dev/mode": "pipelineruns"},
                },
                "spec": {"workspaces": [{"name": "source", "emptyDir": {}}]},
                "status": {"conditions": [{"type": "Succeeded", "status": "True"}]},
            })
        );
    }
}
