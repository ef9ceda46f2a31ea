//! `cargo xtask bench saturated`: a cluster with room for a third of its runs. The benchmark itself is in `integration-tests`.

use serde_json::json;

use super::{finish, of_integration_tests, services_of};
use crate::args::SaturatedArgs;
use crate::binaries;
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
    let bin_dir = interrupt.or(services_of(workspace, release)).await?;
    interrupt.or(binaries::control_plane()).await?;
    let options = json!({
        "runs": runs,
        "rounds": rounds,
        "mode": mode,
        "reserves": reserves,
        "tekton": !skip_tekton,
        "task_seconds": task_seconds.unwrap_or_else(|| (runs / 5).max(8)),
        "foreign_percent": foreign_percent,
        "limit_seconds": limit,
        "build": if release { "release" } else { "debug" },
        "output": workspace.target.join("bench-saturated.json"),
    });
    let mut bench = of_integration_tests(workspace, "saturated", &bin_dir);
    bench.env("COSCHEDULER_BENCH", options.to_string());
    interrupt.or(finish(bench, "integration-tests")).await
}
