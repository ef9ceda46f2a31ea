//! The parts of a PipelineRun that are read: for a cache, for an admission question, and as `core` sees them.

use coscheduler_core::pipeline::{waits_for, workspaces_used};
use coscheduler_core::pipeline_run::PipelineRun as View;
use coscheduler_core::violation::Violation;
use serde_json::{Map, Value, json};

pub use crate::tekton::PipelineRun;

/// An annotation as large as the object, of no use here.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Parts of a JSON value. A value of another type is kept whole, so that `core` reports it.
enum Parts {
    /// The whole value.
    All,
    /// These fields of an object.
    Fields(&'static [(&'static str, Parts)]),
    /// These parts of each item of a list.
    Each(&'static Parts),
    /// The parts that a function finds.
    Found(fn(&Value) -> Value),
}

use Parts::{All, Each, Fields, Found};

/// The parts of `spec` that decisions depend on at any time.
const SPEC: [&str; 4] = ["managedBy", "status", "taskRunTemplate", "workspaces"];

/// The parts of a PipelineRun that is being created or updated. Their consequences are pinned then, so that caches need only [`SPEC`].
const QUESTION: Parts = Fields(&[
    ("apiVersion", All),
    ("kind", All),
    ("metadata", Found(metadata)),
    (
        "spec",
        Fields(&[
            ("managedBy", All),
            ("status", All),
            ("taskRunTemplate", All),
            ("workspaces", All),
            ("params", Each(&Fields(&[("name", All), ("value", All)]))),
            ("pipelineRef", Fields(&[("name", All)])),
            ("pipelineSpec", Found(pipeline_parts)),
            (
                "taskRunSpecs",
                Each(&Fields(&[
                    ("metadata", All),
                    ("pipelineTaskName", All),
                    ("stepSpecs", CONTAINERS),
                    ("sidecarSpecs", CONTAINERS),
                    ("computeResources", All),
                    ("podTemplate", Fields(&[("runtimeClassName", All)])),
                ])),
            ),
        ]),
    ),
    ("status", Fields(&[("conditions", All)])),
]);

/// The parts of `status` that decisions depend on: whether the run is done, and which tasks have started.
const STATUS: Parts = Fields(&[
    ("conditions", All),
    (
        "childReferences",
        Each(&Fields(&[
            ("kind", All),
            ("name", All),
            ("pipelineTaskName", All),
        ])),
    ),
    ("skippedTasks", Each(&Fields(&[("name", All)]))),
]);

/// The resources of steps or sidecars.
const CONTAINERS: Parts = Each(&Fields(&[("name", All), ("computeResources", All)]));

/// The parts of a Pipeline's `spec` that `core` reads.
pub fn pipeline_parts(spec: &Value) -> Value {
    pick(spec, &PIPELINE)
}

/// The parts of a Task's `spec` that `core` reads.
pub fn task_parts(spec: &Value) -> Value {
    pick(spec, &TASK)
}

const PIPELINE: Parts = Fields(&[
    ("params", Each(&Fields(&[("name", All), ("default", All)]))),
    ("tasks", Each(&Found(pipeline_task))),
    ("finally", Each(&Found(pipeline_task))),
]);

const TASK: Parts = Fields(&[
    ("apiVersion", All),
    ("kind", All),
    ("steps", CONTAINERS),
    ("sidecars", CONTAINERS),
    ("stepTemplate", Fields(&[("computeResources", All)])),
    ("results", Each(&Fields(&[]))),
]);

const PIPELINE_TASK: Parts = Fields(&[
    ("name", All),
    ("workspaces", All),
    ("matrix", All),
    (
        "taskRef",
        Fields(&[
            ("apiVersion", All),
            ("kind", All),
            ("name", All),
            ("resolver", All),
        ]),
    ),
]);

/// Drops the parts that no decision depends on, before an object goes into a cache or over the wire. The rest of `status` can be
/// far larger than the run itself.
pub fn trim(run: &mut PipelineRun) {
    run.metadata.managed_fields = None;
    if let Some(annotations) = &mut run.metadata.annotations {
        annotations.remove(LAST_APPLIED);
    }
    run.spec.retain(|key, _| SPEC.contains(&key.as_str()));
    let status = Value::Object(std::mem::take(&mut run.status));
    if let Value::Object(status) = pick(&status, &STATUS) {
        run.status = status;
    }
}

