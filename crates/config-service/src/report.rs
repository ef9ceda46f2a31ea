//! Reports changes of the configuration in the log and in metrics.

use prometheus_client::metrics::gauge::Gauge;
use tracing::{info, warn};

use coscheduler_core::event_texts::configuration_invalid;
use coscheduler_runtime::Metrics;

use crate::state::{Ours, State};

/// The metrics.
#[derive(Clone, Debug)]
pub(crate) struct Report {
    valid: Gauge,
    generation: Gauge,
}

impl Report {
    /// Registers the metrics.
    pub(crate) fn new(metrics: &Metrics) -> Self {
        Self {
            valid: metrics.register(
                "config_valid",
                "1 while the ConfigMap is valid; 0 while it is invalid or absent, and the last valid configuration is in force",
                Gauge::default(),
            ),
            generation: metrics.register(
                "config_generation",
                "Generation of the configuration in force, which grows with every change; 0 while there is none",
                Gauge::default(),
            ),
        }
    }

    /// Reports the differences between two states. Reports nothing until both ConfigMaps were read.
    pub(crate) fn changed(&self, before: &State, now: &State) {
        let Some((ours, tekton)) = now.read() else {
            return;
        };
        self.valid.set(i64::from(ours.violations.is_empty()));
        self.generation.set(now.generation());
        let (ours_before, tekton_before) = before.read().unzip();
        let in_force = |ours: &Ours| ours.configuration.clone();
        if ours_before.and_then(in_force) != in_force(ours)
            || tekton_before.map(|tekton| &tekton.coschedule) != Some(&tekton.coschedule)
        {
            info!(
                generation = now.generation(),
                resource_version = ours.resource_version,
                configuration = ?ours.configuration,
                tekton_coschedule = tekton.coschedule,
                "the configuration has changed"
            );
        }
        if before.warnings() != now.warnings() {
            for warning in now.warnings() {
                warn!("{warning}");
            }
        }
        let known = ours_before.and_then(problem);
        if let Some(problem) = problem(ours).filter(|problem| known.as_ref() != Some(problem)) {
            warn!("{problem}");
        }
    }
}

/// The text about the violations in our ConfigMap. `None` if there are no violations.
pub(crate) fn problem(ours: &Ours) -> Option<String> {
    let invalid = !ours.violations.is_empty();
    invalid.then(|| configuration_invalid(&ours.violations, ours.configuration.is_some()))
}
