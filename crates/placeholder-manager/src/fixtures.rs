//! What the cache is filled with in tests: a run in mode `pipelineruns`, and its placeholder.

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use coscheduler_core::admit::{Question, TEKTON_CONTROLLER, admit};
use coscheduler_core::config::Configuration;
use coscheduler_core::mode::Mode;
use coscheduler_core::pipeline_run::PipelineRun;
use coscheduler_core::plan::plan;

/// A run that is bound to these claims.
pub(crate) fn run(claims: &[&str]) -> PipelineRun {
    let bound = |name: &&str| json!({"name": name.trim_matches(['$', '(', ')', '.']), "persistentVolumeClaim": {"claimName": name}});
    let run = PipelineRun::parse(&json!({
        "metadata": {"namespace": "ci", "name": "build", "uid": "u", "resourceVersion": "1"},
        "spec": {"workspaces": claims.iter().map(bound).collect::<Vec<_>>()},
    }))
    .unwrap();
    admitted(&run, Mode::PipelineRuns)
}

/// The run as admission stores it in this mode.
pub(crate) fn admitted(run: &PipelineRun, mode: Mode) -> PipelineRun {
    let configuration = Configuration {
        mode,
        ..Configuration::default()
    };
    let question = Question {
        run,
        request_uid: "request",
        created_by: "alice",
        pipeline_override: None,
        namespace_override: None,
        owner_group: None,
    };
    let admission = admit(Ok(&configuration), TEKTON_CONTROLLER, &question);
    admission.unwrap().apply(run)
}

/// The StatefulSet of the placeholder of `run`.
pub(crate) fn set(run: &PipelineRun) -> StatefulSet {
    serde_json::from_value(json!({"metadata": {
        "namespace": run.namespace, "name": set_name(run), "uid": "s", "resourceVersion": "5",
        "ownerReferences": [{
            "apiVersion": "tekton.dev/v1", "kind": "PipelineRun", "name": run.name, "uid": run.uid, "controller": true,
        }],
    }}))
    .unwrap()
}

/// The pod of the placeholder of `run`, with this status.
pub(crate) fn placeholder(run: &PipelineRun, node: Option<&str>, status: Value) -> Pod {
    let set = set_name(run);
    serde_json::from_value(json!({
        "metadata": {"namespace": run.namespace, "name": format!("{set}-0"), "labels": {
            "tekton.dev/pipelineRunUID": run.uid,
            "app.kubernetes.io/component": "affinity-assistant",
            "app.kubernetes.io/instance": set,
        }},
        "spec": {"containers": [], "nodeName": node},
        "status": status,
    }))
    .unwrap()
}

/// The name of the placeholder of `run`.
pub(crate) fn set_name(run: &PipelineRun) -> String {
    let plan = plan(run).unwrap();
    plan.action.placeholders()[0].name.to_string()
}
