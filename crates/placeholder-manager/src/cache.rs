//! What the manager knows: every coscheduled PipelineRun with its placeholders, pods and claims, kept up to date by the
//! watches. Reducers only (`apply`, `delete`, `retain`): no I/O, no decisions.

mod identities;
mod kind;
mod view;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use tokio::sync::{broadcast, watch};

use coscheduler_core::pipeline_run::PipelineRun;
use coscheduler_kubernetes::pods;

use identities::Identities;
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
    index: RwLock<Index>,
    version: watch::Sender<u64>,
    changes: broadcast::Sender<Change>,
}

/// The runs with what belongs to them, and who they are.
#[derive(Debug, Default)]
struct Index {
    runs: HashMap<RunKey, Run>,
    identities: Identities,
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
    /// Takes in an object that was created or changed. Answers the run it belongs to.
    pub(crate) fn apply<K: Kind>(&self, object: K) -> Option<RunKey> {
        let key = object.run_key()?;
        let name = object.name().to_owned();
        self.update(&key, |run| {
            K::slot(run).insert(name, Arc::new(object));
        });
        Some(key)
    }

    /// Takes in the answer to a write, unless the watch has said meanwhile that the object is gone.
    pub(crate) fn refresh<K: Kind>(&self, object: K) {
        let Some(key) = object.run_key() else { return };
        let name = object.name().to_owned();
        self.update(&key, |run| {
            if let Some(known) = K::slot(run).get_mut(&name) {
                *known = Arc::new(object);
            }
        });
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
        self.read().runs.get(key).cloned()
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

    fn update(&self, key: &RunKey, change: impl FnOnce(&mut Run)) {
        let mut index = self.write();
        let run = index.runs.entry(key.clone()).or_default();
        let (before, was) = (view::placeholders(key, run), run.itself());
        change(run);
        let (after, is) = (view::placeholders(key, run), run.itself());
        if run.is_empty() {
            index.runs.remove(key);
        }
        index.identities.replace(was, is);
        // Sent under the lock, so that changes leave in the order in which they happened.
        for change in view::changes(before, after) {
            // A send fails only while nobody listens.
            drop(self.changes.send(change));
        }
        drop(index);
        self.version.send_modify(|version| *version += 1);
    }

    fn read(&self) -> RwLockReadGuard<'_, Index> {
        self.index.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Index> {
        self.index.write().unwrap_or_else(PoisonError::into_inner)
    }
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
mod tests {
    use super::*;
    use coscheduler_kubernetes::labels::PIPELINE_RUN_UID;
    use serde_json::json;

    fn key(uid: &str) -> RunKey {
        RunKey {
            namespace: "ci".to_owned(),
            uid: uid.to_owned(),
        }
    }

    fn run(name: &str, uid: &str) -> PipelineRun {
        PipelineRun {
            namespace: "ci".to_owned(),
            name: name.to_owned(),
            uid: uid.to_owned(),
            ..PipelineRun::default()
        }
    }

    fn set(uid: &str) -> StatefulSet {
        serde_json::from_value(json!({"metadata": {
            "namespace": "ci", "name": "affinity-assistant-0123456789",
            "ownerReferences": [{"apiVersion": "tekton.dev/v1", "kind": "PipelineRun", "name": "run", "uid": uid, "controller": true}],
        }}))
        .unwrap()
    }

    fn placeholder_pod(uid: &str, node: Option<&str>) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"namespace": "ci", "name": "affinity-assistant-0123456789-0", "labels": {
                PIPELINE_RUN_UID: uid,
                "app.kubernetes.io/component": "affinity-assistant",
                "app.kubernetes.io/instance": "affinity-assistant-0123456789",
            }},
            "spec": {"containers": [], "nodeName": node},
        }))
        .unwrap()
    }

    #[test]
    fn a_run_is_forgotten_with_its_last_object() {
        let cache = Cache::default();
        assert_eq!(cache.apply(run("run", "u")), Some(key("u")));
        assert_eq!(cache.apply(set("u")), Some(key("u")));
        cache.delete(&run("run", "u"));
        assert!(cache.get(&key("u")).is_some());
        cache.delete(&set("u"));
        assert!(cache.get(&key("u")).is_none());
    }

    #[test]
    fn a_fresh_list_forgets_a_run_that_was_replaced_under_its_name() {
        let cache = Cache::default();
        cache.apply(run("run", "old"));
        cache.apply(set("old"));
        cache.apply(run("run", "new"));
        let listed = HashSet::from([(key("new"), "run".to_owned())]);
        assert_eq!(cache.retain::<PipelineRun>(&listed), [key("old")]);
        assert!(cache.get(&key("old")).unwrap().pipeline_run.is_empty());
        assert!(!cache.get(&key("new")).unwrap().pipeline_run.is_empty());
    }

    #[test]
    fn a_run_is_known_by_its_uid_and_newest_version_until_it_goes() {
        let at = |version: &str| PipelineRun {
            resource_version: version.to_owned(),
            ..run("run", "u")
        };
        let uid = |run: Option<Arc<PipelineRun>>| run.map(|run| run.uid.clone());
        let cache = Cache::default();
        cache.apply(at("1"));
        cache.apply(at("2"));
        assert_eq!(uid(cache.pipeline_run("u")), Some("u".to_owned()));
        assert_eq!(uid(cache.pipeline_run_at("2")), Some("u".to_owned()));
        assert_eq!(uid(cache.pipeline_run_at("1")), None);
        // An object of the run says nothing about the run itself.
        cache.apply(set("u"));
        cache.delete(&at("2"));
        assert_eq!(uid(cache.pipeline_run("u")), None);
        assert_eq!(uid(cache.pipeline_run_at("2")), None);
    }

    #[test]
    fn a_placeholder_is_announced_as_it_is_bound_and_goes() {
        let cache = Cache::default();
        let mut changes = cache.subscribe();
        cache.apply(set("u"));
        cache.apply(placeholder_pod("u", None));
        cache.apply(placeholder_pod("u", Some("node-1")));
        cache.delete(&set("u"));
        let mut seen = Vec::new();
        while let Ok(change) = changes.try_recv() {
            seen.push((
                change.placeholder.phase,
                change.placeholder.node,
                change.deleted,
            ));
        }
        assert_eq!(
            seen,
            [
                (Phase::Pending, String::new(), false),
                (Phase::Bound, "node-1".to_owned(), false),
                (Phase::Bound, "node-1".to_owned(), true),
            ]
        );
    }

    #[test]
    fn the_answer_to_a_write_does_not_bring_back_what_is_gone() {
        let cache = Cache::default();
        cache.refresh(set("u"));
        assert!(cache.get(&key("u")).is_none());
        cache.apply(set("u"));
        cache.refresh(set("u"));
        assert_eq!(cache.get(&key("u")).unwrap().stateful_sets.len(), 1);
    }

    #[test]
    fn what_belongs_to_nobody_is_not_kept() {
        let cache = Cache::default();
        let stranger: Pod =
            serde_json::from_value(json!({"metadata": {"namespace": "ci", "name": "p"}})).unwrap();
        assert_eq!(cache.apply(stranger), None);
        assert!(cache.placeholders().is_empty());
    }
}
