//! The figures of the trials: a table for people, and a JSON file.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::Context as _;
use integration_tests::timings::median;
use serde::Serialize;
use serde_json::json;

use super::{Options, foreign, runs};

/// The figures of one trial, which `LEGEND` explains. Times are in seconds.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Figures {
    pub(crate) makespan: f64,
    pub(crate) use_percent: f64,
    pub(crate) run_p50: f64,
    pub(crate) run_p99: f64,
    pub(crate) wait_p50: f64,
    pub(crate) wait_p99: f64,
    pub(crate) later_wait_p50: f64,
    pub(crate) later_wait_p99: f64,
    pub(crate) crowded: usize,
    pub(crate) taken: usize,
    pub(crate) taken_by_foreign: usize,
    pub(crate) moves: usize,
    pub(crate) requests: f64,
    pub(crate) requests_of_ours: f64,
    pub(crate) foreign_wait_p50: f64,
    pub(crate) foreign_wait_p99: f64,
    /// The milliseconds of CPU for each run, by process.
    pub(crate) cpu: BTreeMap<String, f64>,
}

impl Figures {
    fn cpu(&self, process: &str) -> f64 {
        self.cpu.get(process).copied().unwrap_or_default()
    }
}

type Row = (&'static str, fn(&Figures) -> f64);

/// The table's rows.
const ROWS: [Row; 23] = [
    ("makespan, s", |it| it.makespan),
    ("use, %", |it| it.use_percent),
    ("run, p50, s", |it| it.run_p50),
    ("run, p99, s", |it| it.run_p99),
    ("wait, p50, s", |it| it.wait_p50),
    ("wait, p99, s", |it| it.wait_p99),
    ("later wait, p50, s", |it| it.later_wait_p50),
    ("later wait, p99, s", |it| it.later_wait_p99),
    ("crowded", |it| it.crowded as f64),
    ("taken", |it| it.taken as f64),
    ("by foreign pods", |it| it.taken_by_foreign as f64),
    ("moves", |it| it.moves as f64),
    ("requests a run", |it| it.requests),
    ("of our services", |it| it.requests_of_ours),
    ("foreign wait, p50, s", |it| it.foreign_wait_p50),
    ("foreign wait, p99, s", |it| it.foreign_wait_p99),
    ("CPU, manager, ms", |it| it.cpu("placeholder-manager")),
    ("CPU, planner, ms", |it| it.cpu("affinity-planner")),
    ("CPU, webhook, ms", |it| it.cpu("admission-webhook")),
    ("CPU, watcher, ms", |it| it.cpu("watcher")),
    ("CPU, Tekton, ms", |it| it.cpu("tekton-controller")),
    ("CPU, API server, ms", |it| it.cpu("kube-apiserver")),
    ("CPU, scheduler, ms", |it| it.cpu("kube-scheduler")),
];

const LEGEND: &str = "\
disabled, built-in: Tekton without our services, without and with its affinity assistant. Others: our services with this value
  of placeholder-reserves. Without an assistant a run's pods use its volume on many nodes, which only the bed's volumes allow.
use: the share of the nodes' CPUs that tasks had during the makespan. If it is small and pods hardly waited, this machine was
  the limit, and not the room on the nodes: measure with a greater --task-seconds.
run: from the creation of a run until it is done. Each begins with a wait for room.
wait: how long the pod of a task was unschedulable; later wait: of the tasks behind the first one.
crowded: tasks of which a pod was unschedulable while its placeholder was bound, because the placeholder's node had no room.
taken: those of the crowded tasks whose room somebody else took: the pod, its run's other pods on the node and what the
  placeholder still held were together no more than the placeholder had reserved there when it was bound.
by foreign pods: those of the taken tasks that would have had room without the foreign pods, when it was first seen taken.
moves: times that a placeholder's pod was bound again.
requests a run: answered API requests about objects in the runs' namespace, watches left out.
CPU: the time of the process for each run, foreign pods included.";

/// The figures of all trials, by side.
#[derive(Debug, Default)]
pub(crate) struct Measured {
    sides: Vec<(String, Vec<Figures>)>,
}

impl Measured {
    pub(crate) fn push(&mut self, side: &str, figures: Figures) {
        match self.sides.iter_mut().find(|(name, _)| name == side) {
            Some((_, trials)) => trials.push(figures),
            None => self.sides.push((side.to_owned(), vec![figures])),
        }
    }

    /// A table with the median of each figure over the rounds. If there are several rounds, also with the shortest and the
    /// longest makespan.
    pub(crate) fn table(&self, options: &Options) -> String {
        let nodes = runs::nodes(options.runs);
        let mut table = format!(
            "\n{} runs at once on {nodes} nodes of {} CPUs, tasks of {} s, mode {}; {:.1} foreign pods of 1 CPU a second, {} s each;\n\
             {} build of the services; medians, where there is more than one round\n\n{:<22}",
            options.runs,
            runs::NODE_CPU,
            options.task_seconds,
            options.mode,
            foreign::rate(options),
            foreign::stay(options).as_secs(),
            options.build,
            "",
        );
        for (name, _) in &self.sides {
            let _ = write!(table, "{name:>14}");
        }
        for (label, figure) in ROWS {
            let _ = write!(table, "\n{label:<22}");
            for (_, trials) in &self.sides {
                let median = median(trials.iter().map(figure));
                let _ = write!(table, "{:>14}", (median * 10.0).round() / 10.0);
            }
        }
        if options.rounds > 1 {
            let _ = write!(table, "\n{:<22}", "makespan, least–most");
            for (_, trials) in &self.sides {
                let spans = || trials.iter().map(|it| it.makespan);
                let (least, most) = (
                    spans().fold(f64::MAX, f64::min),
                    spans().fold(0.0, f64::max),
                );
                let _ = write!(table, "{:>14}", format!("{least:.1}–{most:.1}"));
            }
        }
        let _ = write!(table, "\n\n{LEGEND}");
        table
    }

    /// Writes the options and the figures of each trial, as JSON.
    pub(crate) fn write(&self, options: &Options) -> anyhow::Result<()> {
        let file = &options.output;
        let sides: serde_json::Map<_, _> = self
            .sides
            .iter()
            .map(|(name, trials)| (name.clone(), json!(trials)))
            .collect();
        let text = serde_json::to_vec_pretty(&json!({"options": options, "sides": sides}))?;
        std::fs::write(file, text)
            .with_context(|| format!("failed to write {}", file.display()))?;
        println!("\nThe figures of each round are in {}", file.display());
        Ok(())
    }
}
