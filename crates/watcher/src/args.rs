//! The flags of the watcher.

use coscheduler_runtime::KubernetesArgs;
use coscheduler_runtime::lease::LeaseArgs;

/// The watcher's own flags.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Address of the affinity-planner, as HOST:PORT
    #[arg(
        long,
        env = "AFFINITY_PLANNER_ADDRESS",
        value_name = "HOST:PORT",
        default_value = "127.0.0.1:9102"
    )]
    pub(crate) affinity_planner_address: String,

    #[command(flatten)]
    pub(crate) kubernetes: KubernetesArgs,

    #[command(flatten)]
    pub(crate) lease: LeaseArgs,
}
