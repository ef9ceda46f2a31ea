//! The readiness of a service. A service is ready while all of its named conditions are met and it is not stopping.
//! `/readyz` and gRPC health both report this.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::watch;

/// The readiness of the process; clones share it.
#[derive(Clone, Debug, Default)]
pub struct Health(Arc<watch::Sender<Readiness>>);

#[derive(Clone, Debug, Default)]
pub(crate) struct Readiness {
    conditions: BTreeMap<String, bool>,
    stopping: bool,
}

impl Readiness {
    pub(crate) fn is_ready(&self) -> bool {
        !self.stopping && self.conditions.values().all(|met| *met)
    }
}

/// One named condition of readiness, unmet before the first [`Condition::set`].
#[derive(Clone, Debug)]
pub struct Condition {
    name: String,
    health: Health,
}

impl Health {
    /// A health without conditions. Each process has one health for its readiness. A further health can track caches on which
    /// readiness does not depend.
    pub fn new() -> Self {
        Health(Arc::new(watch::Sender::new(Readiness::default())))
    }

    /// Adds an unmet condition. `/readyz` shows its name, for example `PipelineRun cache`, while it is unmet.
    pub fn condition(&self, name: impl Into<String>) -> Condition {
        let condition = Condition {
            name: name.into(),
            health: self.clone(),
        };
        condition.set(false);
        condition
    }

    /// True while every condition is met and the process is not stopping.
    pub fn is_ready(&self) -> bool {
        self.0.borrow().is_ready()
    }

    /// The names of the unmet conditions, and `stopping` if the process is stopping. Empty if the process is ready.
    pub fn missing(&self) -> Vec<String> {
        let readiness = self.0.borrow();
        let unmet = readiness
            .conditions
            .iter()
            .filter(|(_, met)| !**met)
            .map(|(name, _)| name.clone());
        unmet
            .chain(readiness.stopping.then(|| "stopping".to_owned()))
            .collect()
    }

    /// Waits until the process is ready.
    pub async fn ready(&self) {
        // This fails only if the sender is dropped, and `self` holds the sender.
        let _ = self.0.subscribe().wait_for(Readiness::is_ready).await;
    }

    pub(crate) fn watch(&self) -> watch::Receiver<Readiness> {
        self.0.subscribe()
    }

    pub(crate) fn stop(&self) {
        self.0.send_modify(|readiness| readiness.stopping = true);
    }
}

impl Condition {
    /// Marks the condition as met or unmet. A condition may change at any time.
    pub fn set(&self, met: bool) {
        self.health.0.send_if_modified(|readiness| {
            readiness.conditions.insert(self.name.clone(), met) != Some(met)
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_means_every_condition_is_met() {
        let health = Health::new();
        assert!(health.is_ready());

        let runs = health.condition("PipelineRun cache");
        let configuration = health.condition("configuration");
        assert_eq!(health.missing(), ["PipelineRun cache", "configuration"]);

        runs.set(true);
        assert_eq!(health.missing(), ["configuration"]);
        configuration.set(true);
        assert!(health.is_ready());

        configuration.set(false);
        assert!(!health.is_ready());
    }

    #[test]
    fn a_stopping_process_is_not_ready() {
        let health = Health::new();
        let condition = health.condition("configuration");
        health.stop();
        condition.set(true);
        assert_eq!(health.missing(), ["stopping"]);
        assert!(!health.is_ready());
    }
}
