//! `cargo xtask bench scale`: a large cluster. The benchmark itself is in `integration-tests`.

use serde_json::json;

use super::with_options;
use crate::args::ScaleArgs;
use crate::interrupt::Interrupt;
use crate::workspace::Workspace;

pub(super) async fn run(
    workspace: &Workspace,
    args: &ScaleArgs,
    interrupt: &mut Interrupt,
) -> anyhow::Result<()> {
    let options = json!({
        "ended_runs": args.ended_runs,
        "nodes": args.nodes,
        "foreign_pods": args.foreign_pods,
        "active_runs": args.active_runs,
    });
    with_options(workspace, "scale", args.release, options, interrupt).await
}
