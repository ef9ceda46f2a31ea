//! `cargo xtask pictures`: makes the pictures in docs/pictures. Boots a test bed and the services, runs the PipelineRuns of
//! docs/pictures/runs.yaml, and lets Chromium make a picture of the page of `kubectl coschedule ui`, once for each colour scheme.
//! Module `svg` makes a picture of the text of `kubectl coschedule explain`.

mod svg;

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde_json::Value;
use testbed::services::ServicesConfig;
use testbed::{Config, TestBed};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

use crate::interrupt::Interrupt;
use crate::workspace::Workspace;
use crate::{bed, binaries, services};

const FOLDER: &str = "docs/pictures";

/// How long Chromium may wait for the page.
const PAGE: &str = "--timeout=3000";

/// How long the runs may take to be on their nodes.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Chromium's numbers of the colour schemes.
const SCHEMES: [(&str, u8); 2] = [("dark", 0), ("light", 1)];

pub(crate) async fn run(workspace: &Workspace, interrupt: &mut Interrupt) -> anyhow::Result<()> {
    let bin_dir = interrupt
        .or(binaries::services_and_plugin(workspace))
        .await?;
    let config = Config {
        nodes: 4,
        node_cpu: "4".to_owned(),
        task_duration: Duration::from_secs(600),
        ..Config::default()
    };
    let bed = interrupt.or(bed::boot(config)).await?;
    let config = ServicesConfig {
        bin_dir: bin_dir.clone(),
        ..ServicesConfig::new(bed.kubeconfig())?
    };
    let services = services::start(config, interrupt).await?;
    let plugin = bin_dir.join(binaries::PLUGIN);
    let made = interrupt.or(make(workspace, &bed, &plugin)).await;
    let stopped = services.stop().await;
    made.and(stopped)
}

async fn make(workspace: &Workspace, bed: &TestBed, plugin: &Path) -> anyhow::Result<()> {
    let folder = workspace.root.join(FOLDER);
    let runs = folder.join("runs.yaml");
    let runs = std::fs::read_to_string(&runs)
        .with_context(|| format!("failed to read {}", runs.display()))?;
    bed.apply(&runs).await?;
    let on_their_nodes = async {
        let tasks = runs.matches("taskSpec:").count();
        while !are_on_their_nodes(&status(bed, plugin).await?, tasks) {
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        anyhow::Ok(())
    };
    let waited = tokio::time::timeout(TIMEOUT, on_their_nodes).await;
    waited.context("the runs are not on their nodes in time")??;
    let explanation = answer(bed, plugin, &["explain", "-n", "shop", "search-index"]).await?;
    let picture = folder.join("explain.svg");
    let command = "$ kubectl coschedule explain -n shop search-index\n";
    std::fs::write(&picture, svg::of(&format!("{command}{explanation}")))
        .with_context(|| format!("failed to write {}", picture.display()))?;
    println!("{}", picture.display());
    let (_page, address) = serve(bed, plugin).await?;
    for (scheme, number) in SCHEMES {
        let picture = folder.join(format!("page-{scheme}.png"));
        chromium(&address, number, &picture).await?;
        println!("{}", picture.display());
    }
    Ok(())
}

/// The answer of `kubectl coschedule status`.
async fn status(bed: &TestBed, plugin: &Path) -> anyhow::Result<Value> {
    let json = answer(bed, plugin, &["status", "-A", "-o", "json"]).await?;
    serde_json::from_str(&json).context("failed to read the answer of the plugin")
}

/// The standard output of the plugin.
async fn answer(bed: &TestBed, plugin: &Path, arguments: &[&str]) -> anyhow::Result<String> {
    let mut command = Command::new(plugin);
    command.args(arguments).arg("--kubeconfig");
    let output = command
        .arg(bed.kubeconfig())
        .kill_on_drop(true)
        .output()
        .await;
    let output = output.context("failed to start the plugin")?;
    String::from_utf8(output.stdout).context("the answer of the plugin is no UTF-8")
}

/// True if all tasks have pods, exactly one run waits, and all pods of the other runs are running.
fn are_on_their_nodes(status: &Value, tasks: usize) -> bool {
    let runs = status["runs"].as_array().into_iter().flatten();
    let (waiting, others): (Vec<_>, Vec<_>) = runs.partition(|run| run["state"] == "Waiting");
    let pods = |run: &&Value| run["tasks"].as_array().cloned().unwrap_or_default();
    let running: Vec<_> = others.iter().flat_map(pods).collect();
    let waits: usize = waiting.iter().map(|run| pods(run).len()).sum();
    let run = |pod: &Value| pod["phase"] == "Running";
    waiting.len() == 1 && waits + running.len() == tasks && running.iter().all(run)
}

/// Serves the page. Returns the process and the page's address.
async fn serve(bed: &TestBed, plugin: &Path) -> anyhow::Result<(Child, String)> {
    let mut command = Command::new(plugin);
    command.args(["ui", "-A", "--port", "0", "--kubeconfig"]);
    command.arg(bed.kubeconfig());
    command.stdout(Stdio::piped()).kill_on_drop(true);
    let mut page = command.spawn().context("failed to start the plugin")?;
    let output = page.stdout.take().context("the plugin has no output")?;
    let line = BufReader::new(output).lines().next_line().await?;
    let address = line.as_deref().and_then(|line| line.split(' ').next());
    let address = address.context("the plugin wrote no address")?.to_owned();
    Ok((page, address))
}

async fn chromium(address: &str, scheme: u8, picture: &Path) -> anyhow::Result<()> {
    let profile = tempfile::tempdir().context("failed to create a folder for Chromium")?;
    let mut command = Command::new("chromium");
    command.args([
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        PAGE,
    ]);
    command.args([
        "--disable-background-networking",
        "--hide-scrollbars",
        "--window-size=1280,860",
    ]);
    command.arg(format!("--user-data-dir={}", profile.path().display()));
    command.arg(format!("--blink-settings=preferredColorScheme={scheme}"));
    command
        .arg(format!("--screenshot={}", picture.display()))
        .arg(address);
    let output = command.kill_on_drop(true).output().await;
    let output = output.context("failed to start chromium; Debian's package chromium has it")?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        bail!("chromium failed: {}", errors.trim());
    }
    Ok(())
}
