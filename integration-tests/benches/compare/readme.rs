//! The comparison in README.md: two tables, and the number of missed targets.

use std::fmt::Write as _;

use super::plan::{Options, Pace};
use super::report::{BOUND_P99, MAKESPAN, Measured, PLOTS, missed, ratio_cell, targets};
use super::sides::{DISABLED, built_in, ours, pods};

/// The comparison in README.md: two tables, and the number of missed targets.
pub(crate) fn tables(options: &Options, measured: &[Measured]) -> String {
    format!(
        "{}\n{}\n{}\n",
        first_load(options, measured),
        other_loads(options, measured),
        missed(&targets(options, measured))
    )
}

/// The ratios of other loads to the built-in assistant. A load with few runs is left out, because its slowest run is a matter of
/// luck.
fn other_loads(options: &Options, measured: &[Measured]) -> String {
    let mut table = String::from("| ratio to the built-in |");
    for mode in &options.modes {
        let _ = write!(table, " `{mode}` | `{mode}`, with pods |");
    }
    let _ = writeln!(table, "\n|---|{}", "---|---|".repeat(options.modes.len()));
    for load in measured.iter().skip(1).filter(|it| it.load.runs >= 15) {
        // At a rate, the makespan is mostly the time of the creations.
        let is_burst = load.load.pace == Pace::Burst;
        let rows = PLOTS.into_iter();
        let rows = rows.filter(|(row, ..)| *row == BOUND_P99 || (is_burst && *row == MAKESPAN));
        for (row, _, title) in rows {
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
