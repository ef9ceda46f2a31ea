//! The facts about a PipelineRun that several subcommands show.

use coscheduler_core::annotations::{BLOCKED, MODE};
use coscheduler_core::mode::Mode;
use coscheduler_core::reconcile::tell::blocked_reason;
use coscheduler_kubernetes::pipeline_run::{PipelineRun, is_done, succeeded};
use coscheduler_kubernetes::pods;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use serde::Serialize;

/// A run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RunStatus {
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// The run's mode; `disabled` if admission did not coschedule the run.
    pub(crate) mode: String,
    /// `Terminating` if the run is being deleted. Otherwise, `Waiting` if the run has annotation `coscheduler.dev/blocked` and is
    /// not done. Otherwise, the reason in Tekton's condition, or `Pending` if there is none.
    pub(crate) state: String,
    /// The cause in annotation `coscheduler.dev/blocked`.
    pub(crate) blocked: Option<Blocked>,
    pub(crate) created: Option<Timestamp>,
    /// `None` if the user is not allowed to read pods.
    #[serde(flatten)]
    pub(crate) pods: Option<Pods>,
}

/// The cause for which a run waits.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Blocked {
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

/// Pods of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Pods {
    pub(crate) placeholders: Vec<PlaceholderStatus>,
    pub(crate) tasks: Vec<TaskStatus>,
}

/// The pod of a placeholder.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct PlaceholderStatus {
    pub(crate) pod: String,
    pub(crate) node: Option<String>,
    /// The requests in the pod's `spec`.
    pub(crate) requests: String,
}

/// The pod of a TaskRun.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct TaskStatus {
    pub(crate) pod: String,
    pub(crate) node: Option<String>,
    /// `Pending`, `Running`, `Succeeded`, `Failed` or `Unknown`.
    pub(crate) phase: String,
}

impl RunStatus {
    /// The facts about a run, and about these pods of it.
    pub(crate) fn new(run: &PipelineRun, pods: Option<&[&Pod]>) -> Self {
        let annotation = run.annotations().get(BLOCKED);
        let blocked = annotation.and_then(|value| blocked_reason(value));
        let deleted = run.metadata.deletion_timestamp.is_some();
        let blocked = blocked.filter(|_| !is_done(run) && !deleted);
        Self {
            namespace: run.namespace().unwrap_or_default(),
            name: run.name_any(),
            mode: mode(run).to_owned(),
            state: match &blocked {
                Some(_) => "Waiting".to_owned(),
                None if deleted => "Terminating".to_owned(),
                None => tektons_reason(run).unwrap_or("Pending").to_owned(),
            },
            blocked: blocked.map(|reason| Blocked {
                reason: reason.code.as_str(),
                message: reason.message,
            }),
            created: run.creation_timestamp().map(|time| time.0),
            pods: pods.map(Pods::new),
        }
    }
}

/// The run's mode; `disabled` if admission did not coschedule the run.
pub(crate) fn mode(run: &PipelineRun) -> &str {
    let mode = run.annotations().get(MODE).map(String::as_str);
    mode.unwrap_or(Mode::Disabled.as_str())
}

/// `Pending`, `Running`, `Succeeded`, `Failed` or `Unknown`.
pub(crate) fn phase(pod: &Pod) -> String {
    let phase = pod.status.as_ref().and_then(|it| it.phase.clone());
    phase.unwrap_or_else(|| "Unknown".to_owned())
}

/// Removes what [`RunStatus`] does not need.
pub(crate) fn keep_conditions(run: &mut PipelineRun) {
    run.metadata.managed_fields = None;
    run.spec.clear();
    run.status.retain(|key, _| key == "conditions");
}

/// The reason in Tekton's condition `Succeeded`.
fn tektons_reason(run: &PipelineRun) -> Option<&str> {
    succeeded(run.status.get("conditions"))?["reason"].as_str()
}

impl Pods {
    fn new(pods: &[&Pod]) -> Self {
        let mut status = Self::default();
        for pod in pods {
            let (name, node) = (pod.name_any(), pods::node(pod).map(str::to_owned));
            let view = pods::view((*pod).clone()).and_then(|pod| pod.placeholder);
            if let Some(view) = view {
                status.placeholders.push(PlaceholderStatus {
                    pod: name,
                    node,
                    requests: view.asks.to_string(),
                });
            } else {
                status.tasks.push(TaskStatus {
                    pod: name,
                    node,
                    phase: phase(pod),
                });
            }
        }
        let placeholders = &mut status.placeholders;
        placeholders.sort_by(|one, other| one.pod.cmp(&other.pod));
        status.tasks.sort_by(|one, other| one.pod.cmp(&other.pod));
        status
    }
}
