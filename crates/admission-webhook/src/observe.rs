//! The layer around every admission review. It updates the metrics and creates the span. If the API server sends a trace, the
//! span belongs to this trace. The handler adds the outcome to its response as an extension, and this layer reads it there.

use std::time::Instant;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use tracing::{Instrument as _, field, info_span};

use coscheduler_runtime::{Metrics, trace};

/// The upper bounds of the histogram's buckets, in seconds. The last one is the longest timeout that Kubernetes allows for a
/// webhook.
const BUCKETS: [f64; 11] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 10.0, 30.0,
];

/// The outcome of a review.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The object is admitted without changes.
    Allowed,
    /// The object is admitted with changes.
    Mutated,
    /// The object is denied.
    Refused,
    /// There is no answer, so the API server applies the `failurePolicy`.
    Failed,
}

/// The outcome of a review, with the kind of the object.
#[derive(Clone, Debug)]
pub(crate) struct Answered {
    kind: &'static str,
    outcome: Outcome,
}

/// The metrics of reviews.
#[derive(Clone, Debug)]
pub(crate) struct Reviews {
    reviews: Family<OutcomeLabels, Counter>,
    seconds: Family<KindLabels, Histogram, fn() -> Histogram>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabels {
    kind: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabels {
    kind: &'static str,
}

impl Outcome {
    fn label(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Mutated => "mutated",
            Self::Refused => "refused",
            Self::Failed => "failed",
        }
    }
}

impl Answered {
    /// Only the kinds in our webhook configurations become label values, and `unknown` stands for all others. So the number of
    /// label values is limited.
    pub(crate) fn new(kind: &str, outcome: Outcome) -> Self {
        let kind = ["PipelineRun", "TaskRun", "CustomRun", "ConfigMap"]
            .into_iter()
            .find(|known| *known == kind)
            .unwrap_or("unknown");
        Self { kind, outcome }
    }

    /// Adds the outcome to the response of the handler.
    pub(crate) fn on(self, answer: impl IntoResponse) -> Response {
        let mut response = answer.into_response();
        response.extensions_mut().insert(self);
        response
    }
}

impl Reviews {
    /// Registers the metrics.
    pub(crate) fn new(metrics: &Metrics) -> Self {
        Self {
            reviews: metrics.register(
                "admission_reviews",
                "Admission reviews, by kind of object and outcome: allowed, mutated, refused or failed",
                Family::default(),
            ),
            seconds: metrics.register(
                "admission_review_seconds",
                "Seconds from an admission review to its answer",
                Family::new_with_constructor((|| Histogram::new(BUCKETS)) as fn() -> Histogram),
            ),
        }
    }
}

/// The layer. It is added with `axum::middleware::from_fn_with_state(reviews, observe)`.
pub(crate) async fn observe(
    State(reviews): State<Reviews>,
    request: Request,
    next: Next,
) -> Response {
    let began = Instant::now();
    let span = info_span!(
        "admission",
        otel.kind = "server",
        otel.status_code = field::Empty,
        kind = field::Empty,
        namespace = field::Empty,
        outcome = field::Empty,
    );
    trace::join_caller(&span, request.headers());
    let response = next.run(request).instrument(span.clone()).await;
    let unread = Answered::new("", Outcome::Failed);
    let Answered { kind, outcome } = response.extensions().get().cloned().unwrap_or(unread);

    if outcome == Outcome::Failed {
        span.record("otel.status_code", "ERROR");
    }
    let outcome = outcome.label();
    span.record("kind", kind).record("outcome", outcome);
    let labels = OutcomeLabels { kind, outcome };
    reviews.reviews.get_or_create(&labels).inc();
    let seconds = reviews.seconds.get_or_create(&KindLabels { kind });
    seconds.observe(began.elapsed().as_secs_f64());
    response
}
