//! The flags of the placeholder-manager.

use std::time::Duration;

use coscheduler_runtime::lease::LeaseArgs;
use coscheduler_runtime::{KubernetesArgs, parse_duration};

/// The placeholder-manager's own flags.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// How long a placeholder waits for a node with room for all pods that the run can have at the same time. After this time,
    /// it asks only for room for the largest of these pods. Set this time if an autoscaler should add a node with room for all
    /// of them
    #[arg(long, env = "PEAK_WAIT", value_name = "DURATION", default_value = "0s", value_parser = parse_duration)]
    pub(crate) peak_wait: Duration,

    #[command(flatten)]
    pub(crate) kubernetes: KubernetesArgs,

    #[command(flatten)]
    pub(crate) lease: LeaseArgs,
}
