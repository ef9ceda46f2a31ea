//! The flags of the affinity-planner.

use coscheduler_core::admit::TEKTON_CONTROLLER;

/// The affinity-planner's own flags.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Address of the config-service, as HOST:PORT
    #[arg(
        long,
        env = "CONFIG_SERVICE_ADDRESS",
        value_name = "HOST:PORT",
        default_value = "127.0.0.1:9101"
    )]
    pub(crate) config_service_address: String,

    /// Address of the placeholder-manager, as HOST:PORT
    #[arg(
        long,
        env = "PLACEHOLDER_MANAGER_ADDRESS",
        value_name = "HOST:PORT",
        default_value = "127.0.0.1:9103"
    )]
    pub(crate) placeholder_manager_address: String,

    /// Username of Tekton's controller. Only TaskRuns, CustomRuns and child PipelineRuns that this user creates can belong to a
    /// coscheduled PipelineRun
    #[arg(
        long,
        env = "TEKTON_CONTROLLER_USERNAME",
        value_name = "NAME",
        default_value = TEKTON_CONTROLLER
    )]
    pub(crate) tekton_controller_username: String,
}
