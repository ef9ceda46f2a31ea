//! Observes one RPC of a server or a client from its beginning to its status: opens its span, writes its line in the log, and
//! counts it in metrics. An RPC that is dropped without a status counts as cancelled.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use axum::body::{Bytes, HttpBody};
use http::HeaderMap;
use http_body::{Frame, SizeHint};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use tonic::{Code, Status};
use tracing::{Span, debug, field, info, info_span};

use crate::metrics_registry::{Metrics, Seconds};

/// The label value for names of services and methods that do not exist, so that callers cannot create label values.
const UNKNOWN: &str = "unknown";

/// The metrics of the RPCs that a process serves, or of the RPCs that it sends.
#[derive(Clone, Debug)]
pub(crate) struct RpcMetrics {
    side: Side,
    handled: Family<HandledLabels, Counter>,
    seconds: Seconds<MethodLabels>,
}

#[derive(Clone, Debug)]
enum Side {
    /// A server. Only the names of these services may become label values.
    Server(Arc<[String]>),
    Client,
}

/// The labels of a method. Other implementations of gRPC use the same names, so existing dashboards work.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct MethodLabels {
    pub(crate) grpc_service: String,
    pub(crate) grpc_method: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct HandledLabels {
    #[prometheus(flatten)]
    method: MethodLabels,
    grpc_code: String,
}

/// One RPC in progress.
#[derive(Debug)]
pub(crate) struct Rpc {
    metrics: RpcMetrics,
    method: MethodLabels,
    began: Instant,
    span: Span,
    ended: bool,
}

/// The body of a response. It passes all frames on, and reads the status of the RPC from the trailers.
#[derive(Debug)]
pub(crate) struct ObservedBody<B> {
    body: B,
    rpc: Rpc,
}

impl RpcMetrics {
    /// Metrics of the RPCs that this process serves. Only the names in `services` may become label values.
    pub(crate) fn server(metrics: &Metrics, services: Vec<&str>) -> Self {
        RpcMetrics {
            side: Side::Server(services.into_iter().map(str::to_owned).collect()),
            handled: metrics.register_protocol(
                "grpc_server_handled",
                "RPCs served, by status",
                Family::default(),
            ),
            seconds: metrics.register_protocol(
                "grpc_server_handling_seconds",
                "Seconds from the arrival of an RPC to its status",
                Metrics::seconds(),
            ),
        }
    }

    /// Metrics of the RPCs that this process sends.
    pub(crate) fn client(metrics: &Metrics) -> Self {
        RpcMetrics {
            side: Side::Client,
            handled: metrics.register_protocol(
                "grpc_client_handled",
                "RPCs made, by status; an RPC and its retries count once",
                Family::default(),
            ),
            seconds: metrics.register_protocol(
                "grpc_client_handling_seconds",
                "Seconds from the beginning of an RPC made to its status, retries included",
                Metrics::seconds(),
            ),
        }
    }

    /// Begins an RPC of `path`, which has the form `/package.Service/Method`.
    pub(crate) fn begin(&self, path: &str) -> Rpc {
        let method = MethodLabels::of(path);
        let kind = match self.side {
            Side::Server(_) => "server",
            Side::Client => "client",
        };
        let span = info_span!(
            "rpc",
            otel.name = path.trim_start_matches('/'),
            otel.kind = kind,
            otel.status_code = field::Empty,
            rpc.system = "grpc",
            rpc.service = method.grpc_service,
            rpc.method = method.grpc_method,
            rpc.grpc.status_code = field::Empty,
        );
        Rpc {
            metrics: self.clone(),
            method,
            began: Instant::now(),
            span,
            ended: false,
        }
    }

    /// The labels of a method. Unknown names are replaced.
    fn labels(&self, method: &MethodLabels, code: Code) -> MethodLabels {
        let mut labels = method.clone();
        let known = match &self.side {
            Side::Server(services) => services.contains(&method.grpc_service),
            Side::Client => true,
        };
        if !known {
            labels.grpc_service = UNKNOWN.to_owned();
        }
        if !known || code == Code::Unimplemented {
            labels.grpc_method = UNKNOWN.to_owned();
        }
        labels
    }
}

