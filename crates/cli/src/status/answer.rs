//! The answer of `status`, and its table for people.

use std::collections::BTreeMap;

use coscheduler_core::annotations::MODE;
use coscheduler_core::labels::PIPELINE_RUN_UID;
use coscheduler_core::observed::elapsed;
use coscheduler_kubernetes::pipeline_run::{PipelineRun, is_done};
use coscheduler_kubernetes::pods;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use serde::Serialize;

use crate::output::{self, NONE, words};
use crate::run_status::{Pods, RunStatus};

/// kubectl's word for a fact that it does not know.
const UNKNOWN: &str = "<unknown>";

/// The runs, ordered by namespace and name.
#[derive(Debug, Serialize)]
pub(super) struct Answer {
    pub(super) runs: Vec<RunStatus>,
    /// The facts that the user is not allowed to read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) warnings: Vec<String>,
    /// The present time, for column AGE.
    #[serde(skip)]
    pub(super) now: Timestamp,
    #[serde(skip)]
    pub(super) with_namespace: bool,
    #[serde(skip)]
    pub(super) with_headers: bool,
    /// The least width of each column.
    #[serde(skip)]
    pub(super) widths: Vec<usize>,
    /// The width of the terminal in columns, if there is one.
    #[serde(skip)]
    pub(super) terminal: Option<usize>,
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
            RunStatus::new(run, pods.map(|_| own))
        })
        .collect();
    all.sort_by(|one, other| (&one.namespace, &one.name).cmp(&(&other.namespace, &other.name)));
    all
}

impl RunStatus {
    /// The cells of the run's row, in the order of the columns.
    pub(super) fn cells(&self, now: Timestamp, wide: bool) -> Vec<String> {
        let (nodes, pods) = match &self.pods {
            None => (UNKNOWN.to_owned(), UNKNOWN.to_owned()),
            Some(Pods {
                placeholders,
                tasks,
            }) => {
                let nodes = placeholders.iter().map(|it| it.node.as_deref());
                let nodes = nodes.chain(tasks.iter().map(|it| it.node.as_deref()));
                let running = tasks.iter().filter(|it| it.phase == "Running").count();
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

/// The time since `created`, in one unit. (kubectl's column AGE sometimes has two units.)
pub(super) fn age(created: Timestamp, now: Timestamp) -> String {
    let seconds = elapsed(created, now).as_secs();
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        172_800.. => format!("{}d", seconds / 86_400),
    }
}

impl Answer {
    /// Makes the columns as wide as the cells of the runs need. Returns true if a column has become wider.
    pub(super) fn widen(&mut self, wide: bool) -> bool {
        let cells = self
            .rows(wide)
            .map(|cells| cells.iter().map(String::len).collect());
        let mut widths: Vec<usize> = self.headers(wide).iter().map(|it| it.len()).collect();
        for row in cells.chain([self.widths.clone()]) {
            for (width, cell) in widths.iter_mut().zip::<Vec<usize>>(row) {
                *width = cell.max(*width);
            }
        }
        let grown = widths != self.widths;
        self.widths = widths;
        grown
    }

    /// True if the table is wider than the terminal. Always false with `-o wide`: there, the last column has texts of any
    /// length.
    fn is_too_wide(&self, wide: bool) -> bool {
        let gaps = usize::from(output::GAP) * self.widths.len().saturating_sub(1);
        let width = self.widths.iter().sum::<usize>() + gaps;
        !wide && self.terminal.is_some_and(|terminal| width > terminal)
    }

    /// Each row as two lines: the name of the run, and below it the other cells.
    fn in_two_lines(&self, rows: impl Iterator<Item = Vec<String>>) -> String {
        let names = 1 + usize::from(self.with_namespace);
        let split = rows.map(|mut cells| {
            let others = cells.split_off(names);
            let name: Vec<_> = cells.iter().map(|it| it.trim_end()).collect();
            (name.join("/"), others)
        });
        let (names, others): (Vec<_>, Vec<_>) = split.unzip();
        let others = output::table(None, others);
        let lines = names.iter().zip(others.lines());
        lines
            .map(|(name, others)| format!("{name}\n  {others}\n"))
            .collect()
    }

    fn headers(&self, wide: bool) -> Vec<&'static str> {
        let mut headers = vec!["NAME", "MODE", "STATE", "NODE", "RUNNING", "AGE", "REASON"];
        if wide {
            headers.extend(["PLACEHOLDERS", "MESSAGE"]);
        }
        if self.with_namespace {
            headers.insert(0, "NAMESPACE");
        }
        headers
    }

    fn rows(&self, wide: bool) -> impl Iterator<Item = Vec<String>> {
        self.runs.iter().map(move |run| {
            let mut cells = run.cells(self.now, wide);
            if self.with_namespace {
                cells.insert(0, run.namespace.clone());
            }
            cells
        })
    }
}

impl output::Answer for Answer {
    fn text(&self, wide: bool) -> String {
        let headers = self.with_headers.then(|| self.headers(wide));
        let rows = self.rows(wide).map(|cells| {
            let widths = self.widths.iter().chain(std::iter::repeat(&0));
            let padded = cells.into_iter().zip(widths);
            padded
                .map(|(cell, width)| format!("{cell:width$}"))
                .collect()
        });
        if self.is_too_wide(wide) && !self.runs.is_empty() {
            let headers = headers.map(|it| it.into_iter().map(str::to_owned).collect());
            return self.in_two_lines(headers.into_iter().chain(rows));
        }
        output::table(headers, rows)
    }

    fn names(&self) -> Vec<String> {
        let names = self.runs.iter().map(|run| &run.name);
        names
            .map(|name| format!("pipelinerun.tekton.dev/{name}"))
            .collect()
    }
}
