//! Compares a measurement with the one before it, whose file it replaces.

use std::fmt::Write as _;

use super::figures::Spread;
use super::plan::Options;
use super::report::{CPU_OF_OURS, Measured, PLOTS, cell};
use super::sides::{DISABLED, built_in, ours, pods};

/// Compares these figures with those of an earlier measurement: the most important ratios to `disabled` and to the built-in
/// assistant, and the CPU of our services. Returns how many figures agree, and a line for each figure that does not. Two
/// figures agree if their spreads overlap. Two spreads of three rounds each do not overlap in a tenth of all cases, even if
/// nothing has changed. A load with only one round has no spread, so it is not compared.
pub(crate) fn text(
    options: &Options,
    (commit, earlier): &(String, Vec<Measured>),
    now: &[Measured],
) -> String {
    let (mut compared, mut agreed, mut lines) = (0, 0, String::new());
    for now in now {
        // The file has rounded rates, so the loads are compared as they are shown.
        let load = now.load.to_string();
        let mut same = earlier.iter().filter(|it| it.load.to_string() == load);
        let has_spread = |of: &&Measured| of.rounds.len() > 1;
        let Some((now, before)) = Some(now).filter(has_spread).zip(same.find(has_spread)) else {
            let _ = writeln!(lines, "- {load}: not compared");
            continue;
        };
        let modes = options.modes.iter();
        let pairs =
            modes.flat_map(|mode| figures(before, mode).into_iter().zip(figures(now, mode)));
        for ((title, old), (_, new)) in pairs {
            let Some((old, new)) = old.zip(new) else {
                continue;
            };
            compared += 1;
            if new.overlaps(old) {
                agreed += 1;
            } else {
                let (old, new) = (cell(Some(old)), cell(Some(new)));
                let _ = writeln!(lines, "- {load}, {title}: {old} before, {new} now");
            }
        }
    }
    if compared == 0 {
        return "Not compared: each load was measured in only one round, or not measured before.\n"
            .to_owned();
    }
    format!(
        "The spreads of {agreed} of {compared} figures overlap with those of the measurement before (commit {commit}): ratios, and \
         the CPU of our services. The others (compared before rounding):\n\n{lines}"
    )
}

/// The compared figures in one mode, with their titles.
fn figures(of: &Measured, mode: &str) -> Vec<(String, Option<Spread>)> {
    let (us, pods, them) = (ours(mode), pods(mode), built_in(mode));
    let mut figures = Vec::new();
    for [one, other] in [
        [&*us, DISABLED],
        [&*pods, DISABLED],
        [&*them, DISABLED],
        [&*us, &*them],
        [&*pods, &*them],
    ] {
        let ratio = |row| of.ratio([one, other], row);
        figures
            .extend(PLOTS.map(|(row, _, title)| (format!("{title}, {one} ÷ {other}"), ratio(row))));
    }
    let cpu = |side: &str| {
        (
            format!("{CPU_OF_OURS}, {side}"),
            of.figure(side, CPU_OF_OURS),
        )
    };
    figures.extend([cpu(&us), cpu(&pods)]);
    figures
}
