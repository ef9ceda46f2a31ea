//! Makes a JSON patch from the changes that admission makes in an object.

use std::collections::BTreeMap;

use coscheduler_core::admit::RewrittenSource;
use serde_json::{Map, Value, json};

/// The changes that admission makes in an object.
#[derive(Clone, Debug, Default)]
pub struct Mutation {
    /// Annotations to set. They replace the author's values.
    pub set_annotations: BTreeMap<String, String>,
    /// Annotations to remove.
    pub remove_annotations: Vec<String>,
    /// Annotations to remove in `spec.taskRunSpecs`: the index of the item, and the annotation's key.
    pub remove_task_annotations: Vec<(usize, String)>,
    /// New volume sources. The key is the workspace.
    pub bindings: BTreeMap<String, RewrittenSource>,
    /// The reason why a TaskRun must not run. Such a TaskRun is created with workspaces that Tekton refuses.
    pub refusal: Option<String>,
}

/// The patch that makes these changes. Empty if nothing changes.
pub fn patch(object: &Value, mutation: &Mutation) -> json_patch::Patch {
    let mut changed = object.clone();
    apply(&mut changed, mutation);
    json_patch::diff(object, &changed)
}

fn apply(object: &mut Value, mutation: &Mutation) {
    annotate(object, mutation);
    for (index, key) in &mutation.remove_task_annotations {
        let pointer = format!("/spec/taskRunSpecs/{index}/metadata/annotations");
        if let Some(annotations) = object.pointer_mut(&pointer).and_then(Value::as_object_mut) {
            annotations.remove(key);
        }
    }
    let bindings = object.pointer_mut("/spec/workspaces");
    let bindings = bindings.and_then(Value::as_array_mut);
    for binding in bindings.into_iter().flatten() {
        let name = binding["name"].as_str().unwrap_or_default();
        let source = mutation.bindings.get(name);
        if let (Some(source), Some(fields)) = (source, binding.as_object_mut()) {
            // A binding may have only one source, so the old source is removed.
            fields.retain(|field, _| matches!(field.as_str(), "name" | "subPath"));
            let (key, value) = match source {
                RewrittenSource::Claim(claim_name) => {
                    ("persistentVolumeClaim", json!({"claimName": claim_name}))
                }
                RewrittenSource::Template(template) => ("volumeClaimTemplate", template.clone()),
            };
            fields.insert(key.to_owned(), value);
        }
    }
    if let Some(message) = &mutation.refusal
        && let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut)
    {
        invalidate(spec, message);
    }
}

/// Makes Tekton fail a TaskRun with reason `TaskRunValidationFailed`, and with `message` in the text of its condition. Tekton's
/// admission accepts the TaskRun. Before Tekton's controller creates a pod, it compares declared and bound workspaces. If a
/// workspace is only declared or only bound, the controller's error quotes the name of this workspace (Tekton v1.12.0,
/// `pkg/workspace/validate.go`: `ValidateBindings`).
///
/// There are two cases. If the TaskRun refers to a Task, the TaskRun gets a binding of a workspace that the Task does not
/// declare. If the Task is embedded, this would not help, because Tekton treats each bound workspace of an embedded Task as
/// declared. So the embedded Task gets a declaration of a workspace that the TaskRun does not bind.
fn invalidate(spec: &mut Map<String, Value>, message: &str) {
    // Each retry would fail too.
    spec.remove("retries");
    let (owner, workspace) = match spec.get_mut("taskSpec").and_then(Value::as_object_mut) {
        Some(task) => (task, json!({"name": message})),
        None => (spec, json!({"name": message, "emptyDir": {}})),
    };
    let workspaces = owner.entry("workspaces").or_insert_with(|| json!([]));
    if let Some(workspaces) = workspaces.as_array_mut()
        && !workspaces.contains(&workspace)
    {
        workspaces.push(workspace);
    }
}

