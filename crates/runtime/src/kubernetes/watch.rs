//! Turns a watch into a cache. Services use this module for their caches of Kubernetes objects.

use std::collections::HashSet;
use std::fmt::Debug;
use std::future::ready;
use std::pin::pin;
use std::time::Instant;

use futures::{Stream, StreamExt as _};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Error, Event, watcher};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use tracing::{info, warn};

use crate::Condition;

/// The number of objects in one answer to a list request. A process keeps the memory that its largest answer needed. With
/// answers of 500 objects, the default of kube, 2,000 pods with many volumes cost hundreds of megabytes.
const PAGE: u32 = 20;
/// The status code of the answer to a request with a field that the API server does not know or does not allow.
const INVALID: u16 = 422;

/// Namespace (empty for cluster-scoped objects) and name.
pub type ObjectKey = (String, String);

/// One change that a watch delivers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change<O> {
    /// The object was created or changed, or a list contains it.
    Applied(O),
    /// The object was deleted. Contains its last state.
    Deleted(O),
    /// A list is complete. It contains exactly the objects with these keys. If the process is now connected to a different API
    /// server, a streaming list may be a little older than the state that the process knew already.
    Listed(HashSet<ObjectKey>),
}

/// The key of `object`.
pub fn key<O: Resource>(object: &O) -> ObjectKey {
    let metadata = object.meta();
    (
        metadata.namespace.clone().unwrap_or_default(),
        metadata.name.clone().unwrap_or_default(),
    )
}

/// Watches `api`, passes each change to `reduce` in order, and sets `synced` after the first complete list. For a list,
/// `reduce` gets `Applied` for each object, and then `Listed`. The watch never ends: after an error it is retried with backoff.
/// If it cannot be resumed, it starts with a new list.
///
/// The API server sends the objects of a list one by one, from its own cache (a streaming list). If the API server does not
/// support this, the list has pages, and so have all later lists of this watch.
///
/// # Errors
/// None. The function returns a `Result` because [`Process::spawn`](crate::Process::spawn) expects one.
pub async fn follow<O>(
    kind: &'static str,
    api: Api<O>,
    config: watcher::Config,
    synced: Condition,
    mut reduce: impl FnMut(Change<O>),
) -> anyhow::Result<()>
where
    O: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let streamed = watcher(api.clone(), config.clone().streaming_lists());
    let supported = streamed.take_while(|event| ready(!refuses_streaming(event)));
    fold(kind, supported.default_backoff(), &synced, &mut reduce).await;
    info!(kind, "the API server does not support streaming lists");
    let paged = watcher(api, config.page_size(PAGE)).default_backoff();
    fold(kind, paged, &synced, reduce).await;
    Ok(())
}

/// True if the API server does not support streaming lists: before Kubernetes 1.32, in 1.33, or because of its feature gates.
fn refuses_streaming<O>(event: &watcher::Result<Event<O>>) -> bool {
    matches!(event, Err(Error::WatchStartFailed(kube::Error::Api(status))) if status.code == INVALID)
}

async fn fold<O: Resource>(
    kind: &'static str,
    events: impl Stream<Item = watcher::Result<Event<O>>>,
    synced: &Condition,
    mut reduce: impl FnMut(Change<O>),
) {
    let mut listed = HashSet::new();
    let mut began = Instant::now();
    let mut events = pin!(events);
    while let Some(event) = events.next().await {
        match event {
            // A list that failed half-way is forgotten, and the next list starts from the beginning.
            Ok(Event::Init) => {
                listed.clear();
                began = Instant::now();
            }
            Ok(Event::InitApply(object)) => {
                listed.insert(key(&object));
                reduce(Change::Applied(object));
            }
            Ok(Event::InitDone) => {
                let (objects, seconds) = (listed.len(), began.elapsed().as_secs_f64());
                info!(kind, objects, seconds, "listed");
                reduce(Change::Listed(std::mem::take(&mut listed)));
                synced.set(true);
            }
            Ok(Event::Apply(object)) => reduce(Change::Applied(object)),
            Ok(Event::Delete(object)) => reduce(Change::Deleted(object)),
            Err(error) => warn!(kind, %error, "watch failed, will be resumed"),
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
    use kube::api::ObjectMeta;

    use super::*;
    use crate::Health;

    fn map(name: &str) -> ConfigMap {
        ConfigMap {
            metadata: ObjectMeta {
                namespace: Some("ci".to_owned()),
                name: Some(name.to_owned()),
                ..ObjectMeta::default()
            },
            ..ConfigMap::default()
        }
    }

    fn keys<const N: usize>(names: [&str; N]) -> HashSet<ObjectKey> {
        HashSet::from(names.map(|name| ("ci".to_owned(), name.to_owned())))
    }

    /// The changes that result from `events`. The boolean of each is true if the cache was synced before this change.
    async fn folded(
        events: Vec<watcher::Result<Event<ConfigMap>>>,
    ) -> (Vec<(Change<ConfigMap>, bool)>, Health) {
        let health = Health::new();
        let synced = health.condition("ConfigMap cache");
        let mut changes = Vec::new();
        fold(
            "ConfigMap",
            futures::stream::iter(events),
            &synced,
            |change| {
                changes.push((change, health.is_ready()));
            },
        )
        .await;
        (changes, health)
    }

    #[tokio::test]
    async fn changes_come_in_order_and_the_first_complete_list_syncs() {
        let (changes, _) = folded(vec![
            Ok(Event::Init),
            Ok(Event::InitApply(map("a"))),
            Ok(Event::InitApply(map("b"))),
            Ok(Event::InitDone),
            Ok(Event::Apply(map("c"))),
            Ok(Event::Delete(map("a"))),
        ])
        .await;
        let expected = [
            (Change::Applied(map("a")), false),
            (Change::Applied(map("b")), false),
            (Change::Listed(keys(["a", "b"])), false),
            (Change::Applied(map("c")), true),
            (Change::Deleted(map("a")), true),
        ];
        assert_eq!(changes, expected);
    }

    #[tokio::test]
    async fn a_list_that_fails_half_way_never_counts_as_complete() {
        let (changes, health) = folded(vec![
            Ok(Event::Init),
            Ok(Event::InitApply(map("gone"))),
            Err(watcher::Error::NoResourceVersion),
        ])
        .await;
        assert_eq!(changes, [(Change::Applied(map("gone")), false)]);
        assert!(!health.is_ready());

        let (changes, health) = folded(vec![
            Ok(Event::Init),
            Ok(Event::InitApply(map("gone"))),
            Err(watcher::Error::NoResourceVersion),
            Ok(Event::Init),
            Ok(Event::InitApply(map("a"))),
            Ok(Event::InitDone),
            // The second list is empty.
            Ok(Event::Init),
            Ok(Event::InitDone),
        ])
        .await;
        let lists: Vec<_> = changes
            .into_iter()
            .filter(|(change, _)| matches!(change, Change::Listed(_)))
            .collect();
        let expected = [
            (Change::Listed(keys(["a"])), false),
            (Change::Listed(HashSet::new()), true),
        ];
        assert_eq!(lists, expected);
        assert!(health.is_ready());
    }

    #[test]
    fn cluster_scoped_objects_have_an_empty_namespace() {
        let mut namespace = Namespace::default();
        namespace.metadata.name = Some("ci".to_owned());
        assert_eq!(key(&namespace), (String::new(), "ci".to_owned()));
    }
}
