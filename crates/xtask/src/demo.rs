//! `cargo xtask demo`: runs a PipelineRun with two volumes on one node. Boots a test bed and the services, shows the run live,
//! and judges the result. At the end, also after a failure, it ends the services and the test bed.

pub(crate) mod example;
mod verdict;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use futures::StreamExt as _;
use run_table::{Board, Run, Screen, changes, rows};
use testbed::services::{CONFIG_MAP, NAMESPACE, OPERATOR, Service, Services, ServicesConfig};
use testbed::{Config, TestBed};
use tokio::time::{Instant, timeout_at};

use self::example::Submitted;
use self::verdict::Verdict;
use crate::args::DemoArgs;
use crate::interrupt::Interrupt;
use crate::workspace::Workspace;
use crate::{bed, binaries, services};

/// How long the placeholder and the claims may exist after the run has ended.
const CLEAN_UP: Duration = Duration::from_secs(30);
/// How long each task takes in the test bed: long enough to watch it.
const TASK: Duration = Duration::from_secs(3);

/// The parts that the demo has started and must end, in the order of their start.
#[derive(Debug, Default)]
struct Stage {
    bed: Option<TestBed>,
    services: Option<Services>,
    /// The run, if it was created in a cluster that continues after the demo.
    submitted: Option<Submitted>,
}

pub(crate) async fn run(
    workspace: &Workspace,
    args: DemoArgs,
    interrupt: &mut Interrupt,
) -> anyhow::Result<()> {
    let mut stage = Stage::default();
    let played = play(workspace, &args, &mut stage, interrupt).await;
    if args.keep && stage.services.is_some() {
        if let Err(error) = &played {
            eprintln!("error: {error:#}");
        }
        let signal = tokio::select! {
            signal = interrupt.received() => signal.to_owned(),
            error = failed(&stage) => format!("{error:#}"),
        };
        eprintln!("{signal}: taking everything down");
        // With --keep, the run is not deleted.
        stage.submitted = None;
    }
    let ended = end(stage).await;
    match (played, ended) {
        (Ok(()), ended) => ended,
        (Err(error), Ok(())) => Err(error),
        (Err(error), Err(also)) => {
            eprintln!("error: {also:#}");
            Err(error)
        }
    }
}

async fn play(
    workspace: &Workspace,
    args: &DemoArgs,
    stage: &mut Stage,
    interrupt: &mut Interrupt,
) -> anyhow::Result<()> {
    let example = args
        .example
        .clone()
        .unwrap_or_else(|| workspace.root.join("examples/two-volumes.yaml"));
    let example = example::read(&example)?;

    let services = binaries::services(workspace);
    let (bin_dir, kubeconfig, kubectl) = match &args.kubeconfig {
        Some(kubeconfig) => {
            let bin_dir = interrupt.or(services).await?;
            (bin_dir, kubeconfig.clone(), PathBuf::from("kubectl"))
        }
        None => {
            let both = async { tokio::try_join!(services, binaries::control_plane()) };
            let (bin_dir, ()) = interrupt.or(both).await?;
            let bed = interrupt
                .or(bed::boot(Config {
                    task_duration: TASK,
                    ..Config::default()
                }))
                .await?;
            let (kubeconfig, kubectl) = (bed.kubeconfig(), bed.kubectl_path());
            let paths = (bin_dir, kubeconfig.to_owned(), kubectl.to_owned());
            stage.bed = Some(bed);
            paths
        }
    };
    let config = ServicesConfig {
        port_base: Some(args.ports.port_base),
        bin_dir,
        ..ServicesConfig::new(&kubeconfig)?
    };
    let running = services::start(config, interrupt).await?;
    let services = stage.services.insert(running);

    let client = testbed::services::kube_client(&kubeconfig).await?;
    let submitted = example::submit(&client, &args.namespace, &example).await?;
    if args.kubeconfig.is_some() {
        stage.submitted = Some(submitted.clone());
    }
    eprintln!("created PipelineRun {}", name(&submitted));
    if !submitted.coscheduled {
        bail!(
            "the PipelineRun was created without being coscheduled: does ConfigMap {NAMESPACE}/{CONFIG_MAP} say \
             `coschedule: pipelineruns`?"
        );
    }
    if args.keep {
        how_to_reach(&kubeconfig, &kubectl, services, &submitted);
    }

    let limit = Duration::from_secs(args.timeout);
    let verdict = tokio::select! {
        verdict = watch(&submitted.run, limit) => verdict?,
        error = services.failed() => return Err(error),
        signal = interrupt.received() => bail!("interrupted by {signal}"),
    };
    println!("{}", verdict.summary());
    verdict.judge()
}

