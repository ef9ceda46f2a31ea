//! One RPC from its beginning to its status, on either side of the wire: its span, its line in the log, its place in the
//! metrics. The layers of server and client both tell it how the call ended; one that is dropped before that counts as
//! cancelled.

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
use prometheus_client::metrics::histogram::Histogram;
use tonic::{Code, Status};
use tracing::{Span, debug, field, info, info_span};

use crate::metrics::Metrics;

/// Upper bounds in seconds, up to the longest that an RPC may take.
const BUCKETS: [f64; 13] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0,
];
/// Stands for names that nobody here defined, so that callers cannot make up label values.
const UNKNOWN: &str = "unknown";

/// How RPCs are counted and timed on one side of the wire.
#[derive(Clone, Debug)]
pub(crate) struct RpcMetrics {
    side: Side,
    handled: Family<HandledLabels, Counter>,
    handling: Family<MethodLabels, Histogram, fn() -> Histogram>,
}

#[derive(Clone, Debug)]
enum Side {
    /// With the names of the services that may become label values.
    Server(Arc<[String]>),
    Client,
}

/// The labels of a method, with the names that dashboards know from other implementations of gRPC.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct MethodLabels {
    pub(crate) grpc_service: String,
    pub(crate) grpc_method: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct HandledLabels {
    grpc_service: String,
    grpc_method: String,
    grpc_code: &'static str,
}

/// One RPC that is under way.
#[derive(Debug)]
pub(crate) struct Rpc {
    metrics: RpcMetrics,
    method: MethodLabels,
    began: Instant,
    span: Span,
    ended: bool,
}

/// The body of a response: passes everything on, and reads the call's status off its trailers.
#[derive(Debug)]
pub(crate) struct ObservedBody<B> {
    body: B,
    rpc: Rpc,
}

impl RpcMetrics {
    /// For the calls that come in. `services` are the names that may become label values.
    pub(crate) fn server(metrics: &Metrics, services: Vec<&str>) -> Self {
        RpcMetrics {
            side: Side::Server(services.into_iter().map(str::to_owned).collect()),
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
        }
    }

    /// For the calls that go out.
    pub(crate) fn client(metrics: &Metrics) -> Self {
        RpcMetrics {
            side: Side::Client,
            handled: metrics.register_protocol(
                "grpc_client_handled",
                "RPCs ended that this process made, by their status; one that was tried again counts once",
                Family::default(),
            ),
            handling: metrics.register_protocol(
                "grpc_client_handling_seconds",
                "Seconds from the beginning of an RPC that this process made to its status, further tries included",
                Family::new_with_constructor(histogram),
            ),
        }
    }

    /// Begins a call of `path`, `/package.Service/Method`.
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

    /// The labels that a method really gets.
    fn labels(&self, method: &MethodLabels, code: Code) -> MethodLabels {
        let known = match &self.side {
            Side::Server(services) => services.contains(&method.grpc_service),
            Side::Client => true,
        };
        let name = |name: &String, known| {
            if known {
                name.clone()
            } else {
                UNKNOWN.to_owned()
            }
        };
        MethodLabels {
            grpc_service: name(&method.grpc_service, known),
            grpc_method: name(&method.grpc_method, known && code != Code::Unimplemented),
        }
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

    /// Says how the call ended. Only the first word counts.
    pub(crate) fn end(&mut self, status: &Status) {
        if self.ended {
            return;
        }
        self.ended = true;
        let elapsed = self.began.elapsed().as_secs_f64();

        let method = self.metrics.labels(&self.method, status.code());
        self.metrics
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
        self.metrics.handled.get_or_create(&labels).inc();

        self.span
            .record("rpc.grpc.status_code", i32::from(status.code()));
        if self.metrics.side.is_fault(status.code()) {
            self.span.record("otel.status_code", "ERROR");
        }
        let (code, seconds) = (labels.grpc_code, elapsed);
        self.span
            .in_scope(|| match (&self.metrics.side, status.code()) {
                (Side::Server(_), Code::Ok) => debug!(code, seconds, "RPC ended"),
                (Side::Server(_), _) => {
                    info!(code, message = status.message(), seconds, "RPC ended")
                }
                // Whoever made the call knows what its failure means, and logs it.
                (Side::Client, _) => {
                    debug!(code, message = status.message(), seconds, "RPC returned")
                }
            });
    }

    /// Ends the call with the status in `trailers`.
    pub(crate) fn end_with(&mut self, trailers: &HeaderMap) {
        let status = Status::from_header_map(trailers);
        self.end(&status.unwrap_or_else(|| Status::unknown("the response had no status")));
    }

    /// Ends the call where the headers of its response carry the status already; else it goes on with the body.
    pub(crate) fn begun_with<B>(mut self, response: &http::Response<B>) -> Option<Self> {
        match Status::from_header_map(response.headers()) {
            Some(status) => {
                self.end(&status);
                None
            }
            None => Some(self),
        }
    }
}

impl Drop for Rpc {
    fn drop(&mut self) {
        self.end(&Status::cancelled("the caller went away"));
    }
}

impl Side {
    /// Whether a span that ends so is in error. What the caller did wrong is no error of a server, as OpenTelemetry's
    /// semantic conventions for gRPC have it.
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

impl<B> ObservedBody<B> {
    /// Ends `rpc` when `body` ends.
    pub(crate) fn new(body: B, rpc: Rpc) -> Self {
        ObservedBody { body, rpc }
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

fn histogram() -> Histogram {
    Histogram::new(BUCKETS)
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
