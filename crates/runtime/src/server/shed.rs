//! The layer that limits the calls in progress. It answers further calls with `RESOURCE_EXHAUSTED` and a retry delay. Without a
//! limit, an overloaded server would answer every call too late. A stream counts until its response begins. Health and
//! reflection are exempt, because probes and people must reach a busy process.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt as _};

use crate::metrics_registry::Metrics;
use crate::rpc::MethodLabels;

/// The delay before a rejected caller may retry. Most calls end within milliseconds, so by then some calls have normally ended.
const RETRY_DELAY: Duration = Duration::from_millis(200);
/// The `ErrorInfo.reason` of the answer.
const REASON: &str = "TOO_MANY_CALLS";
const DOMAIN: &str = "coscheduler.dev";

/// The limit of the calls in progress.
#[derive(Clone, Debug)]
pub(crate) struct Limit {
    free: Arc<Semaphore>,
    in_flight: Gauge,
    /// The services that the limit applies to, each with the counter of its rejected calls. The counters exist from the start,
    /// so that Prometheus sees the first increase.
    shed: Arc<[(&'static str, Counter)]>,
}

/// One call in progress.
struct Call {
    in_flight: Gauge,
    _permit: OwnedSemaphorePermit,
}

impl Limit {
    /// A limit of `calls` calls at once, for all these `services` together.
    pub(crate) fn new(metrics: &Metrics, calls: usize, services: &[&'static str]) -> Self {
        let shed = metrics.register(
            "rpcs_shed",
            "RPCs answered with RESOURCE_EXHAUSTED because --max-concurrent-calls were in progress",
            Family::<[(&str, &str); 1], Counter>::default(),
        );
        let of = |service| shed.get_or_create(&[("grpc_service", service)]).clone();
        Limit {
            free: Arc::new(Semaphore::new(calls.min(Semaphore::MAX_PERMITS))),
            in_flight: metrics.register(
                "rpcs_in_flight",
                "RPCs in progress, except streams that have begun and calls of health and reflection",
                Gauge::default(),
            ),
            shed: services.iter().map(|service| (*service, of(service))).collect(),
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
    let called = MethodLabels::of(request.uri().path()).grpc_service;
    let Some((_, shed)) = limit.shed.iter().find(|(service, _)| *service == called) else {
        return next.run(request).await;
    };
    let Some(call) = limit.begin() else {
        shed.inc();
        return overloaded().into_http();
    };
    let response = next.run(request).await;
    drop(call);
    response
}

fn overloaded() -> Status {
    let mut details = ErrorDetails::with_retry_info(Some(RETRY_DELAY));
    details.set_error_info(REASON, DOMAIN, HashMap::new());
    let message = "the process has reached its limit of concurrent calls";
    Status::with_error_details(Code::ResourceExhausted, message, details)
}
