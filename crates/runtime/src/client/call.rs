//! A call on its way out: counted, timed and traced as one, however often it is tried.

use std::task::{Context, Poll};

use axum::body::Bytes;
use futures::future::BoxFuture;
use http::request::Parts;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt as _, Collected, Full, LengthLimitError, Limited};
use tonic::Status;
use tonic::body::Body;
use tower::{Service, ServiceExt as _};
use tracing::{Instrument as _, Span};

use super::retry::Retries;
use super::{Repeatable, is_retryable};
use crate::metrics::Metrics;
use crate::rpc::{MethodLabels, ObservedBody, RpcMetrics};
use crate::server::GRPC_TIMEOUT;
use crate::{Deadline, MAX_MESSAGE_BYTES, trace};

/// What frames a message takes on the wire beside itself.
const FRAMING_BYTES: usize = 5;

/// Makes calls over a transport.
#[derive(Clone, Debug)]
pub(super) struct Caller<S> {
    transport: S,
    metrics: RpcMetrics,
    retries: Retries,
}

/// One try: an answer that is complete, or none.
type Attempt = Result<Response<Collected<Bytes>>, Status>;

impl<S> Caller<S> {
    pub(super) fn new(transport: S, metrics: &Metrics) -> Self {
        Caller {
            transport,
            metrics: metrics.shared(RpcMetrics::client),
            retries: Retries::new(metrics),
        }
    }
}

impl<S> Service<Request<Body>> for Caller<S>
where
    S: Service<Request<Body>, Response = Response<Body>> + Clone + Send + Sync + 'static,
    S::Error: Into<tonic::codegen::StdError>,
    S::Future: Send,
{
    type Response = Response<Body>;
    type Error = Status;
    type Future = BoxFuture<'static, Result<Response<Body>, Status>>;

    /// Each try waits for the transport by itself, within the deadline.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let caller = self.clone();
        let mut rpc = caller.metrics.begin(request.uri().path());
        let repeatable = request.extensions().get::<Repeatable>().copied();
        Box::pin(async move {
            let span = rpc.span();
            match repeatable {
                Some(Repeatable(deadline)) => {
                    let answer = caller.unary(request, deadline).instrument(span).await;
                    rpc.end(&status(&answer));
                    answer.map(|response| response.map(Body::new))
                }
                None => {
                    let response = send(caller.transport, request).instrument(span).await;
                    match response {
                        Ok(response) => Ok(match rpc.begun_with(&response) {
                            None => response,
                            Some(rpc) => {
                                response.map(|body| Body::new(ObservedBody::new(body, rpc)))
                            }
                        }),
                        Err(status) => {
                            rpc.end(&status);
                            Err(status)
                        }
                    }
                }
            }
        })
    }
}

impl<S> Caller<S>
where
    S: Service<Request<Body>, Response = Response<Body>> + Clone + Send + Sync + 'static,
    S::Error: Into<tonic::codegen::StdError>,
    S::Future: Send,
{
    /// A call with one answer, tried again until `deadline`.
    async fn unary(self, request: Request<Body>, deadline: Deadline) -> Attempt {
        let (parts, body) = request.into_parts();
        let method = MethodLabels::of(parts.uri.path());
        let message = body.collect().await?.to_bytes();
        let mut turns = self.retries.begin(method, deadline);
        loop {
            let attempt = self.attempt(&parts, message.clone(), deadline).await;
            let status = status(&attempt);
            if !is_retryable(&status) || !turns.next(&status).await {
                return attempt;
            }
        }
    }

    async fn attempt(&self, parts: &Parts, message: Bytes, deadline: Deadline) -> Attempt {
        let mut request = Request::from_parts(parts.clone(), Body::new(Full::new(message)));
        request
            .headers_mut()
            .insert(GRPC_TIMEOUT, deadline.to_header());
        let answer = async {
            let (parts, body) = send(self.transport.clone(), request).await?.into_parts();
            let limited = Limited::new(body, MAX_MESSAGE_BYTES + FRAMING_BYTES);
            let body = limited.collect().await.map_err(broken)?;
            Ok(Response::from_parts(parts, body))
        };
        let answer = tokio::time::timeout_at(deadline.instant(), answer).await;
        // The transport keeps the same time, and may be the first to notice.
        match answer {
            Err(_) => Err(too_late()),
            Ok(Err(_)) if deadline.remaining().is_zero() => Err(too_late()),
            Ok(answer) => answer,
        }
    }
}

/// Sends a request, and with it which trace it is part of.
async fn send<S>(transport: S, mut request: Request<Body>) -> Result<Response<Body>, Status>
where
    S: Service<Request<Body>, Response = Response<Body>>,
    S::Error: Into<tonic::codegen::StdError>,
{
    trace::tell(&Span::current(), request.headers_mut());
    let sent = transport.oneshot(request).await;
    sent.map_err(|error| Status::from_error(error.into()))
}

/// Why the body of an answer ended early.
fn broken(error: tonic::codegen::StdError) -> Status {
    if error.is::<LengthLimitError>() {
        return Status::out_of_range(format!(
            "the answer is larger than {MAX_MESSAGE_BYTES} bytes"
        ));
    }
    Status::from_error(error)
}

/// How a try ended.
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
