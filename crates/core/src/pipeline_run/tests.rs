//! Tests of one valid run. Each test changes one part of it.

use super::*;
use proptest::prelude::*;
use serde_json::json;

fn valid() -> Value {
    json!({
        "apiVersion": "tekton.dev/v1",
        "kind": "PipelineRun",
        "metadata": {
            "namespace": "ci", "name": "build-x7k2p", "generateName": "build-", "uid": "u1", "resourceVersion": "7",
            "labels": {"team": "a"}, "annotations": {"note": "b"},
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "ConfigMap", "name": "other", "uid": "u2"},
                {"apiVersion": "tekton.dev/v1", "kind": "PipelineRun", "name": "parent", "uid": "u3", "controller": true},
            ],
        },
        "spec": {
            "managedBy": "tekton.dev/pipeline",
            "status": "StoppedRunFinally",
            "pipelineRef": {"name": "build"},
            "params": [{"name": "cache", "value": "build-cache"}],
            "pipelineSpec": {
                "params": [{"name": "cache", "default": "x"}, {"name": "models", "default": "models-v1"}],
                "tasks": [{"name": "compile", "workspaces": [{"name": "in", "workspace": "source"}]}],
            },
            "taskRunTemplate": {"serviceAccountName": "builder", "podTemplate": {"nodeSelector": {"disk": "ssd"}}},
            "workspaces": [
                {"name": "source", "volumeClaimTemplate": {
                    "metadata": {"name": "src", "creationTimestamp": null},
                    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
                    "status": {},
                }},
                {"name": "cache", "subPath": "go", "persistentVolumeClaim": {"claimName": "build-cache"}},
                {"name": "token", "secret": {"secretName": "t"}},
                {"name": "scratch", "emptyDir": {}},
                {"name": "bare"},
            ],
        },
        "status": {
            "conditions": [{"type": "Succeeded", "status": "Unknown"}],
            "childReferences": [
                {"kind": "TaskRun", "name": "build-x7k2p-compile", "pipelineTaskName": "compile"},
                {"kind": "CustomRun", "name": "build-x7k2p-approve", "pipelineTaskName": "approve"},
            ],
            "skippedTasks": [{"name": "lint"}],
        },
    })
}

#[test]
fn a_whole_run_is_read() {
    let other = |name: &str| WorkspaceBinding {
        name: name.to_owned(),
        source: WorkspaceSource::Other,
    };
    let expect = PipelineRun {
        has_resolver: false,
        defaults: Some(Params::defaults(&json!([
            {"name": "cache", "default": "x"}, {"name": "models", "default": "models-v1"},
        ]))),
        namespace: "ci".to_owned(),
        name: "build-x7k2p".to_owned(),
        generate_name: "build-".to_owned(),
        uid: "u1".to_owned(),
        resource_version: "7".to_owned(),
        deletion: false,
        labels: [("team".to_owned(), "a".to_owned())].into(),
        annotations: [("note".to_owned(), "b".to_owned())].into(),
        controller: Some(OwnerReference {
            api_version: "tekton.dev/v1".to_owned(),
            kind: "PipelineRun".to_owned(),
            name: "parent".to_owned(),
            uid: "u3".to_owned(),
        }),
        managed_by: Some("tekton.dev/pipeline".to_owned()),
        workspaces: vec![
            WorkspaceBinding {
                name: "source".to_owned(),
                source: WorkspaceSource::ClaimTemplate(ClaimTemplate {
                    name: Some("src".to_owned()),
                    template: valid()["spec"]["workspaces"][0]["volumeClaimTemplate"].clone(),
                }),
            },
            WorkspaceBinding {
                name: "cache".to_owned(),
                source: WorkspaceSource::Claim {
                    claim_name: "build-cache".to_owned(),
                },
            },
            other("token"),
            other("scratch"),
            other("bare"),
        ],
        params: Params::from_flattened(
            [("cache", "build-cache")]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into(),
        ),
        pipeline_name: Some("build".to_owned()),
        pipeline_tasks: vec![PipelineTask {
            name: "compile".to_owned(),
            workspaces: ["source".to_owned()].into(),
            ..PipelineTask::default()
        }],
        task_run_specs: Vec::new(),
        service_account_name: Some("builder".to_owned()),
        pod_template: Some(json!({"nodeSelector": {"disk": "ssd"}})),
        state: RunState::Active,
        has_begun: true,
        task_runs: [("build-x7k2p-compile".to_owned(), "compile".to_owned())].into(),
        skipped_tasks: vec!["lint".to_owned()],
    };
    assert_eq!(PipelineRun::parse(&valid()), Ok(expect));
}

