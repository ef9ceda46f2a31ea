//! What the manager knows: every coscheduled PipelineRun with its placeholders, pods and claims, kept up to date by the
//! watches. Reducers only (`apply`, `delete`, `retain`): no I/O, no decisions.

mod kind;
mod view;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, PoisonError, RwLock};

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use tokio::sync::{broadcast, watch};

use coscheduler_core::pipeline_run::PipelineRun;

pub(crate) use kind::Kind;
pub(crate) use view::{Phase, Placeholder};

/// Changes that a slow reader of [`Cache::subscribe`] may be behind before it is told to start over.
const BUFFERED_CHANGES: usize = 1024;

/// A PipelineRun, whatever its name was used for before.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(crate) struct RunKey {
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.uid`.
    pub uid: String,
}

/// A namespace and a name.
pub(crate) type ObjectKey = (String, String);

/// Everything that belongs to one run, each kind by object name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Run {
    /// The run itself: one entry, or none where it is not known (any more).
    pub pipeline_run: BTreeMap<String, Arc<PipelineRun>>,
    /// Its placeholders' StatefulSets.
    pub stateful_sets: BTreeMap<String, Arc<StatefulSet>>,
    /// Its TaskRuns' pods, and its placeholders' pods.
    pub pods: BTreeMap<String, Arc<Pod>>,
    /// The claims made for it.
    pub claims: BTreeMap<String, Arc<PersistentVolumeClaim>>,
}

/// A placeholder that changed.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    /// Its state now, or its last state.
    pub placeholder: Placeholder,
    /// Whether it is gone.
    pub deleted: bool,
}

/// The index of runs. Cheap to share; every method takes and releases the lock.
#[derive(Debug)]
pub(crate) struct Cache {
    runs: RwLock<HashMap<RunKey, Run>>,
    version: watch::Sender<u64>,
    changes: broadcast::Sender<Change>,
}

impl Default for Cache {
    fn default() -> Self {
        Self {
            runs: RwLock::default(),
            version: watch::Sender::new(0),
            changes: broadcast::Sender::new(BUFFERED_CHANGES),
        }
    }
}

impl Cache {
    /// Takes in an object that was created or changed. Answers the run it belongs to.
    pub(crate) fn apply<K: Kind>(&self, object: K) -> Option<RunKey> {
        let key = object.run_key()?;
        let name = object.name().to_owned();
        self.update(&key, |run| {
            K::slot(run).insert(name, Arc::new(object));
        });
        Some(key)
    }

    /// Forgets an object. Answers the run it belonged to.
    pub(crate) fn delete<K: Kind>(&self, object: &K) -> Option<RunKey> {
        let key = object.run_key()?;
        self.update(&key, |run| {
            K::slot(run).remove(object.name());
        });
        Some(key)
    }

    /// Forgets every object of a kind that a fresh list did not have. Answers the runs they belonged to.
    pub(crate) fn retain<K: Kind>(&self, listed: &HashSet<ObjectKey>) -> Vec<RunKey> {
        let stale: Vec<(RunKey, Arc<K>)> = {
            let mut runs = self.runs.write().unwrap_or_else(PoisonError::into_inner);
            runs.iter_mut()
                .flat_map(|(key, run)| {
                    K::slot(run)
                        .values()
                        .map(|object| (key.clone(), object.clone()))
                })
                .filter(|(key, object)| {
                    !listed.contains(&(key.namespace.clone(), object.name().to_owned()))
                })
                .collect()
        };
        stale
            .into_iter()
            .filter_map(|(_, object)| self.delete(&*object))
            .collect()
    }

    /// Everything that belongs to a run, as it is now.
    pub(crate) fn get(&self, key: &RunKey) -> Option<Run> {
        let runs = self.runs.read().unwrap_or_else(PoisonError::into_inner);
        runs.get(key).cloned()
    }

    /// All placeholders, by namespace and name.
    pub(crate) fn placeholders(&self) -> BTreeMap<ObjectKey, Placeholder> {
        let runs = self.runs.read().unwrap_or_else(PoisonError::into_inner);
        runs.iter()
            .flat_map(|(key, run)| view::placeholders(key, run))
            .map(|placeholder| {
                let key = (placeholder.namespace.clone(), placeholder.name.clone());
                (key, placeholder)
            })
            .collect()
    }

    /// Every change of a placeholder from now on.
    pub(crate) fn subscribe(&self) -> broadcast::Receiver<Change> {
        self.changes.subscribe()
    }

    /// A number that grows with every change; waiting for it to grow is waiting for news.
    pub(crate) fn version(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    fn update(&self, key: &RunKey, change: impl FnOnce(&mut Run)) {
        let mut runs = self.runs.write().unwrap_or_else(PoisonError::into_inner);
        let run = runs.entry(key.clone()).or_default();
        let before = view::placeholders(key, run);
        change(run);
        let after = view::placeholders(key, run);
        if run.is_empty() {
            runs.remove(key);
        }
        // Sent under the lock, so that changes leave in the order in which they happened.
        for change in view::changes(before, after) {
            // A send fails only while nobody listens.
            drop(self.changes.send(change));
        }
        drop(runs);
        self.version.send_modify(|version| *version += 1);
    }
}

impl Run {
    fn is_empty(&self) -> bool {
        self.pipeline_run.is_empty()
            && self.stateful_sets.is_empty()
            && self.pods.is_empty()
            && self.claims.is_empty()
    }
}
