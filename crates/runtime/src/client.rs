//! The gRPC client side: one lazy channel to each service called, with the keepalive without which it would never
//! recover from a healed network partition, and the one answer to "may this be tried again?".

use std::time::Duration;

use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

use crate::Service;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(5);

/// The address of a service is not one that can be called.
#[derive(Debug, thiserror::Error)]
#[error("failed to make a channel to {address:?}: expected an address like http://127.0.0.1:9101")]
pub struct AddressError {
    address: String,
    #[source]
    source: Option<tonic::transport::Error>,
}

/// A channel to `address` (`http://host:port`) for `caller`, whose name and version become the user agent. Nothing is
/// connected before the first call; after that, connections that break or stay silent are replaced.
///
/// # Errors
/// `address` is not an `http` address.
pub fn channel(address: &str, caller: Service) -> Result<Channel, AddressError> {
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
        .keep_alive_while_idle(true)
        .connect_lazy())
}

/// A request that is given up after `timeout`, on both sides: the caller stops waiting, and the server is told so.
/// For a stream, the bound is on how long it takes to begin.
pub fn request<T>(message: T, timeout: Duration) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(timeout);
    request
}

/// Whether the same call may do better later: the server was unreachable, overloaded or too slow, or the connection
/// broke. Every RPC of ours is safe to repeat, so that a call whose outcome is unknown counts as well.
pub fn is_retryable(status: &Status) -> bool {
    match status.code() {
        Code::Unavailable | Code::DeadlineExceeded | Code::ResourceExhausted | Code::Aborted => {
            true
        }
        // tonic's client makes a passed deadline and a broken connection look like these; unlike a status that the
        // server sent, they then say what they were made from.
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
