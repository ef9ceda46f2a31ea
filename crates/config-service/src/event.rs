//! The Event on a ConfigMap that is not valid (M7): one for each version of it. Its name is made of that version, so that
//! whichever replica is first writes it, and nobody does so twice.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::Api;
use kube::api::PostParams;
use tokio::sync::watch;
use tracing::warn;

use crate::report::{verdict, violations};
use crate::state::{Ours, State};

/// `reason` of the Event.
const REASON: &str = "ConfigurationInvalid";
/// `action` of the Event, like that of all of ours.
const ACTION: &str = "Coschedule";
/// The longest `note` that the API server takes, in bytes.
const LONGEST_NOTE: usize = 1024;
/// When to try again what failed.
const RETRY: Duration = Duration::from_secs(5);

/// Writes the Events about ConfigMap `namespace/name` for the life of the process.
pub(crate) async fn follow(
    events: Api<Event>,
    namespace: String,
    name: String,
    mut states: watch::Receiver<State>,
) -> anyhow::Result<()> {
    loop {
        let event = {
            let state = states.borrow_and_update();
            state
                .read()
                .and_then(|(ours, _)| event(&namespace, &name, ours, Timestamp::now()))
        };
        let failed = match event {
            Some(event) => failed(events.create(&PostParams::default(), &event).await),
            None => None,
        };
        if let Some(error) = failed {
            warn!(%error, "failed to write an Event about the ConfigMap, will be tried again");
            tokio::time::sleep(RETRY).await;
        } else if states.changed().await.is_err() {
            return Ok(());
        }
    }
}

/// The Event is there where this replica, another one, or this one before its restart has made it.
fn failed(created: kube::Result<Event>) -> Option<kube::Error> {
    match created {
        Ok(_) => None,
        Err(kube::Error::Api(status)) if status.is_already_exists() => None,
        Err(error) => Some(error),
    }
}

/// What to say about the ConfigMap as it is now; `None` where nothing is wrong with it, or there is none to say it on.
fn event(namespace: &str, name: &str, ours: &Ours, now: Timestamp) -> Option<Event> {
    let version = ours.now.as_ref().filter(|_| !ours.violations.is_empty())?;
    let mut note = format!("{}: {}", verdict(ours), violations(ours));
    note.truncate(note.floor_char_boundary(LONGEST_NOTE));
    Some(Event {
        metadata: ObjectMeta {
            name: Some(format!("{name}.{}", version.resource_version)),
            namespace: Some(namespace.to_owned()),
            ..ObjectMeta::default()
        },
        action: Some(ACTION.to_owned()),
        event_time: Some(MicroTime(now)),
        note: Some(note),
        reason: Some(REASON.to_owned()),
        regarding: Some(ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("ConfigMap".to_owned()),
            name: Some(name.to_owned()),
            namespace: Some(namespace.to_owned()),
            resource_version: Some(version.resource_version.clone()),
            uid: Some(version.uid.clone()),
            ..ObjectReference::default()
        }),
        reporting_controller: Some(format!("coscheduler.dev/{}", crate::SERVICE.name)),
        reporting_instance: Some(crate::SERVICE.name.to_owned()),
        type_: Some("Warning".to_owned()),
        ..Event::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::{Read, Version};

    fn bad(resource_version: &str, value: &str) -> Option<Event> {
        let mut state = State::default();
        state.apply_tekton("t", None);
        state.apply(
            "c",
            Some(Read {
                data: [("coschedule".to_owned(), value.to_owned())].into(),
                version: Version {
                    uid: "u".to_owned(),
                    resource_version: resource_version.to_owned(),
                },
            }),
        );
        event("ns", "c", state.read().unwrap().0, Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn m7_every_replica_makes_the_same_event_of_a_bad_version() {
        let made = bad("7", "sideways").unwrap();
        assert_eq!(made, bad("7", "sideways").unwrap());
        assert_eq!(made.metadata.name.as_deref(), Some("c.7"));
        let note = made.note.unwrap();
        assert!(
            note.contains("coscheduling is off") && note.contains("sideways"),
            "{note}"
        );
        assert_eq!(made.regarding.unwrap().uid.as_deref(), Some("u"));
        assert_eq!(bad("8", "disabled"), None);
    }

    #[test]
    fn m7_a_note_is_never_longer_than_the_api_server_takes() {
        let note = bad("7", &"ä".repeat(4000)).unwrap().note.unwrap();
        assert!(note.len() <= LONGEST_NOTE, "{}", note.len());
    }

    #[test]
    fn m7_where_there_is_no_config_map_there_is_nothing_to_say_it_on() {
        let mut state = State::default();
        state.apply_tekton("t", None);
        state.apply("c", None);
        let (ours, _) = state.read().unwrap();
        assert_eq!(event("ns", "c", ours, Timestamp::UNIX_EPOCH), None);
    }
}
