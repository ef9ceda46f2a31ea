//! The watch of the one ConfigMap.

use std::pin::pin;

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};
use tokio::sync::watch;
use tracing::{info, warn};

use coscheduler_runtime::Condition;

use crate::state::{Read, State};

/// Feeds every state of ConfigMap `namespace/name` into `states`. `read` is met once the first one, or its absence, is
/// known.
pub(crate) async fn follow(
    client: Client,
    namespace: String,
    name: String,
    states: watch::Sender<State>,
    read: Condition,
) -> anyhow::Result<()> {
    let api: Api<ConfigMap> = Api::namespaced(client, &namespace);
    let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let full_name = format!("{namespace}/{name}");
    let mut listed = None;
    let mut events = pin!(watcher(api, config).default_backoff());
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => listed = None,
            Ok(Event::InitApply(map)) => listed = Some(map),
            Ok(Event::InitDone) => {
                apply(&states, &full_name, listed.take());
                read.set(true);
            }
            Ok(Event::Apply(map)) => apply(&states, &full_name, Some(map)),
            Ok(Event::Delete(_)) => apply(&states, &full_name, None),
            Err(error) => warn!(config_map = full_name, %error, "watch failed, will be resumed"),
        }
    }
    Ok(())
}

fn apply(states: &watch::Sender<State>, name: &str, map: Option<ConfigMap>) {
    let read = map.map(|map| Read {
        data: map.data.unwrap_or_default(),
        resource_version: map.metadata.resource_version.unwrap_or_default(),
    });
    states.send_if_modified(|state| {
        let before = state.clone();
        state.apply(name, read);
        report(&before, state, name);
        *state != before
    });
}

fn report(before: &State, now: &State, name: &str) {
    if now.generation != before.generation {
        info!(
            config_map = name,
            generation = now.generation,
            resource_version = now.resource_version,
            configuration = ?now.configuration,
            "configuration is in force"
        );
    }
    if now.violations != before.violations && !now.violations.is_empty() {
        let violations: Vec<_> = now.violations.iter().map(ToString::to_string).collect();
        let consequence = match now.configuration {
            Some(_) => "what was in force stays in force",
            None => "coscheduling is off",
        };
        warn!(
            config_map = name,
            violations = violations.join("; "),
            in_force = ?now.configuration,
            "the ConfigMap is not valid; {consequence}"
        );
    }
}
