//! The figures of one trial, and their medians and spreads over the rounds.

use std::collections::BTreeMap;

use integration_tests::timings::median;
use serde::{Deserialize, Serialize};
use testbed::services::Service;

/// The figures of one load on one side. Times are in seconds.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Figures {
    pub(crate) makespan: f64,
    /// From the creation of a run until its first task pod is bound.
    pub(crate) bound_p50: f64,
    pub(crate) bound_p99: f64,
    /// From the creation of a run until it is done.
    pub(crate) done_p50: f64,
    pub(crate) done_p99: f64,
    /// From the request for a run until its answer.
    pub(crate) create_p50: f64,
    pub(crate) create_p99: f64,
    /// Requests to the API server for each run, by client and verb.
    pub(crate) requests: BTreeMap<String, BTreeMap<String, f64>>,
    /// Task pods for which the scheduler found no node at its first try, for each run. Older files lack this and the next figure.
    #[serde(default)]
    pub(crate) rejected_pods: f64,
    /// Writes of the scheduler to claims that the API server refused with 409, for each run.
    #[serde(default)]
    pub(crate) claim_conflicts: f64,
    /// Bytes in the bodies of requests to the API server, for each run.
    pub(crate) request_bytes: f64,
    /// Bytes in the API server's answers to `get` and `list`, for each run.
    pub(crate) answer_bytes: f64,
    /// Milliseconds of CPU for each run, by process.
    pub(crate) cpu: BTreeMap<String, f64>,
    /// The processors that all processes used on average.
    pub(crate) cores: f64,
    /// The most resident memory of each service since its start, in MiB.
    pub(crate) memory: BTreeMap<String, f64>,
}

impl Figures {
    /// The requests that all clients together send for one run on average.
    pub(crate) fn all_requests(&self) -> f64 {
        self.requests.values().flat_map(BTreeMap::values).sum()
    }

    /// The CPU that all our services together use for one run on average, in milliseconds.
    pub(crate) fn cpu_of_ours(&self) -> f64 {
        let ours = Service::ALL.map(|service| self.cpu.get(service.name()));
        ours.into_iter().flatten().sum()
    }

    /// The figure of this name. `None` if this side has no such figure.
    pub(crate) fn row(&self, name: &str) -> Option<f64> {
        let mut rows = self.rows().into_iter();
        rows.find_map(|(row, figure)| (row == name).then_some(figure))
    }

    /// Each figure with its name and unit. Figures of clients and processes that this side lacks are missing.
    pub(crate) fn rows(&self) -> Vec<(String, f64)> {
        let mut rows: Vec<(String, f64)> = [
            ("makespan, s", self.makespan),
            ("creation → first pod bound, p50, s", self.bound_p50),
            ("creation → first pod bound, p99, s", self.bound_p99),
            ("creation → completion, p50, s", self.done_p50),
            ("creation → completion, p99, s", self.done_p99),
            ("time to create, p50, ms", self.create_p50 * 1000.0),
            ("time to create, p99, ms", self.create_p99 * 1000.0),
            ("API requests a run", self.all_requests()),
            (
                "task pods without a node at first, a run",
                self.rejected_pods,
            ),
            (
                "the scheduler's writes to claims refused with 409, a run",
                self.claim_conflicts,
            ),
            ("request bodies a run, KiB", self.request_bytes / 1024.0),
            (
                "answers to get and list a run, KiB",
                self.answer_bytes / 1024.0,
            ),
            ("cores in use", self.cores),
            ("CPU a run, all processes, ms", self.cpu.values().sum()),
        ]
        .map(|(name, figure)| (name.to_owned(), figure))
        .into();
        if !self.memory.is_empty() {
            rows.push(("CPU a run, our services, ms".to_owned(), self.cpu_of_ours()));
        }
        let cpu = self.cpu.iter();
        rows.extend(cpu.map(|(process, cpu)| (format!("CPU a run, {process}, ms"), *cpu)));
        let memory = self.memory.iter();
        rows.extend(memory.map(|(service, mib)| (format!("peak memory, {service}, MiB"), *mib)));
        rows
    }
}

/// The median of a figure over the rounds, with its least and greatest value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
}

impl Spread {
    /// `None` if there are no figures.
    pub(crate) fn of(figures: &[f64]) -> Option<Self> {
        (!figures.is_empty()).then(|| Self {
            median: median(figures.iter().copied()),
            least: figures.iter().copied().fold(f64::INFINITY, f64::min),
            most: figures.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        })
    }

    /// True if a value between the least and the greatest one is also such a value of the other spread.
    pub(crate) fn overlaps(self, other: Self) -> bool {
        self.least <= other.most && other.least <= self.most
    }
}
