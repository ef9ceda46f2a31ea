//! `cargo xtask bench`: measures three things. How long does `core` take to admit and to plan a run? How much time does
//! admission add to the creation of a PipelineRun? How do our services, and Tekton's own affinity assistant, react when a node
//! is lost or full? The command prints the figures and checks none of them, because they depend on the machine and its load.
//! Modules `compare`, `saturated` and `scale` start other benchmarks.

mod compare;
mod figures;
mod saturated;
mod scale;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use kube::api::{DynamicObject, PostParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};
use testbed::services::ServicesConfig;
use testbed::{Config, TestBed};
use tokio::process::Command;
use tokio::time::Instant;

use self::figures::Pairs;
use crate::args::{BenchArgs, BenchCommand};
use crate::demo::example;
use crate::interrupt::Interrupt;
use crate::workspace::Workspace;
use crate::{bed, binaries, foreground, services};

/// A namespace for which the API server calls our webhook.
const ASKED: &str = "default";
/// A namespace that the webhook configuration in `deploy/base` exempts.
const NOT_ASKED: &str = "kube-system";
/// The annotation that the webhook sets on a run.
const MODE: &str = "coscheduler.dev/mode";
/// The number of pairs at the beginning that are not counted, because connections and caches are still cold.
const WARM_UP: usize = 20;

pub(crate) async fn run(
    workspace: &Workspace,
    args: BenchArgs,
    interrupt: &mut Interrupt,
) -> anyhow::Result<()> {
    let BenchArgs {
        command,
        pairs,
        release,
        skip_planning,
        skip_built_in,
    } = args;
    match command {
        Some(BenchCommand::Compare(args)) => return compare::run(workspace, args, interrupt).await,
        Some(BenchCommand::Saturated(args)) => {
            return saturated::run(workspace, args, interrupt).await;
        }
        Some(BenchCommand::Scale(args)) => return scale::run(workspace, &args, interrupt).await,
        None => {}
    }
    if !skip_planning {
        interrupt.or(planning(workspace)).await?;
    }
    let bin_dir = interrupt.or(services_of(workspace, release)).await?;
    let bed = interrupt.or(bed::boot(Config::default())).await?;
    let measured = admission(workspace, &bed, bin_dir.clone(), pairs, interrupt).await;
    let stopped = bed.stop().await;
    let measured = measured?;
    println!(
        "{}",
        measured.report(if release { "release" } else { "debug" })
    );
    stopped?;
    if !skip_built_in {
        interrupt.or(built_in(workspace, &bin_dir)).await?;
    }
    Ok(())
}

/// Builds the services. Returns their folder.
async fn services_of(workspace: &Workspace, release: bool) -> anyhow::Result<PathBuf> {
    match release {
        true => binaries::optimised_services(workspace).await,
        false => binaries::tested_services(workspace).await,
    }
}

/// Runs the benchmark of `core`: admission and planning with 1, 10 and 100 workspaces.
async fn planning(workspace: &Workspace) -> anyhow::Result<()> {
    let mut cargo = workspace.cargo();
    cargo.args(["bench", "--locked", "--package", "coscheduler-core"]);
    finish(cargo, "coscheduler-core").await
}

/// Runs the benchmark of `integration-tests` that measures how our services and Tekton's own affinity assistant react when a node
/// is lost or full.
async fn built_in(workspace: &Workspace, bin_dir: &Path) -> anyhow::Result<()> {
    let bench = of_integration_tests(workspace, "built_in", bin_dir);
    finish(bench, "integration-tests").await
}

/// The command that runs a benchmark of `integration-tests`. A benchmark mostly waits, so it is built with the profile of the
/// tests.
fn of_integration_tests(workspace: &Workspace, name: &str, bin_dir: &Path) -> Command {
    let mut cargo = workspace.cargo();
    cargo
        .args(["bench", "--locked", "--workspace"])
        .args(["--profile", "test", "--bench", name])
        .env("COSCHEDULER_BIN_DIR", bin_dir)
        // The error of a benchmark says what it waited for. A backtrace would only add frames of the async runtime.
        .env("RUST_BACKTRACE", "0");
    cargo
}

/// Runs a benchmark of `integration-tests` that reads `options`. The benchmark writes its figures to `target/bench-NAME.json`,
/// unless the options name a folder.
async fn with_options(
    workspace: &Workspace,
    name: &str,
    release: bool,
    mut options: Value,
    interrupt: &mut Interrupt,
) -> anyhow::Result<()> {
    let bin_dir = interrupt.or(services_of(workspace, release)).await?;
    interrupt.or(binaries::control_plane()).await?;
    options["build"] = json!(if release { "release" } else { "debug" });
    options["output"] = json!(workspace.target.join(format!("bench-{name}.json")));
    let mut bench = of_integration_tests(workspace, name, &bin_dir);
    bench.env("COSCHEDULER_BENCH", options.to_string());
    interrupt.or(finish(bench, "integration-tests")).await
}

async fn finish(mut cargo: Command, package: &str) -> anyhow::Result<()> {
    let status = foreground::run(&mut cargo).await?;
    if !status.success() {
        bail!("the benchmark of {package} failed ({status})");
    }
    Ok(())
}

async fn admission(
    workspace: &Workspace,
    bed: &TestBed,
    bin_dir: PathBuf,
    pairs: usize,
    interrupt: &mut Interrupt,
) -> anyhow::Result<Pairs> {
    let config = ServicesConfig {
        bin_dir,
        ..ServicesConfig::new(bed.kubeconfig())?
    };
    let services = services::start(config, interrupt).await?;
    let run = example::read(&workspace.root.join("examples/two-volumes.yaml"))?;
    let measured = interrupt.or(measure(&bed.client(), &run, pairs)).await;
    let stopped = services.stop().await;
    let measured = measured?;
    stopped.map(|()| measured)
}

/// Creates the run as a dry run, once in each namespace for each pair. A dry run goes through admission, but is not stored. The
/// order of the two namespaces changes from pair to pair, so that it does not influence the result.
async fn measure(client: &Client, run: &DynamicObject, pairs: usize) -> anyhow::Result<Pairs> {
    let mut measured = Pairs::default();
    for number in 0..WARM_UP + pairs {
        let (with, without) = if number % 2 == 0 {
            let with = create(client, run, ASKED, true).await?;
            (with, create(client, run, NOT_ASKED, false).await?)
        } else {
            let without = create(client, run, NOT_ASKED, false).await?;
            (create(client, run, ASKED, true).await?, without)
        };
        if number >= WARM_UP {
            measured.push(with, without);
        }
    }
    Ok(measured)
}

async fn create(
    client: &Client,
    run: &DynamicObject,
    namespace: &str,
    asked: bool,
) -> anyhow::Result<Duration> {
    let api: Api<DynamicObject> =
        Api::namespaced_with(client.clone(), namespace, &example::pipeline_runs());
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let begin = Instant::now();
    let created = api
        .create(&dry_run, run)
        .await
        .with_context(|| format!("failed to create the PipelineRun in namespace {namespace}"))?;
    let taken = begin.elapsed();
    ensure!(
        created.annotations().contains_key(MODE) == asked,
        "in namespace {namespace} the webhook was {}asked",
        if asked { "not " } else { "" }
    );
    Ok(taken)
}
