//! The layer around every RPC: it sets the deadline, counts and times the call, opens its span, logs its end, and ends
//! streams once the server drains, so that a stream without end cannot hold up a stop. Further layers go beside it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http::HeaderMap;
use http_body::{Frame, SizeHint};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::{Code, Status};
use tracing::{Instrument, Span, debug, info, info_span};

use crate::Deadline;
use crate::metrics::Metrics;

/// Upper bounds in seconds, up to the longest that an RPC may take.
const BUCKETS: [f64; 13] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0,
];
/// Stands for names that nobody here defined, so that callers cannot make up label values.
const UNKNOWN: &str = "unknown";

/// What the layer needs to watch a call.
#[derive(Clone)]
pub(crate) struct Observer {
    handled: Family<HandledLabels, Counter>,
    handling: Family<MethodLabels, Histogram, fn() -> Histogram>,
    services: Arc<[String]>,
    draining: CancellationToken,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct MethodLabels {
    grpc_service: String,
    grpc_method: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct HandledLabels {
    grpc_service: String,
    grpc_method: String,
    grpc_code: &'static str,
}

/// One RPC from its arrival to its status. Dropped before its status is known, it counts as cancelled.
struct Call {
    observer: Observer,
    service: String,
    method: String,
    began: Instant,
    span: Span,
    ended: bool,
}

/// The response body of a call: passes everything on and reads the status off its trailers.
struct ObservedBody {
    body: Body,
    call: Call,
    draining: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl Observer {
    /// Registers the gRPC metrics. `services` are the names that may become label values.
    pub(crate) fn new(metrics: &Metrics, services: Vec<&str>, draining: CancellationToken) -> Self {
        let histogram: fn() -> Histogram = || Histogram::new(BUCKETS);
        Observer {
            handled: metrics.register_protocol(
                "grpc_server_handled",
                "RPCs ended on this server, by their status",
                Family::default(),
            ),
            handling: metrics.register_protocol(
                "grpc_server_handling_seconds",
                "Seconds from the arrival of an RPC to its status",
                Family::new_with_constructor(histogram),
            ),
            services: services.into_iter().map(str::to_owned).collect(),
            draining,
        }
    }

    fn call(&self, path: &str) -> Call {
        let (service, method) = path
            .trim_start_matches('/')
            .split_once('/')
            .unwrap_or((path, UNKNOWN));
        let span = info_span!("rpc", grpc.service = service, grpc.method = method);
        Call {
            observer: self.clone(),
            service: service.to_owned(),
            method: method.to_owned(),
            began: Instant::now(),
            span,
            ended: false,
        }
    }
}

/// The layer: `axum::middleware::from_fn_with_state(observer, observe)`.
pub(crate) async fn observe(
    State(observer): State<Observer>,
    mut request: Request,
    next: Next,
) -> Response {
    let mut call = observer.call(request.uri().path());
    let deadline = Deadline::from_headers(request.headers());
    request.extensions_mut().insert(deadline);

    let handled = tokio::time::timeout_at(deadline.instant(), next.run(request))
        .instrument(call.span.clone());
    let response = handled.await.unwrap_or_else(|_| {
        Status::deadline_exceeded("the deadline passed before the call was answered").into_http()
    });

    if let Some(status) = Status::from_header_map(response.headers()) {
        call.end(&status);
        return response;
    }
    let draining = Box::pin(observer.draining.cancelled_owned());
    response.map(|body| {
        Body::new(ObservedBody {
            body,
            call,
            draining,
        })
    })
}

impl Call {
    fn end(&mut self, status: &Status) {
        if self.ended {
            return;
        }
        self.ended = true;
        let elapsed = self.began.elapsed().as_secs_f64();

        let known = self.observer.services.contains(&self.service);
        let implemented = known && status.code() != Code::Unimplemented;
        let grpc_service = if known {
            self.service.clone()
        } else {
            UNKNOWN.to_owned()
        };
        let grpc_method = if implemented {
            self.method.clone()
        } else {
            UNKNOWN.to_owned()
        };
        let method = MethodLabels {
            grpc_service,
            grpc_method,
        };
        self.observer
            .handling
            .get_or_create(&method)
            .observe(elapsed);
        let MethodLabels {
            grpc_service,
            grpc_method,
        } = method;
        let labels = HandledLabels {
            grpc_service,
            grpc_method,
            grpc_code: code_label(status.code()),
        };
        self.observer.handled.get_or_create(&labels).inc();

        let (code, seconds) = (labels.grpc_code, elapsed);
        self.span.in_scope(|| match status.code() {
            Code::Ok => debug!(code, seconds, "RPC ended"),
            _ => info!(code, message = status.message(), seconds, "RPC ended"),
        });
    }

    fn end_with(&mut self, trailers: &HeaderMap) {
        let status = Status::from_header_map(trailers);
        self.end(&status.unwrap_or_else(|| Status::unknown("the response had no status")));
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.end(&Status::cancelled("the caller went away"));
    }
}

impl HttpBody for ObservedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.call.ended {
            return Poll::Ready(None);
        }
        let span = self.call.span.clone();
        let polled = span.in_scope(|| Pin::new(&mut self.body).poll_frame(context));
        match &polled {
            Poll::Ready(Some(Ok(frame))) => {
                if let Some(trailers) = frame.trailers_ref() {
                    self.call.end_with(trailers);
                }
            }
            Poll::Ready(Some(Err(error))) => self.call.end(&Status::internal(error.to_string())),
            Poll::Ready(None) => self.call.end_with(&HeaderMap::new()),
            // Only a stream waits for more to say.
            Poll::Pending if self.draining.as_mut().poll(context).is_ready() => {
                let trailers = draining_trailers();
                self.call.end_with(&trailers);
                return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
            }
            Poll::Pending => {}
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.call.ended || self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

fn draining_trailers() -> HeaderMap {
    let (parts, ()) = Status::unavailable("the server is stopping")
        .into_http()
        .into_parts();
    let mut trailers = parts.headers;
    trailers.remove(http::header::CONTENT_TYPE);
    trailers
}

/// The names of status codes that existing dashboards know, those of the Go implementation.
fn code_label(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "Canceled",
        Code::Unknown => "Unknown",
        Code::InvalidArgument => "InvalidArgument",
        Code::DeadlineExceeded => "DeadlineExceeded",
        Code::NotFound => "NotFound",
        Code::AlreadyExists => "AlreadyExists",
        Code::PermissionDenied => "PermissionDenied",
        Code::ResourceExhausted => "ResourceExhausted",
        Code::FailedPrecondition => "FailedPrecondition",
        Code::Aborted => "Aborted",
        Code::OutOfRange => "OutOfRange",
        Code::Unimplemented => "Unimplemented",
        Code::Internal => "Internal",
        Code::Unavailable => "Unavailable",
        Code::DataLoss => "DataLoss",
        Code::Unauthenticated => "Unauthenticated",
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use axum::Router;
    use tower::ServiceExt;

    use super::*;
    use crate::Service;

    /// A router whose calls never end: `/test.Known/Silent` never answers, any other path begins a stream and says nothing.
    fn endless(metrics: &Metrics, draining: &CancellationToken) -> Router {
        let observer = Observer::new(metrics, vec!["test.Known"], draining.clone());
        Router::new()
            .route(
                "/test.Known/Silent",
                axum::routing::any(std::future::pending::<Response>),
            )
            .fallback(async || Response::new(Body::new(Endless)))
            .layer(axum::middleware::from_fn_with_state(observer, observe))
    }

    struct Endless;

    impl HttpBody for Endless {
        type Data = Bytes;
        type Error = axum::Error;

        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
            Poll::Pending
        }
    }

    fn call(path: &str, timeout: &str) -> Request {
        Request::builder()
            .uri(path)
            .header("grpc-timeout", timeout)
            .body(Body::empty())
            .unwrap()
    }

    #[track_caller]
    fn check(metrics: &Metrics, expected: &str) {
        let encoded = metrics.encode().unwrap();
        let handled: Vec<_> = encoded
            .lines()
            .filter(|line| line.starts_with("grpc_server_handled_total"))
            .collect();
        assert_eq!(handled, [format!("grpc_server_handled_total{expected} 1")]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_handler_that_misses_the_deadline_is_answered_for() {
        let metrics = Metrics::new(Service::EXAMPLE);
        let router = endless(&metrics, &CancellationToken::new());
        let began = tokio::time::Instant::now();
        let response = router
            .oneshot(call("/test.Known/Silent", "5S"))
            .await
            .unwrap();
        assert_eq!(began.elapsed().as_secs(), 5);
        let status = Status::from_header_map(response.headers()).unwrap();
        assert_eq!(status.code(), Code::DeadlineExceeded);
        check(
            &metrics,
            r#"{grpc_service="test.Known",grpc_method="Silent",grpc_code="DeadlineExceeded"}"#,
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_that_goes_away_is_counted() {
        let metrics = Metrics::new(Service::EXAMPLE);
        let router = endless(&metrics, &CancellationToken::new());
        let waiting = router.oneshot(call("/test.Known/Silent", "5S"));
        tokio::time::timeout(Duration::from_secs(1), waiting)
            .await
            .unwrap_err();
        check(
            &metrics,
            r#"{grpc_service="test.Known",grpc_method="Silent",grpc_code="Canceled"}"#,
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_outlives_the_deadline_and_ends_when_the_server_drains() {
        let (metrics, draining) = (Metrics::new(Service::EXAMPLE), CancellationToken::new());
        let router = endless(&metrics, &draining);
        let mut body = router
            .oneshot(call("/test.Known/Stream", "5S"))
            .await
            .unwrap()
            .into_body();
        let mut frame = async || {
            let frame = std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context));
            tokio::time::timeout(Duration::from_secs(3600), frame).await
        };
        frame().await.unwrap_err();

        draining.cancel();
        let frame_of_trailers = frame().await.unwrap().unwrap().unwrap();
        let trailers = frame_of_trailers.into_trailers().unwrap();
        assert_eq!(
            Status::from_header_map(&trailers).unwrap().code(),
            Code::Unavailable
        );
        assert!(frame().await.unwrap().is_none());
        check(
            &metrics,
            r#"{grpc_service="test.Known",grpc_method="Stream",grpc_code="Unavailable"}"#,
        );
    }

    #[tokio::test]
    async fn callers_cannot_make_up_label_values() {
        let metrics = Metrics::new(Service::EXAMPLE);
        let router = endless(&metrics, &CancellationToken::new());
        drop(router.oneshot(call("/made.Up/Name", "5S")).await.unwrap());
        check(
            &metrics,
            r#"{grpc_service="unknown",grpc_method="unknown",grpc_code="Canceled"}"#,
        );
    }
}
