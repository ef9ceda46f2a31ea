//! The comparison in README.md: the ratios of the first load, those of the other loads, and how often the targets are met.

use std::fmt::Write as _;

use super::plan::{Options, Pace};
use super::report::{BOUND_P99, CPU, CREATE, MAKESPAN, Measured, PLOTS, REQUESTS, ratio_cell};
use super::sides::{DISABLED, built_in, ours, pods};
use super::targets::{self, FEWEST_RUNS};

/// The three tables.
pub(crate) fn tables(options: &Options, measured: &[Measured]) -> String {
    let tables = [
        first_load(options, measured),
        other_loads(options, measured),
        targets::summary(options, measured),
    ];
    tables.join("\n")
}

/// The ratios of other loads to the built-in assistant. The table has no p99 of loads with few runs, because it is a matter of
/// luck. It has no makespan of loads at a rate, because that is mostly the time of the creations.
fn other_loads(options: &Options, measured: &[Measured]) -> String {
    let mut table = String::from("| ratio to the built-in |");
    for mode in &options.modes {
        let _ = write!(table, " `{mode}` | `{mode}`, with pods |");
    }
    let _ = writeln!(table, "\n|---|{}", "---|---|".repeat(options.modes.len()));
    for load in measured.iter().skip(1) {
        let is_burst = load.load.pace == Pace::Burst;
        for (row, title) in [
            (MAKESPAN, "makespan"),
            (BOUND_P99, "first task pod bound, p99"),
            (CREATE, "time to create"),
            (REQUESTS, "API requests"),
            (CPU, "CPU of all processes"),
        ] {
            if (row == MAKESPAN && !is_burst) || (row == BOUND_P99 && load.load.runs < FEWEST_RUNS)
            {
                continue;
            }
            let _ = write!(table, "| {}: {title} |", load.load);
            for mode in &options.modes {
                for us in [ours(mode), pods(mode)] {
                    let ratio = load.ratio([&us, &built_in(mode)], row);
                    let _ = write!(table, " {} |", ratio_cell(ratio));
                }
            }
            table.push('\n');
        }
    }
    table
}

/// The most important ratios of the first load to `disabled`. At a rate, the makespan is mostly the time of the creations, so it
/// is left out.
fn first_load(options: &Options, measured: &[Measured]) -> String {
    let Some(load) = measured.first() else {
        return String::new();
    };
    let rows: Vec<_> = PLOTS
        .into_iter()
        .filter(|(row, _, _)| *row != MAKESPAN)
        .collect();
    let mut table = String::from("| |");
    for (_, _, title) in &rows {
        let _ = write!(table, " {title} |");
    }
    let _ = writeln!(table, "\n|---|{}", "---|".repeat(rows.len()));
    for mode in &options.modes {
        for (name, side) in [
            ("built-in", built_in(mode)),
            ("tekton-coscheduler", ours(mode)),
            ("tekton-coscheduler with pods", pods(mode)),
        ] {
            let _ = write!(table, "| {name}, `{mode}` |");
            for (row, _, _) in &rows {
                let _ = write!(
                    table,
                    " {} |",
                    ratio_cell(load.ratio([&side, DISABLED], row))
                );
            }
            table.push('\n');
        }
    }
    table
}
