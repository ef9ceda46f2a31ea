//! What the manager knows: every coscheduled PipelineRun with its placeholders, pods and claims, kept up to date by the
//! watches. Reducers only (`apply`, `delete`, `retain`): no I/O, no decisions.

mod claims;
mod identities;
mod kind;
mod parts;
mod view;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use tokio::sync::{broadcast, watch};

use coscheduler_core::pipeline_run::PipelineRun;
use coscheduler_kubernetes::pods;

use claims::Claims;
pub(crate) use claims::KnownClaim;
use identities::Identities;
pub(crate) use kind::{Kind, is_newer};
use parts::Parts;
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
    /// The pods of its TaskRuns and of its parts' TaskRuns, and its placeholders' pods.
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
    index: RwLock<Index>,
    version: watch::Sender<u64>,
    changes: broadcast::Sender<Change>,
}

/// The runs with what belongs to them, who they are, and every claim.
#[derive(Debug, Default)]
struct Index {
    runs: HashMap<RunKey, Run>,
    parts: Parts,
    identities: Identities,
    claims: Claims,
}

impl Default for Cache {
    fn default() -> Self {
        Self {
            index: RwLock::default(),
            version: watch::Sender::new(0),
            changes: broadcast::Sender::new(BUFFERED_CHANGES),
        }
    }
}

impl Cache {
    /// Takes in an object that was created or changed. Answers the run it belongs to: the one with the placeholders. The
    /// watch may be behind the answer to a write, which stays then: a step that was taken is not taken again.
    pub(crate) fn apply<K: Kind>(&self, object: K) -> Option<RunKey> {
        let key = object.run_key()?;
        let name = object.name().to_owned();
        Some(self.update(&key, |run| {
            let slot = K::slot(run);
            if !slot
                .get(&name)
                .is_some_and(|known| is_older(&object, known))
            {
                slot.insert(name, Arc::new(object));
            }
        }))
    }

    /// Takes in the answer to a write, unless the watch has been faster: with a later version, or with the news that the
    /// object is gone.
    pub(crate) fn refresh<K: Kind>(&self, object: K) {
        let Some(key) = object.run_key() else { return };
        let name = object.name().to_owned();
        self.update(&key, |run| {
            if let Some(known) = K::slot(run).get_mut(&name)
                && !is_newer(known.version().1, object.version().1)
            {
                *known = Arc::new(object);
            }
        });
    }

    /// Takes in that an annotation of a run was set or removed, which made this version of it: until the watch says so, nobody
    /// should send the request again.
    pub(crate) fn annotated(
        &self,
        run: &PipelineRun,
        key: &str,
        value: Option<String>,
        version: String,
    ) {
        let Some(of) = run.run_key() else { return };
        self.update(&of, |known| {
            let Some(known) = known.pipeline_run.get_mut(&run.name) else {
                return;
            };
            if is_newer(&version, &known.resource_version) {
                let mut annotated = (**known).clone();
                annotated.resource_version = version;
                match value {
                    Some(value) => annotated.annotations.insert(key.to_owned(), value),
                    None => annotated.annotations.remove(key),
                };
                *known = Arc::new(annotated);
            }
        });
    }

    /// Forgets an object. Answers the run it belonged to, as [`Self::apply`] does.
    pub(crate) fn delete<K: Kind>(&self, object: &K) -> Option<RunKey> {
        let key = object.run_key()?;
        Some(self.update(&key, |run| {
            K::slot(run).remove(object.name());
        }))
    }

    /// Forgets every object of a kind that a fresh list did not have. Answers the runs they belonged to.
    pub(crate) fn retain<K: Kind>(&self, listed: &HashSet<(RunKey, String)>) -> Vec<RunKey> {
        let stale: Vec<Arc<K>> = {
            let mut index = self.write();
            let objects = index.runs.iter_mut().flat_map(|(key, run)| {
                let of_run = K::slot(run).values().cloned();
                of_run.map(|object| (key.clone(), object))
            });
            objects
                .filter(|(key, object)| !listed.contains(&(key.clone(), object.name().to_owned())))
                .map(|(_, object)| object)
                .collect()
        };
        stale
            .iter()
            .filter_map(|object| self.delete(&**object))
            .collect()
    }

