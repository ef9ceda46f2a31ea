//! An object that a task follows and patches. A patch succeeds only if the object has not changed since the task last saw it.

use std::fmt::Debug;
use std::future::ready;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::BoxStream;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use kube::api::{Patch, PatchParams};
use kube::core::{ApiResource, DynamicObject};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::watch_object;
use kube::{Api, Client, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tracing::{debug, warn};

/// The longest time for one patch.
const TIMEOUT: Duration = Duration::from_secs(10);

/// An object with its last known state.
pub(crate) struct Object<K> {
    api: Api<K>,
    name: String,
    /// `None` until the object was read for the first time. `Some(None)` if the object does not exist.
    pub(crate) seen: Option<Option<K>>,
}

impl<K: Resource + Clone + DeserializeOwned + Debug + Send + 'static> Object<K> {
    pub(crate) fn new(api: Api<K>, name: &str) -> Self {
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
    pub(crate) fn follow<T: Send + 'static>(
        &self,
        change: impl Fn(Option<K>) -> T + Send + 'static,
    ) -> BoxStream<'static, T> {
        let path = self.path();
        watch_object(self.api.clone(), &self.name)
            .default_backoff()
            .filter_map(move |object| {
                let failed = |error| warn!(path, %error, "watch failed, will be resumed");
                ready(object.map_err(failed).ok().map(&change))
            })
            .boxed()
    }

    /// Patches the object. Returns `false` if the object does not exist or the patch failed. The log has the reason of a failure.
    pub(crate) async fn patch(
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

/// The two webhook configurations of this service. Each task that patches them has its own value of this type.
pub(crate) struct Configurations {
    pub(crate) mutating: Object<DynamicObject>,
    /// The configuration of the webhook that checks the ConfigMap.
    pub(crate) validating: Object<DynamicObject>,
}

impl Configurations {
    /// The configurations with this name.
    pub(crate) fn new(client: &Client, name: &str) -> Self {
        let object = |kind| Object::new(Api::all_with(client.clone(), &kind), name);
        Self {
            mutating: object(ApiResource::erase::<MutatingWebhookConfiguration>(&())),
            validating: object(ApiResource::erase::<ValidatingWebhookConfiguration>(&())),
        }
    }
}

/// A webhook configuration.
impl Object<DynamicObject> {
    /// The webhooks. Empty if the webhook configuration does not exist.
    pub(crate) fn webhooks(&self) -> impl Iterator<Item = &Value> {
        let configuration = self.seen.iter().flatten();
        let webhooks = configuration.flat_map(|seen| seen.data["webhooks"].as_array());
        webhooks.flatten()
    }

    /// Changes fields of webhooks. Each of `changes` has a webhook's name. The API server merges the list of webhooks by name, so
    /// the other fields do not change.
    pub(crate) async fn patch_webhooks(&mut self, changes: Vec<Value>) -> bool {
        let change = json!({"webhooks": changes});
        self.patch(Patch::Strategic, change).await
    }
}
