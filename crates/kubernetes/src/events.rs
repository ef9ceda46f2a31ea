//! Builds the Events of this product (Kubernetes API reference, `events.k8s.io/v1`). Module `event_texts` of crate `core` has their
//! texts.
//!
//! The name of an Event derives from its content. So if several replicas write the same Event, the API server stores only one.
//! Type `kube::runtime::events::Recorder` cannot do this, because it puts the time into the name. It also treats two Events with
//! the same reason as one Event, even if their notes differ.

use coscheduler_core::event_texts::NOTE_LENGTH;
use coscheduler_core::pipeline_run::OwnerReference;
use coscheduler_core::plan::{Reason, Severity};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;

/// Field `action` of all Events of this product.
const ACTION: &str = "Coschedule";

/// The Event about `reason` on an object of this namespace. `now` is the time of the Event, and `service` is the service that
/// writes the Event. `None` if this reason never becomes an Event.
pub fn about(
    namespace: &str,
    object: &OwnerReference,
    reason: &Reason,
    service: &str,
    now: Timestamp,
) -> Option<Event> {
    let severity = reason.code.told()?;
    let regarding = ObjectReference {
        api_version: Some(object.api_version.clone()),
        kind: Some(object.kind.clone()),
        namespace: Some(namespace.to_owned()),
        name: Some(object.name.clone()),
        uid: Some(object.uid.clone()),
        ..ObjectReference::default()
    };
    let name = reason.event_name(object);
    let (code, note) = (reason.code.as_str(), reason.message.as_str());
    Some(event(name, regarding, severity, code, note, service, now))
}

/// An Event with this name about object `regarding`, in the object's namespace. `now` is the time of the Event, and `service` is
/// the service that writes the Event.
pub fn event(
    name: String,
    regarding: ObjectReference,
    severity: Severity,
    reason: &str,
    note: &str,
    service: &str,
    now: Timestamp,
) -> Event {
    let type_ = match severity {
        Severity::Normal => "Normal",
        Severity::Warning => "Warning",
    };
    let controller = format!("coscheduler.dev/{service}");
    Event {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: regarding.namespace.clone(),
            ..ObjectMeta::default()
        },
        action: Some(ACTION.to_owned()),
        event_time: Some(MicroTime(now)),
        note: Some(shortened(note)),
        reason: Some(reason.to_owned()),
        regarding: Some(regarding),
        reporting_controller: Some(controller.clone()),
        // The field does not name the replica, because all replicas must write the same Event.
        reporting_instance: Some(controller),
        type_: Some(type_.to_owned()),
        ..Event::default()
    }
}

/// Converts the API server's answer to the creation of an Event. If the Event exists already, the result is a success, because
/// another replica has created the same Event.
///
/// # Errors
/// The request failed, and the Event does not exist already.
pub fn written(created: kube::Result<Event>) -> kube::Result<()> {
    match created {
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
        other => other.map(drop),
    }
}

fn shortened(message: &str) -> String {
    const MARK: &str = "…";
    if message.len() <= NOTE_LENGTH {
        return message.to_owned();
    }
    let end = message.floor_char_boundary(NOTE_LENGTH - MARK.len());
    format!("{}{MARK}", &message[..end])
}

#[cfg(test)]
mod tests {
    use super::*;
    use coscheduler_core::plan::ReasonCode;
    use serde_json::json;

    fn run() -> OwnerReference {
        OwnerReference {
            api_version: "tekton.dev/v1".to_owned(),
            kind: "PipelineRun".to_owned(),
            name: "build".to_owned(),
            uid: "u".to_owned(),
        }
    }

    fn event(code: ReasonCode, message: &str) -> Option<Event> {
        let now = "2026-01-02T03:04:05Z".parse().unwrap();
        let reason = Reason::new(code, message);
        about("ci", &run(), &reason, "placeholder-manager", now)
    }

    #[test]
    fn the_event_is_exactly_this() {
        let mut event =
            serde_json::to_value(event(ReasonCode::ClaimNameVariable, "left out").unwrap())
                .unwrap();
        let name = event["metadata"]["name"].take();
        assert!(name.as_str().unwrap().starts_with("build."));
        assert_eq!(
            event,
            json!({
                "apiVersion": "events.k8s.io/v1", "kind": "Event",
                "metadata": {"name": null, "namespace": "ci"},
                "action": "Coschedule",
                "eventTime": "2026-01-02T03:04:05.000000Z",
                "note": "left out",
                "reason": "ClaimNameVariable",
                "regarding": {
                    "apiVersion": "tekton.dev/v1", "kind": "PipelineRun", "namespace": "ci", "name": "build", "uid": "u",
                },
                "reportingController": "coscheduler.dev/placeholder-manager",
                "reportingInstance": "coscheduler.dev/placeholder-manager",
                "type": "Warning",
            })
        );
    }

    #[test]
    fn severity_follows_the_code_and_a_long_note_is_cut() {
        let normal = event(ReasonCode::ClaimNotMounted, "m").unwrap();
        assert_eq!(normal.type_.as_deref(), Some("Normal"));
        assert_eq!(event(ReasonCode::CoschedulePipelineRun, "m"), None);
        let note = |length: usize| {
            let event = event(ReasonCode::ClaimNameEmpty, &"é".repeat(length)).unwrap();
            event.note.unwrap()
        };
        assert_eq!(note(512), "é".repeat(512));
        assert!(note(513).len() <= NOTE_LENGTH && note(513).ends_with('…'));
    }

    #[test]
    fn an_event_that_is_there_already_is_written() {
        let refused = |code: u16, reason: &str| {
            let status = kube::core::Status::failure("", reason).with_code(code);
            written(Err(kube::Error::Api(Box::new(status))))
        };
        assert!(written(Ok(Event::default())).is_ok());
        assert!(refused(409, "AlreadyExists").is_ok());
        assert!(refused(403, "Forbidden").is_err());
    }
}