/// Shows the run until it has ended and its objects are gone. The run may take `limit`, and the clean-up after it may take
/// [`CLEAN_UP`].
async fn watch(run: &Run, limit: Duration) -> anyhow::Result<Verdict> {
    let began = Instant::now();
    let mut board = Board::new(&run.name);
    let mut screen = Screen::default();
    let mut changes = changes(run);
    let mut deadline = began + limit;
    let mut ended = None;
    loop {
        let Ok(change) = timeout_at(deadline, changes.next()).await else {
            break;
        };
        match change.context("the watches ended")? {
            Ok(change) => board.apply(change, began.elapsed()),
            Err(error) => screen.note(&format!("{error:#}; trying again")),
        }
        screen.show(&rows(&board), began.elapsed());
        if ended.is_none() && board.result().is_over() {
            ended = Some(began.elapsed());
            deadline = Instant::now() + CLEAN_UP;
        }
        if ended.is_some() && board.left().is_empty() && board.is_complete() {
            break;
        }
    }
    screen.finish();
    Ok(Verdict::of(&board, ended, limit))
}

fn how_to_reach(kubeconfig: &Path, kubectl: &Path, services: &Services, submitted: &Submitted) {
    let Run {
        namespace, name, ..
    } = &submitted.run;
    eprintln!("\nEverything stays up until Ctrl-C. From another terminal:");
    eprintln!("  export KUBECONFIG={}", kubeconfig.display());
    eprintln!(
        "  {} get pipelinerun,statefulset,pvc,pod --namespace {namespace} --output wide",
        kubectl.display()
    );
    eprintln!(
        "  {} get pipelinerun {name} --namespace {namespace} --output yaml",
        kubectl.display()
    );
    let flags = match services.certificates(OPERATOR) {
        None => "-plaintext".to_owned(),
        Some(folder) => {
            let folder = folder.display();
            format!("-cacert {folder}/ca.crt -cert {folder}/tls.crt -key {folder}/tls.key")
        }
    };
    for service in Service::ALL {
        let address = services.grpc_address(service);
        eprintln!(
            "  grpcurl {flags} {} list    # {service}",
            address.trim_start_matches("http://")
        );
    }
    eprintln!("  less {}/*.log\n", services.logs_dir().display());
}

fn name(submitted: &Submitted) -> String {
    format!("{}/{}", submitted.run.namespace, submitted.run.name)
}

/// Waits until one of the services fails, while --keep keeps them.
async fn failed(stage: &Stage) -> anyhow::Error {
    match &stage.services {
        Some(services) => services.failed().await,
        None => std::future::pending().await,
    }
}

/// Ends all started parts, the last part first. After an error, it continues with the next part.
async fn end(stage: Stage) -> anyhow::Result<()> {
    let Stage {
        bed,
        services,
        submitted,
    } = stage;
    let mut failures = Vec::new();
    if let Some(submitted) = submitted {
        match submitted.delete().await {
            Ok(()) => eprintln!("deleted PipelineRun {}", name(&submitted)),
            Err(error) => failures.push(error),
        }
    }
    if let Some(services) = services {
        failures.extend(services.stop().await.err());
    }
    if let Some(bed) = bed {
        failures.extend(bed.stop().await.err());
    }
    if failures.is_empty() {
        return Ok(());
    }
    let texts: Vec<String> = failures.iter().map(|error| format!("{error:#}")).collect();
    bail!("{}", texts.join("\n"))
}
