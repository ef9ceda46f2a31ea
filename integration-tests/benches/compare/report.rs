//! The page with the figures of all rounds: targets, ratios and tables. Every ratio is shown, whether it is good or bad.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::figures::{Figures, Spread};
use super::losses;
use super::plan::{Load, Options};
use super::plot;
use super::sides::{DISABLED, built_in, ours, pods};
use super::targets;

/// The figures of a load: for each round, those of each side.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Measured {
    pub(crate) load: Load,
    pub(crate) rounds: Vec<BTreeMap<String, Figures>>,
}

impl Measured {
    /// A load without rounds.
    pub(crate) fn of(load: &Load) -> Self {
        Self {
            load: *load,
            rounds: Vec::new(),
        }
    }

    /// A value that `value` computes from the figures of all sides, in each round. A round without this value is left out.
    pub(crate) fn each(
        &self,
        value: impl Fn(&BTreeMap<String, Figures>) -> Option<f64>,
    ) -> Option<Spread> {
        let values = self.rounds.iter().filter_map(value);
        Spread::of(&values.filter(|value| value.is_finite()).collect::<Vec<_>>())
    }

    /// A value that `value` computes from the figures of two sides, in each round. A round in which a side lacks a figure is left
    /// out.
    fn paired(
        &self,
        [one, other]: [&str; 2],
        value: impl Fn(&Figures, &Figures) -> Option<f64>,
    ) -> Option<Spread> {
        self.each(|sides| value(sides.get(one)?, sides.get(other)?))
    }

    pub(crate) fn figure(&self, side: &str, row: &str) -> Option<Spread> {
        self.paired([side, side], |figures, _| figures.row(row))
    }

    pub(crate) fn ratio(&self, sides: [&str; 2], row: &str) -> Option<Spread> {
        self.paired(sides, |one, other| Some(one.row(row)? / other.row(row)?))
    }

    /// How much more the first side needs than the second one.
    pub(crate) fn difference(&self, sides: [&str; 2], row: &str) -> Option<Spread> {
        self.paired(sides, |one, other| Some(one.row(row)? - other.row(row)?))
    }

    /// The names of the rows of any side.
    pub(crate) fn rows(&self, sides: &[&str]) -> Vec<String> {
        let mut rows = Vec::new();
        for figures in self
            .rounds
            .iter()
            .flat_map(|round| sides.iter().filter_map(|side| round.get(*side)))
        {
            for (row, _) in figures.rows() {
                if !rows.contains(&row) {
                    rows.push(row);
                }
            }
        }
        rows
    }
}

/// The part of the page that the benchmark writes. `agreement` compares the figures with those of the measurement before. `took`
/// is the time of all rounds.
pub(crate) fn page(
    options: &Options,
    machine: &str,
    measured: &[Measured],
    agreement: &str,
    took: Duration,
) -> String {
    let rounds = measured.first().map_or(0, |load| load.rounds.len());
    let mut page = format!(
        "{machine}; {} build of tekton-coscheduler {} (commit {}); {rounds} rounds in {} minutes. To repeat this measurement:\n\n    \
         {}\n\n## Targets\n\n{}\n## Where we lose to the built-in\n\n{LOSSES}\n\n{}\n## Agreement\n\n{agreement}\n## Ratios\n\n{}",
        options.build,
        options.version,
        options.commit,
        took.as_secs().div_ceil(60),
        options.command,
        targets::page(options, measured),
        losses::table(options, measured),
        headlines(options, measured),
    );
    for (_, file, title) in PLOTS {
        let _ = write!(page, "![{title}](pictures/compare-{file}.svg)\n\n");
    }
    page.push_str("## All figures\n");
    for load in measured {
        let _ = write!(page, "\n### {}\n", capital(&load.load.to_string()));
        for mode in &options.modes {
            let _ = write!(page, "\nMode `{mode}`:\n\n{}", figures(load, mode));
        }
        let _ = write!(page, "\n{}", requests(options, load));
    }
    page
}

const LOSSES: &str = "Each cell has: the number of loads in which our median over the rounds is higher than the built-in's; in \
                      parentheses, the number of loads in which we were higher in every round; and the greatest of the median \
                      ratios.";

pub(crate) const MAKESPAN: &str = "makespan, s";
pub(crate) const BOUND_P99: &str = "creation → first pod bound, p99, s";
pub(crate) const DONE: &str = "creation → completion, p50, s";
pub(crate) const CREATE: &str = "time to create, p50, ms";
pub(crate) const REQUESTS: &str = "API requests a run";
pub(crate) const CPU: &str = "CPU a run, all processes, ms";
pub(crate) const CPU_OF_OURS: &str = "CPU a run, our services, ms";

/// The plotted rows: each with the name of its file, and its title.
pub(crate) const PLOTS: [(&str, &str, &str); 5] = [
    (MAKESPAN, "makespan", "Makespan"),
    (BOUND_P99, "bound", "Creation → first task pod bound, p99"),
    (DONE, "completion", "Creation → completion, p50"),
    (REQUESTS, "requests", "API requests a run"),
    (CPU, "cpu", "CPU a run, all processes"),
];

