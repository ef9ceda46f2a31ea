//! A work queue of keys. Watches of Kubernetes objects push the keys of changed objects. Calls, timers and the work itself push
//! keys too. Tasks work on the keys.
//!
//! Only one task at a time works on a key:
//!
//! - If a key is pushed while it already waits in the queue, the queue still contains it only once.
//! - If a key is pushed while a task works on it, the key goes to the end of its namespace's line when the task ends, also
//!   after a failure.
//! - If the work fails, the queue retries it with exponential backoff and jitter until it succeeds. A key that is pushed during
//!   a backoff does not wait for the end of the backoff. But if the work then fails again, the next backoff is longer, up to a
//!   limit (apart from jitter).
//!
//! Namespaces take turns (module `turns`).

mod turns;

pub use turns::Namespaced;

use std::collections::HashMap;
use std::future::Future;
use std::hash::Hash;
use std::panic::resume_unwind;
use std::time::{Duration, Instant};

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use futures::StreamExt;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;
use tokio_util::time::DelayQueue;
use tokio_util::time::delay_queue;

use crate::Metrics;
use turns::Turns;

/// The upper bounds of histogram buckets, in seconds. The last one is the longest time that an RPC may take.
const BUCKETS: [f64; 12] = [
    0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0,
];

/// The outcome of the work on a key.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Outcome {
    /// Nothing is left to do. The worker forgets the key until it is pushed again.
    Done,
    /// Try again after a backoff, because the work failed, or because it waits for a change that no watch reports.
    Retry,
    /// Nothing failed. Work on the key again after this time, or earlier if it is pushed.
    Later(Duration),
}

/// The concurrency and the backoff of a worker.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The greatest number of keys that are worked on at the same time.
    pub concurrency: usize,
    /// The first backoff of a failing key. Each further backoff is twice as long. Jitter makes each backoff longer, at most
    /// twice as long.
    pub first_retry: Duration,
    /// The longest backoff, without jitter.
    pub longest_retry: Duration,
}

impl Default for Options {
    /// 32 keys at a time, backoffs from 100 ms to 10 s (without jitter).
    fn default() -> Self {
        Self {
            concurrency: 32,
            first_retry: Duration::from_millis(100),
            longest_retry: Duration::from_secs(10),
        }
    }
}

/// The sending side. Clones push into the same queue.
#[derive(Clone, Debug)]
pub struct Queue<K> {
    keys: mpsc::UnboundedSender<K>,
}

/// The receiving side, which does the work.
#[derive(Debug)]
pub struct Worker<K> {
    keys: mpsc::UnboundedReceiver<K>,
    options: Options,
    name: &'static str,
    metrics: QueueMetrics,
}

