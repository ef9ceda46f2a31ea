//! Reads the parts of a PipelineRun that a cache keeps, or that the webhook sends to the planner. Also converts a PipelineRun to
//! the type of `core`.

use coscheduler_core::annotations::{AWAITS_PIPELINE, is_read};
use coscheduler_core::params::has_variable;
use coscheduler_core::pipeline::{waits_for, workspaces_used};
use coscheduler_core::pipeline_run::PipelineRun as View;
use coscheduler_core::violation::Violation;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Map, Value, json};

pub use crate::tekton::PipelineRun;

/// An annotation that repeats the whole object. No decision depends on it.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// The parts to keep of a JSON value. If the value has another type than expected, all of it is kept, so that `core` can report
/// it.
enum Parts {
    /// The whole value.
    All,
    /// These fields of an object.
    Fields(&'static [(&'static str, Parts)]),
    /// These parts of each item of a list.
    Each(&'static Parts),
    /// The parts that this function returns.
    Found(fn(&Value) -> Value),
}

use Parts::{All, Each, Fields, Found};

/// The fields of `spec` that caches keep, because decisions about existing runs depend on them.
const SPEC: [&str; 5] = [
    "managedBy",
    "pipelineRef",
    "status",
    "taskRunTemplate",
    "workspaces",
];

/// The name of the Pipeline in the cluster, or the name of the resolver that fetches the Pipeline.
const PIPELINE_REF: Parts = Fields(&[("name", All), ("resolver", All)]);

/// The parts of a new or updated PipelineRun that admission needs. Admission pins its decisions on the run, so the caches need
/// only the fields of `spec` in [`SPEC`].
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
            ("params", Each(&Found(param))),
            ("pipelineRef", PIPELINE_REF),
            ("pipelineSpec", Found(pipeline_parts)),
            (
                "taskRunSpecs",
                Each(&Fields(&[
                    ("metadata", All),
                    ("pipelineTaskName", All),
                    ("stepSpecs", CONTAINERS),
                    ("sidecarSpecs", CONTAINERS),
                    ("computeResources", All),
                    (
                        "podTemplate",
                        Fields(&[
                            ("runtimeClassName", All),
                            ("nodeSelector", All),
                            ("tolerations", All),
                            ("affinity", IS_SET),
                            ("volumes", VOLUMES),
                        ]),
                    ),
                ])),
            ),
        ]),
    ),
    (
        "status",
        Fields(&[("conditions", All), ("pipelineSpec", IS_SET)]),
    ),
]);

