//! Reads the Events that Kubernetes' controllers write about failures of placeholders and claims (N3).

use coscheduler_core::names::AssistantName;
use coscheduler_core::plan::Reason;
use coscheduler_core::reconcile::tell::refusals::{failed_create, not_provisioned};
use k8s_openapi::api::events::v1::Event;

/// The reasons of these Events, each with a field selector. Each reason needs its own watch, because a field selector has no
/// "or".
pub const WATCHES: [(&str, &str); 3] = [
    (
        "FailedCreate",
        "regarding.kind=StatefulSet,reason=FailedCreate",
    ),
    (
        "ProvisioningFailed",
        "regarding.kind=PersistentVolumeClaim,reason=ProvisioningFailed",
    ),
    (
        "FailedBinding",
        "regarding.kind=PersistentVolumeClaim,reason=FailedBinding",
    ),
];

/// An Event of Kubernetes about the failure of a placeholder or a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Complaint {
    /// The kind of object that the Event is about.
    pub about: About,
    /// The namespace and the name of that object. The Event is in the same namespace.
    pub object: (String, String),
    /// The uid of that object.
    pub uid: String,
    /// The cause that the Event gives.
    pub reason: Reason,
    /// The Event's name.
    pub event: String,
    /// The Event's `metadata.resourceVersion`.
    pub version: String,
}

/// The kind of object that a [`Complaint`] is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum About {
    /// A placeholder: its pod could not be created.
    Placeholder,
    /// A claim: it has no volume.
    Claim,
}

/// Reads an Event. `None` if the Event is neither about a claim nor about the creation of a placeholder's pod.
pub fn read(event: Event) -> Option<Complaint> {
    let regarding = event.regarding?;
    let name = regarding.name?;
    let note = event.note?;
    let (about, reason) = match regarding.kind.as_deref()? {
        "StatefulSet" => {
            name.parse::<AssistantName>().ok()?;
            (About::Placeholder, failed_create(&note)?)
        }
        "PersistentVolumeClaim" => (About::Claim, not_provisioned(&name, &note)),
        _ => return None,
    };
    Some(Complaint {
        about,
        object: (event.metadata.namespace?, name),
        uid: regarding.uid?,
        reason,
        event: event.metadata.name?,
        version: event.metadata.resource_version?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use coscheduler_core::plan::ReasonCode;
    use serde_json::json;

    fn event(kind: &str, name: &str, note: &str) -> Event {
        serde_json::from_value(json!({
            "metadata": {"namespace": "ci", "name": format!("{name}.18a2"), "resourceVersion": "7"},
            "regarding": {"kind": kind, "namespace": "ci", "name": name, "uid": "u"},
            "eventTime": null, "note": note,
        }))
        .unwrap()
    }

    #[test]
    fn n3_an_event_about_a_placeholder_or_a_claim_is_a_complaint() {
        let set = "affinity-assistant-0123456789";
        let note = format!("Create Pod {set}-0 in StatefulSet {set} failed error: no");
        let complaint = read(event("StatefulSet", set, &note)).unwrap();
        assert_eq!(complaint.reason.code, ReasonCode::PlaceholderRefused);
        assert_eq!(
            Complaint {
                reason: Reason::new(complaint.reason.code, ""),
                ..complaint
            },
            Complaint {
                about: About::Placeholder,
                object: ("ci".to_owned(), set.to_owned()),
                uid: "u".to_owned(),
                reason: Reason::new(ReasonCode::PlaceholderRefused, ""),
                event: format!("{set}.18a2"),
                version: "7".to_owned(),
            }
        );
        let claim = read(event("PersistentVolumeClaim", "source", "no")).unwrap();
        assert_eq!(claim.about, About::Claim);
        assert_eq!(claim.reason.code, ReasonCode::ClaimNotProvisioned);
    }

    #[test]
    fn an_event_about_anything_else_is_none() {
        let note = "Create Pod web-0 in StatefulSet web failed error: no";
        assert_eq!(read(event("StatefulSet", "web", note)), None);
        assert_eq!(
            read(event("Pod", "affinity-assistant-0123456789", note)),
            None
        );
    }
}
