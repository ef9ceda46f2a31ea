//! A cache of the metadata that reviews need, for all objects of one kind. If an object was created a moment before a review, it
//! may not be in the cache yet, so readers wait for a short time. The webhook reads no object directly from the API server.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use coscheduler_runtime::Process;
use coscheduler_runtime::kubernetes::watch::{Change, ObjectKey, follow, key};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher;
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::watch;

/// The objects of one kind, each as a `T`. Clones share it.
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
    /// Follows all objects of a kind for the life of the process, which is not ready before they were listed once.
    pub(crate) fn follow<K>(
        kind: &'static str,
        process: &Process,
        client: &Client,
        read: fn(ObjectMeta) -> T,
    ) -> Self
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
    {
        let cache = Self::default();
        let synced = process.health().condition(format!("{kind} cache"));
        let api = Api::<PartialObjectMeta<K>>::all(client.clone());
        let fed = cache.clone();
        let reduce = move |change: Change<PartialObjectMeta<K>>| match change {
            Change::Applied(object) => fed.set(key(&object), read(object.metadata)),
            Change::Deleted(object) => fed.change(|objects| drop(objects.remove(&key(&object)))),
            Change::Listed(keys) => {
                fed.change(|objects| objects.retain(|key, _| keys.contains(key)))
            }
        };
        process.spawn(
            format!("watch {kind}s"),
            follow(kind, api, watcher::Config::default(), synced, reduce),
        );
        cache
    }

    /// The object of that name that is `wanted`, as soon as it is here; `None` where it is not within `timeout`.
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