/// The parts of `status` that decisions depend on. They show if the run is done, which tasks have started, and which tasks were
/// skipped.
const STATUS: Parts = Fields(&[
    (
        "conditions",
        Each(&Fields(&[("type", All), ("status", All)])),
    ),
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

/// The parts of a PipelineRun that contain the values of variables in the claim names of its TaskRuns (V9), and the settings
/// that its Pipeline may have chosen (B1).
const OWNER: Parts = Fields(&[
    (
        "metadata",
        Fields(&[
            ("name", All),
            ("uid", All),
            ("annotations", Found(annotations)),
        ]),
    ),
    (
        "spec",
        Fields(&[
            ("workspaces", All),
            ("params", All),
            ("pipelineSpec", Found(pipeline_parts)),
        ]),
    ),
    ("status", Fields(&[("pipelineSpec", Found(pipeline_parts))])),
]);

/// Shows only that the field is set: an object keeps none of its fields.
const IS_SET: Parts = Fields(&[]);

/// The names and resources of steps or sidecars.
const CONTAINERS: Parts = Each(&Fields(&[("name", All), ("computeResources", All)]));

/// The names of volumes and of their claims.
const VOLUMES: Parts = Each(&Fields(&[
    ("name", All),
    ("persistentVolumeClaim", Fields(&[("claimName", All)])),
]));

/// The parts of a Pipeline's `spec` that `core` reads.
pub fn pipeline_parts(spec: &Value) -> Value {
    pick(spec, &PIPELINE)
}

/// The parts of a Task's `spec` that `core` reads.
pub fn task_parts(spec: &Value) -> Value {
    pick(spec, &TASK)
}

const DEFAULTS: Parts = Each(&Fields(&[("name", All), ("default", All)]));

/// The longest value of a parameter that can be a part of a claim's name.
const LONGEST_NAME: usize = 253;

const PIPELINE: Parts = Fields(&[
    ("params", DEFAULTS),
    ("tasks", Each(&Found(pipeline_task))),
    ("finally", Each(&Found(pipeline_task))),
]);

const TASK: Parts = Fields(&[
    ("apiVersion", All),
    ("kind", All),
    ("params", DEFAULTS),
    ("steps", CONTAINERS),
    ("sidecars", CONTAINERS),
    ("stepTemplate", Fields(&[("computeResources", All)])),
    ("results", Each(&IS_SET)),
    ("volumes", VOLUMES),
]);

const PIPELINE_TASK: Parts = Fields(&[
    ("name", All),
    ("workspaces", All),
    ("matrix", All),
    ("params", Each(&Found(param))),
    ("when", Each(&IS_SET)),
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

/// Removes the parts of a run that no decision about an existing run depends on. Called before the run goes into a cache or
/// over the network. The removed parts of `status`, and annotations of other programs, can be much larger than the rest of the
/// run. A run that names a claim by a variable keeps its parameters and `status.pipelineSpec` (V9). A run with annotation
/// [`AWAITS_PIPELINE`] keeps `status.pipelineSpec` (B1). All other runs lose both.
pub fn trim(run: &mut PipelineRun) {
    run.metadata.managed_fields = None;
    if let Some(annotations) = &mut run.metadata.annotations {
        annotations.retain(|key, _| is_read(key));
    }
    let bindings = run.spec.get("workspaces").and_then(Value::as_array);
    let by_variable = bindings.into_iter().flatten().any(|binding| {
        let claim_name = binding["persistentVolumeClaim"]["claimName"].as_str();
        claim_name.is_some_and(has_variable)
    });
    let awaits = run.metadata.annotations.as_ref();
    let awaits = awaits.is_some_and(|all| all.contains_key(AWAITS_PIPELINE));
    let kept = |key: &str| SPEC.contains(&key) || by_variable && key == "params";
    run.spec.retain(|key, _| kept(key));
    if let Some(reference) = run.spec.get_mut("pipelineRef") {
        *reference = pick(reference, &PIPELINE_REF);
    }
    let pipeline = run
        .status
        .get("pipelineSpec")
        .filter(|_| by_variable || awaits);
    let pipeline = pipeline.map(pipeline_parts);
    let status = Value::Object(std::mem::take(&mut run.status));
    if let Value::Object(status) = pick(&status, &STATUS) {
        run.status = status;
    }
    let pipeline = pipeline.map(|pipeline| ("pipelineSpec".to_owned(), pipeline));
    run.status.extend(pipeline);
}

/// The parts of a stored PipelineRun on which the admission of its TaskRuns depends, as JSON (B1, V9).
pub fn owner_parts(object: &PipelineRun) -> Value {
    pick(&Value::Object(to_json(object)), &OWNER)
}

/// The parts of a new or updated PipelineRun that `core` reads, as JSON. Scripts and other large or deeply nested parts of
/// Pipeline and Task specs are not included.
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

/// The annotations that this product may read.
fn annotations(annotations: &Value) -> Value {
    let all = annotations.as_object().into_iter().flatten();
    let read = all.filter(|(key, _)| is_read(key));
    read.map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

/// A parameter's name, and its value without long texts: a long text, such as a script, names no claim.
fn param(param: &Value) -> Value {
    let mut read = pick(param, &Fields(&[("name", All)]));
    if let Some(value) = param.get("value").and_then(short) {
        read["value"] = value;
    }
    read
}

/// The value without long texts. In a list, a long text becomes an empty text. So the list keeps its length, which matters
/// because a matrix may run one pod for each item.
fn short(value: &Value) -> Option<Value> {
    Some(match value {
        Value::String(text) if text.len() > LONGEST_NAME => return None,
        Value::Array(items) => items
            .iter()
            .map(|it| short(it).unwrap_or_else(|| "".into()))
            .collect(),
        Value::Object(fields) => {
            let fields = fields.iter();
            fields
                .filter_map(|(key, field)| Some((key.clone(), short(field)?)))
                .collect()
        }
        Value::String(_) | Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
    })
}

/// The parts of a Pipeline's task that `core` reads. Texts with variables are replaced by two short lists: the tasks that this
/// task waits for, and the workspaces that its `taskSpec` uses.
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

/// The object as Kubernetes JSON. It has `apiVersion` and `kind`, which items of a list lack.
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

/// True if the run is done. This function reads only the conditions, so it also works for runs that [`view`] cannot read.
pub fn is_done(run: &PipelineRun) -> bool {
    let condition = succeeded(run.status.get("conditions"));
    condition.is_some_and(|it| matches!(it["status"].as_str(), Some("True" | "False")))
}

/// True if two states of a run, both without the parts that [`trim`] removes, have the same plan. Of a run's progress, a plan
/// depends only on these facts: Tekton has stored the Pipeline, the first child exists, the run is done.
pub fn has_same_plan(one: &PipelineRun, other: &PipelineRun) -> bool {
    let metadata = ObjectMeta {
        resource_version: one.metadata.resource_version.clone(),
        generation: one.metadata.generation,
        ..other.metadata.clone()
    };
    let progress = |run: &PipelineRun| {
        let children = run.status.get("childReferences").and_then(Value::as_array);
        (children.is_some_and(|it| !it.is_empty()), is_done(run))
    };
    one.metadata == metadata
        && one.spec == other.spec
        && one.status.get("pipelineSpec") == other.status.get("pipelineSpec")
        && progress(one) == progress(other)
}

/// Tekton's condition `Succeeded` of a PipelineRun or a TaskRun, from the object's `status.conditions`.
pub fn succeeded(conditions: Option<&Value>) -> Option<&Value> {
    let mut conditions = conditions?.as_array()?.iter();
    conditions.find(|it| it["type"] == "Succeeded")
}

/// Converts the object to the type of `core`.
///
/// # Errors
///
/// One violation, with the JSON path, for each field that cannot be read.
pub fn view(run: &PipelineRun) -> Result<View, Vec<Violation>> {
    View::parse(&Value::Object(to_json(run)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use coscheduler_core::params::Params;
    use coscheduler_core::plan::plan;
    use serde_json::json;

    #[test]
    fn a_question_holds_what_core_reads_and_nothing_large() {
        let object = json!({
            "apiVersion": "tekton.dev/v1", "kind": "PipelineRun",
            "metadata": {"name": "run", "managedFields": [], "annotations": {LAST_APPLIED: "{}", "a": "b"}},
            "spec": {
                "params": [{"name": "cache", "value": "build-cache"}, {"name": "o", "value": {"claim": "c", "script": "l".repeat(254)}},
                    {"name": "list", "value": ["a", "l".repeat(254)]}],
                "pipelineRef": {"name": "build", "resolver": "git", "params": []},
                "pipelineSpec": {
                    "description": "long", "params": [{"name": "p", "type": "string", "default": "d"}],
                    "tasks": [
                        {"name": "t", "taskRef": {"name": "x", "params": []}, "workspaces": [{"name": "w"}], "timeout": "1h",
                         "params": [{"name": "c", "value": "$(params.cache)"}, {"name": "script", "value": "l".repeat(254)}],
                         "when": [{"input": "long", "operator": "in", "values": ["long"]}]},
                        {"name": "u", "taskSpec": {
                            "steps": [{"name": "s", "script": "long; cd $(workspaces.source.path)", "computeResources": {"requests": {"cpu": "1"}}}],
                            "results": [{"name": "r", "description": "long"}],
                            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c", "readOnly": true}}, {"name": "w", "configMap": {"items": []}}],
                            "params": [{"name": "d", "description": "long", "default": "e"}],
                        }, "params": [{"name": "p", "value": "long $(tasks.t.results.r)"}]},
                        {"name": "malformed", "taskSpec": "long"},
                    ],
                    "finally": [{"name": "f", "params": []}], "results": [],
                },
                "workspaces": [{"name": "source"}],
                "taskRunSpecs": [{"pipelineTaskName": "t", "podTemplate": {
                        "env": [], "nodeSelector": {"a": "b"}, "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "d"}}]}, "metadata": {"annotations": {}},
                    "sidecarSpecs": [{"name": "db", "computeResources": {"requests": {"cpu": "1"}}}]}],
            },
            "status": {"pipelineSpec": {"tasks": ["long"]}},
        });
        assert_eq!(
            read_parts(&object),
            json!({
                "apiVersion": "tekton.dev/v1", "kind": "PipelineRun",
                "metadata": {"name": "run", "annotations": {"a": "b"}},
                "spec": {
                    "params": [{"name": "cache", "value": "build-cache"}, {"name": "o", "value": {"claim": "c"}}, {"name": "list", "value": ["a", ""]}],
                    "pipelineRef": {"name": "build", "resolver": "git"},
                    "pipelineSpec": {
                        "params": [{"name": "p", "default": "d"}],
                        "tasks": [
                            {"name": "t", "taskRef": {"name": "x"}, "workspaces": [{"name": "w"}], "when": [{}],
                             "params": [{"name": "c", "value": "$(params.cache)"}, {"name": "script"}]},
                            {"name": "u", "runAfter": ["t"], "params": [{"name": "p", "value": "long $(tasks.t.results.r)"}], "taskSpec": {
                                "params": [{"name": "d", "default": "e"}],
                                "steps": [{"name": "s", "computeResources": {"requests": {"cpu": "1"}}}],
                                "results": [{}],
                                "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}, {"name": "w"}],
                                "variables": ["$(workspaces.source.path)"],
                            }},
                            {"name": "malformed", "taskSpec": "long"},
                        ],
                        "finally": [{"name": "f", "params": []}],
                    },
                    "workspaces": [{"name": "source"}],
                    "taskRunSpecs": [{
                        "pipelineTaskName": "t", "metadata": {"annotations": {}},
                        "podTemplate": {"nodeSelector": {"a": "b"}, "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "d"}}]},
                        "sidecarSpecs": [{"name": "db", "computeResources": {"requests": {"cpu": "1"}}}],
                    }],
                },
                "status": {"pipelineSpec": {}},
            })
        );
        // Malformed parts are kept, so that `core` reports each by its path.
        let malformed =
            json!({"spec": {"taskRunSpecs": 7, "params": "x", "pipelineSpec": []}, "metadata": 8});
        assert_eq!(read_parts(&malformed), malformed);
        // `core` reads the same run from the parts as from the whole object.
        let mut whole = View::parse(&object).unwrap();
        whole.annotations.remove(LAST_APPLIED);
        let short = json!([{"name": "c", "value": "$(params.cache)"}]);
        whole.pipeline_tasks[0].params = Params::read(&short);
        whole.params = Params::read(&read_parts(&object)["spec"]["params"]);
        assert_eq!(View::parse(&read_parts(&object)), Ok(whole));
    }

    #[test]
    fn trimming_keeps_what_core_reads_and_nothing_large() {
        let mut run: PipelineRun = serde_json::from_value(json!({
            "metadata": {
                "name": "run", "namespace": "ci", "uid": "u", "resourceVersion": "7",
                "annotations": {
                    LAST_APPLIED: "{}", "chains.tekton.dev/payload": "long",
                    "coscheduler.dev/mode": "pipelineruns", "tekton.dev/auto-cleanup-pvc": "true",
                },
                "managedFields": [{"manager": "kubectl"}],
            },
            "spec": {
                "pipelineRef": {"name": "build", "params": []}, "pipelineSpec": {"tasks": []},
                "workspaces": [{"name": "source", "emptyDir": {}}],
            },
            "status": {"pipelineSpec": {"tasks": []}, "conditions": [{"type": "Succeeded", "status": "True", "message": "long"}]},
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
                    "annotations": {"coscheduler.dev/mode": "pipelineruns", "tekton.dev/auto-cleanup-pvc": "true"},
                },
                "spec": {"pipelineRef": {"name": "build"}, "workspaces": [{"name": "source", "emptyDir": {}}]},
                "status": {"conditions": [{"type": "Succeeded", "status": "True"}]},
            })
        );
    }

    #[test]
    fn two_states_that_differ_only_in_progress_have_the_same_plan() {
        let state = |change: &dyn Fn(&mut Value)| -> PipelineRun {
            let mut run = json!({
                "metadata": {"name": "run", "namespace": "ci", "uid": "u", "resourceVersion": "7", "generation": 1,
                    "annotations": {"coscheduler.dev/mode": "workspaces"}},
                "spec": {"workspaces": [{"name": "source", "emptyDir": {}}]},
                "status": {
                    "conditions": [{"type": "Succeeded", "status": "Unknown"}],
                    "childReferences": [{"kind": "TaskRun", "name": "one"}],
                },
            });
            change(&mut run);
            serde_json::from_value(run).unwrap()
        };
        let before = state(&|_| {});
        let later = state(&|run| {
            run["metadata"]["resourceVersion"] = json!("8");
            run["status"]["childReferences"] =
                json!([{"kind": "TaskRun", "name": "one"}, {"kind": "TaskRun", "name": "two"}]);
            run["status"]["skippedTasks"] = json!([{"name": "three"}]);
            run["status"]["conditions"][0]["message"] = json!("long");
        });
        assert!(has_same_plan(&before, &later));
        let [planned, replanned] = [&before, &later].map(|run| plan(&view(run).unwrap()));
        assert_eq!(planned, replanned);
        let other_plans: [&dyn Fn(&mut Value); 6] = [
            &|run| run["metadata"]["uid"] = json!("v"),
            &|run| run["metadata"]["annotations"]["coscheduler.dev/mode"] = json!("disabled"),
            &|run| run["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z"),
            &|run| run["spec"]["status"] = json!("PipelineRunPending"),
            &|run| run["status"]["childReferences"] = json!([]),
            &|run| run["status"]["conditions"][0]["status"] = json!("False"),
        ];
        for change in other_plans {
            assert!(!has_same_plan(&before, &state(change)));
        }
        let stored = state(&|run| run["status"]["pipelineSpec"] = json!({"tasks": []}));
        assert!(!has_same_plan(&before, &stored));
    }

    #[test]
    fn v9_only_a_run_that_names_a_claim_by_a_variable_keeps_its_pipeline() {
        let run = |claim_name: &str| {
            let mut run: PipelineRun = serde_json::from_value(json!({
                "metadata": {},
                "spec": {
                    "params": [{"name": "own", "value": "o"}],
                    "workspaces": [{"name": "w", "persistentVolumeClaim": {"claimName": claim_name}}],
                },
                "status": {"pipelineSpec": {"params": [{"name": "c", "default": "d", "description": "long"}], "results": []}},
            }))
            .unwrap();
            trim(&mut run);
            view(&run).unwrap()
        };
        let (named, plain) = (run("$(params.c)"), run("plain"));
        let defaults = json!([{"name": "c", "default": "d"}]);
        assert_eq!(named.defaults, Some(Params::defaults(&defaults)));
        assert_eq!(named.params.resolve("$(params.own)"), "o");
        assert_eq!((plain.defaults, plain.params), (None, Params::default()));
    }
}
