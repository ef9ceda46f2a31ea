//! The figures in which our services need more than Tekton's own affinity assistant.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::plan::Options;
use super::report::{Measured, NONE};
use super::sides::{DISABLED, KINDS, built_in};

/// This figure says how busy the machine was. Less is not better.
const CORES: &str = "cores in use";

/// A smaller difference is an error of floating point numbers.
const NOTHING: f64 = 1e-6;

/// For each figure, mode and kind of placeholder: the number of loads in which we needed more than the built-in by the median
/// difference, the number of these loads in which we needed more in every round, and the greatest median ratio of these loads.
/// Figures without such a load are left out.
pub(crate) fn table(options: &Options, measured: &[Measured]) -> String {
    let mut table = String::from("| figure |");
    let mut sides = Vec::new();
    for mode in &options.modes {
        for (kind, us) in KINDS {
            let _ = write!(table, " `{mode}`, {kind} |");
            sides.push([us(mode), built_in(mode)]);
        }
    }
    let _ = writeln!(table, "\n|---|{}", "---|".repeat(sides.len()));
    let mut seen = BTreeSet::from([CORES.to_owned()]);
    for row in measured.iter().flat_map(|load| load.rows(&[DISABLED])) {
        if !seen.insert(row.clone()) {
            continue;
        }
        let cells: Vec<_> = sides
            .iter()
            .map(|[us, them]| cell(measured, [us, them], &row))
            .collect();
        if cells.iter().any(|cell| cell != NONE) {
            let _ = writeln!(table, "| {row} | {} |", cells.join(" | "));
        }
    }
    table
}

fn cell(measured: &[Measured], sides: [&str; 2], row: &str) -> String {
    let compared = measured
        .iter()
        .filter_map(|load| Some((load, load.difference(sides, row)?)));
    let (lost, won): (Vec<_>, Vec<_>) = compared.partition(|(_, more)| more.median > NOTHING);
    if lost.is_empty() {
        return NONE.to_owned();
    }
    let always = lost.iter().filter(|(_, more)| more.least > NOTHING).count();
    let ratios = lost.iter().filter_map(|(load, _)| load.ratio(sides, row));
    let worst = ratios.map(|ratio| ratio.median).reduce(f64::max);
    // There is no ratio if the built-in needs nothing.
    let worst = worst.map_or(String::new(), |ratio| format!(", up to {ratio:.2}"));
    let loads = lost.len() + won.len();
    format!("{} of {loads} ({always}){worst}", lost.len())
}
