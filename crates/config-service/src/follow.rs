//! The watches of the two ConfigMaps.

use std::pin::pin;

use coscheduler_runtime::Process;
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::watch_object;
use kube::{Api, Client};
use tokio::sync::watch;
use tracing::warn;

use crate::report::Report;
use crate::state::State;

/// Writes the ConfigMaps into the state, and reports the changes.
#[derive(Clone)]
pub(crate) struct Follower {
    pub(crate) client: Client,
    pub(crate) states: watch::Sender<State>,
    pub(crate) report: Report,
}

impl Follower {
    /// Follows ConfigMap `namespace/name` for the life of the process. The process is not ready until it has read the ConfigMap,
    /// or has found that the ConfigMap does not exist.
    pub(crate) fn spawn(
        self,
        process: &Process,
        what: &'static str,
        (namespace, name): (&str, &str),
        apply: fn(&mut State, &str, Option<ConfigMap>),
    ) {
        let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), namespace);
        let maps = watch_object(api, name).default_backoff();
        let full_name = format!("{namespace}/{name}");
        let synced = process.health().condition(what);
        process.spawn(format!("watch the {what}"), async move {
            let mut maps = pin!(maps);
            while let Some(map) = maps.next().await {
                match map {
                    Ok(map) => {
                        self.change(|state| apply(state, &full_name, map));
                        synced.set(true);
                    }
                    Err(error) => {
                        warn!(config_map = full_name, %error, "watch failed, will be resumed");
                    }
                }
            }
            Ok(())
        });
    }

    /// Changes the state. Receivers of the state are notified only if the state is different.
    fn change(&self, change: impl FnOnce(&mut State)) {
        self.states.send_if_modified(|state| {
            let before = state.clone();
            change(state);
            self.report.changed(&before, state);
            *state != before
        });
    }
}