#[test]
fn what_is_absent_or_null_is_empty() {
    assert_eq!(PipelineRun::parse(&json!({})), Ok(PipelineRun::default()));
    let nulls = json!({
        "apiVersion": null, "kind": null, "metadata": null, "status": null,
        "spec": {"workspaces": null, "taskRunTemplate": {"podTemplate": null}, "managedBy": null},
    });
    assert_eq!(PipelineRun::parse(&nulls), Ok(PipelineRun::default()));
    let label = json!({"metadata": {"labels": {"a": null}}});
    assert_eq!(PipelineRun::parse(&label).unwrap().labels["a"], "");
}

#[test]
fn p6_p9_the_state_follows_from_condition_and_spec_status() {
    #[track_caller]
    fn check(spec_status: &str, conditions: Value, expect: RunState) {
        let document =
            json!({"spec": {"status": spec_status}, "status": {"conditions": conditions}});
        assert_eq!(PipelineRun::parse(&document).unwrap().state, expect);
    }
    let succeeded = |status: &str| json!([{"type": "Ready", "status": "True"}, {"type": "Succeeded", "status": status}]);
    check("", json!([]), RunState::Active);
    check("", succeeded("Unknown"), RunState::Active);
    check("", succeeded("True"), RunState::Done);
    check("", succeeded("False"), RunState::Done);
    check("Cancelled", succeeded("Unknown"), RunState::Active);
    check("Cancelled", succeeded("False"), RunState::Done);
    check("PipelineRunPending", json!([]), RunState::Pending);
    check("PipelineRunPending", succeeded("False"), RunState::Done);
    check(
        "",
        json!([{"type": "Ready", "status": "True"}]),
        RunState::Active,
    );
}

/// Replaces one field of the valid run. Exactly one violation is expected, at the path `field`.
#[track_caller]
fn refused(pointer: &str, value: Value, field: &str, description: &str) {
    let mut document = valid();
    match document.pointer_mut(pointer) {
        Some(place) => *place = value,
        None => {
            let (parent, key) = pointer.rsplit_once('/').unwrap();
            document.pointer_mut(parent).unwrap()[key] = value;
        }
    }
    let violations = PipelineRun::parse(&document).unwrap_err();
    assert_eq!(violations, [Violation::new(field, description)]);
}

#[test]
fn each_wrong_type_is_refused_with_its_path_value_and_what_is_allowed() {
    refused(
        "",
        json!([1]),
        "(document)",
        "is a list, [1]; allowed: an object",
    );
    refused(
        "/metadata",
        json!("x"),
        "metadata",
        "is a string, \"x\"; allowed: an object",
    );
    refused(
        "/metadata/name",
        json!(3),
        "metadata.name",
        "is a number, 3; allowed: a string",
    );
    refused(
        "/metadata/labels/team",
        json!(true),
        "metadata.labels[team]",
        "is a truth value, true; allowed: a string",
    );
    refused(
        "/metadata/deletionTimestamp",
        json!(1),
        "metadata.deletionTimestamp",
        "is a number, 1; allowed: a string",
    );
    refused(
        "/metadata/ownerReferences/1/controller",
        json!("yes"),
        "metadata.ownerReferences[1].controller",
        "is a string, \"yes\"; allowed: true or false",
    );
    refused(
        "/spec",
        json!([]),
        "spec",
        "is a list, []; allowed: an object",
    );
    refused(
        "/spec/workspaces",
        json!({}),
        "spec.workspaces",
        "is an object, {}; allowed: a list",
    );
    refused(
        "/spec/workspaces/1",
        json!("cache"),
        "spec.workspaces[1]",
        "is a string, \"cache\"; allowed: an object",
    );
    refused(
        "/spec/workspaces/1/name",
        json!(7),
        "spec.workspaces[1].name",
        "is a number, 7; allowed: a string",
    );
    refused(
        "/spec/workspaces/1/persistentVolumeClaim/claimName",
        json!({}),
        "spec.workspaces[1].persistentVolumeClaim.claimName",
        "is an object, {}; allowed: a string",
    );
    refused(
        "/spec/workspaces/0/volumeClaimTemplate",
        json!("1Gi"),
        "spec.workspaces[0].volumeClaimTemplate",
        "is a string, \"1Gi\"; allowed: an object",
    );
    refused(
        "/spec/workspaces/0/volumeClaimTemplate/spec",
        json!("1Gi"),
        "spec.workspaces[0].volumeClaimTemplate.spec",
        "is a string, \"1Gi\"; allowed: an object",
    );
    refused(
        "/spec/workspaces/0/volumeClaimTemplate/spec",
        json!(null),
        "spec.workspaces[0].volumeClaimTemplate.spec",
        "is not set; allowed: an object, the spec of a PersistentVolumeClaim",
    );
    refused(
        "/spec/workspaces/0/volumeClaimTemplate/spec/accessModes",
        json!("ReadWriteOnce"),
        "spec.workspaces[0].volumeClaimTemplate.spec.accessModes",
        "is a string, \"ReadWriteOnce\"; allowed: a list",
    );
    refused(
        "/spec/workspaces/0/volumeClaimTemplate/spec/resources/requests/storage",
        json!(["1Gi"]),
        "spec.workspaces[0].volumeClaimTemplate.spec.resources.requests.storage",
        "is a list, [\"1Gi\"]; allowed: a quantity such as 1Gi",
    );
    refused(
        "/spec/taskRunTemplate/podTemplate",
        json!("x".repeat(99)),
        "spec.taskRunTemplate.podTemplate",
        &format!("is a string, \"{}…; allowed: an object", "x".repeat(59)),
    );
    refused(
        "/status/conditions",
        json!("True"),
        "status.conditions",
        "is a string, \"True\"; allowed: a list",
    );
}

