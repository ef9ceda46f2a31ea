//! The runs: one task, two or three tasks in parallel behind it, and a last one. They share a claim that can follow.

use integration_tests::runs::{Run, run};
use testbed::MOVABLE_STORAGE_CLASS;

/// CPUs of a node. It has room for three runs at their peak, placeholders included.
pub(crate) const NODE_CPU: u32 = 8;
/// Runs for each node: the nodes have room for a third of them at a time.
const RUNS_PER_NODE: usize = 9;

/// The nodes for so many runs.
pub(crate) fn nodes(runs: usize) -> usize {
    (runs + RUNS_PER_NODE / 2) / RUNS_PER_NODE
}

/// A task: its name, its CPU in thousandths, and its length in seconds.
type Task = (&'static str, u32, u32);

/// The tasks of a run, which take between half and one and a half of `seconds`, the same in each trial.
fn tasks(number: usize, seconds: u32) -> Vec<Task> {
    let parallel: &[Task] = match number % 2 {
        0 => &[("two", 1300, 0), ("three", 1300, 0)],
        _ => &[("two", 850, 0), ("three", 850, 0), ("four", 850, 0)],
    };
    let mut tasks = [&[("one", 1000, 0)], parallel, &[("last", 1000, 0)]].concat();
    let mut random = fastrand::Rng::with_seed(number as u64);
    for (_, _, length) in &mut tasks {
        *length = random.u32(seconds / 2..=seconds * 3 / 2).max(1);
    }
    tasks
}

/// A run.
pub(crate) fn numbered(number: usize, seconds: u32) -> Run {
    let tasks = tasks(number, seconds);
    let names: Vec<_> = tasks.iter().map(|(name, _, _)| *name).collect();
    let all = run(&format!("run-{number}")).template_of_class("source", MOVABLE_STORAGE_CLASS);
    let add = |run: Run, (name, cpu, length): &Task| {
        let after = match *name {
            "one" => &[][..],
            "last" => &names[1..names.len() - 1],
            _ => &["one"],
        };
        run.task(name, &["source"], after)
            .asking(&format!("{cpu}m"))
            .lasting(name, *length)
    };
    tasks.iter().fold(all, add)
}

/// The share of the nodes' CPUs that the runs' tasks have for so long, in percent, if all runs take these seconds.
pub(crate) fn use_percent(runs: usize, seconds: u32, makespan: f64) -> f64 {
    let tasks = (0..runs).flat_map(|number| tasks(number, seconds));
    let used: f64 = tasks
        .map(|(_, cpu, length)| f64::from(cpu) / 1000.0 * f64::from(length))
        .sum();
    let room = nodes(runs) as f64 * f64::from(NODE_CPU) * makespan;
    100.0 * used / room
}
