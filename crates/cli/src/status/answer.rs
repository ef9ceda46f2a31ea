//! The answer of `status`, and its table for people.

use std::collections::{BTreeMap, BTreeSet};

use comfy_table::{Table, presets};
use coscheduler_core::annotations::{BLOCKED, MODE};
use coscheduler_core::labels::PIPELINE_RUN_UID;
use coscheduler_core::mode::Mode;
use coscheduler_core::observed::{PodPhase, elapsed};
use coscheduler_core::reconcile::tell::blocked_reason;
use coscheduler_kubernetes::pipeline_run::{PipelineRun, is_done};
use coscheduler_kubernetes::pods;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use serde::Serialize;
use serde_json::Value;

use crate::output;

/// kubectl's word for an empty cell.
const NONE: &str = "<none>";
/// kubectl's word for a fact that it does not know.
const UNKNOWN: &str = "<unknown>";

/// The runs, ordered by namespace and name.
#[derive(Debug, Serialize)]
pub(super) struct Answer {
    pub(super) runs: Vec<RunStatus>,
    /// The facts that the user may not read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) warnings: Vec<String>,
    /// The time for column AGE.
    #[serde(skip)]
    pub(super) now: Timestamp,
    #[serde(skip)]
    pub(super) with_namespace: bool,
    #[serde(skip)]
    pub(super) with_headers: bool,
}

/// A run.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RunStatus {
    pub(super) namespace: String,
    pub(super) name: String,
    /// The run's mode; `disabled` if admission did not coschedule the run.
    pub(super) mode: String,
    /// `Waiting` if the run has annotation `coscheduler.dev/blocked`. Otherwise the reason in Tekton's condition, or `Pending`
    /// if there is none.
    pub(super) state: String,
    /// The cause in annotation `coscheduler.dev/blocked`.
    pub(super) blocked: Option<Blocked>,
    pub(super) created: Option<Timestamp>,
    /// `None` if the user may not read pods.
    #[serde(flatten)]
    pub(super) pods: Option<Pods>,
}

/// The cause for which a run waits.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Blocked {
    reason: &'static str,
    message: String,
}

/// The pods of a run that have not ended.
#[derive(Debug, Default, PartialEq, Serialize)]
pub(super) struct Pods {
    pub(super) placeholders: Vec<PlaceholderStatus>,
    pub(super) tasks: Vec<TaskStatus>,
}

/// The pod of a placeholder.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct PlaceholderStatus {
    pub(super) pod: String,
    pub(super) node: Option<String>,
    /// The requests in the pod's `spec`.
    pub(super) requests: String,
}

/// The pod of a TaskRun.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct TaskStatus {
    pub(super) pod: String,
    pub(super) node: Option<String>,
    pub(super) running: bool,
}

/// True if a list shows the run: it is coscheduled, and has not ended.
pub(super) fn is_shown(run: &PipelineRun) -> bool {
    run.annotations().contains_key(MODE) && !is_done(run)
}

/// The facts about each run. `pods` are pods of any runs.
pub(super) fn of(runs: &[PipelineRun], pods: Option<&[Pod]>) -> Vec<RunStatus> {
    let mut of_run: BTreeMap<&str, Vec<&Pod>> = BTreeMap::new();
    for pod in pods.into_iter().flatten() {
        let uid = pods::label(pod, PIPELINE_RUN_UID).unwrap_or_default();
        of_run.entry(uid).or_default().push(pod);
    }
    let mut all: Vec<_> = runs
        .iter()
        .map(|run| {
            let own = of_run.get(run.metadata.uid.as_deref().unwrap_or_default());
            let own = own.map(Vec::as_slice).unwrap_or_default();
            run_status(run, pods.map(|_| own))
        })
        .collect();
    all.sort_by(|one, other| (&one.namespace, &one.name).cmp(&(&other.namespace, &other.name)));
    all
}

fn run_status(run: &PipelineRun, pods: Option<&[&Pod]>) -> RunStatus {
    let annotation = run.annotations().get(BLOCKED);
    let blocked = annotation.and_then(|value| blocked_reason(value));
    let blocked = blocked.filter(|_| !is_done(run));
    let mode = run.annotations().get(MODE).cloned();
    RunStatus {
        namespace: run.namespace().unwrap_or_default(),
        name: run.name_any(),
        mode: mode.unwrap_or_else(|| Mode::Disabled.to_string()),
        state: match &blocked {
            Some(_) => "Waiting".to_owned(),
            None => tektons_reason(run).unwrap_or("Pending").to_owned(),
        },
        blocked: blocked.map(|reason| Blocked {
            reason: reason.code.as_str(),
            message: reason.message,
        }),
        created: run.creation_timestamp().map(|time| time.0),
        pods: pods.map(pods_status),
    }
}

