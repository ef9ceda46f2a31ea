//! The flags of the config-service.

use coscheduler_runtime::KubernetesArgs;

/// The config-service's own flags.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Namespace of the ConfigMap
    #[arg(
        long,
        env = "CONFIG_NAMESPACE",
        value_name = "NAME",
        default_value = "coscheduler-system"
    )]
    pub(crate) namespace: String,

    /// Name of the ConfigMap that holds the configuration
    #[arg(
        long,
        env = "CONFIG_MAP",
        value_name = "NAME",
        default_value = "coscheduler-config"
    )]
    pub(crate) config_map: String,

    /// Namespace of Tekton's ConfigMap feature-flags, which must contain coschedule: disabled
    #[arg(
        long,
        env = "TEKTON_NAMESPACE",
        value_name = "NAME",
        default_value = "tekton-pipelines"
    )]
    pub(crate) tekton_namespace: String,

    #[command(flatten)]
    pub(crate) kubernetes: KubernetesArgs,
}