#[test]
fn other_versions_and_kinds_are_refused_by_name() {
    refused(
        "/apiVersion",
        json!("tekton.dev/v1beta1"),
        "apiVersion",
        "is \"tekton.dev/v1beta1\"; allowed: tekton.dev/v1, in which Kubernetes serves v1beta1 objects too",
    );
    refused(
        "/apiVersion",
        json!("apps/v1"),
        "apiVersion",
        "is \"apps/v1\"; allowed: tekton.dev/v1",
    );
    refused(
        "/kind",
        json!("TaskRun"),
        "kind",
        "is \"TaskRun\"; allowed: PipelineRun",
    );
}

#[test]
fn p7_a_workspace_has_one_name_and_one_source() {
    refused(
        "/spec/workspaces/4/name",
        json!("cache"),
        "spec.workspaces[4].name",
        "\"cache\" is bound twice; allowed: one binding for each workspace",
    );
    refused(
        "/spec/workspaces/4/name",
        json!(null),
        "spec.workspaces[4].name",
        "is not set; allowed: the name of a workspace",
    );
    refused(
        "/spec/workspaces/0/emptyDir",
        json!({}),
        "spec.workspaces[0]",
        "has volumeClaimTemplate and emptyDir; allowed: exactly one volume source",
    );
}

#[test]
fn storage_may_be_a_plain_number_and_must_be_a_quantity() {
    let mut document = valid();
    let storage = "/spec/workspaces/0/volumeClaimTemplate/spec/resources/requests/storage";
    *document.pointer_mut(storage).unwrap() = json!(1_073_741_824);
    assert!(PipelineRun::parse(&document).is_ok());
    *document.pointer_mut(storage).unwrap() = json!("lots");
    let violations = PipelineRun::parse(&document).unwrap_err();
    assert!(
        violations[0]
            .description
            .starts_with("\"lots\" is not a Kubernetes quantity; allowed:")
    );
}

#[test]
fn all_violations_come_at_once() {
    let document = json!({
        "apiVersion": "v1", "metadata": {"uid": 1},
        "spec": {"workspaces": [{"name": "a", "volumeClaimTemplate": {"spec": {"accessModes": [1, 2]}}}, {"name": "a"}]},
    });
    let violations = PipelineRun::parse(&document).unwrap_err();
    let mut fields: Vec<&str> = violations
        .iter()
        .map(|violation| violation.field.as_str())
        .collect();
    fields.sort_unstable();
    assert_eq!(
        fields,
        [
            "apiVersion",
            "metadata.uid",
            "spec.workspaces[0].volumeClaimTemplate.spec.accessModes[0]",
            "spec.workspaces[0].volumeClaimTemplate.spec.accessModes[1]",
            "spec.workspaces[1].name",
        ]
    );
}

#[test]
fn owners_that_are_pipeline_runs_are_recognised_in_any_version() {
    let owner = |api_version: &str, kind: &str| OwnerReference {
        api_version: api_version.to_owned(),
        kind: kind.to_owned(),
        name: String::new(),
        uid: String::new(),
    };
    assert!(owner("tekton.dev/v1", "PipelineRun").is_pipeline_run());
    assert!(owner("tekton.dev/v1beta1", "PipelineRun").is_pipeline_run());
    assert!(!owner("tekton.dev/v1", "TaskRun").is_pipeline_run());
    assert!(!owner("tekton.dev.example/v1", "PipelineRun").is_pipeline_run());
    assert!(!owner("v1", "PipelineRun").is_pipeline_run());
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        "[a-zA-Z$(){}.]{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::btree_map("name|spec|metadata|status|requests", inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn no_document_makes_it_panic(value in any_json(), place in prop::sample::select(vec![
        "", "/metadata", "/spec", "/status", "/spec/workspaces", "/spec/workspaces/0",
        "/spec/workspaces/0/volumeClaimTemplate", "/spec/workspaces/0/volumeClaimTemplate/spec",
        "/metadata/ownerReferences", "/status/conditions",
    ])) {
        let mut document = valid();
        *document.pointer_mut(place).unwrap() = value;
        if let Err(violations) = PipelineRun::parse(&document) {
            prop_assert!(!violations.is_empty());
            prop_assert!(violations.iter().all(|violation| violation.description.contains("allowed: ")));
        }
    }
}
