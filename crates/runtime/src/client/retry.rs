//! When a call is tried again. Each call has intervals of its own; the budget of the channel bounds what all calls together
//! send. A call that finds the budget used up waits another interval instead of failing: its caller still has the time.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBackoff, ExponentialBuilder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use tokio::time::Instant;
use tonic::Status;
use tonic_types::StatusExt as _;

use crate::Deadline;
use crate::metrics::Metrics;
use crate::rpc::MethodLabels;

/// The first interval; every further one is twice as long, plus up to as much again at random.
const FIRST_DELAY: Duration = Duration::from_millis(50);
const LONGEST_DELAY: Duration = Duration::from_secs(1);
/// Further tries that a channel may send in a second, whatever else it sends. A service that has just started answers
/// hundreds of calls a second; a burst of fifty creations that waited for it is served within a second or two.
const TRIES_PER_SECOND: f64 = 50.0;
/// The most that are saved up while none is needed.
const MOST_SAVED: f64 = 50.0;
/// Further tries for each call, in addition.
const TRIES_PER_CALL: f64 = 0.2;

/// The further tries of one channel; clones share the budget.
#[derive(Clone, Debug)]
pub(super) struct Retries {
    budget: Arc<Budget>,
    metrics: RetryMetrics,
}

#[derive(Clone, Debug)]
struct RetryMetrics {
    retries: Family<MethodLabels, Counter>,
    held_back: Family<MethodLabels, Counter>,
}

/// How many further tries may be sent now. Filled up by time and by calls. (tower's own budget forgets in half the time
/// it is given, where it is asked often.)
#[derive(Debug)]
struct Budget(Mutex<Saved>);

#[derive(Debug)]
struct Saved {
    tries: f64,
    at: Instant,
}

/// The further tries of one call.
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
            budget: Arc::new(Budget::full()),
            metrics: metrics.shared(|metrics| RetryMetrics {
                retries: metrics.register(
                    "grpc_client_retries",
                    "Further tries of RPCs that this process made",
                    Family::default(),
                ),
                held_back: metrics.register(
                    "grpc_client_retries_held_back",
                    "Times that a further try of an RPC had to wait because the budget for them was used up",
                    Family::default(),
                ),
            }),
        }
    }

    /// A call begins.
    pub(super) fn begin(&self, method: MethodLabels, deadline: Deadline) -> Turns {
        self.budget.deposit();
        // So that a scrape shows the zero that the first one is an increase of.
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
}

impl Budget {
    fn full() -> Self {
        Budget(Mutex::new(Saved {
            tries: MOST_SAVED,
            at: Instant::now(),
        }))
    }

    fn deposit(&self) {
        self.change(|tries| *tries += TRIES_PER_CALL);
    }

    /// Takes one try, if there is one.
    fn withdraw(&self) -> bool {
        self.change(|tries| {
            let enough = *tries >= 1.0;
            if enough {
                *tries -= 1.0;
            }
            enough
        })
    }

    fn change<T>(&self, change: impl FnOnce(&mut f64) -> T) -> T {
        let mut saved = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        saved.tries += now.duration_since(saved.at).as_secs_f64() * TRIES_PER_SECOND;
        saved.at = now;
        let changed = change(&mut saved.tries);
        saved.tries = saved.tries.min(MOST_SAVED);
        changed
    }
}

impl Turns {
    /// Waits for the call's next turn after a try that ended with `status`; false, at once, where the deadline would pass
    /// before it.
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
            if self.retries.budget.withdraw() {
                retries.get_or_create(&self.method).inc();
                return true;
            }
            held_back.get_or_create(&self.method).inc();
        }
    }
}
