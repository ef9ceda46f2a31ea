//! The runs: one task, then two or three parallel tasks, then a last task. The tasks of a run share a claim that every node can
//! reach.

use integration_tests::runs::{Run, run};
use testbed::MOVABLE_STORAGE_CLASS;

/// CPUs of a node. A node has room for three runs at their peak, with their placeholders.
pub(crate) const NODE_CPU: u32 = 8;
/// The number of runs for each node. So the nodes have room for a third of the runs at a time.
const RUNS_PER_NODE: usize = 9;

/// The number of nodes for this many runs.
pub(crate) fn nodes(runs: usize) -> usize {
    (runs + RUNS_PER_NODE / 2) / RUNS_PER_NODE
}

/// A task: its name, its CPU in thousandths, and its length in seconds.
type Task = (&'static str, u32, u32);

/// The tasks of run `number`. Each takes between half of `seconds` and one and a half times `seconds`. The times are the same in
/// each trial.
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

/// Run `number`, with a mean task time of `seconds`.
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

/// The share of the nodes' CPU time during `makespan` (in seconds) that the tasks of all runs use, in percent. `seconds` is the
/// mean time of a task.
pub(crate) fn use_percent(runs: usize, seconds: u32, makespan: f64) -> f64 {
    let tasks = (0..runs).flat_map(|number| tasks(number, seconds));
    let used: f64 = tasks
        .map(|(_, cpu, length)| f64::from(cpu) / 1000.0 * f64::from(length))
        .sum();
    let room = nodes(runs) as f64 * f64::from(NODE_CPU) * makespan;
    100.0 * used / room
}
