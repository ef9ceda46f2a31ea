//! The Event on a ConfigMap that is not valid (M7). Its name contains the version of the ConfigMap. So each version has one
//! Event: the first replica creates the Event, and the API server tells the other replicas that it exists already.

use std::time::Duration;

use coscheduler_core::event_texts::{CONFIGURATION_INVALID, Severity};
use coscheduler_kubernetes::events::{self, written};
use jiff::Timestamp;
use k8s_openapi::api::events::v1::Event;
use kube::Api;
use kube::api::PostParams;
use tokio::sync::watch;
use tracing::warn;

use crate::report::problem;
use crate::state::{Ours, State};

/// The delay before a failed request is repeated.
const RETRY: Duration = Duration::from_secs(5);

/// Creates the Events about our ConfigMap for the life of the process.
pub(crate) async fn follow(
    events: Api<Event>,
    mut states: watch::Receiver<State>,
) -> anyhow::Result<()> {
    loop {
        let event = {
            let state = states.borrow_and_update();
            let read = state.read();
            read.and_then(|(ours, _)| event(ours, Timestamp::now()))
        };
        let outcome = match event {
            Some(event) => written(events.create(&PostParams::default(), &event).await),
            None => Ok(()),
        };
        if let Err(error) = outcome {
            warn!(%error, "failed to create an Event about the ConfigMap, will be tried again");
            tokio::time::sleep(RETRY).await;
        } else if states.changed().await.is_err() {
            return Ok(());
        }
    }
}

/// The Event about the current version of the ConfigMap. `None` if the ConfigMap is valid or does not exist.
fn event(ours: &Ours, now: Timestamp) -> Option<Event> {
    let (regarding, note) = (ours.now.clone()?, problem(ours)?);
    let (name, version) = (
        regarding.name.as_deref()?,
        regarding.resource_version.as_deref()?,
    );
    Some(events::event(
        format!("{name}.{version}"),
        regarding,
        Severity::Warning,
        CONFIGURATION_INVALID,
        &note,
        crate::SERVICE.name,
        now,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::ConfigMap;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

    fn bad(resource_version: &str, value: &str) -> Option<Event> {
        let mut state = State::default();
        state.apply_tekton("t", None);
        let map = ConfigMap {
            metadata: ObjectMeta {
                namespace: Some("ns".to_owned()),
                name: Some("c".to_owned()),
                uid: Some("u".to_owned()),
                resource_version: Some(resource_version.to_owned()),
                ..ObjectMeta::default()
            },
            data: Some([("coschedule".to_owned(), value.to_owned())].into()),
            ..ConfigMap::default()
        };
        state.apply("c", Some(map));
        event(state.read().unwrap().0, Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn m7_every_replica_makes_the_same_event_of_a_bad_version() {
        let made = bad("7", "sideways").unwrap();
        assert_eq!(made, bad("7", "sideways").unwrap());
        assert_eq!(made.metadata.name.as_deref(), Some("c.7"));
        let note = made.note.unwrap();
        assert!(
            note.contains("Otherwise new runs are not coscheduled.") && note.contains("sideways"),
            "{note}"
        );
        let regarding = made.regarding.unwrap();
        assert_eq!(regarding.kind.as_deref(), Some("ConfigMap"));
        assert_eq!(regarding.namespace.as_deref(), Some("ns"));
        assert_eq!(regarding.uid.as_deref(), Some("u"));
        assert_eq!(bad("8", "disabled"), None);
    }

    #[test]
    fn m7_where_there_is_no_config_map_there_is_nothing_to_say_it_on() {
        let mut state = State::default();
        state.apply_tekton("t", None);
        state.apply("c", None);
        let (ours, _) = state.read().unwrap();
        assert_eq!(event(ours, Timestamp::UNIX_EPOCH), None);
    }
}
