//! `cargo xtask testbed up|down`: a test bed that outlives the command. A file under `target/testbed` describes it.

use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, bail};
use testbed::{Config, Detached, TestBed};

use crate::args::{NameArgs, UpArgs};
use crate::binaries;
use crate::interrupt::Interrupt;
use crate::progress::Step;

pub(crate) async fn up(args: UpArgs, interrupt: &mut Interrupt) -> anyhow::Result<()> {
    let UpArgs {
        name: NameArgs { name },
        nodes,
        node_cpu,
        node_memory,
        pods_per_node,
        zones,
        task_duration,
        tekton_coschedule,
        audit_log,
        karpenter,
    } = args;
    let note = note(&name)?;
    if let Some(detached) = read(&note)?
        && detached.dir.exists()
    {
        bail!(
            "test bed {name} is already up: export KUBECONFIG={}; end it with `cargo xtask testbed down --name {name}`",
            detached.kubeconfig.display()
        );
    }

    let config = Config {
        nodes,
        node_cpu,
        node_memory,
        pods_per_node,
        zones: usize::from(zones),
        task_duration: Duration::from_millis(task_duration),
        tekton_coschedule,
        audit_log,
        karpenter,
        ..Config::default()
    };
    let bed = interrupt.or(boot(config)).await?;
    start_kubelets(&bed)?;
    let kubectl = bed.kubectl_path().to_owned();
    let detached = bed.detach()?;
    let written = serde_json::to_vec_pretty(&detached)
        .context("failed to describe the test bed")
        .and_then(|text| {
            fs::write(&note, text).with_context(|| format!("failed to write {}", note.display()))
        });
    if let Err(error) = written {
        detached.down().await?;
        return Err(error);
    }
    println!("export KUBECONFIG={}", detached.kubeconfig.display());
    eprintln!("kubectl of the same release: {}", kubectl.display());
    eprintln!("end it with `cargo xtask testbed down --name {name}`");
    Ok(())
}

pub(crate) async fn down(args: &NameArgs) -> anyhow::Result<()> {
    let NameArgs { name } = args;
    let note = note(name)?;
    let Some(detached) = read(&note)? else {
        eprintln!("test bed {name} is not up");
        return Ok(());
    };
    detached.down().await?;
    fs::remove_file(&note).with_context(|| format!("failed to remove {}", note.display()))?;
    eprintln!("test bed {name} is down");
    Ok(())
}

/// Builds the missing programs and boots a test bed.
pub(crate) async fn boot(config: Config) -> anyhow::Result<TestBed> {
    binaries::control_plane().await?;
    if config.karpenter {
        binaries::karpenter().await?;
    }
    let step = Step::begin("booting the test bed");
    let bed = TestBed::start(config).await?;
    step.done();
    Ok(bed)
}

/// Starts this program as the kubelets of a bed, because the kubelets in the process that booted the bed end when the bed is
/// detached.
fn start_kubelets(bed: &TestBed) -> anyhow::Result<()> {
    let program = std::env::current_exe().context("failed to find the program of the kubelets")?;
    let mut command = Command::new(program);
    command
        .args(["testbed", "kubelets", "--kubeconfig"])
        .arg(bed.kubeconfig())
        .current_dir(bed.dir());
    bed.processes().spawn("kubelets", command)
}

fn note(name: &str) -> anyhow::Result<PathBuf> {
    Ok(testbed::default_folder()?.join(format!("up-{name}.json")))
}

fn read(note: &PathBuf) -> anyhow::Result<Option<Detached>> {
    let act = || format!("failed to read {}", note.display());
    match fs::read(note) {
        Ok(text) => serde_json::from_slice(&text).map(Some).with_context(act),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(act),
    }
}