/// The reason in Tekton's condition `Succeeded`.
fn tektons_reason(run: &PipelineRun) -> Option<&str> {
    let conditions = run.status.get("conditions").and_then(Value::as_array)?;
    let condition = conditions.iter().find(|it| it["type"] == "Succeeded")?;
    condition["reason"].as_str()
}

fn pods_status(pods: &[&Pod]) -> Pods {
    let mut status = Pods::default();
    for pod in pods {
        let (name, node) = (pod.name_any(), pods::node(pod).map(str::to_owned));
        if let Some(view) = pods::view((*pod).clone()).and_then(|pod| pod.placeholder) {
            status.placeholders.push(PlaceholderStatus {
                pod: name,
                node,
                requests: view.asks.to_string(),
            });
        } else {
            status.tasks.push(TaskStatus {
                pod: name,
                node,
                running: pods::phase(pod) == PodPhase::Running,
            });
        }
    }
    status
        .placeholders
        .sort_by(|one, other| one.pod.cmp(&other.pod));
    status.tasks.sort_by(|one, other| one.pod.cmp(&other.pod));
    status
}

impl RunStatus {
    /// The cells of the run's row, in the order of the columns.
    fn cells(&self, now: Timestamp, wide: bool) -> Vec<String> {
        let (nodes, pods) = match &self.pods {
            None => (UNKNOWN.to_owned(), UNKNOWN.to_owned()),
            Some(Pods {
                placeholders,
                tasks,
            }) => {
                let nodes = placeholders.iter().map(|it| it.node.as_deref());
                let nodes = nodes.chain(tasks.iter().map(|it| it.node.as_deref()));
                let running = tasks.iter().filter(|it| it.running).count();
                (words(nodes.flatten()), format!("{running}/{}", tasks.len()))
            }
        };
        let age = self.created.map(|created| age(created, now));
        let reason = self.blocked.as_ref().map(|it| it.reason.to_owned());
        let mut cells = vec![
            self.name.clone(),
            self.mode.clone(),
            self.state.clone(),
            nodes,
            pods,
            age.unwrap_or_else(|| UNKNOWN.to_owned()),
            reason.unwrap_or_else(|| NONE.to_owned()),
        ];
        if wide {
            let placeholders = self
                .pods
                .as_ref()
                .map(|it| words(it.placeholders.iter().map(|it| it.pod.as_str())));
            let message = self.blocked.as_ref().map(|it| it.message.clone());
            cells.push(placeholders.unwrap_or_else(|| UNKNOWN.to_owned()));
            cells.push(message.unwrap_or_else(|| NONE.to_owned()));
        }
        cells
    }
}

/// Different words, separated by commas.
fn words<'a>(all: impl Iterator<Item = &'a str>) -> String {
    let all: BTreeSet<_> = all.collect();
    match all.is_empty() {
        true => NONE.to_owned(),
        false => all.into_iter().collect::<Vec<_>>().join(","),
    }
}

/// The time since `created` as kubectl's tables have it: one unit.
pub(super) fn age(created: Timestamp, now: Timestamp) -> String {
    let seconds = elapsed(created, now).as_secs();
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        172_800.. => format!("{}d", seconds / 86_400),
    }
}

impl output::Answer for Answer {
    fn text(&self, wide: bool) -> String {
        let mut headers = vec!["NAME", "MODE", "STATE", "NODE", "RUNNING", "AGE", "REASON"];
        if wide {
            headers.extend(["PLACEHOLDERS", "MESSAGE"]);
        }
        if self.with_namespace {
            headers.insert(0, "NAMESPACE");
        }
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        if self.with_headers {
            table.set_header(headers);
        }
        for run in &self.runs {
            let mut cells = run.cells(self.now, wide);
            if self.with_namespace {
                cells.insert(0, run.namespace.clone());
            }
            table.add_row(cells);
        }
        for column in table.column_iter_mut() {
            column.set_padding((0, 3));
        }
        // Without runs, kubectl writes nothing to standard output either.
        match self.runs.is_empty() {
            true => String::new(),
            false => table.trim_fmt(),
        }
    }

    fn names(&self) -> Vec<String> {
        let names = self.runs.iter().map(|run| &run.name);
        names
            .map(|name| format!("pipelinerun.tekton.dev/{name}"))
            .collect()
    }
}