    /// Everything that belongs to a run, as it is now.
    pub(crate) fn get(&self, key: &RunKey) -> Option<Run> {
        let index = self.read();
        let mut run = index.runs.get(key).cloned()?;
        for part in index.parts.of(key) {
            let pods = index.runs.get(&part).map(|part| &part.pods);
            run.pods.extend(
                pods.into_iter()
                    .flatten()
                    .map(|(name, pod)| (name.clone(), pod.clone())),
            );
        }
        Some(run)
    }

    /// Every run, done or not, that placeholders or claims exist for.
    pub(crate) fn with_objects(&self) -> Vec<RunKey> {
        let index = self.read();
        let runs = index.runs.iter().filter(|(_, run)| run.has_objects());
        runs.map(|(key, _)| key.clone()).collect()
    }

    /// The run with this uid, in whatever namespace.
    pub(crate) fn pipeline_run(&self, uid: &str) -> Option<Arc<PipelineRun>> {
        self.read().identities.by_uid(uid).cloned()
    }

    /// The run whose newest known version this is.
    pub(crate) fn pipeline_run_at(&self, resource_version: &str) -> Option<Arc<PipelineRun>> {
        self.read().identities.by_version(resource_version).cloned()
    }

    /// Every run that is known.
    pub(crate) fn runs(&self) -> Vec<RunKey> {
        let index = self.read();
        let runs = index.runs.iter();
        runs.filter(|(_, run)| !run.pipeline_run.is_empty())
            .map(|(key, _)| key.clone())
            .collect()
    }

    /// All placeholders, by namespace and name.
    pub(crate) fn placeholders(&self) -> BTreeMap<ObjectKey, Placeholder> {
        let index = self.read();
        let runs = index.runs.iter();
        runs.flat_map(|(key, run)| view::placeholders(key, run))
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

    /// Changes what belongs to a run. Answers the run that has the placeholders.
    fn update(&self, key: &RunKey, change: impl FnOnce(&mut Run)) -> RunKey {
        let mut guard = self.write();
        let index = &mut *guard;
        let run = index.runs.entry(key.clone()).or_default();
        let (before, was) = (view::placeholders(key, run), run.itself());
        change(run);
        index.claims.adopt(run, &key.uid);
        let (after, is) = (view::placeholders(key, run), run.itself());
        let gone = run.is_empty();
        if let Some(itself) = &is {
            index.parts.learn(key, itself);
        }
        let whole = index.parts.whole(key);
        if gone {
            index.runs.remove(key);
            index.parts.forget(key);
        }
        index.claims.used(key, was.as_ref(), is.as_ref());
        index.identities.replace(was, is);
        // Sent under the lock, so that changes leave in the order in which they happened.
        for change in view::changes(before, after) {
            // A send fails only while nobody listens.
            drop(self.changes.send(change));
        }
        drop(guard);
        self.version.send_modify(|version| *version += 1);
        whole
    }

    fn read(&self) -> RwLockReadGuard<'_, Index> {
        self.index.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Index> {
        self.index.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether `left` is an earlier version of the object `right`.
fn is_older<K: Kind>(left: &K, right: &K) -> bool {
    let ((uid, version), (known_uid, known_version)) = (left.version(), right.version());
    uid == known_uid && is_newer(known_version, version)
}

impl Run {
    /// The run itself, where it is known.
    pub(crate) fn itself(&self) -> Option<Arc<PipelineRun>> {
        self.pipeline_run.values().next().cloned()
    }

    fn has_objects(&self) -> bool {
        !self.stateful_sets.is_empty()
            || !self.claims.is_empty()
            || self.pods.values().any(|pod| pods::is_placeholder(pod))
    }

    /// What its objects say about the run with this uid that owns them.
    pub(crate) fn owners(&self, uid: &str) -> impl Iterator<Item = &OwnerReference> {
        let sets = self.stateful_sets.values().map(|set| &set.metadata);
        let claims = self.claims.values().map(|claim| &claim.metadata);
        sets.chain(claims)
            .flat_map(|metadata| metadata.owner_references.iter().flatten())
            .filter(move |owner| owner.uid == uid)
    }

    fn is_empty(&self) -> bool {
        self.pipeline_run.is_empty()
            && self.stateful_sets.is_empty()
            && self.pods.is_empty()
            && self.claims.is_empty()
    }
}

#[cfg(test)]
mod tests;
