//! Objects of one kind, indexed by namespace and name, and by their run.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use coscheduler_core::observed::{KnownClaim, Placeholder, Pod};
use coscheduler_runtime::kubernetes::version::is_newer;
use coscheduler_runtime::kubernetes::watch::ObjectKey;

use super::{KnownRun, RunKey};

/// A kind of object that the cache keeps.
pub(super) trait Object {
    fn key(&self) -> ObjectKey;
    /// Its run.
    fn run(&self) -> Option<RunKey>;
    /// Its `metadata.uid` and `metadata.resourceVersion`.
    fn version(&self) -> (&str, &str);
}

/// The objects of one kind.
#[derive(Debug)]
pub(super) struct Store<T> {
    objects: BTreeMap<ObjectKey, Arc<T>>,
    names: HashMap<RunKey, HashSet<String>>,
}

impl<T> Default for Store<T> {
    fn default() -> Self {
        Self {
            objects: BTreeMap::new(),
            names: HashMap::new(),
        }
    }
}

impl<T: Object> Store<T> {
    pub(super) fn get(&self, key: &ObjectKey) -> Option<&Arc<T>> {
        self.objects.get(key)
    }

    /// Every object, by namespace and name.
    pub(super) fn all(&self) -> &BTreeMap<ObjectKey, Arc<T>> {
        &self.objects
    }

    /// The objects of a run, by name.
    pub(super) fn of<'a>(&'a self, run: &'a RunKey) -> impl Iterator<Item = &'a Arc<T>> {
        let names = self.names.get(run).into_iter().flatten();
        names.filter_map(|name| self.objects.get(&(run.namespace.clone(), name.clone())))
    }

    /// The runs with objects of this kind.
    pub(super) fn runs(&self) -> impl Iterator<Item = &RunKey> {
        self.names.keys()
    }

    pub(super) fn is_empty(&self, run: &RunKey) -> bool {
        !self.names.contains_key(run)
    }

    /// True if a later version of `object` is stored already: the watch may be behind the answer to a write.
    pub(super) fn is_behind(&self, object: &T) -> bool {
        self.objects.get(&object.key()).is_some_and(|known| {
            let ((uid, version), (known_uid, known_version)) = (object.version(), known.version());
            uid == known_uid && is_newer(known_version, version)
        })
    }

    /// True if an object of this name and uid is stored.
    pub(super) fn knows(&self, object: &T) -> bool {
        let known = self.objects.get(&object.key());
        known.is_some_and(|known| known.version().0 == object.version().0)
    }

    /// Stores an object. Returns the one that had its name before.
    pub(super) fn insert(&mut self, object: T) -> Option<Arc<T>> {
        let (key, run) = (object.key(), object.run());
        let before = self.remove(&key);
        if let Some(run) = run {
            self.names.entry(run).or_default().insert(key.1.clone());
        }
        self.objects.insert(key, Arc::new(object));
        before
    }

    pub(super) fn remove(&mut self, key: &ObjectKey) -> Option<Arc<T>> {
        let gone = self.objects.remove(key)?;
        if let Some(run) = gone.run()
            && let Some(names) = self.names.get_mut(&run)
        {
            names.remove(&key.1);
            if names.is_empty() {
                self.names.remove(&run);
            }
        }
        Some(gone)
    }

    /// The keys of the objects that are missing in a fresh list.
    pub(super) fn stale(&self, listed: &HashSet<ObjectKey>) -> Vec<ObjectKey> {
        let keys = self.objects.keys();
        keys.filter(|key| !listed.contains(*key)).cloned().collect()
    }
}

impl Object for KnownRun {
    fn key(&self) -> ObjectKey {
        (self.run.namespace.clone(), self.run.name.clone())
    }

    fn run(&self) -> Option<RunKey> {
        Some(RunKey::of(&self.run))
    }

    fn version(&self) -> (&str, &str) {
        (&self.run.uid, &self.run.resource_version)
    }
}

impl Object for Placeholder {
    fn key(&self) -> ObjectKey {
        (self.namespace.clone(), self.object.name.clone())
    }

    fn run(&self) -> Option<RunKey> {
        Some(RunKey::new(&self.namespace, &self.run_uid))
    }

    fn version(&self) -> (&str, &str) {
        (&self.object.uid, &self.object.resource_version)
    }
}

impl Object for Pod {
    fn key(&self) -> ObjectKey {
        (self.namespace.clone(), self.object.name.clone())
    }

    fn run(&self) -> Option<RunKey> {
        Some(RunKey::new(&self.namespace, &self.run_uid))
    }

    fn version(&self) -> (&str, &str) {
        (&self.object.uid, &self.object.resource_version)
    }
}

impl Object for KnownClaim {
    fn key(&self) -> ObjectKey {
        (self.namespace.clone(), self.object.name.clone())
    }

    fn run(&self) -> Option<RunKey> {
        let owner = self.owner.as_ref()?;
        Some(RunKey::new(&self.namespace, &owner.uid))
    }

    fn version(&self) -> (&str, &str) {
        (&self.object.uid, &self.object.resource_version)
    }
}
