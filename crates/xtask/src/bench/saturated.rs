//! `cargo xtask bench saturated`: a cluster with room for a third of its runs. The benchmark itself is in `integration-tests`.

use serde_json::json;

use super::with_options;
use crate::args::SaturatedArgs;
use crate::interrupt::Interrupt;
use crate::workspace::Workspace;

pub(super) async fn run(
    workspace: &Workspace,
    args: SaturatedArgs,
    interrupt: &mut Interrupt,
) -> anyhow::Result<()> {
    let SaturatedArgs {
        runs,
        rounds,
        reserves,
        skip_tekton,
        mode,
        task_seconds,
        foreign_percent,
        limit,
        release,
    } = args;
    let options = json!({
        "runs": runs,
        "rounds": rounds,
        "mode": mode,
        "reserves": reserves,
        "tekton": !skip_tekton,
        "task_seconds": task_seconds.unwrap_or_else(|| (runs / 5).max(8)),
        "foreign_percent": foreign_percent,
        "limit_seconds": limit,
    });
    with_options(workspace, "saturated", release, options, interrupt).await
}