fn annotate(object: &mut Value, mutation: &Mutation) {
    let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else {
        return;
    };
    let mut annotations = match metadata.remove("annotations") {
        Some(Value::Object(annotations)) => annotations,
        Some(_) | None => Map::new(),
    };
    for key in &mutation.remove_annotations {
        annotations.remove(key);
    }
    for (key, value) in &mutation.set_annotations {
        annotations.insert(key.clone(), value.clone().into());
    }
    if !annotations.is_empty() {
        metadata.insert("annotations".to_owned(), Value::Object(annotations));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(object: Value, mutation: &Mutation, expect: Value) {
        let mut patched = object.clone();
        json_patch::patch(&mut patched, &patch(&object, mutation)).unwrap();
        assert_eq!(patched, expect);
        assert!(
            patch(&patched, mutation).0.is_empty(),
            "a second time changes nothing"
        );
    }

    #[test]
    fn bindings_are_rewritten_and_annotations_replaced() {
        let mutation = Mutation {
            set_annotations: BTreeMap::from([("coscheduler.dev/mode".into(), "x".into())]),
            remove_annotations: vec!["pipeline.tekton.dev/affinity-assistant".into()],
            remove_task_annotations: vec![(1, "coscheduler.dev/group".into())],
            bindings: BTreeMap::from([
                (
                    "source".into(),
                    RewrittenSource::Claim("claim-0".to_owned()),
                ),
                (
                    "copied".into(),
                    RewrittenSource::Template(json!({"spec": {"accessModes": ["ReadWriteOnce"]}})),
                ),
            ]),
            refusal: None,
        };
        check(
            json!({
                "metadata": {"annotations": {"pipeline.tekton.dev/affinity-assistant": "forged", "a": "b"}},
                "spec": {"workspaces": [
                    {"name": "source", "subPath": "x", "volumeClaimTemplate": {"spec": {}}},
                    {"name": "other", "emptyDir": {}},
                    {"name": "copied", "persistentVolumeClaim": {"claimName": "claim-1"}},
                ], "taskRunSpecs": [
                    {"pipelineTaskName": "a"},
                    {"metadata": {"annotations": {"coscheduler.dev/group": "forged", "a": "b"}}},
                ]},
            }),
            &mutation,
            json!({
                "metadata": {"annotations": {"coscheduler.dev/mode": "x", "a": "b"}},
                "spec": {"workspaces": [
                    {"name": "source", "subPath": "x", "persistentVolumeClaim": {"claimName": "claim-0"}},
                    {"name": "other", "emptyDir": {}},
                    {"name": "copied", "volumeClaimTemplate": {"spec": {"accessModes": ["ReadWriteOnce"]}}},
                ], "taskRunSpecs": [
                    {"pipelineTaskName": "a"},
                    {"metadata": {"annotations": {"a": "b"}}},
                ]},
            }),
        );
    }

    #[test]
    fn an_empty_mutation_is_an_empty_patch() {
        check(
            json!({"metadata": {"name": "a"}, "spec": {}}),
            &Mutation::default(),
            json!({"metadata": {"name": "a"}, "spec": {}}),
        );
    }

    #[test]
    fn m2_a_task_run_that_may_not_run_fails_tektons_validation() {
        let refused = Mutation {
            refusal: Some("too many claims".to_owned()),
            ..Mutation::default()
        };
        let (source, extra) = (
            json!({"name": "source"}),
            json!({"name": "too many claims"}),
        );
        let bound = json!({"name": "source", "emptyDir": {}});
        let too_many = json!({"name": "too many claims", "emptyDir": {}});
        check(
            json!({"spec": {"taskRef": {"name": "build"}, "retries": 2, "workspaces": [bound]}}),
            &refused,
            json!({"spec": {"taskRef": {"name": "build"}, "workspaces": [bound, too_many]}}),
        );
        check(
            json!({"spec": {"taskSpec": {"workspaces": [source], "steps": []}, "workspaces": [bound]}}),
            &refused,
            json!({"spec": {"taskSpec": {"workspaces": [source, extra], "steps": []}, "workspaces": [bound]}}),
        );
        check(
            json!({"spec": {"taskSpec": {"steps": []}, "workspaces": [bound]}}),
            &refused,
            json!({"spec": {"taskSpec": {"steps": [], "workspaces": [extra]}, "workspaces": [bound]}}),
        );
    }
}
