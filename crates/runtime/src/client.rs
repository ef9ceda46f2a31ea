//! The gRPC client side: one lazy channel to each service called, with the keepalive without which it would never recover
//! from a healed network partition; calls that are tried again within their deadline and a budget; and the one answer to
//! "may this be tried again?".

mod call;
mod retry;

use std::fmt;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use http::{Request as HttpRequest, Response as HttpResponse};
use tonic::body::Body;
use tonic::transport::Endpoint;
use tonic::{Code, Request, Status};
use tower::Service as TowerService;
use tower::util::BoxCloneSyncService;

use crate::metrics::Metrics;
use crate::{Deadline, Process, Service};
use call::Caller;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// A connection that says nothing for as long as these two together is replaced: sooner than an admission has to be
/// answered (9 s), so that the next try still helps it.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(4);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(3);

/// The address of a service is not one that can be called.
#[derive(Debug, thiserror::Error)]
#[error("failed to make a channel to {address:?}: expected an address like http://127.0.0.1:9101")]
pub struct AddressError {
    address: String,
    #[source]
    source: Option<tonic::transport::Error>,
}

/// A channel to another service, for a generated client: `PlannerServiceClient::new(channel)`. Clones share one
/// connection and one budget for further tries.
///
/// A call made with [`request`] is tried again while that may help, at once at first and then at growing, random
/// intervals, and never beyond its deadline; a server that says when to come back (`RetryInfo`) is heeded. All further
/// tries of a channel together are at most 50 a second (50 more after a quiet second), and one for every five calls: where
/// more are wanted, they wait for their turn. So a service that comes back is not run down by those who waited for it. Any
/// other call, and so every stream, is made once.
#[derive(Clone)]
pub struct Channel(BoxCloneSyncService<HttpRequest<Body>, HttpResponse<Body>, Status>);

/// A channel to `address` (`http://host:port`) for `process`, whose name and version become the user agent, and which
/// counts the calls. Nothing is connected before the first call; after that, connections that break or stay silent are
/// replaced.
///
/// # Errors
/// `address` is not an `http` address.
pub fn channel(address: &str, process: &Process) -> Result<Channel, AddressError> {
    let endpoint = endpoint(address, process.service())?;
    Ok(Channel::new(endpoint.connect_lazy(), process.metrics()))
}

/// How to reach `address`.
pub(crate) fn endpoint(address: &str, caller: Service) -> Result<Endpoint, AddressError> {
    let refused = |source| AddressError {
        address: address.to_owned(),
        source,
    };
    let endpoint =
        Endpoint::from_shared(address.to_owned()).map_err(|error| refused(Some(error)))?;
    if endpoint.uri().scheme_str() != Some("http") {
        return Err(refused(None));
    }
    let endpoint = endpoint
        .user_agent(caller.user_agent())
        .map_err(|error| refused(Some(error)))?;
    Ok(endpoint
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .keep_alive_while_idle(true))
}

impl Channel {
    /// A channel over `transport` that counts its calls in `metrics`.
    pub(crate) fn new(transport: tonic::transport::Channel, metrics: &Metrics) -> Self {
        Channel(BoxCloneSyncService::new(Caller::new(transport, metrics)))
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Channel").finish_non_exhaustive()
    }
}

impl TowerService<HttpRequest<Body>> for Channel {
    type Response = HttpResponse<Body>;
    type Error = Status;
    type Future = BoxFuture<'static, Result<HttpResponse<Body>, Status>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Status>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: HttpRequest<Body>) -> Self::Future {
        self.0.call(request)
    }
}

/// A request of a call with one answer, that is given up after `timeout` on both sides: the caller stops waiting, and the
/// server is told so. Within that time it is tried again while that may help, as every such RPC of ours is safe to repeat.
pub fn request<T>(message: T, timeout: Duration) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(timeout);
    request
        .extensions_mut()
        .insert(Repeatable(Deadline::after(timeout)));
    request
}

/// Marks a request of a call that has one answer and may be made several times, until then.
#[derive(Clone, Copy, Debug)]
struct Repeatable(Deadline);

/// Whether the same call may do better later: the server was unreachable, overloaded or too slow, or the connection
/// broke. Every RPC of ours is safe to repeat, so that a call whose outcome is unknown counts as well.
pub fn is_retryable(status: &Status) -> bool {
    match status.code() {
        Code::Unavailable | Code::DeadlineExceeded | Code::ResourceExhausted | Code::Aborted => {
            true
        }
        // tonic's client makes a broken connection look like these; unlike a status that the server sent, they then say
        // what they were made from.
        Code::Cancelled | Code::Unknown | Code::Internal => {
            std::error::Error::source(status).is_some()
        }
        Code::Ok
        | Code::InvalidArgument
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::FailedPrecondition
        | Code::OutOfRange
        | Code::Unimplemented
        | Code::DataLoss
        | Code::Unauthenticated => false,
    }
}

#[cfg(test)]
mod tests;
