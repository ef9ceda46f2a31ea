//! Compares a measurement with the one before it, whose file it replaces.

use std::fmt::Write as _;

use super::plan::Options;
use super::report::{Measured, PLOTS, ratio_cell};
use super::sides::{DISABLED, built_in, ours, pods};

/// How many of the most important ratios to `disabled` agree with those of an earlier measurement, and a line for each other
/// one. Two ratios agree if their spreads overlap. Two spreads of three rounds each do not overlap in a tenth of all cases, even if
/// nothing has changed. Loads with only one round, which have no spread, are left out.
pub(crate) fn text(options: &Options, earlier: &[Measured], now: &[Measured]) -> String {
    let (mut compared, mut agreed, mut others) = (0, 0, String::new());
    let has_spread = |of: &&Measured| of.rounds.len() > 1;
    for now in now.iter().filter(has_spread) {
        // The file has rounded rates, so the loads are compared as they are shown.
        let load = now.load.to_string();
        let mut same = earlier.iter().filter(|it| it.load.to_string() == load);
        let Some(before) = same.find(has_spread) else {
            continue;
        };
        let sides = options
            .modes
            .iter()
            .flat_map(|mode| [built_in(mode), ours(mode), pods(mode)]);
        for (side, (row, _, title)) in sides.flat_map(|side| PLOTS.map(|plot| (side.clone(), plot)))
        {
            let of = |measured: &Measured| measured.ratio([&side, DISABLED], row);
            let (Some(new), Some(old)) = (of(now), of(before)) else {
                continue;
            };
            compared += 1;
            if new.overlaps(old) {
                agreed += 1;
            } else {
                let (old, new) = (ratio_cell(Some(old)), ratio_cell(Some(new)));
                let _ = writeln!(
                    others,
                    "- {}, {side}, {title}: {old} before, {new} now",
                    now.load
                );
            }
        }
    }
    match compared {
        0 => "There is no earlier measurement of these loads.\n".to_owned(),
        _ => format!(
            "The spreads of {agreed} of {compared} ratios to `{DISABLED}` overlap with those of the measurement before. \
             The others:\n{others}"
        ),
    }
}
