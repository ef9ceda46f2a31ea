//! The flags of the admission-webhook.

use std::net::SocketAddr;

use coscheduler_runtime::KubernetesArgs;

use crate::certificates::CertificateArgs;
use crate::registration::RegistrationArgs;

/// The admission-webhook's own flags.
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

    /// Address to serve admission reviews on over HTTPS, as IP:PORT
    #[arg(
        long,
        env = "WEBHOOK_ADDRESS",
        value_name = "IP:PORT",
        default_value = "127.0.0.1:9443"
    )]
    pub(crate) webhook_address: SocketAddr,

    /// Namespace of Tekton's ConfigMaps config-defaults and feature-flags. The requests of TaskRun pods depend on some keys of
    /// these ConfigMaps
    #[arg(
        long,
        env = "TEKTON_NAMESPACE",
        value_name = "NAME",
        default_value = "tekton-pipelines"
    )]
    pub(crate) tekton_namespace: String,

    /// Namespace of this service's Deployment and of the Secret with its certificates
    #[arg(
        long,
        env = "INSTALLATION_NAMESPACE",
        value_name = "NAME",
        default_value = "coscheduler-system"
    )]
    pub(crate) installation_namespace: String,

    /// Name of the MutatingWebhookConfiguration and ValidatingWebhookConfiguration of this service
    #[arg(
        long,
        env = "WEBHOOK_CONFIGURATION",
        value_name = "NAME",
        default_value = "coscheduler.dev"
    )]
    pub(crate) webhook_configuration: String,

    #[command(flatten)]
    pub(crate) registration: RegistrationArgs,

    #[command(flatten)]
    pub(crate) certificates: CertificateArgs,

    #[command(flatten)]
    pub(crate) kubernetes: KubernetesArgs,
}
