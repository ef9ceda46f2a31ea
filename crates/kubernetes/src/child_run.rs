//! Reads the parts of a new TaskRun or CustomRun that `core` needs.

use coscheduler_core::admit_child::{BoundClaim, ChildRun};
use coscheduler_core::params::Params;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use crate::objects;

/// Tekton's label with the name of the task of the Pipeline.
const PIPELINE_TASK: &str = "tekton.dev/pipelineTask";

/// Converts the object to the type of `core`. `None` if the kind is neither TaskRun nor CustomRun. Malformed parts of `spec` are
/// left out, because Tekton's own admission denies such objects. Fields `owner_group` and `pipeline_run` are not set:
/// they come from the owner itself, and the object has only a reference to its owner.
pub fn view(kind: &str, metadata: &ObjectMeta, spec: &Value, username: &str) -> Option<ChildRun> {
    Some(ChildRun {
        kind: kind.parse().ok()?,
        name: metadata.name.clone().unwrap_or_default(),
        pipeline_task: metadata
            .labels
            .as_ref()
            .and_then(|labels| labels.get(PIPELINE_TASK).cloned())
            .unwrap_or_default(),
        annotations: metadata.annotations.clone().unwrap_or_default(),
        controller: objects::controller(metadata),
        owner_group: None,
        created_by: username.to_owned(),
        claims: claims(&spec["workspaces"]),
        params: Params::read(&spec["params"]).or(&Params::defaults(&spec["taskSpec"]["params"])),
        pipeline_run: None,
    })
}

fn claims(workspaces: &Value) -> Vec<BoundClaim> {
    let bindings = workspaces.as_array().into_iter().flatten();
    bindings
        .filter_map(|binding| {
            let claim = &binding["persistentVolumeClaim"];
            Some(BoundClaim {
                workspace: binding["name"].as_str()?.to_owned(),
                claim_name: claim["claimName"].as_str()?.to_owned(),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use coscheduler_core::admit_child::ChildKind;
    use coscheduler_core::pipeline_run::OwnerReference;
    use serde_json::json;

    #[test]
    fn a_task_run_is_read_with_its_owner_claims_and_parameters() {
        let metadata: ObjectMeta = serde_json::from_value(json!({
            "name": "build-compile",
            "labels": {"tekton.dev/pipelineTask": "compile"},
            "annotations": {"a": "b"},
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "ConfigMap", "name": "other", "uid": "x"},
                {"apiVersion": "tekton.dev/v1", "kind": "PipelineRun", "name": "build", "uid": "u", "controller": true},
            ],
        }))
        .unwrap();
        let spec = json!({
            "params": [{"name": "cache", "value": "build-cache"}],
            "taskSpec": {"params": [{"name": "cache", "default": "own"}, {"name": "default", "default": "of-task"}]},
            "workspaces": [
                {"name": "source", "subPath": "a", "persistentVolumeClaim": {"claimName": "$(params.cache)"}},
                {"name": "scratch", "emptyDir": {}},
                {"name": "malformed", "persistentVolumeClaim": 7},
            ],
        });
        let run = view("TaskRun", &metadata, &spec, "tekton").unwrap();
        let expect = ChildRun {
            kind: ChildKind::TaskRun,
            pipeline_task: "compile".to_owned(),
            name: "build-compile".to_owned(),
            annotations: [("a".to_owned(), "b".to_owned())].into(),
            controller: Some(OwnerReference {
                api_version: "tekton.dev/v1".to_owned(),
                kind: "PipelineRun".to_owned(),
                name: "build".to_owned(),
                uid: "u".to_owned(),
            }),
            owner_group: None,
            created_by: "tekton".to_owned(),
            claims: vec![BoundClaim {
                workspace: "source".to_owned(),
                claim_name: "$(params.cache)".to_owned(),
            }],
            params: Params::read(&json!([
                {"name": "cache", "value": "build-cache"},
                {"name": "default", "value": "of-task"},
            ])),
            pipeline_run: None,
        };
        assert_eq!(run, expect);
        let custom = view("CustomRun", &metadata, &json!({}), "tekton").unwrap();
        assert_eq!((custom.kind, custom.claims), (ChildKind::CustomRun, vec![]));
        assert_eq!(view("Pod", &metadata, &spec, "tekton"), None);
    }
}
