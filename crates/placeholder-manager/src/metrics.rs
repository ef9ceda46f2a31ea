//! Metrics about placeholders and runs, for people on call. `docs/metrics.md` describes them.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use coscheduler_core::event_texts::{ReasonCode, Severity};
use coscheduler_core::mode::Mode;
use coscheduler_runtime::Metrics;
use coscheduler_runtime::lease::Leadership;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::Instant;

use crate::cache::{Cache, Change, Phase};

/// The upper bounds of the histogram, in seconds. The largest bounds are for clusters with an autoscaler, which needs minutes
/// to add a node.
const BUCKETS: [f64; 11] = [
    0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0,
];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PlaceholderLabels {
    mode: &'static str,
    phase: &'static str,
}

/// The label with the code of a reason.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabels {
    reason: &'static str,
}

impl ReasonLabels {
    fn of(code: ReasonCode) -> Self {
        let reason = code.as_str();
        Self { reason }
    }
}

/// The Events that this process published, by reason.
#[derive(Clone, Debug, Default)]
pub(crate) struct Published(Family<ReasonLabels, Counter>);

impl Published {
    /// Counts an Event.
    pub(crate) fn count(&self, code: ReasonCode) {
        self.0.get_or_create(&ReasonLabels::of(code)).inc();
    }

    /// Registers the counters. Each begins with 0, so that function `increase` of Prometheus counts the first Event.
    pub(crate) fn register(&self, metrics: &Metrics) {
        for code in ReasonCode::ALL.iter().filter(|code| code.told().is_some()) {
            drop(self.0.get_or_create(&ReasonLabels::of(*code)));
        }
        let help = "Events on PipelineRuns that this process published";
        metrics.register("events", help, self.0.clone());
    }
}

/// Counts the placeholders and the waiting runs in the cache at each scrape.
#[derive(Debug)]
struct Counts(Arc<Cache>);

impl Collector for Counts {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let placeholders = Family::<PlaceholderLabels, Gauge>::default();
        let of = |mode: Option<Mode>, phase: Phase| {
            placeholders.get_or_create_owned(&PlaceholderLabels {
                mode: mode.map_or("unknown", Mode::as_str),
                phase: phase.as_str(),
            })
        };
        for mode in Mode::ALL.into_iter().filter(|it| *it != Mode::Disabled) {
            for phase in Phase::ALL {
                of(Some(mode), phase);
            }
        }
        for own in self.0.list(None, usize::MAX, |_| true) {
            of(own.mode, own.phase).inc();
        }
        let help = "Placeholders that exist";
        let gauge = encoder.encode_descriptor("placeholders", help, None, MetricType::Gauge)?;
        placeholders.encode(gauge)?;

        let waiting = Family::<ReasonLabels, Gauge>::default();
        let warnings = ReasonCode::ALL.iter();
        for code in warnings.filter(|code| code.told() == Some(Severity::Warning)) {
            drop(waiting.get_or_create(&ReasonLabels::of(*code)));
        }
        for code in self.0.waiting() {
            waiting.get_or_create(&ReasonLabels::of(code)).inc();
        }
        let help = "PipelineRuns with annotation coscheduler.dev/blocked, by its reason";
        let gauge = encoder.encode_descriptor("runs_waiting", help, None, MetricType::Gauge)?;
        waiting.encode(gauge)
    }
}

/// Registers the counts of placeholders and waiting runs, and returns the histogram for [`follow`].
pub(crate) fn register(metrics: &Metrics, cache: &Arc<Cache>) -> Histogram {
    metrics.collect(Counts(cache.clone()));
    let help = "Time that a placeholder was without a node";
    metrics.register("placeholder_pending_seconds", help, Histogram::new(BUCKETS))
}

/// Measures how long placeholders are without a node. Every replica observes the placeholders, but only the leader records the
/// times, so that each time counts once.
pub(crate) async fn follow(cache: &Cache, leadership: &Leadership, seconds: &Histogram) {
    let mut changes = cache.subscribe();
    let mut since = HashMap::new();
    loop {
        match changes.recv().await {
            Ok(Change {
                placeholder,
                deleted,
            }) => {
                let key = (placeholder.namespace, placeholder.name);
                if placeholder.phase == Phase::Pending && !deleted {
                    since.entry(key).or_insert_with(Instant::now);
                } else if let Some(began) = since.remove(&key)
                    && placeholder.phase == Phase::Bound
                    && !deleted
                    && leadership.is_held()
                {
                    seconds.observe(began.elapsed().as_secs_f64());
                }
            }
            // The missed changes may concern any of these placeholders.
            Err(RecvError::Lagged(_)) => since.clear(),
            Err(RecvError::Closed) => return,
        }
    }
}
