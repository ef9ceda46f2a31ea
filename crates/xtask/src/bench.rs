//! `cargo xtask bench`: measures decisions, the time that admission adds to creating a PipelineRun, and our services beside
//! Tekton's own affinity assistant. It prints figures and checks none, because figures depend on the machine and its other work.

mod figures;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use kube::api::{DynamicObject, PostParams};
use kube::{Api, Client, ResourceExt as _};
use testbed::services::ServicesConfig;
use testbed::{Config, TestBed};
use tokio::process::Command;
use tokio::time::Instant;

use self::figures::Pairs;
use crate::args::BenchArgs;
use crate::demo::example;
use crate::interrupt::Interrupt;
use crate::workspace::Workspace;
use crate::{bed, binaries, foreground, services};

/// A namespace of which the API server calls the webhook.
const ASKED: &str = "default";
/// A namespace that `deploy/base` exempts.
const NOT_ASKED: &str = "kube-system";
/// The annotation that the webhook gives a run.
const MODE: &str = "coscheduler.dev/mode";
/// Pairs that are not counted, while connections and caches warm up.
const WARM_UP: usize = 20;

pub(crate) async fn run(
    workspace: &Workspace,
    args: BenchArgs,
    interrupt: &mut Interrupt,
) -> anyhow::Result<()> {
    let BenchArgs {
        pairs,
        release,
        skip_planning,
        skip_built_in,
    } = args;
    if !skip_planning {
        interrupt.or(planning(workspace)).await?;
    }
    let bin_dir = match release {
        true => {
            interrupt
                .or(binaries::optimised_services(workspace))
                .await?
        }
        false => interrupt.or(binaries::services(workspace)).await?,
    };
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

/// The benchmark of `core`: admitting and planning, with 1, 10 and 100 workspaces.
async fn planning(workspace: &Workspace) -> anyhow::Result<()> {
    let mut cargo = workspace.cargo();
    cargo.args(["bench", "--locked", "--package", "coscheduler-core"]);
    finish(cargo, "coscheduler-core").await
}

/// The benchmark of `integration-tests`: our services and Tekton's own assistant on the same runs. It mostly waits, so that the
/// profile of the tests does.
async fn built_in(workspace: &Workspace, bin_dir: &Path) -> anyhow::Result<()> {
    let mut cargo = workspace.cargo();
    cargo
        .args(["bench", "--locked", "--profile", "dev"])
        .args(["--package", "integration-tests", "--bench", "built_in"])
        .env("COSCHEDULER_BIN_DIR", bin_dir);
    finish(cargo, "integration-tests").await
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
    bin_dir: std::path::PathBuf,
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

/// Creates the run in either namespace in turn, as a dry run: all of admission happens, nothing is stored. The order changes
/// from pair to pair, so that neither namespace gains by it.
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
