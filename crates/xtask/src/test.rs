//! `cargo xtask test`: every test of the workspace, with what they start built beforehand.

mod side_by_side;

use anyhow::bail;

use crate::workspace::Workspace;
use crate::{binaries, foreground};

pub(crate) async fn run(workspace: &Workspace, arguments: &[String]) -> anyhow::Result<()> {
    binaries::control_plane().await?;
    let bin_dir = binaries::services(workspace).await?;
    let cargo_test = || {
        let mut cargo = workspace.cargo();
        cargo
            .args(["test", "--workspace", "--locked"])
            .env("COSCHEDULER_BIN_DIR", &bin_dir);
        cargo
    };
    if !arguments.is_empty() {
        let status = foreground::run(cargo_test().args(arguments)).await?;
        if !status.success() {
            bail!("tests failed ({status})");
        }
        return Ok(());
    }
    let mut failed = side_by_side::run(cargo_test, &bin_dir).await?;
    let status = foreground::run(cargo_test().arg("--doc")).await?;
    if !status.success() {
        failed.push("examples in documentation".to_owned());
    }
    if !failed.is_empty() {
        bail!("tests failed: {}", failed.join(", "));
    }
    Ok(())
}
