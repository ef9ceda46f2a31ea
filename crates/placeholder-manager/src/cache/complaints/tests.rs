//! What is known of complaints, and whom they concern.

use super::*;
use crate::fixtures::{placeholder, run, set, set_name};
use coscheduler_core::plan::ReasonCode;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use serde_json::json;

fn key() -> RunKey {
    RunKey {
        namespace: "ci".to_owned(),
        uid: "u".to_owned(),
    }
}

fn about_set(message: &str, version: &str) -> Complaint {
    Complaint {
        about: About::StatefulSet,
        namespace: "ci".to_owned(),
        name: set_name(&run(&[])),
        uid: "s".to_owned(),
        reason: Reason::new(ReasonCode::QuotaExceeded, message),
        event: "set.1".to_owned(),
        version: version.to_owned(),
    }
}

fn about_claim() -> Complaint {
    Complaint {
        about: About::Claim,
        name: "source".to_owned(),
        uid: "c".to_owned(),
        event: "source.1".to_owned(),
        ..about_set("no class", "3")
    }
}

fn known(cache: &Cache, complaint: &Complaint) -> Option<Reason> {
    cache.complaint(complaint.about, "ci", &complaint.name, Some(&complaint.uid))
}

fn with_set() -> Cache {
    let cache = Cache::default();
    let run = run(&["source"]);
    cache.apply(set(&run));
    cache.apply(run);
    cache
}

fn claim(volume: Option<&str>) -> PersistentVolumeClaim {
    serde_json::from_value(json!({
        "metadata": {"namespace": "ci", "name": "source", "uid": "c"},
        "spec": {"volumeName": volume},
    }))
    .unwrap()
}

#[test]
fn n3_a_complaint_is_news_for_its_run_and_the_same_once_more_is_none() {
    let cache = with_set();
    let first = about_set("none", "3");
    assert_eq!(cache.apply_complaint(0, first.clone()), [key()]);
    assert_eq!(known(&cache, &first), Some(first.reason.clone()));
    assert!(cache.apply_complaint(0, about_set("none", "4")).is_empty());
    let other = about_set("limit", "6");
    assert_eq!(cache.apply_complaint(0, other.clone()), [key()]);
    // A list brings older ones behind newer ones.
    assert!(cache.apply_complaint(0, about_set("none", "5")).is_empty());
    assert_eq!(known(&cache, &other), Some(other.reason.clone()));

    let of_another = Complaint {
        uid: "before".to_owned(),
        ..first
    };
    assert_eq!(known(&cache, &of_another), None);
}

#[test]
fn n3_a_complaint_about_a_claim_concerns_the_runs_that_use_it() {
    let cache = with_set();
    cache.apply_claim(claim(None));
    assert_eq!(cache.apply_complaint(1, about_claim()), [key()]);
    let elsewhere = Complaint {
        namespace: "prod".to_owned(),
        ..about_claim()
    };
    assert!(cache.apply_complaint(1, elsewhere).is_empty());
    assert!(known(&cache, &about_claim()).is_some());
}

#[test]
fn n3_a_complaint_is_settled_once_the_object_has_what_it_lacked() {
    let cache = with_set();
    let complaint = about_set("none", "3");
    cache.apply_complaint(0, complaint.clone());
    let pod = placeholder(&run(&[]), None, json!({"phase": "Pending"}));
    cache.apply(pod.clone());
    assert_eq!(known(&cache, &complaint), None);
    // One that comes late is settled already, and not kept for the next time.
    assert!(cache.apply_complaint(0, about_set("none", "4")).is_empty());
    cache.delete(&pod);
    assert_eq!(known(&cache, &complaint), None);

    cache.apply_claim(claim(None));
    cache.apply_complaint(1, about_claim());
    cache.apply_claim(claim(Some("pv")));
    assert_eq!(known(&cache, &about_claim()), None);
    assert!(cache.apply_complaint(1, about_claim()).is_empty());
    assert_eq!(known(&cache, &about_claim()), None);
}

#[test]
fn a_complaint_goes_with_its_object_and_with_its_event() {
    let cache = with_set();
    let complaint = about_set("none", "3");
    cache.apply_complaint(0, complaint.clone());
    cache.delete(&set(&run(&[])));
    assert_eq!(known(&cache, &complaint), None);

    cache.apply_complaint(0, complaint.clone());
    let other_event = Complaint {
        event: "set.0".to_owned(),
        ..complaint.clone()
    };
    cache.delete_complaint(&other_event);
    assert!(known(&cache, &complaint).is_some());
    cache.delete_complaint(&complaint);
    assert_eq!(known(&cache, &complaint), None);

    // A list of one watch says nothing about what another one has brought.
    cache.apply_complaint(0, complaint.clone());
    cache.apply_complaint(1, about_claim());
    cache.retain_complaints(1, &HashSet::new());
    assert!(known(&cache, &complaint).is_some());
    assert_eq!(known(&cache, &about_claim()), None);
    let listed = HashSet::from([("ci".to_owned(), "set.1".to_owned())]);
    cache.retain_complaints(0, &listed);
    assert!(known(&cache, &complaint).is_some());
    cache.retain_complaints(0, &HashSet::new());
    assert_eq!(known(&cache, &complaint), None);
}
