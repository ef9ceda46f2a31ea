//! Tests of warning Events, and of the runs that they affect (N3).

use super::*;
use coscheduler_core::plan::{Reason, ReasonCode};
use coscheduler_kubernetes::complaints::Complaint;

const PODS: &str = "FailedCreate";
const CLAIMS: &str = "ProvisioningFailed";

fn about_placeholder(message: &str, version: &str) -> Complaint {
    Complaint {
        about: About::Placeholder,
        object: name(&planned(&run(&[]))[0]),
        uid: "s".to_owned(),
        reason: Reason::new(ReasonCode::QuotaExceeded, message),
        event: "set.1".to_owned(),
        version: version.to_owned(),
    }
}

fn about_claim() -> Complaint {
    Complaint {
        about: About::Claim,
        object: name("source"),
        uid: "c".to_owned(),
        event: "source.1".to_owned(),
        ..about_placeholder("no class", "3")
    }
}

/// The messages of the known Events about the placeholder and about the claim.
fn known(cache: &Cache) -> (Option<String>, Option<String>) {
    let observed = cache.observe(&key());
    let message = |reason: Option<&Reason>| reason.map(|reason| reason.message.clone());
    (
        message(observed.refused.values().next()),
        message(observed.not_provisioned.values().next()),
    )
}

fn filled() -> Cache {
    let cache = Cache::default();
    let run = run(&["source"]);
    cache.apply_placeholder(placeholder(&run));
    cache.apply_run(run);
    cache
}

fn claim(volume: Option<&str>) -> KnownClaim {
    read_claim(json!({
        "metadata": {"namespace": "ci", "name": "source", "uid": "c"}, "spec": {"volumeName": volume}}))
}

fn says(message: &str) -> Option<String> {
    Some(message.to_owned())
}

#[test]
fn n3_a_complaint_is_news_for_its_run_and_the_same_once_more_is_none() {
    let cache = filled();
    assert_eq!(
        cache.apply_complaint(PODS, about_placeholder("none", "3")),
        [key()]
    );
    assert_eq!(known(&cache).0, says("none"));
    assert!(
        cache
            .apply_complaint(PODS, about_placeholder("none", "4"))
            .is_empty()
    );
    assert_eq!(
        cache.apply_complaint(PODS, about_placeholder("limit", "6")),
        [key()]
    );
    // A list may deliver an older Event after a newer one.
    assert!(
        cache
            .apply_complaint(PODS, about_placeholder("none", "5"))
            .is_empty()
    );
    assert_eq!(known(&cache).0, says("limit"));
    // An Event about a deleted placeholder that had the same name.
    let mut of_another = about_placeholder("none", "7");
    of_another.uid = "before".to_owned();
    cache.apply_complaint(PODS, of_another);
    assert_eq!(known(&cache).0, None);
}

#[test]
fn n3_a_complaint_about_a_claim_concerns_the_runs_that_use_it() {
    let cache = filled();
    cache.apply_claim(claim(None));
    assert_eq!(cache.apply_complaint(CLAIMS, about_claim()), [key()]);
    let mut elsewhere = about_claim();
    elsewhere.object.0 = "prod".to_owned();
    assert!(cache.apply_complaint(CLAIMS, elsewhere).is_empty());
    assert_eq!(known(&cache), (None, says("no class")));
}

#[test]
fn n3_a_complaint_is_settled_once_the_object_has_what_it_lacked() {
    let cache = filled();
    cache.apply_complaint(PODS, about_placeholder("none", "3"));
    let pod = placeholder_pod(&run(&[]), None, json!({"phase": "Pending"}));
    let pod_name = name(&pod.object.name);
    cache.apply_pod(pod);
    assert_eq!(known(&cache).0, None);
    // An Event that arrives after its cause has passed is not stored.
    assert!(
        cache
            .apply_complaint(PODS, about_placeholder("none", "4"))
            .is_empty()
    );
    cache.delete_pod(&pod_name);
    assert_eq!(known(&cache).0, None);

    cache.apply_claim(claim(None));
    cache.apply_complaint(CLAIMS, about_claim());
    cache.apply_claim(claim(Some("pv")));
    assert_eq!(known(&cache).1, None);
    assert!(cache.apply_complaint(CLAIMS, about_claim()).is_empty());
    assert_eq!(known(&cache).1, None);
}

#[test]
fn a_complaint_goes_with_its_object_and_with_its_event() {
    let cache = filled();
    cache.apply_complaint(PODS, about_placeholder("none", "3"));
    cache.delete_placeholder(&name(&planned(&run(&[]))[0]));
    cache.apply_placeholder(placeholder(&run(&[])));
    assert_eq!(known(&cache).0, None);

    cache.apply_complaint(PODS, about_placeholder("none", "3"));
    cache.retain_complaints(PODS, |event| *event != name("set.0"));
    assert_eq!(known(&cache).0, says("none"));
    assert_eq!(
        cache.retain_complaints(PODS, |event| *event != name("set.1")),
        [key()]
    );
    assert_eq!(known(&cache).0, None);

    // A new list of one watch does not remove Events that came from another watch.
    cache.apply_claim(claim(None));
    cache.apply_complaint(PODS, about_placeholder("none", "3"));
    cache.apply_complaint(CLAIMS, about_claim());
    assert_eq!(cache.retain_complaints(CLAIMS, |_| false), [key()]);
    assert_eq!(known(&cache), (says("none"), None));
}

#[test]
fn n3_an_event_about_an_earlier_object_of_the_same_name_does_not_replace_a_newer_one() {
    let cache = filled();
    cache.apply_complaint(PODS, about_placeholder("none", "5"));
    let earlier = Complaint {
        uid: "earlier".to_owned(),
        ..about_placeholder("earlier", "4")
    };
    assert!(cache.apply_complaint("other", earlier).is_empty());
    assert_eq!(known(&cache).0, says("none"));
}
