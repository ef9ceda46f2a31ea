//! Checks that other programs make: `buf lint` for the contracts, `shellcheck` for scripts, `hadolint` for the Dockerfile,
//! `kubectl kustomize` for the installation. A program that is not there is said, never passed over in silence.

use std::io::ErrorKind;
use std::path::PathBuf;

use anyhow::{Context as _, bail};

use super::{Finding, Report};
use crate::progress::Step;
use crate::workspace::Workspace;

const BUF: &str = "github.com/bufbuild/buf/cmd/buf@v1.75.0";

pub(super) async fn buf_lint(workspace: &Workspace) -> anyhow::Result<Report> {
    let buf = match buf(workspace).await? {
        Ok(buf) => buf,
        Err(notice) => {
            return Ok(Report {
                findings: Vec::new(),
                notices: vec![notice],
            });
        }
    };
    let output = workspace
        .command(&buf)
        .arg("lint")
        .output()
        .await
        .with_context(|| format!("failed to start {}", buf.display()))?;
    if output.status.success() {
        return Ok(Report::default());
    }
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    let mut findings: Vec<Finding> = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .map(|line| {
            Finding::new(
                line,
                "edit the contract as the rule says; `buf lint` shows the rest",
            )
        })
        .collect();
    if findings.is_empty() {
        findings.push(Finding::new(
            format!("buf lint failed ({})", output.status),
            "run `buf lint`",
        ));
    }
    Ok(findings.into())
}

/// The buf to use, installed if need be, or why there is none.
async fn buf(workspace: &Workspace) -> anyhow::Result<Result<PathBuf, String>> {
    if runs(workspace, "buf", "--version").await {
        return Ok(Ok(PathBuf::from("buf")));
    }
    let installed = workspace.tools().join("buf");
    if installed.is_file() {
        return Ok(Ok(installed));
    }
    if !runs(workspace, "go", "version").await {
        return Ok(Err("buf is not installed, and neither is Go to install it with: the contracts were not linted".to_owned()));
    }
    let step = Step::begin("installing buf, once");
    let output = workspace
        .command("go")
        .args(["install", BUF])
        .env("GOBIN", workspace.tools())
        .env("GOFLAGS", "")
        .output()
        .await
        .context("failed to start `go install`")?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        let reason = text.lines().last().unwrap_or_default();
        return Ok(Err(format!(
            "`go install {BUF}` failed, so the contracts were not linted: {reason}"
        )));
    }
    step.done();
    Ok(Ok(installed))
}

/// Every shell script of the repository.
const SCRIPTS: [&str; 2] = [".ci/run", "crates/testbed/src/guardian.sh"];

pub(super) async fn shellcheck(workspace: &Workspace) -> anyhow::Result<Report> {
    complaints(workspace, "shellcheck", &SCRIPTS).await
}

pub(super) async fn hadolint(workspace: &Workspace) -> anyhow::Result<Report> {
    complaints(workspace, "hadolint", &["--no-color", "Dockerfile"]).await
}

/// Whether the installation can be rendered. That it works is for the integration tests to say.
pub(super) async fn kustomize(workspace: &Workspace) -> anyhow::Result<Report> {
    complaints(workspace, "kubectl", &["kustomize", "deploy/base"]).await
}

/// What a program has to say that ends with exit code 1 where it finds something.
async fn complaints(
    workspace: &Workspace,
    program: &str,
    arguments: &[&str],
) -> anyhow::Result<Report> {
    let command = format!("{program} {}", arguments.join(" "));
    let output = match workspace.command(program).args(arguments).output().await {
        Ok(output) => output,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Ok(Report {
                findings: Vec::new(),
                notices: vec![format!("{program} is not installed: no `{command}`")],
            });
        }
        Err(error) => return Err(error).with_context(|| format!("failed to start {program}")),
    };
    let text = match output.status.code() {
        Some(0) => return Ok(Report::default()),
        Some(1) => [output.stdout, output.stderr].concat(),
        Some(_) | None => bail!(
            "{program} failed ({}): {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        ),
    };
    let finding = Finding::new(
        String::from_utf8_lossy(&text).trim(),
        format!("edit what it names; `{command}` shows the same"),
    );
    Ok(vec![finding].into())
}

async fn runs(workspace: &Workspace, program: &str, argument: &str) -> bool {
    let output = workspace.command(program).arg(argument).output().await;
    output.is_ok_and(|output| output.status.success())
}
