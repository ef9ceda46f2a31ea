//! The flags of the placeholder-manager.

use std::time::Duration;

use coscheduler_runtime::lease::LeaseArgs;
use coscheduler_runtime::{KubernetesArgs, parse_duration};

/// The placeholder-manager's own flags.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// How long a placeholder may wait for a node with room for all pods that the run can have at the same time. Then it asks for
    /// the largest of them only. If a cluster autoscaler adds nodes, this is how long the autoscaler may need
    #[arg(long, env = "PEAK_WAIT", value_name = "DURATION", default_value = "0s", value_parser = parse_duration)]
    pub(crate) peak_wait: Duration,

    #[command(flatten)]
    pub(crate) kubernetes: KubernetesArgs,

    #[command(flatten)]
    pub(crate) lease: LeaseArgs,
}
