//! `cargo xtask bench`: how long a decision takes, and what an admission costs whoever creates a PipelineRun. Prints figures
//! and judges none: they depend on the machine and on what else it does.

mod figures;

use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use kube::api::{DynamicObject, PostParams};
use kube::{Api, Client, ResourceExt as _};
use testbed::services::ServicesConfig;
use testbed::{Config, TestBed};
use tokio::time::Instant;

use self::figures::Pairs;
use crate::args::BenchArgs;
use crate::demo::example;
use crate::interrupt::Interrupt;
use crate::workspace::Workspace;
use crate::{bed, binaries, foreground, services};

/// The webhook is asked about this namespace,
const ASKED: &str = "default";
/// and about this one it is not (`deploy/base`).
const NOT_ASKED: &str = "kube-system";
/// What the webhook leaves on a run.
const MODE: &str = "coscheduler.dev/mode";
/// Pairs that are not counted: connections and caches come to be.
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
    let measured = admission(workspace, &bed, bin_dir, pairs, interrupt).await;
    let stopped = bed.stop().await;
    let measured = measured?;
    println!(
        "{}",
        measured.report(if release { "release" } else { "debug" })
    );
    stopped
}

/// The benchmark of `core`: admitting and planning, with 1, 10 and 100 workspaces.
async fn planning(workspace: &Workspace) -> anyhow::Result<()> {
    let mut cargo = workspace.cargo();
    cargo.args(["bench", "--locked", "--package", "coscheduler-core"]);
    let status = foreground::run(&mut cargo).await?;
    if !status.success() {
        bail!("the benchmark of coscheduler-core failed ({status})");
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

/// Creates the run in either namespace in turn, as a dry run: all of admission happens, nothing is stored. Which one is
/// first changes from pair to pair, so that neither gains by it.
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
