//! Checks that run other programs.

use std::path::Path;

use anyhow::{Context as _, bail};

use super::{Finding, Report};
use crate::binaries;
use crate::tools::{self, Tool};
use crate::workspace::{Files, Workspace};

/// The contracts of the last release, as a compiled file. New contracts must be compatible with them.
const BASELINE: &str = "proto/baseline.binpb";

pub(super) async fn unused_dependencies(workspace: &Workspace) -> anyhow::Result<Report> {
    let arguments = ["--locked", "--format=github"];
    checked_by(workspace, &tools::CARGO_SHEAR, &arguments).await
}

pub(super) async fn proto_style(workspace: &Workspace) -> anyhow::Result<Report> {
    checked_by(workspace, &tools::BUF, &["lint"]).await
}

pub(super) async fn proto_changes(workspace: &Workspace, files: &Files) -> anyhow::Result<Report> {
    if !files.contains_key(BASELINE) {
        let finding = Finding::new(
            format!("{BASELINE} is missing, so no change of the contracts is noticed"),
            format!("buf build --output {BASELINE}"),
        );
        return Ok(vec![finding].into());
    }
    checked_by(workspace, &tools::BUF, &["breaking", "--against", BASELINE]).await
}

/// Checks each shell script of the repository.
pub(super) async fn shell_style(workspace: &Workspace, files: &Files) -> anyhow::Result<Report> {
    let scripts = files.iter().filter(|(_, text)| is_script(text));
    let scripts: Vec<_> = scripts.map(|(file, _)| file.as_str()).collect();
    checked_by(workspace, &tools::SHELLCHECK, &scripts).await
}

fn is_script(text: &str) -> bool {
    let interpreter = text.lines().next().unwrap_or_default();
    interpreter.starts_with("#!") && interpreter.ends_with("sh")
}

pub(super) async fn image_style(workspace: &Workspace) -> anyhow::Result<Report> {
    let arguments = ["--no-color", "Dockerfile"];
    checked_by(workspace, &tools::HADOLINT, &arguments).await
}

/// Checks that `deploy/base` can be rendered; the integration tests install it.
pub(super) async fn installation(workspace: &Workspace) -> anyhow::Result<Report> {
    match binaries::kubectl().await {
        Ok(kubectl) => run(workspace, &kubectl, &["kustomize", "deploy/base"]).await,
        Err(error) => Ok(Report::Skipped(error)),
    }
}

async fn checked_by(
    workspace: &Workspace,
    tool: &Tool,
    arguments: &[&str],
) -> anyhow::Result<Report> {
    match tool.path(workspace).await {
        Ok(program) => run(workspace, &program, arguments).await,
        Err(error) => Ok(Report::Skipped(error)),
    }
}

/// Runs a program. Exit code 1, or 100 in the case of buf, means that the program has found something.
async fn run(workspace: &Workspace, program: &Path, arguments: &[&str]) -> anyhow::Result<Report> {
    let mut command = workspace.command(program);
    let output = command.args(arguments).output().await;
    let output = output.with_context(|| format!("failed to start {}", program.display()))?;
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    let name = program.file_name().unwrap_or_default().display();
    match output.status.code() {
        Some(0) => Ok(Report::default()),
        Some(1 | 100) => {
            let program = program.strip_prefix(&workspace.root).unwrap_or(program);
            let command = format!("{} {}", program.display(), arguments.join(" "));
            let mend = format!("edit the lines it names; `{command}` lists them again");
            Ok(vec![Finding::new(said.trim().replace('\n', "\n  "), mend)].into())
        }
        Some(_) | None => bail!("{name} failed ({}): {}", output.status, said.trim()),
    }
}
