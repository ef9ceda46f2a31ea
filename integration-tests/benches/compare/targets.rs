//! The targets of the project, with the figures beside them.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::figures::{Figures, Spread};
use super::plan::{Options, Pace};
use super::report::{
    BOUND_P99, CPU_OF_OURS, DONE, MAKESPAN, Measured, NONE, REQUESTS, cell, signed,
};
use super::sides::{DISABLED, KINDS, Kind, built_in};

/// A load with fewer runs than this gets no verdict on p99, because its p99 is a matter of luck.
pub(crate) const FEWEST_RUNS: usize = 15;

const TARGETS: [&str; 4] = [
    "time over `disabled`: at most half of what the built-in adds",
    "API requests over `disabled`: ≤ +14 in `workspaces`, ≤ +21 in other modes",
    "first pod bound, p99, ratio to `disabled`: ≤ 1.15",
    "CPU a run of our services: ≤ 12 ms",
];

/// Whether a load meets a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// In each round.
    Met,
    /// In no round.
    Missed,
    /// In some rounds.
    Undecided,
    /// The target is not for this load.
    None,
}

impl Verdict {
    /// A figure that is equal to the limit meets the target.
    fn of(figure: Spread, limit: f64) -> Self {
        if figure.most <= limit {
            Self::Met
        } else if figure.least > limit {
            Self::Missed
        } else {
            Self::Undecided
        }
    }

    fn text(self) -> &'static str {
        match self {
            Self::Met => "met",
            Self::Missed => "**missed**",
            Self::Undecided => "undecided",
            Self::None => "no verdict",
        }
    }
}

/// Two tables: how often each target is met, and the figures of each load.
pub(crate) fn page(options: &Options, measured: &[Measured]) -> String {
    let mut table = format!(
        "| load | mode | placeholders | {} |\n|---|---|---|---|---|---|---|\n",
        TARGETS.join(" | ")
    );
    for (load, mode, (kind, side)) in cases(options, measured) {
        let cells = judge(load, mode, &side(mode)).map(|judged| match judged {
            Some((verdict, figures)) => format!("{}: {figures}", verdict.text()),
            None => NONE.to_owned(),
        });
        let _ = writeln!(
            table,
            "| {} | `{mode}` | {kind} | {} |",
            load.load,
            cells.join(" | ")
        );
    }
    format!("{}\n{table}", summary(options, measured))
}

/// For each target and each kind of placeholder, the number of loads and modes that meet it.
pub(crate) fn summary(options: &Options, measured: &[Measured]) -> String {
    let mut table = String::from("| target |");
    for (kind, _) in KINDS {
        let _ = write!(table, " with {kind} |");
    }
    table.push_str("\n|---|---|---|\n");
    let verdicts = KINDS.map(|(kind, _)| {
        let of_kind = cases(options, measured).filter(|(_, _, (name, _))| *name == kind);
        let judged = of_kind.map(|(load, mode, (_, side))| judge(load, mode, &side(mode)));
        judged.collect::<Vec<_>>()
    });
    for (index, target) in TARGETS.iter().enumerate() {
        let _ = write!(table, "| {target} |");
        for of_kind in &verdicts {
            let count = |wanted| {
                let of_target = of_kind.iter().filter_map(|judged| judged[index].as_ref());
                of_target.filter(|(verdict, _)| *verdict == wanted).count()
            };
            let [met, undecided, missed] =
                [Verdict::Met, Verdict::Undecided, Verdict::Missed].map(count);
            let _ = write!(
                table,
                " {met} met, {undecided} undecided, {missed} missed |"
            );
        }
        table.push('\n');
    }
    table
}

/// Each load in each mode with each kind of placeholder.
fn cases<'a>(
    options: &'a Options,
    measured: &'a [Measured],
) -> impl Iterator<Item = (&'a Measured, &'a str, Kind)> {
    let of_load =
        move |load: &'a Measured| options.modes.iter().map(move |mode| (load, mode.as_str()));
    let in_modes = measured.iter().flat_map(of_load);
    in_modes.flat_map(|(load, mode)| KINDS.map(|kind| (load, mode, kind)))
}

/// The verdict about each of [`TARGETS`], and the figures for it.
fn judge(load: &Measured, mode: &str, us: &str) -> [Option<(Verdict, String)>; 4] {
    let them = built_in(mode);
    let both = |row, unit: &str| {
        let [ours, theirs] = [us, &them].map(|side| signed(load.difference([side, DISABLED], row)));
        format!("ours {ours}{unit}, built-in {theirs}{unit}")
    };
    // At a rate, the makespan is mostly the time of the creations.
    let row = match load.load.pace {
        Pace::Burst => MAKESPAN,
        Pace::Alone | Pace::Rate(_) => DONE,
    };
    let too_long = load.each(|sides: &BTreeMap<String, Figures>| {
        let time = |side: &str| sides.get(side)?.row(row);
        let disabled = time(DISABLED)?;
        let theirs = time(&them)? - disabled;
        // If the built-in is faster than `disabled`, we must be as fast as the built-in.
        let limit = if theirs > 0.0 { theirs / 2.0 } else { theirs };
        Some(time(us)? - disabled - limit)
    });
    let time = too_long.map(|seconds| (Verdict::of(seconds, 0.0), both(row, " s")));
    let limit = if mode == "workspaces" { 14.0 } else { 21.0 };
    let requests = load.difference([us, DISABLED], REQUESTS);
    let requests = requests.map(|added| (Verdict::of(added, limit), both(REQUESTS, "")));
    let bound = load.ratio([us, DISABLED], BOUND_P99);
    let bound = bound.map(|ratio| match load.load.runs >= FEWEST_RUNS {
        true => (Verdict::of(ratio, 1.15), cell(Some(ratio))),
        false => (Verdict::None, cell(Some(ratio))),
    });
    let cpu = load.figure(us, CPU_OF_OURS);
    let cpu = cpu.map(|cpu| (Verdict::of(cpu, 12.0), cell(Some(cpu))));
    [time, requests, bound, cpu]
}
