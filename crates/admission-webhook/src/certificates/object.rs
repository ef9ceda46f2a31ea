//! An object that the keeper follows and patches. A patch succeeds only if the object has not changed since the keeper saw it.

use std::fmt::Debug;
use std::future::ready;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::BoxStream;
use kube::api::{Patch, PatchParams};
use kube::core::DynamicObject;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::watch_object;
use kube::{Api, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tracing::{debug, warn};

/// The longest time for one patch.
const TIMEOUT: Duration = Duration::from_secs(10);

/// An object with its last known state.
pub(super) struct Object<K> {
    api: Api<K>,
    name: String,
    /// `None` until the object was read for the first time. `Some(None)` if the object does not exist.
    pub(super) seen: Option<Option<K>>,
}

impl<K: Resource + Clone + DeserializeOwned + Debug + Send + 'static> Object<K> {
    pub(super) fn new(api: Api<K>, name: &str) -> Self {
        Self {
            api,
            name: name.to_owned(),
            seen: None,
        }
    }

    fn path(&self) -> String {
        format!("{}/{}", self.api.resource_url(), self.name)
    }

    /// A stream of the object's states, each converted to a `T`.
    pub(super) fn follow<T>(&self, change: fn(Option<K>) -> T) -> BoxStream<'static, T>
    where
        T: Send + 'static,
    {
        let path = self.path();
        watch_object(self.api.clone(), &self.name)
            .default_backoff()
            .filter_map(move |object| {
                let failed = |error| warn!(path, %error, "watch failed, will be resumed");
                ready(object.map_err(failed).ok().map(change))
            })
            .boxed()
    }

    /// Patches the object. Returns `false` if this failed. The log has the reason.
    pub(super) async fn patch(
        &mut self,
        kind: fn(Value) -> Patch<Value>,
        mut change: Value,
    ) -> bool {
        let Some(Some(seen)) = &self.seen else {
            return false;
        };
        change["metadata"]["resourceVersion"] = json!(seen.resource_version());
        let (params, patch) = (PatchParams::apply(crate::SERVICE.name), kind(change));
        let write = self.api.patch(&self.name, &params, &patch);
        let written = tokio::time::timeout(TIMEOUT, write).await;
        let path = self.path();
        match written.unwrap_or_else(|late| Err(kube::Error::Service(late.into()))) {
            Ok(written) => {
                self.seen = Some(Some(written));
                return true;
            }
            Err(kube::Error::Api(status)) if status.is_conflict() => {
                debug!(path, "another replica was faster");
            }
            Err(error) => warn!(path, %error, "failed to patch, will be tried again"),
        }
        false
    }
}

impl Object<DynamicObject> {
    /// The `caBundle` of each webhook, in base64, and the webhook's name. Empty if the webhook configuration does not exist.
    pub(super) fn bundles(&self) -> impl Iterator<Item = (&Value, &Value)> {
        let configuration = self.seen.iter().flatten();
        let webhooks = configuration.flat_map(|seen| seen.data["webhooks"].as_array());
        let webhooks = webhooks.flatten();
        webhooks.map(|webhook| (&webhook["name"], &webhook["clientConfig"]["caBundle"]))
    }

    /// True if a webhook has another `caBundle` than this one.
    pub(super) fn lacks(&self, bundle: &Value) -> bool {
        self.bundles().any(|(_, written)| written != bundle)
    }

    /// Writes the `caBundle` of every webhook. The API server merges the list of webhooks by name, so the other fields do not
    /// change.
    pub(super) async fn trust(&mut self, bundle: &Value) -> bool {
        let webhooks: Vec<_> = self
            .bundles()
            .map(|(name, _)| json!({"name": name, "clientConfig": {"caBundle": bundle}}))
            .collect();
        let change = json!({"webhooks": webhooks});
        self.patch(Patch::Strategic, change).await
    }
}
