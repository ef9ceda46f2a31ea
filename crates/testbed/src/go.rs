//! Calls the ordinary Go toolchain in one of the modules of `integration-tests/testbed`.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use anyhow::{Context as _, Result, bail};

use crate::releases::Sources;

pub(crate) fn command(sources: &Sources, module: &str) -> Command {
    let mut command = Command::new("go");
    command
        .current_dir(sources.module(module))
        .env("CGO_ENABLED", "0")
        .env("GOWORK", "off")
        .env_remove("GOFLAGS")
        .stdin(Stdio::null());
    command
}

pub(crate) fn run(mut command: Command) -> Result<Output> {
    let output = command.output().context("failed to run `go`")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        bail!("`go` failed ({}): {said}", output.status);
    }
    Ok(output)
}

/// The folder of the Go module `path` in Go's module cache, in the version that our module `module` requires.
pub(crate) fn module_folder(sources: &Sources, module: &str, path: &str) -> Result<PathBuf> {
    let mut command = command(sources, module);
    command.args(["list", "-m", "-f", "{{.Dir}}", path]);
    let output = run(command).with_context(|| format!("failed to find Go module {path}"))?;
    let folder = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if folder.is_empty() {
        bail!("Go module {path} is not downloaded");
    }
    Ok(PathBuf::from(folder))
}
