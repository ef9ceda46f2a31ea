//! Readiness: ready means synced. A service names its conditions; it is ready while all of them hold and it is not
//! stopping. `/readyz` and gRPC health both tell this one truth.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::watch;

/// The readiness of the process; clones share it.
#[derive(Clone, Debug)]
pub struct Health {
    state: Arc<watch::Sender<Readiness>>,
}

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

/// One named condition of readiness, unmet until [`Condition::set`] says otherwise.
#[derive(Clone, Debug)]
pub struct Condition {
    name: String,
    health: Health,
}

impl Health {
    pub(crate) fn new() -> Self {
        Health {
            state: Arc::new(watch::Sender::new(Readiness::default())),
        }
    }

    /// Adds a condition, unmet. The name is what `/readyz` shows for what is missing, like `PipelineRun cache`.
    pub fn condition(&self, name: impl Into<String>) -> Condition {
        let condition = Condition {
            name: name.into(),
            health: self.clone(),
        };
        condition.set(false);
        condition
    }

    /// Whether every condition holds and the process is not stopping.
    pub fn is_ready(&self) -> bool {
        self.state.borrow().is_ready()
    }

    /// What stands between the process and readiness; empty when it is ready.
    pub fn missing(&self) -> Vec<String> {
        let readiness = self.state.borrow();
        let unmet = readiness
            .conditions
            .iter()
            .filter(|(_, met)| !**met)
            .map(|(name, _)| name.clone());
        unmet
            .chain(readiness.stopping.then(|| "stopping".to_owned()))
            .collect()
    }

    /// Completes once the process is ready; for tests and for loops that wait for the caches.
    pub async fn ready(&self) {
        // The sender lives in self, so that the channel cannot close.
        let _ = self.state.subscribe().wait_for(Readiness::is_ready).await;
    }

    pub(crate) fn watch(&self) -> watch::Receiver<Readiness> {
        self.state.subscribe()
    }

    pub(crate) fn stop(&self) {
        self.state
            .send_modify(|readiness| readiness.stopping = true);
    }
}

impl Condition {
    /// Says whether the condition holds now. It may go back and forth.
    pub fn set(&self, met: bool) {
        self.health.state.send_if_modified(|readiness| {
            readiness.conditions.insert(self.name.clone(), met) != Some(met)
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_means_every_condition_holds() {
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
