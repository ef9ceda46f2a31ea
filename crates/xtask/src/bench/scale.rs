//! `cargo xtask bench scale`: a large cluster. The benchmark itself is in `integration-tests`.

use serde_json::json;

use super::{finish, of_integration_tests, services_of};
use crate::args::ScaleArgs;
use crate::binaries;
use crate::interrupt::Interrupt;
use crate::workspace::Workspace;

pub(super) async fn run(
    workspace: &Workspace,
    args: &ScaleArgs,
    interrupt: &mut Interrupt,
) -> anyhow::Result<()> {
    let bin_dir = interrupt.or(services_of(workspace, args.release)).await?;
    interrupt.or(binaries::control_plane()).await?;
    let options = json!({
        "ended_runs": args.ended_runs,
        "nodes": args.nodes,
        "foreign_pods": args.foreign_pods,
        "active_runs": args.active_runs,
        "build": if args.release { "release" } else { "debug" },
        "output": workspace.target.join("bench-scale.json"),
    });
    let mut bench = of_integration_tests(workspace, "scale", &bin_dir);
    bench.env("COSCHEDULER_BENCH", options.to_string());
    interrupt.or(finish(bench, "integration-tests")).await
}
