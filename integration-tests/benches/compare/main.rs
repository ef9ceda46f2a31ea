//! Measures the same runs with Tekton alone, with Tekton's own affinity assistant, and with our services: `cargo xtask bench
//! compare`. Writes a page, plots and a JSON file. Checks no figure: only a run that fails or hangs is an error.
#![allow(missing_docs, clippy::print_stdout)]

mod agreement;
mod figures;
mod losses;
mod plan;
mod plot;
mod readme;
mod report;
mod sides;
mod targets;
mod trial;
mod write;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use tokio::runtime::Runtime;

use self::plan::Options;
use self::report::Measured;

type Outcome = anyhow::Result<()>;

fn main() -> Outcome {
    let options = std::env::var("COSCHEDULER_BENCH");
    let options = options.context("start this with `cargo xtask bench compare`")?;
    let options: Options = serde_json::from_str(&options)?;
    let sides = options.sides()?;
    let loads = options.loads();
    let mut measured: Vec<_> = loads.iter().map(Measured::of).collect();
    let earlier = write::earlier(&options)?;
    let runtime = Runtime::new().context("failed to start a tokio runtime")?;
    let begin = Instant::now();
    let mut agreement = String::new();
    for round in 0.. {
        if !another(&options, round, begin.elapsed()) {
            break;
        }
        let mut order: Vec<_> = sides.iter().collect();
        if round % 2 == 1 {
            order.reverse();
        }
        let mut of_round = vec![BTreeMap::new(); measured.len()];
        for side in order {
            let since = Instant::now();
            let trial = runtime.block_on(trial::measure(side, &loads));
            let trial = trial.with_context(|| format!("round {}, {}", round + 1, side.name))?;
            for (of_load, figures) in of_round.iter_mut().zip(trial) {
                of_load.insert(side.name.clone(), figures);
            }
            let took = since.elapsed().as_secs();
            println!("round {}, {}: {took} s", round + 1, side.name);
        }
        for (load, sides) in measured.iter_mut().zip(of_round) {
            load.rounds.push(sides);
        }
        // An interrupted measurement keeps the rounds that are complete.
        agreement = agreement::text(&options, &earlier, &measured);
        write::all(&options, &measured, &agreement, begin.elapsed())?;
    }
    println!("\n{}", report::headlines(&options, &measured));
    println!("{agreement}");
    println!(
        "The page, the plots and the figures are in {}",
        options.folder.display()
    );
    println!(
        "\nThe tables for README.md, if the page is in docs:\n\n{}",
        readme::tables(&options, &measured)
    );
    Ok(())
}

/// True if another round begins after `rounds` rounds that took `elapsed` together. Without `--rounds`, there are as many rounds
/// as fit into `--minutes`, but at least two, because one round has no spread.
fn another(options: &Options, rounds: usize, elapsed: Duration) -> bool {
    let default = if options.quick { Some(1) } else { None };
    match options.rounds.or(default) {
        Some(wanted) => rounds < wanted,
        None => {
            let round = elapsed.checked_div(u32::try_from(rounds).unwrap_or(0));
            let end = elapsed + round.unwrap_or_default();
            rounds < 2 || end <= Duration::from_secs(60 * options.minutes)
        }
    }
}
