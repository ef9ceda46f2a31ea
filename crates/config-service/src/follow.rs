//! The watches of the two ConfigMaps.

use std::pin::pin;

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::watch_object;
use kube::{Api, Client};
use tracing::warn;

use crate::state::{Read, Version};

/// Hands every state of ConfigMap `namespace/name` to `apply`, `None` where there is none.
pub(crate) async fn follow(
    client: Client,
    namespace: String,
    name: String,
    apply: impl Fn(Option<Read>) + Send,
) -> anyhow::Result<()> {
    let api: Api<ConfigMap> = Api::namespaced(client, &namespace);
    let mut states = pin!(watch_object(api, &name).default_backoff());
    while let Some(state) = states.next().await {
        match state {
            Ok(map) => apply(map.map(read)),
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
