//! The flags of the placeholder-manager.

use std::time::Duration;

use coscheduler_runtime::KubernetesArgs;
use coscheduler_runtime::lease::{LeaseArgs, parse_duration};

/// The placeholder-manager's own flags.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub(crate) kubernetes: KubernetesArgs,

    #[command(flatten)]
    pub(crate) lease: LeaseArgs,

    /// How long to wait for a scale-up of the cluster, once it was triggered or a node was added, before the manager makes
    /// room for a waiting pod by other means
    #[arg(long, env = "SCALE_UP_HOLD", value_name = "DURATION", default_value = "60s",
        value_parser = parse_duration)]
    pub(crate) scale_up_hold: Duration,
}
