//! The flags of the placeholder-manager.

use coscheduler_runtime::KubernetesArgs;
use coscheduler_runtime::lease::LeaseArgs;

/// The placeholder-manager's own flags.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub(crate) kubernetes: KubernetesArgs,

    #[command(flatten)]
    pub(crate) lease: LeaseArgs,
}
