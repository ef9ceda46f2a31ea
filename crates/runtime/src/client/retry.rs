//! Decides when a call is retried. Each call has its own backoff. The budget of the channel limits the retries of all its calls
//! together. If the budget is empty, the call waits for its next backoff. The call fails if this wait would end after its
//! deadline.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBackoff, ExponentialBuilder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use tokio::time::Instant;
use tonic::Status;
use tonic_types::StatusExt as _;

use crate::Deadline;
use crate::metrics_registry::Metrics;
use crate::rpc::MethodLabels;

/// The first backoff. Each further backoff is twice as long, up to [`LONGEST_DELAY`]. A random time of up to the same length is
/// added to each backoff.
const FIRST_DELAY: Duration = Duration::from_millis(50);
const LONGEST_DELAY: Duration = Duration::from_secs(1);
/// Retries that a channel may send per second. A service that has just started can answer hundreds of calls per second, so this
/// rate does not overload it.
const RETRIES_PER_SECOND: f64 = 50.0;
/// The most retries that the budget holds, after a time without retries.
const MOST_SAVED: f64 = 50.0;
/// Each call made with [`super::request`] adds this many retries to the budget.
const RETRIES_PER_CALL: f64 = 0.2;

/// The retries of one channel; clones share the budget.
#[derive(Clone, Debug)]
pub(super) struct Retries {
    budget: Arc<Mutex<Budget>>,
    metrics: RetryMetrics,
}

#[derive(Clone, Debug)]
struct RetryMetrics {
    retries: Family<MethodLabels, Counter>,
    held_back: Family<MethodLabels, Counter>,
}

/// The number of retries that may be sent now. Time and calls increase it. tower's own budget is not used: if it is read often,
/// saved retries expire after half of the configured time.
#[derive(Debug)]
struct Budget {
    retries: f64,
    at: Instant,
}

/// The retries of one call.
#[derive(Debug)]
pub(super) struct Turns {
    retries: Retries,
    method: MethodLabels,
    deadline: Deadline,
    delays: ExponentialBackoff,
}

impl Retries {
    pub(super) fn new(metrics: &Metrics) -> Self {
        Retries {
            budget: Arc::new(Mutex::new(Budget {
                retries: MOST_SAVED,
                at: Instant::now(),
            })),
            metrics: metrics.shared(|metrics| RetryMetrics {
                retries: metrics.register(
                    "grpc_client_retries",
                    "Retries of RPCs that this process made",
                    Family::default(),
                ),
                held_back: metrics.register(
                    "grpc_client_retries_held_back",
                    "Times that a retry of an RPC had to wait because the retry budget was empty",
                    Family::default(),
                ),
            }),
        }
    }

    /// Begins a call, and adds [`RETRIES_PER_CALL`] to the budget.
    pub(super) fn begin(&self, method: MethodLabels, deadline: Deadline) -> Turns {
        self.change_budget(|retries| *retries += RETRIES_PER_CALL);
        // Both counters must exist with value zero before the first retry, or Prometheus sees no increase.
        drop(self.metrics.retries.get_or_create(&method));
        drop(self.metrics.held_back.get_or_create(&method));
        Turns {
            retries: self.clone(),
            method,
            deadline,
            delays: ExponentialBuilder::default()
                .with_min_delay(FIRST_DELAY)
                .with_max_delay(LONGEST_DELAY)
                .with_jitter()
                .without_max_times()
                .build(),
        }
    }

    /// Takes one retry out of the budget. Returns false if the budget has less than one retry.
    fn withdraw(&self) -> bool {
        self.change_budget(|retries| {
            let enough = *retries >= 1.0;
            if enough {
                *retries -= 1.0;
            }
            enough
        })
    }

    fn change_budget<T>(&self, change: impl FnOnce(&mut f64) -> T) -> T {
        let mut budget = self.budget.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        budget.retries += now.duration_since(budget.at).as_secs_f64() * RETRIES_PER_SECOND;
        budget.at = now;
        let changed = change(&mut budget.retries);
        budget.retries = budget.retries.min(MOST_SAVED);
        changed
    }
}

impl Turns {
    /// Waits until the call may be retried after an attempt that ended with `status`. Returns false if the deadline would pass
    /// before that time.
    pub(super) async fn next(&mut self, status: &Status) -> bool {
        let asked = status.get_details_retry_info();
        let mut asked = asked.and_then(|info| info.retry_delay).unwrap_or_default();
        let RetryMetrics { retries, held_back } = &self.retries.metrics;
        loop {
            let delay = self.delays.next().unwrap_or(LONGEST_DELAY) + std::mem::take(&mut asked);
            if delay >= self.deadline.remaining() {
                return false;
            }
            tokio::time::sleep(delay).await;
            if self.retries.withdraw() {
                retries.get_or_create(&self.method).inc();
                return true;
            }
            held_back.get_or_create(&self.method).inc();
        }
    }
}
