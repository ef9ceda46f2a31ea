//! The gRPC client: channels to other services. A channel has several connections (`spread`). Each connection opens at its
//! first call, and a new connection replaces a dead one. The channel retries a call made with [`request`] while
//! [`is_retryable`] is true for the call's status, until the call's deadline. A budget limits the retries of all calls on the
//! channel. Other calls and all streams are sent once.

mod call;
mod retry;
mod spread;

use std::time::Duration;

use anyhow::{Context as _, ensure};
use http::uri::Authority;
use http::{Request as HttpRequest, Response as HttpResponse};
use tonic::body::Body;
use tonic::codegen::StdError;
use tonic::transport::Endpoint;
use tonic::{Code, Request, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tower::service_fn;
use tower::util::BoxCloneSyncService;

use crate::metrics_registry::Metrics;
use crate::{Deadline, Process, Service};
use call::Caller;
use spread::Spread;

/// The time limit for a new connection. It is short, because a replica on a dead node does not answer, and Kubernetes needs a
/// while to remove its endpoint.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// After `KEEPALIVE_INTERVAL` and `KEEPALIVE_TIMEOUT` (7 s) without data, a connection is replaced. An admission may take 9 s,
/// so there is time to retry it on the new connection.
pub(crate) const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(4);
pub(crate) const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(3);

/// A channel to another service, for a generated client: `PlannerServiceClient::new(channel)`. Clones share the
/// connections and one retry budget.
///
/// A call made with [`request`] is retried while [`is_retryable`] is true for its status. The intervals grow and are random.
/// There is no retry after the deadline. If the server asks for a delay (`RetryInfo`), the retry waits for this delay in
/// addition.
///
/// All retries of a channel share a budget of 50 retries per second, plus one retry for every five calls made with [`request`].
/// Unused retries add up to at most 50. If the budget is empty, retries wait. So callers do not overload a service that
/// recovers. Calls made without [`request`], and all streams, are sent once.
pub type Channel = BoxCloneSyncService<HttpRequest<Body>, HttpResponse<Body>, Status>;

/// A channel to `address` (`HOST:PORT`) for `process`, with mutual TLS if `process` has certificates. The user agent is the
/// name and version of `process`, and its metrics count the calls. If a connection breaks or stays silent, the channel replaces
/// it.
///
/// # Errors
/// `address` is not a host with a port.
pub fn channel(address: &str, process: &Process) -> anyhow::Result<Channel> {
    let endpoint = endpoint(address, process.service())?;
    let spread = Spread::new(|| match process.tls() {
        None => endpoint.connect_lazy(),
        Some(tls) => {
            let tls = tls.clone();
            endpoint.connect_with_connector_lazy(service_fn(move |uri| tls.clone().connect(uri)))
        }
    });
    Ok(observed(spread, process.metrics()))
}

/// The settings of a connection to `address`.
pub(crate) fn endpoint(address: &str, caller: Service) -> anyhow::Result<Endpoint> {
    let failed = || {
        format!(
            "failed to make a channel to {address:?}: expected HOST:PORT, like config-service.coscheduler-system.svc:9101"
        )
    };
    let authority: Authority = address.parse().with_context(failed)?;
    ensure!(authority.port_u16().is_some(), failed());
    // The scheme is `http` even with mutual TLS: module `tls` does the TLS, and tonic accepts `https` only if tonic does it.
    Ok(Endpoint::from_shared(format!("http://{authority}"))
        .with_context(failed)?
        .user_agent(caller.user_agent())
        .with_context(failed)?
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .keep_alive_while_idle(true))
}

/// A channel over `transport` that counts its calls in `metrics`.
pub(crate) fn observed<S>(transport: S, metrics: &Metrics) -> Channel
where
    S: tower::Service<HttpRequest<Body>, Response = HttpResponse<Body>>
        + Clone
        + Send
        + Sync
        + 'static,
    S::Error: Into<StdError> + 'static,
    S::Future: Send + 'static,
{
    Channel::new(Caller::new(transport, metrics))
}

/// A request of a unary call. The caller stops waiting after `timeout`, and the server gets the same deadline. Until the
/// deadline, the call is retried if a retry may help. This is safe, because all our RPCs are idempotent.
pub fn request<T>(message: T, timeout: Duration) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(timeout);
    request
        .extensions_mut()
        .insert(Repeatable(Deadline::after(timeout)));
    request
}

/// True if the service at the other end says within `timeout` that it is ready.
pub async fn is_serving(channel: Channel, timeout: Duration) -> bool {
    let asked = request(HealthCheckRequest::default(), timeout);
    let answer = HealthClient::new(channel).check(asked).await;
    answer.is_ok_and(|answer| answer.into_inner().status() == ServingStatus::Serving)
}

/// Marks an attempt as a retry.
#[derive(Clone, Copy, Debug)]
struct Retry;

/// Marks a request as repeatable: its call has one answer, and may be retried until this deadline.
#[derive(Clone, Copy, Debug)]
struct Repeatable(Deadline);

/// True if the same call may succeed later: the server was unreachable, overloaded or too slow, or aborted the call, or the
/// connection broke. Each of our RPCs may be repeated, so this includes calls with an unknown outcome.
pub fn is_retryable(status: &Status) -> bool {
    match status.code() {
        Code::Unavailable | Code::DeadlineExceeded | Code::ResourceExhausted | Code::Aborted => {
            true
        }
        // tonic's client reports a broken connection with one of these codes. Unlike a status from the server, this status has
        // a source.
        Code::Cancelled | Code::Unknown | Code::Internal => {
            std::error::Error::source(status).is_some()
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests;