/// The parts of a PipelineRun's JSON that `core` reads, for a question about one that is being created or updated. Scripts and
/// everything else in Pipeline and task specs that may be large or nested deeply are not among them.
pub fn read_parts(object: &Value) -> Value {
    pick(object, &QUESTION)
}

fn pick(value: &Value, parts: &Parts) -> Value {
    match (parts, value) {
        (Found(find), value) => find(value),
        (Fields(fields), Value::Object(object)) => fields
            .iter()
            .filter_map(|(key, parts)| Some(((*key).to_owned(), pick(object.get(*key)?, parts))))
            .collect(),
        (Each(parts), Value::Array(items)) => items.iter().map(|item| pick(item, parts)).collect(),
        (All | Fields(_) | Each(_), whole) => whole.clone(),
    }
}

fn metadata(metadata: &Value) -> Value {
    let mut metadata = metadata.clone();
    if let Some(fields) = metadata.as_object_mut() {
        fields.remove("managedFields");
        if let Some(annotations) = fields.get_mut("annotations").and_then(Value::as_object_mut) {
            annotations.remove(LAST_APPLIED);
        }
    }
    metadata
}

/// A task of a Pipeline. Its order, and the workspaces that its spec uses, stay without the texts that they are read from.
fn pipeline_task(task: &Value) -> Value {
    let mut read = pick(task, &PIPELINE_TASK);
    let after = waits_for(task);
    if !after.is_empty() {
        read["runAfter"] = json!(after);
    }
    if let Some(spec) = task.get("taskSpec") {
        let mut parts = task_parts(spec);
        let used = workspaces_used(spec);
        if parts.is_object() && !used.is_empty() {
            let variables = used.iter().map(|name| format!("$(workspaces.{name}.path)"));
            parts["variables"] = variables.collect();
        }
        read["taskSpec"] = parts;
    }
    read
}

/// The object as Kubernetes JSON, with the `apiVersion` and `kind` that list items lack.
pub fn to_json(run: &PipelineRun) -> Map<String, Value> {
    let PipelineRun {
        metadata,
        spec,
        status,
        ..
    } = run;
    let parts = [
        ("apiVersion", "tekton.dev/v1".into()),
        ("kind", "PipelineRun".into()),
        ("metadata", json!(metadata)),
        ("spec", json!(spec)),
        ("status", json!(status)),
    ];
    let parts = parts.map(|(key, value)| (key.to_owned(), value));
    parts.into_iter().collect()
}

/// Whether the run is done, by its condition alone: some runs cannot be read otherwise.
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
                        {"name": "t", "taskRef": {"name": "x", "params": []}, "workspaces": [{"name": "w"}], "timeout": "1h"},
                        {"name": "u", "taskSpec": {
                            "steps": [{"name": "s", "script": "long; cd $(workspaces.source.path)", "computeResources": {"requests": {"cpu": "1"}}}],
                            "results": [{"name": "r", "description": "long"}],
                        }, "params": [{"name": "p", "value": "long $(tasks.t.results.r)"}]},
                        {"name": "malformed", "taskSpec": "long"},
                    ],
                    "finally": [{"name": "f", "params": []}], "results": [],
                },
                "workspaces": [{"name": "source"}],
                "taskRunSpecs": [{"pipelineTaskName": "t", "podTemplate": {"env": []}, "metadata": {"annotations": {}},
                    "sidecarSpecs": [{"name": "db", "computeResources": {"requests": {"cpu": "1"}}}]}],
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
                            {"name": "t", "taskRef": {"name": "x"}, "workspaces": [{"name": "w"}]},
                            {"name": "u", "runAfter": ["t"], "taskSpec": {
                                "steps": [{"name": "s", "computeResources": {"requests": {"cpu": "1"}}}],
                                "results": [{}],
                                "variables": ["$(workspaces.source.path)"],
                            }},
                            {"name": "malformed", "taskSpec": "long"},
                        ],
                        "finally": [{"name": "f"}],
                    },
                    "workspaces": [{"name": "source"}],
                    "taskRunSpecs": [{
                        "pipelineTaskName": "t", "podTemplate": {}, "metadata": {"annotations": {}},
                        "sidecarSpecs": [{"name": "db", "computeResources": {"requests": {"cpu": "1"}}}],
                    }],
                },
                "status": {},
            })
        );
        // Malformed parts stay, so that core reports them by name.
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