impl MethodLabels {
    /// The service and the method in `/package.Service/Method`.
    pub(crate) fn of(path: &str) -> Self {
        let (service, method) = path
            .trim_start_matches('/')
            .split_once('/')
            .unwrap_or((path, UNKNOWN));
        MethodLabels {
            grpc_service: service.to_owned(),
            grpc_method: method.to_owned(),
        }
    }
}

impl Rpc {
    /// The span of the call.
    pub(crate) fn span(&self) -> Span {
        self.span.clone()
    }

    /// Ends the call with `status`. Later ends of the same call have no effect.
    pub(crate) fn end(&mut self, status: &Status) {
        if self.ended {
            return;
        }
        self.ended = true;
        let (metrics, seconds) = (&self.metrics, self.began.elapsed().as_secs_f64());
        let method = metrics.labels(&self.method, status.code());
        metrics.seconds.get_or_create(&method).observe(seconds);
        let labels = HandledLabels {
            method,
            grpc_code: code_label(status.code()),
        };
        metrics.handled.get_or_create(&labels).inc();

        self.span
            .record("rpc.grpc.status_code", i32::from(status.code()));
        if metrics.side.is_fault(status.code()) {
            self.span.record("otel.status_code", "ERROR");
        }
        let (code, message) = (labels.grpc_code, status.message());
        let _entered = self.span.enter();
        match (&metrics.side, status.code()) {
            (Side::Server(_), Code::Ok) => debug!(code, seconds, "RPC ended"),
            (Side::Server(_), _) => info!(code, message, seconds, "RPC ended"),
            // The code that made the call knows how serious a failure is, and logs it.
            (Side::Client, _) => debug!(code, message, seconds, "RPC returned"),
        }
    }

    /// Ends the call with the status in `trailers`.
    fn end_with(&mut self, trailers: &HeaderMap) {
        let status = Status::from_header_map(trailers);
        self.end(&status.unwrap_or_else(|| Status::unknown("the response had no status")));
    }

    /// Ends the call with the status in the headers of `response`. If there is none, the call ends when the body ends.
    pub(crate) fn observe<B>(
        mut self,
        response: http::Response<B>,
        wrap: impl FnOnce(ObservedBody<B>) -> B,
    ) -> http::Response<B> {
        match Status::from_header_map(response.headers()) {
            Some(status) => {
                self.end(&status);
                response
            }
            None => response.map(|body| wrap(ObservedBody { body, rpc: self })),
        }
    }
}

impl Drop for Rpc {
    fn drop(&mut self) {
        self.end(&Status::cancelled("the caller went away"));
    }
}

impl Side {
    /// True if this status marks the span as an error. In a server, a mistake of the caller is no error (OpenTelemetry,
    /// semantic conventions for gRPC).
    fn is_fault(&self, code: Code) -> bool {
        match self {
            Side::Server(_) => matches!(
                code,
                Code::Unknown
                    | Code::DeadlineExceeded
                    | Code::Unimplemented
                    | Code::Internal
                    | Code::Unavailable
                    | Code::DataLoss
            ),
            Side::Client => code != Code::Ok,
        }
    }
}

impl<B> HttpBody for ObservedBody<B>
where
    B: HttpBody<Data = Bytes> + Unpin,
    B::Error: std::fmt::Display,
{
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let span = self.rpc.span();
        let polled = span.in_scope(|| Pin::new(&mut self.body).poll_frame(context));
        match &polled {
            Poll::Ready(Some(Ok(frame))) => {
                if let Some(trailers) = frame.trailers_ref() {
                    self.rpc.end_with(trailers);
                }
            }
            Poll::Ready(Some(Err(error))) => self.rpc.end(&Status::internal(error.to_string())),
            Poll::Ready(None) => self.rpc.end_with(&HeaderMap::new()),
            Poll::Pending => {}
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The name of a status code in the Go implementation of gRPC, because existing dashboards use these names.
fn code_label(code: Code) -> String {
    match code {
        Code::Ok => "OK".to_owned(),
        Code::Cancelled => "Canceled".to_owned(),
        other => format!("{other:?}"),
    }
}
