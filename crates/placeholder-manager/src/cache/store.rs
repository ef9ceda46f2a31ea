//! A store of objects of one kind, indexed by namespace and name, and by their run.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use coscheduler_core::observed::{KnownClaim, ObjectRef, Placeholder, Pod};
use coscheduler_runtime::kubernetes::version::is_newer;
use coscheduler_runtime::kubernetes::watch::ObjectKey;

use super::{KnownRun, RunKey};

/// An object that the cache keeps.
pub(super) trait Object {
    fn identity(&self) -> Identity<'_>;

    fn key(&self) -> ObjectKey {
        let Identity {
            namespace, name, ..
        } = self.identity();
        (namespace.to_owned(), name.to_owned())
    }

    /// The run that the object belongs to.
    fn run(&self) -> Option<RunKey> {
        let identity = self.identity();
        Some(RunKey::new(identity.namespace, identity.run_uid?))
    }
}

/// The identity of an object, its version and its run.
pub(super) struct Identity<'a> {
    namespace: &'a str,
    name: &'a str,
    uid: &'a str,
    version: &'a str,
    run_uid: Option<&'a str>,
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

    /// The objects of a run.
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

    /// True if a later version of `object` is stored already. When the answer to a write has been stored, the watch may still
    /// deliver an older version.
    pub(super) fn is_behind(&self, object: &T) -> bool {
        self.objects.get(&object.key()).is_some_and(|known| {
            let (object, known) = (object.identity(), known.identity());
            object.uid == known.uid && is_newer(known.version, object.version)
        })
    }

    /// True if an object with this namespace, name and uid is stored.
    pub(super) fn knows(&self, object: &T) -> bool {
        let known = self.objects.get(&object.key());
        known.is_some_and(|known| known.identity().uid == object.identity().uid)
    }

    /// Stores an object. Returns the stored object that it replaces.
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

    /// The keys of the stored objects that `listed` does not contain.
    pub(super) fn stale(&self, listed: &HashSet<ObjectKey>) -> Vec<ObjectKey> {
        let keys = self.objects.keys();
        keys.filter(|key| !listed.contains(*key)).cloned().collect()
    }
}

impl Object for KnownRun {
    fn identity(&self) -> Identity<'_> {
        Identity {
            namespace: &self.run.namespace,
            name: &self.run.name,
            uid: &self.run.uid,
            version: &self.run.resource_version,
            run_uid: Some(&self.run.uid),
        }
    }
}

impl Object for Placeholder {
    fn identity(&self) -> Identity<'_> {
        of_run(&self.namespace, &self.object, Some(&self.run_uid))
    }
}

impl Object for Pod {
    fn identity(&self) -> Identity<'_> {
        of_run(&self.namespace, &self.object, Some(&self.run_uid))
    }
}

impl Object for KnownClaim {
    fn identity(&self) -> Identity<'_> {
        let owner = self.owner.as_ref();
        of_run(&self.namespace, &self.object, owner.map(|it| &*it.uid))
    }
}

fn of_run<'a>(namespace: &'a str, object: &'a ObjectRef, run_uid: Option<&'a str>) -> Identity<'a> {
    Identity {
        namespace,
        name: &object.name,
        uid: &object.uid,
        version: &object.resource_version,
        run_uid,
    }
}
