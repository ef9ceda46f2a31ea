//! The answer of `explain`, and its tree for people.

use coscheduler_core::annotations::{GROUP, MODE_SOURCE, PART_OF};
use coscheduler_kubernetes::pipeline_run::{is_done, succeeded};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::ResourceExt as _;
use serde::Serialize;
use serde_json::Value;

use super::causes::{Cause, Facts, cause};
use crate::output::{self, Branch};
use crate::run_status::RunStatus;

/// A PipelineRun, and the cause for which it waits.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Explanation {
    #[serde(flatten)]
    run: RunStatus,
    done: bool,
    /// Where the mode comes from, in words. `None` if admission did not coschedule the run.
    mode_from: Option<String>,
    /// The id from which the names of the run's placeholders derive. `None` if the run is not coscheduled.
    group: Option<String>,
    /// The run whose placeholders this run uses. `None` if it has its own.
    part_of: Option<String>,
    cause: Option<Cause>,
    /// Why the run and its TaskRuns failed.
    failures: Vec<FailureStatus>,
    claims: Vec<ClaimStatus>,
    /// The facts that the user is not allowed to read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) warnings: Vec<String>,
}

/// What Tekton says about a run or a TaskRun that failed.
#[derive(Debug, Serialize)]
struct FailureStatus {
    /// Kind and name.
    object: String,
    message: String,
}

impl FailureStatus {
    /// `None` if the object has not failed. `conditions` are those of its status.
    fn new(object: String, conditions: Option<&Value>) -> Option<Self> {
        let condition = succeeded(conditions).filter(|it| it["status"] == "False")?;
        let message = condition["message"].as_str()?.to_owned();
        Some(Self { object, message })
    }
}

/// A claim of a run's pods.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ClaimStatus {
    name: String,
    /// `Pending`, `Bound` or `Lost`; `None` if the claim does not exist.
    phase: Option<String>,
    access_modes: Vec<String>,
    storage_class: Option<String>,
    volume: Option<String>,
}

impl ClaimStatus {
    /// `claim` is `None` if there is no claim with this name.
    pub(super) fn new(name: String, claim: Option<&PersistentVolumeClaim>) -> Self {
        let spec = claim.and_then(|claim| claim.spec.clone());
        let spec = spec.unwrap_or_default();
        Self {
            name,
            phase: claim.and_then(|claim| claim.status.as_ref()?.phase.clone()),
            access_modes: spec.access_modes.unwrap_or_default(),
            storage_class: spec.storage_class_name,
            volume: spec.volume_name,
        }
    }

    /// The claim's name, if it does not exist.
    pub(super) fn missing(&self) -> Option<String> {
        self.phase.is_none().then(|| self.name.clone())
    }

    /// The claim's name, if it exists and has no volume.
    pub(super) fn without_volume(&self) -> Option<String> {
        let waits = self.phase.is_some() && self.volume.is_none();
        waits.then(|| self.name.clone())
    }

    /// `done` is true if the run is done. Then a claim that was created for the run may have been deleted.
    fn line(&self, done: bool) -> String {
        let Some(phase) = &self.phase else {
            let exists = if done {
                "no longer exists"
            } else {
                "does not exist"
            };
            return format!("claim {}: {exists}", self.name);
        };
        let mut line = format!("claim {}: {phase}", self.name);
        for fact in &self.access_modes {
            line.push_str(&format!(", {fact}"));
        }
        for (word, fact) in [("class", &self.storage_class), ("volume", &self.volume)] {
            if let Some(fact) = fact {
                line.push_str(&format!(", {word} {fact}"));
            }
        }
        line
    }
}

impl Explanation {
    /// `with_pods` is false if the user is not allowed to read pods.
    pub(super) fn new(
        facts: &Facts,
        with_pods: bool,
        claims: Vec<ClaimStatus>,
        warnings: Vec<String>,
    ) -> Self {
        let pods: Vec<&Pod> = facts.pods.iter().collect();
        let run = (
            format!("PipelineRun {}", facts.run.name_any()),
            facts.run.status.get("conditions"),
        );
        let task_runs = facts.task_runs.iter();
        let task_runs = task_runs.map(|it| {
            let object = format!("TaskRun {}", it.name_any());
            (object, it.status.get("conditions"))
        });
        let failures = [run].into_iter().chain(task_runs);
        let failures = failures.filter_map(|(it, conditions)| FailureStatus::new(it, conditions));
        Self {
            failures: failures.collect(),
            run: RunStatus::new(&facts.run, with_pods.then_some(pods.as_slice())),
            done: is_done(&facts.run),
            mode_from: facts.run.annotations().get(MODE_SOURCE).cloned(),
            group: facts.run.annotations().get(GROUP).cloned(),
            part_of: facts.run.annotations().get(PART_OF).cloned(),
            cause: cause(facts),
            claims,
            warnings,
        }
    }
}

impl output::Answer for Explanation {
    fn text(&self, _wide: bool) -> String {
        let run = &self.run;
        let title = format!("PipelineRun {}/{}: {}", run.namespace, run.name, run.state);
        let mut below = Vec::new();
        match &self.cause {
            Some(cause) => {
                let evidence = &cause.evidence;
                let mut lines = vec![cause.message.clone()];
                let mut line = format!("evidence: {}, {}", evidence.object, evidence.field);
                // The value of the annotation only repeats the message.
                if !evidence.field.starts_with("metadata.annotations") {
                    line = format!("{line}: {}", evidence.value);
                }
                lines.push(line);
                below.push(Branch::new(format!("waits: {}", cause.reason), lines));
            }
            None if self.done => {}
            None if !self.warnings.is_empty() => {
                let lack =
                    "cause not known: you are not allowed to read every object (see the warnings)";
                below.push(lack.to_owned().into());
            }
            None => below.push("no cause for waiting found".to_owned().into()),
        }
        for FailureStatus { object, message } in &self.failures {
            below.push(format!("{object} failed: {message}").into());
        }
        let group = self.group.iter().map(|group| format!(", group {group}"));
        let group: String = group.collect();
        let from = self.mode_from.iter().map(|from| format!(", from {from}"));
        let from: String = from.collect();
        below.push(format!("mode: {}{from}{group}", run.mode).into());
        if let Some(parent) = &self.part_of {
            below.push(format!("part of PipelineRun {parent}, whose placeholders it uses").into());
        }
        if let Some(pods) = &run.pods {
            let node = |node: &Option<String>| match node {
                Some(node) => format!("on {node}"),
                None => "no node".to_owned(),
            };
            for it in &pods.placeholders {
                let requests = match it.requests.as_str() {
                    "" => String::new(),
                    requests => format!(", requests {requests}"),
                };
                below.push(format!("placeholder {}: {}{requests}", it.pod, node(&it.node)).into());
            }
            for it in &pods.tasks {
                below.push(format!("pod {}: {}, {}", it.pod, node(&it.node), it.phase).into());
            }
        }
        below.extend(self.claims.iter().map(|it| it.line(self.done).into()));
        Branch { line: title, below }.text()
    }

    fn names(&self) -> Vec<String> {
        vec![format!("pipelinerun.tekton.dev/{}", self.run.name)]
    }
}
