//! Connecting to Kubernetes, for the services that do: the `--kubeconfig` flag, and a client whose connections and
//! writes have time limits, and that writes nothing once the process has stood still. The TLS provider of the process is
//! installed here, once.

mod pulse;
mod requests;
pub mod watch;

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{OsStringValueParser, TypedValueParser};
use http::{HeaderValue, Request, header};
use kube::Config;
use kube::client::{Body, ClientBuilder};
use kube::config::{InferConfigError, KubeConfigOptions, Kubeconfig, KubeconfigError};
use tower::filter::FilterLayer;

use crate::Process;
use pulse::Pulse;
use requests::Requests;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// Longer than the longest watch kube asks the API server for (290 s), so that only a dead connection runs into it.
const READ_TIMEOUT: Duration = Duration::from_secs(300);

/// The flags of a service that talks to Kubernetes, to be flattened into its own.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Kubernetes")]
pub struct KubernetesArgs {
    /// Kubeconfig file to connect with, or several separated by `:`. Without it: ~/.kube/config if that exists, else
    /// the service account of the pod.
    #[arg(long, env = "KUBECONFIG", value_name = "FILE",
        value_parser = OsStringValueParser::new().map(PathBuf::from))]
    pub kubeconfig: Option<PathBuf>,
}

/// No client for Kubernetes could be made.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The given kubeconfig cannot be used.
    #[error("failed to use kubeconfig {path:?}")]
    Kubeconfig {
        /// As given.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: Box<KubeconfigError>,
    },
    /// No kubeconfig was given, and neither a default one nor a service account works.
    #[error(
        "failed to find out how to connect to Kubernetes: no --kubeconfig, no usable default, not in a cluster"
    )]
    Infer(#[source] Box<InferConfigError>),
    /// The configuration cannot be turned into a client.
    #[error("failed to make a Kubernetes client for {server}")]
    Client {
        /// Address of the API server.
        server: String,
        /// What is wrong with the configuration.
        #[source]
        source: Box<kube::Error>,
    },
}

impl KubernetesArgs {
    /// A client for the cluster that the flags or the surroundings name. Nothing is connected yet. The name and version
    /// of `process` become the user agent, which audit logs show, and it counts the requests. From here on `process` ends
    /// when it has stood still, and writes nothing after that.
    ///
    /// # Errors
    /// No configuration is found, or it cannot be used.
    pub async fn client(&self, process: &Process) -> Result<kube::Client, ConnectError> {
        install_tls_provider();
        let mut config = self.config().await?;
        config.connect_timeout = Some(CONNECT_TIMEOUT);
        config.write_timeout = Some(WRITE_TIMEOUT);
        config.read_timeout = Some(READ_TIMEOUT);
        config.reset_reader_on_write = true;
        if let Ok(user_agent) = HeaderValue::from_str(&process.service().user_agent()) {
            config.headers.push((header::USER_AGENT, user_agent));
        }
        let server = config.cluster_url.to_string();
        let builder = ClientBuilder::try_from(config).map_err(|source| ConnectError::Client {
            server,
            source: Box::new(source),
        })?;
        let requests = Requests::new(process.metrics());
        let pulse = Pulse::watch(process);
        let fresh = FilterLayer::new(move |request: Request<Body>| pulse.pass(request));
        Ok(builder.with_layer(&requests).with_layer(&fresh).build())
    }

    async fn config(&self) -> Result<Config, ConnectError> {
        let path = match &self.kubeconfig {
            Some(path) if !path.as_os_str().is_empty() => path,
            Some(_) | None => {
                return Config::infer()
                    .await
                    .map_err(|error| ConnectError::Infer(Box::new(error)));
            }
        };
        let failed = |source| ConnectError::Kubeconfig {
            path: path.clone(),
            source: Box::new(source),
        };
        let files = std::env::split_paths(path).filter(|file| !file.as_os_str().is_empty());
        let merged = files
            .map(Kubeconfig::read_from)
            .try_fold(Kubeconfig::default(), |merged, file| merged.merge(file?))
            .map_err(failed)?;
        Config::from_custom_kubeconfig(merged, &KubeConfigOptions::default())
            .await
            .map_err(failed)
    }
}

/// Makes ring the TLS provider of the process, unless one is installed already. [`KubernetesArgs::client`] does this
/// itself; a TLS server needs it too.
pub fn install_tls_provider() {
    // An error means that another thread was first, with the same provider.
    let _ = rustls::crypto::ring::default_provider().install_default();
}
