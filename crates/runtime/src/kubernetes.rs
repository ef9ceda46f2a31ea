//! The Kubernetes client, for the services that need one: the `--kubeconfig` flag, the connection, and metrics of the requests. A
//! process that was suspended for more than ten seconds sends no more writes. This module also installs the TLS provider.

mod connection;
mod pulse;
mod requests;
pub mod version;
pub mod watch;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use clap::builder::{OsStringValueParser, TypedValueParser};
use http::{HeaderValue, Request, Response, header};
use kube::Config;
use kube::client::retry::RetryPolicy;
use kube::client::{Body, ClientBuilder, ConfigExt as _};
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use tower::filter::FilterLayer;
use tower::layer::util::Stack;
use tower::retry::RetryLayer;
use tower::util::MapResponseLayer;
use tower::{BoxError, ServiceBuilder};

use crate::Process;
use connection::connections;
use pulse::Pulse;
use requests::Requests;

/// The longest time for which the API server can delay the repetition of a request, in seconds. API servers normally ask for one
/// to ten seconds.
const LONGEST_RETRY_AFTER: u64 = 10;

/// The flags of a service with a Kubernetes client. The service flattens them into its own flags.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Kubernetes")]
pub struct KubernetesArgs {
    /// Kubeconfig file, or several separated by `:`. Default: ~/.kube/config if it exists, else the service account of
    /// the pod
    #[arg(long, env = "KUBECONFIG", value_name = "FILE",
        value_parser = OsStringValueParser::new().map(PathBuf::from))]
    pub kubeconfig: Option<PathBuf>,
}

impl KubernetesArgs {
    /// A client for the configured cluster. It connects at its first request. The user agent, which audit logs show, is the
    /// name and version of `process`. The metrics of `process` count the requests. If `process` is suspended for more than ten
    /// seconds at any later time, it writes nothing more and ends.
    ///
    /// # Errors
    /// There is no configuration, or it is malformed.
    pub async fn client(&self, process: &Process) -> anyhow::Result<kube::Client> {
        install_tls_provider();
        let mut config = self.config().await?;
        if let Ok(user_agent) = HeaderValue::from_str(&process.service().user_agent()) {
            config.headers.push((header::USER_AGENT, user_agent));
        }
        // These are the layers of kube's own client. That client is not used here, because its connections send no pings, and
        // because it repeats a refused request (429, 503, 504) for minutes, so a watch could be minutes late.
        let service = || {
            anyhow::Ok(
                ServiceBuilder::new()
                    .layer(config.base_uri_layer())
                    .layer(retries()?)
                    .option_layer(config.auth_layer()?)
                    .layer(config.extra_headers_layer()?)
                    .map_err(BoxError::from)
                    .service(connections(&config)?),
            )
        };
        let service = service().with_context(|| {
            let server = &config.cluster_url;
            format!("failed to make a Kubernetes client for {server}")
        })?;
        let builder = ClientBuilder::new(service, config.default_namespace);
        let requests = Requests::new(process.metrics());
        let pulse = Pulse::watch(process);
        let alive = FilterLayer::new(move |request: Request<Body>| pulse.pass(request));
        Ok(builder.with_layer(&requests).with_layer(&alive).build())
    }

    async fn config(&self) -> anyhow::Result<Config> {
        let given = self.kubeconfig.as_deref();
        let Some(path) = given.filter(|path| !path.as_os_str().is_empty()) else {
            return Config::infer().await.context(
                "failed to find a Kubernetes configuration: --kubeconfig is not set, and neither \
                 ~/.kube/config nor a service account can be used",
            );
        };
        let read = async {
            let merged = std::env::split_paths(path)
                .filter(|file| !file.as_os_str().is_empty())
                .map(Kubeconfig::read_from)
                .try_fold(Kubeconfig::default(), |merged, file| merged.merge(file?))?;
            Config::from_custom_kubeconfig(merged, &KubeConfigOptions::default()).await
        };
        let config: Result<_, KubeconfigError> = read.await;
        config.with_context(|| format!("failed to use kubeconfig {path:?}"))
    }
}

/// Limits the time for which a response asks, and repeats the request.
type Retries<B> = Stack<MapResponseLayer<fn(Response<B>) -> Response<B>>, RetryLayer<RetryPolicy>>;

/// Repeats a request eight times at most, for a few seconds in total, or as the API server's header `Retry-After` asks, but each
/// time after [`LONGEST_RETRY_AFTER`] at the latest.
fn retries<B>() -> anyhow::Result<Retries<B>> {
    let (first, longest) = (Duration::from_millis(10), Duration::from_secs(1));
    let policy = RetryPolicy::new(first, longest, 8, true)?;
    let limit = MapResponseLayer::new(limited as fn(_) -> _);
    Ok(Stack::new(limit, RetryLayer::new(policy)))
}

/// Reduces the header `Retry-After` to [`LONGEST_RETRY_AFTER`]. Otherwise, a proxy that asks for an hour could stop a service for
/// hours.
fn limited<B>(mut response: Response<B>) -> Response<B> {
    let header = response.headers_mut().get_mut(header::RETRY_AFTER);
    if let Some(header) = header
        && let Some(asked) = header.to_str().ok().and_then(|text| text.parse().ok())
    {
        *header = HeaderValue::from(LONGEST_RETRY_AFTER.min(asked));
    }
    response
}

/// Makes crate `ring` the TLS provider of the process, if the process has none. [`KubernetesArgs::client`] calls this
/// function. A TLS server needs the provider too.
pub fn install_tls_provider() {
    // This fails only if a provider is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use tokio::time::Instant;
    use tower::{ServiceExt as _, service_fn};

    use super::*;

    /// Sends a request to a server that always refuses it with this header. Returns the number of requests, and the time until the
    /// client gave up.
    async fn refused(header: Option<(&str, &str)>) -> (u32, Duration) {
        let asked = AtomicU32::new(0);
        let server = service_fn(async |_: Request<Body>| {
            asked.fetch_add(1, Ordering::SeqCst);
            let mut answer = Response::builder().status(503);
            if let Some((name, value)) = header {
                answer = answer.header(name, value);
            }
            anyhow::Ok(answer.body(())?).map_err(BoxError::from)
        });
        let client = ServiceBuilder::new()
            .layer(retries().unwrap())
            .service(server);
        let began = Instant::now();
        let answer = client.oneshot(Request::new(Body::empty())).await.unwrap();
        assert_eq!(answer.status(), 503);
        (asked.load(Ordering::SeqCst), began.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn n9_a_server_that_refuses_does_not_delay_a_watch_by_minutes() {
        let (asked, time) = refused(None).await;
        assert_eq!(asked, 9);
        assert!(time < Duration::from_secs(10), "{time:?}");
        let (asked, time) = refused(Some(("Retry-After", "2"))).await;
        assert_eq!(asked, 9);
        assert!(time >= Duration::from_secs(16), "{time:?}");
        let (asked, time) = refused(Some(("Retry-After", "3600"))).await;
        assert_eq!(asked, 9);
        assert!(time < Duration::from_secs(90), "{time:?}");
    }
}