#[derive(Clone, Debug)]
struct QueueMetrics {
    reconciles: Family<ReconcileLabels, Counter>,
    seconds: Family<QueueLabels, Histogram, fn() -> Histogram>,
    keys: Family<StageLabels, Gauge>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct QueueLabels {
    queue: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReconcileLabels {
    queue: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StageLabels {
    queue: &'static str,
    stage: &'static str,
}

/// A new, empty queue. `name` is the label of its metrics: one or two words about the work, such as `report`.
pub fn queue<K>(name: &'static str, options: Options, metrics: &Metrics) -> (Queue<K>, Worker<K>) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let worker = Worker {
        keys: receiver,
        options,
        name,
        metrics: metrics.shared(QueueMetrics::register),
    };
    (Queue { keys: sender }, worker)
}

impl QueueMetrics {
    fn register(metrics: &Metrics) -> Self {
        QueueMetrics {
            reconciles: metrics.register(
                "reconciles",
                "Keys worked on, by outcome: done, retry after a backoff, or later",
                Family::default(),
            ),
            seconds: metrics.register(
                "reconcile_seconds",
                "Seconds that the work on a key took",
                Family::new_with_constructor((|| Histogram::new(BUCKETS)) as fn() -> Histogram),
            ),
            keys: metrics.register(
                "queue_keys",
                "Keys in a work queue: ready to be worked on, being worked on, or waiting for their time",
                Family::default(),
            ),
        }
    }

    fn worked(&self, queue: &'static str, outcome: Outcome, began: Instant) {
        let outcome = match outcome {
            Outcome::Done => "done",
            Outcome::Retry => "retry",
            Outcome::Later(_) => "later",
        };
        let labels = ReconcileLabels { queue, outcome };
        self.reconciles.get_or_create(&labels).inc();
        let seconds = self.seconds.get_or_create(&QueueLabels { queue });
        seconds.observe(began.elapsed().as_secs_f64());
    }

    fn set_keys(&self, queue: &'static str, ready: usize, working: usize, retrying: usize) {
        for (stage, keys) in [
            ("ready", ready),
            ("working", working),
            ("retrying", retrying),
        ] {
            let keys = i64::try_from(keys).unwrap_or(i64::MAX);
            self.keys
                .get_or_create(&StageLabels { queue, stage })
                .set(keys);
        }
    }
}

impl<K> Queue<K> {
    /// Asks for work on `key`. Does nothing if the worker has stopped.
    pub fn push(&self, key: K) {
        // The send fails only if the worker is gone.
        drop(self.keys.send(key));
    }
}

impl<K: Namespaced + Clone + Eq + Hash + Send + 'static> Worker<K> {
    /// Works on each key in a task of its own, until `shutdown` is cancelled or all clones of the [`Queue`] are dropped. Then
    /// waits for the tasks that still run. Dropping this future aborts them. A panic in `work` panics here too.
    pub async fn run<F, Fut>(mut self, shutdown: CancellationToken, work: F)
    where
        F: Fn(K) -> Fut,
        Fut: Future<Output = Outcome> + Send + 'static,
    {
        let mut schedule = Schedule::<K>::new(self.options);
        let mut working = JoinSet::new();
        let (name, metrics) = (self.name, self.metrics);
        loop {
            while working.len() < self.options.concurrency {
                let Some(key) = schedule.next() else { break };
                let (began, result) = (Instant::now(), work(key.clone()));
                working.spawn(async move { (key, result.await, began) });
            }
            metrics.set_keys(
                name,
                schedule.ready.len(),
                working.len(),
                schedule.retries.len(),
            );
            tokio::select! {
                () = shutdown.cancelled() => break,
                key = self.keys.recv() => match key {
                    Some(key) => schedule.pushed(key),
                    None => break,
                },
                Some(ended) = working.join_next() => {
                    let (key, outcome, began) = finished(ended);
                    metrics.worked(name, outcome, began);
                    schedule.finished(key, outcome);
                }
                Some(key) = schedule.retries.next(), if !schedule.retries.is_empty() => {
                    schedule.due(key.into_inner());
                }
            }
        }
        while let Some(ended) = working.join_next().await {
            let (_, outcome, began) = finished(ended);
            metrics.worked(name, outcome, began);
        }
        metrics.set_keys(name, 0, 0, 0);
    }
}

fn finished<T>(ended: Result<T, JoinError>) -> T {
    // No code aborts a single task, so the task has either ended or panicked.
    ended.unwrap_or_else(|error| resume_unwind(error.into_panic()))
}

/// The keys that are ready, being worked on, or waiting for their time.
struct Schedule<K> {
    options: Options,
    ready: Turns<K>,
    retries: DelayQueue<K>,
    keys: HashMap<K, State>,
}

/// The state of a key.
struct State {
    stage: Stage,
    backoff: Option<ExponentialBackoff>,
}

enum Stage {
    Ready,
    Working { again: bool },
    Waiting(delay_queue::Key),
}

impl<K: Namespaced + Clone + Eq + Hash> Schedule<K> {
    fn new(options: Options) -> Self {
        Self {
            options,
            ready: Turns::new(options.concurrency),
            retries: DelayQueue::new(),
            keys: HashMap::new(),
        }
    }

    fn next(&mut self) -> Option<K> {
        let key = self.ready.next()?;
        if let Some(state) = self.keys.get_mut(&key) {
            state.stage = Stage::Working { again: false };
        }
        Some(key)
    }

    fn pushed(&mut self, key: K) {
        let Some(state) = self.keys.get_mut(&key) else {
            let state = State {
                stage: Stage::Ready,
                backoff: None,
            };
            self.keys.insert(key.clone(), state);
            self.ready.push(key);
            return;
        };
        match &mut state.stage {
            Stage::Ready => {}
            Stage::Working { again } => *again = true,
            Stage::Waiting(retry) => {
                self.retries.try_remove(retry);
                state.stage = Stage::Ready;
                self.ready.push(key);
            }
        }
    }

    fn due(&mut self, key: K) {
        if let Some(state) = self.keys.get_mut(&key) {
            state.stage = Stage::Ready;
            self.ready.push(key);
        }
    }

    fn finished(&mut self, key: K, outcome: Outcome) {
        self.ready.ended(&key);
        let Some(state) = self.keys.get_mut(&key) else {
            return;
        };
        let again = matches!(state.stage, Stage::Working { again: true });
        match outcome {
            Outcome::Done | Outcome::Later(_) => state.backoff = None,
            Outcome::Retry => {}
        }
        if again {
            state.stage = Stage::Ready;
            self.ready.push(key);
            return;
        }
        match outcome {
            Outcome::Done => {
                self.keys.remove(&key);
            }
            Outcome::Later(delay) => {
                state.stage = Stage::Waiting(self.retries.insert(key, delay));
            }
            Outcome::Retry => {
                let delay = state
                    .backoff
                    .get_or_insert_with(|| backoff(self.options))
                    .next()
                    .unwrap_or(self.options.longest_retry);
                state.stage = Stage::Waiting(self.retries.insert(key, delay));
            }
        }
    }
}

fn backoff(options: Options) -> ExponentialBackoff {
    ExponentialBuilder::default()
        .with_min_delay(options.first_retry)
        .with_max_delay(options.longest_retry)
        .with_jitter()
        .without_max_times()
        .build()
}

#[cfg(test)]
mod tests;
