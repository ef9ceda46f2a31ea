//! `cargo xtask test`: every test of the workspace, with what they start built beforehand.

use anyhow::bail;

use crate::workspace::Workspace;
use crate::{binaries, foreground};

pub(crate) async fn run(workspace: &Workspace, arguments: &[String]) -> anyhow::Result<()> {
    binaries::control_plane().await?;
    let bin_dir = binaries::services(workspace).await?;
    let mut cargo = workspace.cargo();
    cargo
        .args(["test", "--workspace", "--locked"])
        .args(arguments)
        .env("COSCHEDULER_BIN_DIR", bin_dir);
    let status = foreground::run(&mut cargo).await?;
    if !status.success() {
        bail!("tests failed ({status})");
    }
    Ok(())
}
