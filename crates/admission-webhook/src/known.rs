//! What the webhook knows of objects that a review depends on: their metadata alone, listed and watched, and of that only
//! what is asked for. An object that was created a moment before the review may not be known yet, so whoever needs it waits
//! a little for it; nothing is ever read live.

use std::collections::HashMap;
use std::fmt::Debug;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use coscheduler_runtime::Process;
use futures::StreamExt as _;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::PartialObjectMeta;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tracing::warn;

/// Namespace, empty for what has none, and name.
type Key = (String, String);

/// The objects of one kind, each as a `T`. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Known<T> {
    objects: Arc<watch::Sender<HashMap<Key, T>>>,
}

impl<T> Default for Known<T> {
    fn default() -> Self {
        Self {
            objects: Arc::new(watch::Sender::new(HashMap::new())),
        }
    }
}

impl<T: Clone + Send + Sync + 'static> Known<T> {
    /// Follows all objects of a kind for the life of the process, which is not ready before they were listed once.
    pub(crate) fn follow<K>(process: &Process, client: &Client, read: fn(ObjectMeta) -> T) -> Self
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
    {
        let kind = K::kind(&());
        let known = Self::default();
        let synced = process.health().condition(format!("{kind} cache"));
        let (objects, api) = (
            known.clone(),
            Api::<PartialObjectMeta<K>>::all(client.clone()),
        );
        process.spawn(format!("watch {kind}s"), async move {
            let mut events = pin!(watcher(api, watcher::Config::default()).default_backoff());
            let mut listed = HashMap::new();
            while let Some(event) = events.next().await {
                match event {
                    Ok(Event::Init) => listed.clear(),
                    Ok(Event::InitApply(object)) => {
                        listed.extend([entry(object.metadata, read)]);
                    }
                    Ok(Event::InitDone) => {
                        objects.objects.send_replace(std::mem::take(&mut listed));
                        synced.set(true);
                    }
                    Ok(Event::Apply(object)) => {
                        let (key, value) = entry(object.metadata, read);
                        objects.set(key, value);
                    }
                    Ok(Event::Delete(object)) => {
                        let (key, _) = entry(object.metadata, read);
                        objects
                            .objects
                            .send_modify(|known| drop(known.remove(&key)));
                    }
                    Err(error) => warn!(%kind, %error, "watch failed, will be resumed"),
                }
            }
            Ok(())
        });
        known
    }

    /// The object of that name that is `wanted`, as soon as it is known; `None` where it is not within `patience`.
    pub(crate) async fn get(
        &self,
        namespace: &str,
        name: &str,
        patience: Duration,
        wanted: impl Fn(&T) -> bool,
    ) -> Option<T> {
        let key = (namespace.to_owned(), name.to_owned());
        let mut objects = self.objects.subscribe();
        let known = objects.wait_for(|known| known.get(&key).is_some_and(&wanted));
        let known = tokio::time::timeout(patience, known).await.ok()?.ok()?;
        known.get(&key).cloned()
    }

    pub(crate) fn set(&self, key: Key, value: T) {
        self.objects
            .send_modify(|known| drop(known.insert(key, value)));
    }
}

fn entry<T>(metadata: ObjectMeta, read: fn(ObjectMeta) -> T) -> (Key, T) {
    let key = (
        metadata.namespace.clone().unwrap_or_default(),
        metadata.name.clone().unwrap_or_default(),
    );
    (key, read(metadata))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_is_not_known_yet_is_waited_for_and_not_for_ever() {
        let known = Known::default();
        let patience = Duration::from_secs(2);
        let key = |name: &str| ("ci".to_owned(), name.to_owned());
        known.set(key("build"), 1);
        assert_eq!(known.get("ci", "build", patience, |_| true).await, Some(1));

        let later = known.clone();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(1)).await;
            later.set(("ci".to_owned(), "other".to_owned()), 2);
            later.set(("ci".to_owned(), "build".to_owned()), 3);
        });
        assert_eq!(
            known.get("ci", "build", patience, |seen| *seen > 1).await,
            Some(3)
        );
        assert_eq!(known.get("ci", "absent", patience, |_| true).await, None);
        assert_eq!(
            known.get("elsewhere", "build", patience, |_| true).await,
            None
        );
    }
}
