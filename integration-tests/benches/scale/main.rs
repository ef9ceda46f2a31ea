//! Measures the services beside many ended runs with their pods, nodes, pods of no run (foreign pods), and active runs: `cargo
//! xtask bench scale`. Measures two clusters, the second one twice as large as the first, so that growth shows.
//!
//! The benchmark writes the ended runs, their pods and the foreign pods directly into etcd, because the API server would need
//! many minutes.
#![allow(missing_docs, clippy::print_stdout)]

mod crowd;
mod measure;

use std::path::PathBuf;

use anyhow::{Context as _, ensure};
use integration_tests::stack::Stack;
use serde::{Deserialize, Serialize};
use serde_json::json;
use testbed::Config;
use testbed::services::ServicesConfig;
use tokio::runtime::Runtime;

use self::measure::{Figures, table};

type Outcome = anyhow::Result<()>;

/// The variable with the [`Options`], as JSON.
const OPTIONS: &str = "COSCHEDULER_BENCH";
/// The limits of the benchmark (N8): the memory of a service, and the time until a service is ready after its start.
const MOST_MEMORY_MIB: f64 = 150.0;
const LONGEST_START_SECONDS: f64 = 20.0;

/// The options of `cargo xtask bench scale`. `size` is the larger cluster.
#[derive(Debug, Deserialize, Serialize)]
struct Options {
    #[serde(flatten)]
    size: Size,
    /// The build of the services: `debug` or `release`.
    build: String,
    /// The path of the file for the figures.
    output: PathBuf,
}

/// The number of objects of each kind in one cluster.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
struct Size {
    ended_runs: usize,
    nodes: usize,
    foreign_pods: usize,
    active_runs: usize,
}

fn main() -> Outcome {
    let options = std::env::var(OPTIONS);
    let options = options.context("start this with `cargo xtask bench scale`")?;
    let options: Options = serde_json::from_str(&options)?;
    let whole = options.size;
    let half = Size {
        ended_runs: whole.ended_runs / 2,
        nodes: whole.nodes / 2,
        foreign_pods: whole.foreign_pods / 2,
        active_runs: whole.active_runs / 2,
    };
    let runtime = Runtime::new().context("failed to start a tokio runtime")?;
    let mut measured = Vec::new();
    for size in [half, whole] {
        let figures = runtime.block_on(Box::pin(trial(size)))?;
        println!("\n{}\n", table(std::slice::from_ref(&figures)));
        measured.push(figures);
    }
    println!(
        "\n{} build of the services\n\n{}",
        options.build,
        table(&measured)
    );
    let text = serde_json::to_vec_pretty(&json!({"options": options, "clusters": measured}))?;
    let file = &options.output;
    std::fs::write(file, text).with_context(|| format!("failed to write {}", file.display()))?;
    println!("\nThe figures are in {}", file.display());
    measured.iter().try_for_each(check)
}

async fn trial(size: Size) -> anyhow::Result<Figures> {
    let config = Config {
        nodes: size.nodes,
        ..Config::default()
    };
    // With so many objects and few processors, the API server may answer too late for the default times of the Leases.
    let patient = |services: &mut ServicesConfig| {
        let times = [
            ("LEADER_ELECT_LEASE_DURATION", "90s"),
            ("LEADER_ELECT_RENEW_DEADLINE", "60s"),
        ];
        let times = times.map(|(name, value)| (name.to_owned(), value.to_owned()));
        services.environment.extend(times);
    };
    let stack = Stack::boot(config, patient).await?;
    println!("a cluster of {} nodes is up", size.nodes);
    crowd::fill(&stack, size).await?;
    let figures = measure::measure(&stack, size).await?;
    let Stack { bed, services, .. } = stack;
    services.stop().await?;
    bed.stop().await?;
    Ok(figures)
}

fn check(figures: &Figures) -> Outcome {
    for (service, of) in &figures.services {
        let (memory, start) = (of.memory_mib, of.start_seconds);
        ensure!(memory <= MOST_MEMORY_MIB, "{service} has {memory:.0} MiB");
        ensure!(
            start <= LONGEST_START_SECONDS,
            "{service} is ready after {start:.1} s"
        );
    }
    Ok(())
}
