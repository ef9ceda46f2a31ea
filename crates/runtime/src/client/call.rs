//! An outgoing call. It is counted, timed and traced once, even if it is retried several times.

use std::task::{Context, Poll};

use axum::body::Bytes;
use futures::future::BoxFuture;
use http::request::Parts;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt as _, Collected, Full, LengthLimitError, Limited};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::StdError;
use tower::util::BoxCloneSyncService;
use tower::{Service, ServiceExt as _};
use tracing::{Instrument as _, Span};

use super::retry::Retries;
use super::{Repeatable, Retry, is_retryable};
use crate::metrics_registry::Metrics;
use crate::rpc::{MethodLabels, RpcMetrics};
use crate::{Deadline, MAX_MESSAGE_BYTES, trace};

/// The size of the prefix of a gRPC message: the compression flag and the length.
const FRAMING_BYTES: usize = 5;

/// Makes calls over a transport.
#[derive(Clone, Debug)]
pub(super) struct Caller {
    transport: BoxCloneSyncService<Request<Body>, Response<Body>, StdError>,
    metrics: RpcMetrics,
    retries: Retries,
}

/// The outcome of one attempt: a complete response with any gRPC status, or the status of an attempt without a complete response.
type Attempt = Result<Response<Collected<Bytes>>, Status>;

impl Caller {
    pub(super) fn new<S>(transport: S, metrics: &Metrics) -> Self
    where
        S: Service<Request<Body>, Response = Response<Body>> + Clone + Send + Sync + 'static,
        S::Error: Into<StdError> + 'static,
        S::Future: Send + 'static,
    {
        Caller {
            transport: BoxCloneSyncService::new(transport.map_err(Into::into)),
            metrics: metrics.shared(RpcMetrics::client),
            retries: Retries::new(metrics),
        }
    }
}

impl Service<Request<Body>> for Caller {
    type Response = Response<Body>;
    type Error = Status;
    type Future = BoxFuture<'static, Result<Response<Body>, Status>>;

    /// Always ready, because each attempt itself waits for the transport.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let caller = self.clone();
        let mut rpc = caller.metrics.begin(request.uri().path());
        let repeatable = request.extensions().get::<Repeatable>().copied();
        Box::pin(async move {
            let span = rpc.span();
            if let Some(Repeatable(deadline)) = repeatable {
                let answer = caller.unary(request, deadline).instrument(span).await;
                rpc.end(&status(&answer));
                return answer.map(|response| response.map(Body::new));
            }
            let response = caller.send(request).instrument(span).await;
            let response = response.inspect_err(|status| rpc.end(status))?;
            Ok(rpc.observe(response, Body::new))
        })
    }
}

impl Caller {
    /// Makes a call with one answer, and retries it until `deadline`.
    async fn unary(self, request: Request<Body>, deadline: Deadline) -> Attempt {
        let (mut parts, body) = request.into_parts();
        let method = MethodLabels::of(parts.uri.path());
        let message = body.collect().await?.to_bytes();
        let mut turns = self.retries.begin(method, deadline);
        loop {
            let attempt = self.attempt(&parts, message.clone(), deadline).await;
            let status = status(&attempt);
            if !is_retryable(&status) || !turns.next(&status).await {
                return attempt;
            }
            parts.extensions.insert(Retry);
        }
    }

    async fn attempt(&self, parts: &Parts, message: Bytes, deadline: Deadline) -> Attempt {
        let mut request = Request::from_parts(parts.clone(), Body::new(Full::new(message)));
        // tonic formats `grpc-timeout` only for its own requests, so the header is taken from an empty tonic request.
        let mut timeout = tonic::Request::new(());
        timeout.set_timeout(deadline.remaining());
        let timeout = timeout.into_parts().0.into_headers();
        request.headers_mut().extend(timeout);
        let answer = async {
            let (parts, body) = self.send(request).await?.into_parts();
            let limited = Limited::new(body, MAX_MESSAGE_BYTES + FRAMING_BYTES);
            let body = limited.collect().await.map_err(broken)?;
            Ok(Response::from_parts(parts, body))
        };
        let answer = tokio::time::timeout_at(deadline.instant(), answer).await;
        // The transport has the same deadline, and may report it first, with another status.
        match answer {
            Err(_) => Err(too_late()),
            Ok(Err(_)) if deadline.remaining().is_zero() => Err(too_late()),
            Ok(answer) => answer,
        }
    }

    /// Sends a request with the trace context of the current span.
    async fn send(&self, mut request: Request<Body>) -> Result<Response<Body>, Status> {
        trace::inject(&Span::current(), request.headers_mut());
        let sent = self.transport.clone().oneshot(request).await;
        sent.map_err(Status::from_error)
    }
}

/// The status of a call whose answer could not be read completely.
fn broken(error: StdError) -> Status {
    if error.is::<LengthLimitError>() {
        return Status::out_of_range(format!(
            "the answer is larger than {MAX_MESSAGE_BYTES} bytes"
        ));
    }
    Status::from_error(error)
}

/// The status of one attempt.
fn status(attempt: &Attempt) -> Status {
    let response = match attempt {
        Ok(response) => response,
        Err(status) => return status.clone(),
    };
    let trailers = response.body().trailers();
    [Some(response.headers()), trailers]
        .into_iter()
        .flatten()
        .find_map(|headers: &HeaderMap| Status::from_header_map(headers))
        .unwrap_or_else(|| Status::unknown("the response had no status"))
}

fn too_late() -> Status {
    Status::deadline_exceeded("no answer came before the deadline")
}
