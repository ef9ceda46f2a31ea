//! Measures a cluster that has room for a third of its runs, while pods of no run (foreign pods) compete for this room: `cargo
//! xtask bench saturated`. Measures the same runs with Tekton alone, with Tekton's own affinity assistant, and with our services
//! for each value of `placeholder-reserves`. Prints figures and checks none of them: only a run that fails or hangs is an error.
#![allow(missing_docs, clippy::print_stdout)]

mod foreign;
mod report;
mod runs;
mod trial;

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::Context as _;
use coscheduler_core::config::{self, PLACEHOLDER_RESERVES};
use integration_tests::sides::Side;
use serde::{Deserialize, Serialize};
use tokio::runtime::Runtime;

use self::report::Measured;

type Outcome = anyhow::Result<()>;

/// The environment variable with the [`Options`], as JSON.
const OPTIONS: &str = "COSCHEDULER_BENCH";

/// The options of `cargo xtask bench saturated`.
#[derive(Debug, Deserialize, Serialize)]
struct Options {
    /// The number of runs of one trial, all created at once.
    runs: usize,
    /// The number of trials of each side.
    rounds: usize,
    /// The mode of our services, and Tekton's flag for its assistant.
    mode: String,
    /// The values of `placeholder-reserves`.
    reserves: Vec<String>,
    /// True if Tekton without our services is measured too.
    tekton: bool,
    /// The mean time of a task, in seconds.
    task_seconds: u32,
    /// The share of the cluster's CPUs that foreign pods request on average, in percent.
    foreign_percent: u32,
    /// The longest time that a trial may take, in seconds.
    limit_seconds: u64,
    /// The build of the services: `debug` or `release`.
    build: String,
    /// The path of the file for the figures.
    output: PathBuf,
}

impl Options {
    fn read() -> anyhow::Result<Self> {
        let text = std::env::var(OPTIONS);
        let text = text.context("start this with `cargo xtask bench saturated`")?;
        serde_json::from_str(&text).with_context(|| format!("failed to read {OPTIONS}"))
    }

    /// The sides, each with its name.
    fn sides(&self) -> anyhow::Result<Vec<(String, Side)>> {
        let mut sides = Vec::new();
        if self.tekton {
            for (name, flag) in [("disabled", "disabled"), ("built-in", &*self.mode)] {
                sides.push((name.to_owned(), Side::Tekton(flag.to_owned())));
            }
        }
        for reserves in &self.reserves {
            let flags = BTreeMap::from([
                ("coschedule".to_owned(), self.mode.clone()),
                (PLACEHOLDER_RESERVES.to_owned(), reserves.clone()),
            ]);
            // Check the flags now, before minutes are spent on the other sides.
            if let Err(violations) = config::check(&flags) {
                let violations = violations.iter().map(ToString::to_string);
                anyhow::bail!("{}", violations.collect::<Vec<_>>().join("; "));
            }
            sides.push((reserves.clone(), Side::Ours(flags.into_iter().collect())));
        }
        Ok(sides)
    }
}

fn main() -> Outcome {
    let options = Options::read()?;
    let sides = options.sides()?;
    let mut measured = Measured::default();
    let runtime = Runtime::new().context("failed to start a tokio runtime")?;
    for round in 1..=options.rounds {
        let mut order: Vec<_> = sides.iter().collect();
        if round % 2 == 0 {
            order.reverse();
        }
        for (name, side) in order {
            let trial = trial::measure(side, &options);
            let figures = runtime
                .block_on(trial)
                .with_context(|| format!("round {round}, {name}"))?;
            println!("round {round}, {name}: {:.1} s", figures.makespan);
            measured.push(name, figures);
        }
    }
    println!("{}", measured.table(&options));
    measured.write(&options)
}
