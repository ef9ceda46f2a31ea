//! A cache of the objects of one kind that a `watcher::Config` selects, with the few fields that admission reviews need. An
//! object that was created a moment before a review is perhaps not in the cache yet, so readers can wait for it.
//!
//! The webhook reads these objects directly from the API server instead:
//!
//! - the PipelineRun that owns a TaskRun, if Tekton left a variable in the name of the TaskRun's claim (V9), or if the Pipeline
//!   may have chosen settings of the PipelineRun (B1);
//! - other PipelineRuns, if a new run names their claims (V2a);
//! - claims, if the planner asks for their access modes (V8).

use std::collections::{BTreeMap, HashMap};
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use coscheduler_runtime::kubernetes::watch::{Change, ObjectKey, follow, key};
use coscheduler_runtime::{Health, Process};
use kube::runtime::watcher;
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::watch;

/// The objects of one kind. Each is stored as a `T`. Clones share the same objects.
#[derive(Clone, Debug)]
pub(crate) struct Cache<T> {
    objects: Arc<watch::Sender<HashMap<ObjectKey, T>>>,
}

impl<T> Default for Cache<T> {
    fn default() -> Self {
        Self {
            objects: Arc::default(),
        }
    }
}

impl<T: Clone + Send + Sync + 'static> Cache<T> {
    /// Follows those objects of `api` that `config` selects, for the life of the process. `health` is not ready until the
    /// objects were listed once.
    pub(crate) fn follow<O>(
        kind: &'static str,
        process: &Process,
        health: &Health,
        (api, config): (Api<O>, watcher::Config),
        read: fn(O) -> T,
    ) -> Self
    where
        O: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
    {
        let cache = Self::default();
        let synced = health.condition(format!("{kind} cache"));
        let fed = cache.clone();
        let reduce = move |change: Change<O>| match change {
            Change::Applied(object) => fed.set(key(&object), read(object)),
            Change::Deleted(object) => fed.change(|objects| drop(objects.remove(&key(&object)))),
            Change::Listed(keys) => {
                fed.change(|objects| objects.retain(|key, _| keys.contains(key)))
            }
        };
        process.spawn(
            format!("watch {kind}s"),
            follow(kind, api, config, synced, reduce),
        );
        cache
    }

    /// The object with this namespace and name, as soon as the cache has it and `wanted` accepts it. `None` if that takes longer
    /// than `timeout`.
    pub(crate) async fn get(
        &self,
        namespace: &str,
        name: &str,
        timeout: Duration,
        wanted: impl Fn(&T) -> bool,
    ) -> Option<T> {
        let key = (namespace.to_owned(), name.to_owned());
        let mut objects = self.objects.subscribe();
        let found = objects.wait_for(|objects| objects.get(&key).is_some_and(&wanted));
        let found = tokio::time::timeout(timeout, found).await.ok()?.ok()?;
        found.get(&key).cloned()
    }

    /// The cached objects of this namespace, by name. If `namespace` is empty, the objects without a namespace.
    pub(crate) fn in_namespace(&self, namespace: &str) -> BTreeMap<String, T> {
        let objects = self.objects.borrow();
        let of_namespace = objects.iter().filter(|((of, _), _)| of == namespace);
        of_namespace
            .map(|((_, name), object)| (name.clone(), object.clone()))
            .collect()
    }

    /// The cached object with this namespace and name.
    pub(crate) fn find(&self, namespace: &str, name: &str) -> Option<T> {
        let key = (namespace.to_owned(), name.to_owned());
        self.objects.borrow().get(&key).cloned()
    }

    pub(crate) fn set(&self, key: ObjectKey, value: T) {
        self.change(|objects| drop(objects.insert(key, value)));
    }

    fn change(&self, change: impl FnOnce(&mut HashMap<ObjectKey, T>)) {
        self.objects.send_modify(change);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn readers_wait_for_an_object_and_not_for_ever() {
        let cache = Cache::default();
        let timeout = Duration::from_secs(2);
        let key = |name: &str| ("ci".to_owned(), name.to_owned());
        cache.set(key("build"), 1);
        assert_eq!(cache.get("ci", "build", timeout, |_| true).await, Some(1));

        let later = cache.clone();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(1)).await;
            later.set(("ci".to_owned(), "other".to_owned()), 2);
            later.set(("ci".to_owned(), "build".to_owned()), 3);
        });
        assert_eq!(
            cache.get("ci", "build", timeout, |seen| *seen > 1).await,
            Some(3)
        );
        assert_eq!(cache.get("ci", "absent", timeout, |_| true).await, None);
        assert_eq!(
            cache.get("elsewhere", "build", timeout, |_| true).await,
            None
        );
    }
}
