//! Builds the programs that other commands start: the five services and the control plane of the test bed.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context as _, bail};
use testbed::Releases;
use testbed::services::Service;
use tokio::io::{AsyncBufReadExt as _, BufReader};

use crate::foreground::Foreground;
use crate::progress::{BedBuild, Step};
use crate::workspace::Workspace;

/// The program of the kubectl plugin.
pub(crate) const PLUGIN: &str = "kubectl-coschedule";

/// Builds the services and returns the folder of their binaries. Prints cargo's output only if the build fails.
pub(crate) async fn services(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    build_services(workspace, &[]).await?;
    Ok(workspace.target.join("debug"))
}

/// As [`services`]. Also builds the kubectl plugin.
pub(crate) async fn services_and_plugin(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    build_services(workspace, &["--bin", PLUGIN]).await?;
    Ok(workspace.target.join("debug"))
}

/// As [`services`], but with the profile and the features with which `cargo xtask test` builds them. So nothing is compiled twice.
pub(crate) async fn tested_services(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    build_services(workspace, &["--workspace", "--profile=test"]).await?;
    Ok(workspace.target.join("debug"))
}

/// As [`services`], but with optimisation, as in their images.
pub(crate) async fn optimised_services(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    build_services(workspace, &["--release"]).await?;
    Ok(workspace.target.join("release"))
}

async fn build_services(workspace: &Workspace, flags: &[&str]) -> anyhow::Result<()> {
    let step = Step::begin("building the services");
    let mut cargo = workspace.cargo();
    cargo.args(["build", "--locked"]).args(flags);
    for service in Service::ALL {
        cargo.args(["--bin", service.name()]);
    }
    let mut build = Foreground::start(cargo.stdin(Stdio::null()).stderr(Stdio::piped()))?;
    let stderr = build.take_stderr()?;
    let mut lines = BufReader::new(stderr).lines();
    let mut output = String::new();
    while let Some(line) = lines
        .next_line()
        .await
        .context("failed to read from `cargo build`")?
    {
        step.detail(&line);
        output.push_str(&line);
        output.push('\n');
    }
    let status = build.wait().await?;
    if !status.success() {
        bail!("failed to build the services ({status}):\n{output}");
    }
    step.done();
    Ok(())
}

/// Builds the programs of the test bed's control plane that are missing.
pub(crate) async fn control_plane() -> anyhow::Result<()> {
    build_bed(|folder, progress| testbed::build(folder, progress).map(drop)).await
}

/// As [`control_plane`], but for these releases.
pub(crate) async fn control_plane_of(releases: Releases) -> anyhow::Result<()> {
    build_bed(move |folder, progress| testbed::build_releases(folder, releases, progress).map(drop))
        .await
}

/// Builds all missing programs of test beds.
pub(crate) async fn all_beds() -> anyhow::Result<()> {
    control_plane().await?;
    karpenter().await
}

/// Builds Karpenter if it is missing.
pub(crate) async fn karpenter() -> anyhow::Result<()> {
    build_bed(|folder, progress| testbed::build_karpenter(folder, progress).map(drop)).await
}

/// Builds the kubectl of the test bed if it is missing, and returns its path.
pub(crate) async fn kubectl() -> anyhow::Result<PathBuf> {
    build_bed(testbed::build_kubectl).await
}

async fn build_bed<T: Send + 'static>(
    build: impl FnOnce(&Path, &dyn testbed::Progress) -> anyhow::Result<T> + Send + 'static,
) -> anyhow::Result<T> {
    let folder = testbed::default_folder()?;
    tokio::task::spawn_blocking(move || build(&folder, BedBuild::progress().as_ref()))
        .await
        .context("the build of the control plane ended early")?
}
