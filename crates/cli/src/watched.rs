//! Objects of one kind that a watch keeps up to date.

use std::fmt::Debug;

use futures::future::FutureExt as _;
use futures::stream::{BoxStream, StreamExt as _};
use kube::runtime::reflector::{self, Store};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;

/// The changes of objects, without the objects.
pub(crate) type Changes = BoxStream<'static, Result<(), watcher::Error>>;

/// The objects of one kind, and the stream of their changes. The objects change only while the stream is read. `reduce` removes
/// the fields that no subcommand shows.
pub(crate) fn kept<K>(
    api: Api<K>,
    config: watcher::Config,
    reduce: fn(&mut K),
) -> (Store<K>, Changes)
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    let (store, writer) = reflector::store();
    let changes = watcher(api, config).default_backoff().modify(reduce);
    let changes = reflector::reflector(writer, changes);
    (store, changes.map(|change| change.map(drop)).boxed())
}

/// True if the first list of the objects is complete.
pub(crate) fn is_complete<K>(store: &Store<K>) -> bool
where
    K: Resource<DynamicType = ()> + Clone + 'static,
{
    let ready = store.wait_until_ready().now_or_never();
    ready.is_some_and(|ready| ready.is_ok())
}

/// Returns `Ok` with the error of a watch if another try is of no use. There are three such cases: the API server does not accept
/// the user, the user is not allowed to read these objects, or the cluster does not have their kind. Returns all other errors as
/// `Err`, because they may pass.
pub(crate) fn lasting(error: watcher::Error) -> Result<kube::Error, watcher::Error> {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
            if [401, 403, 404].contains(&status.code) =>
        {
            Ok(kube::Error::Api(status))
        }
        error => Err(error),
    }
}
