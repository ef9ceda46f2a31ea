//! The cluster of the user's kubeconfig.

use std::time::Duration;

use anyhow::{Context as _, anyhow};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

use crate::args::ClusterArgs;
use crate::failure::Failure;

/// The time limit of a connection to the API server.
const CONNECT: Duration = Duration::from_secs(10);

/// A client with the user's rights, and the namespaces to read.
pub(crate) struct Cluster {
    pub(crate) client: Client,
    /// `None` for all namespaces.
    pub(crate) namespace: Option<String>,
}

impl Cluster {
    /// The cluster that the arguments and the kubeconfig choose, as for kubectl.
    pub(crate) async fn new(args: &ClusterArgs) -> Result<Self, Failure> {
        let options = KubeConfigOptions {
            context: args.context.clone(),
            ..KubeConfigOptions::default()
        };
        let config = match &args.kubeconfig {
            Some(path) => match Kubeconfig::read_from(path) {
                Ok(kubeconfig) => Config::from_custom_kubeconfig(kubeconfig, &options).await,
                Err(error) => Err(error),
            },
            None => Config::from_kubeconfig(&options).await,
        };
        let mut config = config.context("failed to read the kubeconfig")?;
        config.connect_timeout = Some(CONNECT);
        let namespace = match &args.namespace {
            _ if args.all_namespaces => None,
            Some(namespace) => Some(namespace.clone()),
            None => Some(config.default_namespace.clone()),
        };
        let client = Client::try_from(config).context("failed to use the kubeconfig")?;
        Ok(Self { client, namespace })
    }
}

/// The failure of a request to the API server.
pub(crate) fn failed(what: &str, error: kube::Error) -> Failure {
    match error {
        kube::Error::Api(status) if status.code == 404 && !status.message.is_empty() => {
            Failure::NotFound(anyhow!("{}", status.message))
        }
        kube::Error::Api(status) => {
            Failure::Failed(anyhow!("{}", status.message).context(format!("failed to {what}")))
        }
        error @ (kube::Error::HyperError(_) | kube::Error::Service(_)) => {
            Failure::Unreachable(anyhow!(error).context("the API server does not answer"))
        }
        error => Failure::Failed(anyhow!(error).context(format!("failed to {what}"))),
    }
}
