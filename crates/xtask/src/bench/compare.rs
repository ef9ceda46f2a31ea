//! `cargo xtask bench compare`: the same runs with Tekton alone, with Tekton's own affinity assistant, and with our services. The
//! benchmark itself is in `integration-tests`.

use serde_json::json;

use super::with_options;
use crate::args::{CompareArgs, MINUTES};
use crate::interrupt::Interrupt;
use crate::workspace::Workspace;

pub(super) async fn run(
    workspace: &Workspace,
    args: CompareArgs,
    interrupt: &mut Interrupt,
) -> anyhow::Result<()> {
    // The flags after `cargo xtask bench`, for readers who repeat the measurement.
    let flags: Vec<String> = std::env::args().skip(2).collect();
    let CompareArgs {
        workload,
        nodes,
        rate,
        seconds,
        burst,
        alone,
        rounds,
        minutes,
        modes,
        quick,
    } = args;
    // The page in docs always has the same loads and modes, and as many rounds as fit into the default time.
    let is_default = !quick
        && !alone
        && workload.is_empty()
        && nodes.is_empty()
        && rate.is_none()
        && seconds.is_none()
        && burst.is_none()
        && rounds.is_none()
        && minutes == MINUTES
        && modes == ["workspaces", "pipelineruns"];
    let folder = match is_default {
        true => workspace.root.join("docs"),
        false => workspace.target.join("bench-compare"),
    };
    let options = json!({
        "workloads": workload,
        "nodes": nodes,
        "rate": rate,
        "seconds": seconds,
        "burst": burst,
        "alone": alone,
        "rounds": rounds,
        "minutes": minutes,
        "modes": modes,
        "quick": quick,
        "version": workspace.version()?,
        "commit": commit(workspace).await,
        "command": format!("cargo xtask bench {}", flags.join(" ")),
        "folder": folder,
    });
    with_options(workspace, "compare", !quick, options, interrupt).await
}

/// The commit of the working copy, with `-dirty` if files differ from it. Empty without git.
async fn commit(workspace: &Workspace) -> String {
    let mut git = workspace.command("git");
    let described = git.args(["describe", "--always", "--dirty"]).output().await;
    let output = described.map(|it| it.stdout).unwrap_or_default();
    String::from_utf8_lossy(&output).trim().to_owned()
}
