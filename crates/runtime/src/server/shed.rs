//! The layer that limits the calls in progress. It answers further calls with `RESOURCE_EXHAUSTED` and a retry delay,
//! instead of letting all of them wait until their callers give up. A stream counts until its response begins. Health
//! and reflection are exempt: probes and people must reach a busy process.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt as _};

use crate::metrics::Metrics;
use crate::rpc::MethodLabels;

/// The delay before a rejected caller may retry. Handlers answer within milliseconds, or wait for a cache for two seconds
/// at most.
const RETRY_DELAY: Duration = Duration::from_millis(200);
/// The `ErrorInfo` of the answer.
const REASON: &str = "TOO_MANY_CALLS";
const DOMAIN: &str = "coscheduler.dev";

/// The calls in progress, and how many there may be.
#[derive(Clone, Debug)]
pub(crate) struct Limit {
    free: Arc<Semaphore>,
    /// The services that the limit applies to.
    services: Arc<[&'static str]>,
    in_flight: Gauge,
    shed: Family<ShedLabels, Counter>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ShedLabels {
    grpc_service: String,
}

/// One call in progress.
struct Call {
    in_flight: Gauge,
    _permit: OwnedSemaphorePermit,
}

impl Limit {
    /// At most `calls` of these `services` at once.
    pub(crate) fn new(metrics: &Metrics, calls: usize, services: &[&'static str]) -> Self {
        let shed = metrics.register(
            "rpcs_shed",
            "RPCs answered with RESOURCE_EXHAUSTED because --max-concurrent-calls were in progress",
            Family::<ShedLabels, Counter>::default(),
        );
        for service in services {
            // A scrape must show zero before the first one, or Prometheus sees no increase.
            drop(shed.get_or_create(&ShedLabels {
                grpc_service: (*service).to_owned(),
            }));
        }
        Limit {
            free: Arc::new(Semaphore::new(calls.min(Semaphore::MAX_PERMITS))),
            services: services.into(),
            in_flight: metrics.register(
                "rpcs_in_flight",
                "RPCs in progress, except streams that have begun and calls of health and reflection",
                Gauge::default(),
            ),
            shed,
        }
    }

    fn begin(&self) -> Option<Call> {
        let permit = self.free.clone().try_acquire_owned().ok()?;
        self.in_flight.inc();
        Some(Call {
            in_flight: self.in_flight.clone(),
            _permit: permit,
        })
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.in_flight.dec();
    }
}

/// The layer: `axum::middleware::from_fn_with_state(limit, shed)`.
pub(crate) async fn shed(State(limit): State<Limit>, request: Request, next: Next) -> Response {
    let MethodLabels { grpc_service, .. } = MethodLabels::of(request.uri().path());
    if !limit.services.contains(&grpc_service.as_str()) {
        return next.run(request).await;
    }
    let Some(call) = limit.begin() else {
        limit.shed.get_or_create(&ShedLabels { grpc_service }).inc();
        return overloaded().into_http();
    };
    let response = next.run(request).await;
    drop(call);
    response
}

fn overloaded() -> Status {
    let mut details = ErrorDetails::with_retry_info(Some(RETRY_DELAY));
    details.set_error_info(REASON, DOMAIN, std::collections::HashMap::new());
    Status::with_error_details(
        Code::ResourceExhausted,
        "the process has reached its limit of concurrent calls",
        details,
    )
}