/// The plots, by the names of their files.
pub(crate) fn plots(options: &Options, measured: &[Measured]) -> Vec<(String, String)> {
    let plot = |(row, file, title): (&str, &str, &str)| {
        let of_mode = |load: &Measured, mode: &String| {
            let sides = [built_in(mode), ours(mode), pods(mode)];
            let ratios = sides.map(|side| load.ratio([&side, DISABLED], row));
            (format!("{}, {mode}", load.load), ratios)
        };
        let rows = measured
            .iter()
            .flat_map(|load| options.modes.iter().map(move |mode| of_mode(load, mode)));
        let rows: Vec<_> = rows.collect();
        (
            format!("compare-{file}.svg"),
            plot::of(&format!("{title}, ratio to Tekton alone"), &rows),
        )
    };
    PLOTS.map(plot).into()
}

/// The most important ratios of every load.
pub(crate) fn headlines(options: &Options, measured: &[Measured]) -> String {
    let mut table = String::from("| load | mode | sides |");
    for (_, _, title) in PLOTS {
        let _ = write!(table, " {title} |");
    }
    let _ = writeln!(table, "\n|---|---|---|{}", "---|".repeat(PLOTS.len()));
    for load in measured {
        for mode in &options.modes {
            let (us, pods, them) = (ours(mode), pods(mode), built_in(mode));
            for (sides, name) in [
                ([&*us, DISABLED], "ours ÷ disabled"),
                ([&*pods, DISABLED], "ours (pods) ÷ disabled"),
                ([&*us, &*them], "ours ÷ built-in"),
                ([&*pods, &*them], "ours (pods) ÷ built-in"),
                ([&*them, DISABLED], "built-in ÷ disabled"),
            ] {
                let _ = write!(table, "| {} | `{mode}` | {name} |", load.load);
                for (row, _, _) in PLOTS {
                    let _ = write!(table, " {} |", ratio_cell(load.ratio(sides, row)));
                }
                table.push('\n');
            }
        }
    }
    table + "\n"
}

/// All figures of a load in one mode.
fn figures(load: &Measured, mode: &str) -> String {
    let (us, pods, them) = (ours(mode), pods(mode), built_in(mode));
    let mut table = String::from(
        "| figure | disabled | built-in | ours | ours (pods) | built-in ÷ disabled | ours ÷ disabled | ours (pods) ÷ disabled | \
         ours ÷ built-in | ours (pods) ÷ built-in |\n|---|---|---|---|---|---|---|---|---|---|\n",
    );
    for row in load.rows(&[&us, &pods, &them, DISABLED]) {
        let _ = write!(table, "| {row} |");
        for side in [DISABLED, &them, &us, &pods] {
            let _ = write!(table, " {} |", cell(load.figure(side, &row)));
        }
        for sides in [
            [&*them, DISABLED],
            [&*us, DISABLED],
            [&*pods, DISABLED],
            [&*us, &*them],
            [&*pods, &*them],
        ] {
            let _ = write!(table, " {} |", ratio_cell(load.ratio(sides, &row)));
        }
        table.push('\n');
    }
    table
}

/// The requests to the API server by client and verb. Each figure is the median over the rounds.
fn requests(options: &Options, load: &Measured) -> String {
    let mut sides = vec![DISABLED.to_owned()];
    for mode in &options.modes {
        sides.extend([built_in(mode), ours(mode), pods(mode)]);
    }
    let mut table = format!(
        "<details><summary>API requests a run, by client and verb (medians)</summary>\n\n| client | verb | {} |\n|---|---|{}\n",
        sides.join(" | "),
        "---|".repeat(sides.len())
    );
    let all = load.rounds.iter().flat_map(BTreeMap::values);
    let keys: BTreeSet<(&str, &str)> = all
        .flat_map(|figures| &figures.requests)
        .flat_map(|(client, verbs)| verbs.keys().map(|verb| (client.as_str(), verb.as_str())))
        .collect();
    for (client, verb) in keys {
        let _ = write!(table, "| {client} | {verb} |");
        for side in &sides {
            let count = load.paired([side, side], |figures, _| {
                let verbs = figures.requests.get(client);
                Some(
                    verbs
                        .and_then(|verbs| verbs.get(verb))
                        .copied()
                        .unwrap_or_default(),
                )
            });
            let count = count.map_or(NONE.to_owned(), |count| number(count.median));
            let _ = write!(table, " {count} |");
        }
        table.push('\n');
    }
    table + "\n</details>\n"
}

/// A cell without a figure.
pub(crate) const NONE: &str = "–";

pub(crate) fn cell(spread: Option<Spread>) -> String {
    with_spread(spread, "–", number)
}

pub(crate) fn ratio_cell(spread: Option<Spread>) -> String {
    with_spread(spread, "–", |ratio| format!("{ratio:.2}"))
}

/// A difference, with its sign.
pub(crate) fn signed(spread: Option<Spread>) -> String {
    with_spread(spread, " to ", |figure| format!("{figure:+.2}"))
}

/// The median, and in parentheses the least and the greatest value, unless they are equal.
fn with_spread(spread: Option<Spread>, to: &str, number: impl Fn(f64) -> String) -> String {
    let Some(spread) = spread else {
        return NONE.to_owned();
    };
    let (median, least, most) = (
        number(spread.median),
        number(spread.least),
        number(spread.most),
    );
    if least == most {
        return median;
    }
    format!("{median} ({least}{to}{most})")
}

/// A figure with about three digits.
fn number(figure: f64) -> String {
    let digits = match figure.abs() {
        size if size >= 100.0 => 0,
        size if size >= 10.0 => 1,
        _ => 2,
    };
    format!("{figure:.digits$}")
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|first| first.to_uppercase().to_string());
    first.unwrap_or_default() + letters.as_str()
}
