//! The watches of the two ConfigMaps.

use std::pin::pin;

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};
use tracing::warn;

use crate::state::{Read, Version};

/// Feeds every state of ConfigMap `namespace/name` into `apply`, `None` where there is none, the first one as soon as it is
/// known.
pub(crate) async fn follow(
    client: Client,
    namespace: String,
    name: String,
    apply: impl Fn(Option<Read>) + Send,
) -> anyhow::Result<()> {
    let api: Api<ConfigMap> = Api::namespaced(client, &namespace);
    let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let mut listed = None;
    let mut events = pin!(watcher(api, config).default_backoff());
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => listed = None,
            Ok(Event::InitApply(map)) => listed = Some(map),
            Ok(Event::InitDone) => apply(listed.take().map(read)),
            Ok(Event::Apply(map)) => apply(Some(read(map))),
            Ok(Event::Delete(_)) => apply(None),
            Err(error) => {
                warn!(namespace, config_map = name, %error, "watch failed, will be resumed");
            }
        }
    }
    Ok(())
}

fn read(map: ConfigMap) -> Read {
    Read {
        data: map.data.unwrap_or_default(),
        version: Version {
            uid: map.metadata.uid.unwrap_or_default(),
            resource_version: map.metadata.resource_version.unwrap_or_default(),
        },
    }
}
