//! The registry of the metrics of the process. The names of all metrics are in `docs/metrics.md`. The module that counts
//! something registers its metric: to find it, search for the name without `coscheduler_` and `_total`. Every name begins with
//! `coscheduler_`, except the standard names of gRPC metrics that `Metrics::register_protocol` registers: existing dashboards
//! use these names.

use std::fmt;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric, Registry};

use crate::Service;

/// Media type of [`Metrics::encode`].
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The upper bounds of histogram buckets, in seconds. The last one is the longest time that an RPC may take.
const BUCKETS: [f64; 13] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0,
];

/// Histograms of seconds, by labels.
pub type Seconds<L> = Family<L, Histogram, fn() -> Histogram>;

/// The registry of the process; clones share it.
#[derive(Clone, Debug)]
pub struct Metrics {
    registries: Arc<Mutex<Registries>>,
}

#[derive(Debug)]
struct Registries {
    own: Registry,
    protocol: Registry,
    /// Metrics that several clients or queues of the process share, by their type.
    shared: http::Extensions,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct BuildLabels {
    service: &'static str,
    version: &'static str,
}

impl Metrics {
    /// A registry that contains only `coscheduler_build_info`.
    pub(crate) fn new(service: Service) -> Self {
        let metrics = Metrics {
            registries: Arc::new(Mutex::new(Registries {
                own: Registry::with_prefix("coscheduler"),
                protocol: Registry::default(),
                shared: http::Extensions::new(),
            })),
        };
        let build = metrics.register(
            "build_info",
            "Always 1; the labels name the service and its version",
            Family::<BuildLabels, Gauge>::default(),
        );
        build
            .get_or_create(&BuildLabels {
                service: service.name,
                version: service.version,
            })
            .set(1);
        metrics
    }

    /// New histograms of seconds. The caller registers them.
    pub fn seconds<L: Clone + Hash + Eq>() -> Seconds<L> {
        Family::new_with_constructor(|| Histogram::new(BUCKETS))
    }

    /// Registers `metric` as `coscheduler_<name>` and returns it. A name ends with its base unit, if any, such as `_seconds`.
    /// It does not contain `_total`, which is added to counters. `help` is a sentence without its full stop.
    pub fn register<M: Metric + Clone>(&self, name: &str, help: &str, metric: M) -> M {
        self.lock().own.register(name, help, metric.clone());
        metric
    }

    /// Registers metrics that are computed at each scrape. Their names get the prefix `coscheduler_` too.
    pub fn collect(&self, collector: impl Collector) {
        self.lock().own.register_collector(Box::new(collector));
    }

    /// Registers `metric` without the prefix.
    pub(crate) fn register_protocol<M: Metric + Clone>(
        &self,
        name: &str,
        help: &str,
        metric: M,
    ) -> M {
        self.lock().protocol.register(name, help, metric.clone());
        metric
    }

    /// The metrics of type `T`, which several clients or queues of one process share. The first call registers them with
    /// `register`.
    pub(crate) fn shared<T: Clone + Send + Sync + 'static>(
        &self,
        register: impl FnOnce(&Metrics) -> T,
    ) -> T {
        if let Some(registered) = self.lock().shared.get::<T>() {
            return registered.clone();
        }
        let registered = register(self);
        self.lock().shared.insert(registered.clone());
        registered
    }

    /// Every metric in the OpenMetrics text format.
    ///
    /// # Errors
    /// A metric cannot be encoded.
    pub fn encode(&self) -> Result<String, fmt::Error> {
        let mut encoded = String::new();
        let registries = self.lock();
        text::encode_registry(&mut encoded, &registries.own)?;
        text::encode_registry(&mut encoded, &registries.protocol)?;
        text::encode_eof(&mut encoded)?;
        Ok(encoded)
    }

    fn lock(&self) -> MutexGuard<'_, Registries> {
        self.registries
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::counter::Counter;

    use super::*;

    #[test]
    fn own_metrics_have_the_prefix_and_protocol_metrics_do_not() {
        let metrics = Metrics::new(Service::EXAMPLE);
        metrics
            .register("plans", "Plans made", Counter::<u64>::default())
            .inc();
        metrics
            .register_protocol(
                "grpc_server_handled",
                "RPCs ended",
                Counter::<u64>::default(),
            )
            .inc_by(2);

        let encoded = metrics.encode().unwrap();
        let lines: Vec<_> = encoded
            .lines()
            .filter(|line| !line.starts_with("# HELP"))
            .collect();
        assert_eq!(
            lines,
            [
                "# TYPE coscheduler_build_info gauge",
                r#"coscheduler_build_info{service="example",version="1.2.3"} 1"#,
                "# TYPE coscheduler_plans counter",
                "coscheduler_plans_total 1",
                "# TYPE grpc_server_handled counter",
                "grpc_server_handled_total 2",
                "# EOF",
            ]
        );
    }
}
