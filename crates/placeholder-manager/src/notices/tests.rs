//! What is asked of the API server to tell a run's author, with the cache filled by hand.

use super::*;
use crate::fixtures::{placeholder, run, set};
use coscheduler_core::plan::ReasonCode;
use coscheduler_kubernetes::complaints::Complaint;
use http::{Method, Request, Response};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tower_test::mock::{self, Handle};

type Server = Handle<Request<Body>, Response<Body>>;

fn key() -> RunKey {
    RunKey {
        namespace: "ci".to_owned(),
        uid: "u".to_owned(),
    }
}

/// A claim in a namespace, and its volume, which one zone reaches.
fn bound_claim(
    cache: &Cache,
    namespace: &str,
    name: &str,
    zone: &str,
) -> (Vec<RunKey>, Vec<RunKey>) {
    let volume_name = format!("pv-{namespace}-{name}");
    let claim: PersistentVolumeClaim = serde_json::from_value(json!({
        "metadata": {"namespace": namespace, "name": name},
        "spec": {"accessModes": ["ReadWriteOnce"], "volumeName": volume_name},
    }))
    .unwrap();
    let volume: PersistentVolume = serde_json::from_value(json!({
        "metadata": {"name": volume_name},
        "spec": {
            "claimRef": {"namespace": namespace, "name": name},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [
                {"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]},
            ]}},
        },
    }))
    .unwrap();
    (
        cache.apply_claim(claim),
        cache.apply_volume(volume_name, volume),
    )
}

fn teller(cache: &Arc<Cache>) -> (Notices, Server) {
    let (service, server) = mock::pair();
    let objects = Objects::new(Client::new(service, "ci"));
    (
        Notices::new(cache.clone(), objects, Causes::default()),
        server,
    )
}

/// Answers one request, and says what it was.
async fn answered(server: &mut Server, code: u16, reason: &str) -> (Method, String, Value) {
    let asked = tokio::time::timeout(Duration::from_secs(60), server.next_request()).await;
    let (request, respond) = asked.expect("nothing is asked for").unwrap();
    let (parts, body) = request.into_parts();
    let body = body.collect_bytes().await.unwrap();
    let answer = if code < 300 {
        json!({"metadata": {"name": "x", "resourceVersion": "2"}})
    } else {
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": reason, "reason": reason, "code": code})
    };
    let answer = Body::from(serde_json::to_vec(&answer).unwrap());
    respond.send_response(Response::builder().status(code).body(answer).unwrap());
    let body = serde_json::from_slice(&body).unwrap_or_default();
    (parts.method, parts.uri.path().to_owned(), body)
}

const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/ci/events";
const LEFT_OUT: &str = "$(tasks.make.results.claim)";

#[tokio::test]
async fn v9_an_author_is_told_once_by_an_event_of_the_same_name_whoever_tells() {
    let cache = Arc::new(Cache::default());
    cache.apply(run(&[LEFT_OUT]));
    let mut names = Vec::new();
    // Two replicas: the second meets the first one's Event.
    for (code, reason) in [(201, ""), (409, "AlreadyExists")] {
        let (teller, mut server) = teller(&cache);
        let (outcome, (method, path, event)) =
            tokio::join!(teller.work(key()), answered(&mut server, code, reason));
        assert_eq!(outcome, Outcome::Done);
        assert_eq!((method, path.as_str()), (Method::POST, EVENTS));
        assert_eq!(event["reason"], "ClaimNameVariable");
        assert_eq!(event["regarding"]["uid"], "u");
        names.push(event["metadata"]["name"].clone());
        assert_eq!(teller.work(key()).await, Outcome::Done);
        drop(teller);
        assert!(server.next_request().await.is_none());
    }
    assert_eq!(names[0], names[1]);
}

#[tokio::test]
async fn what_goes_as_it_should_costs_no_request() {
    let cache = Arc::new(Cache::default());
    cache.apply(run(&["source"]));
    bound_claim(&cache, "ci", "source", "a");
    let (teller, mut server) = teller(&cache);
    assert_eq!(teller.work(key()).await, Outcome::Done);
    drop(teller);
    assert!(server.next_request().await.is_none());
}

#[tokio::test]
async fn an_event_that_is_refused_is_not_tried_again_and_one_that_fails_is() {
    let cache = Arc::new(Cache::default());
    cache.apply(run(&[LEFT_OUT]));
    let (teller, mut server) = teller(&cache);
    let refused = answered(&mut server, 403, "Forbidden");
    let (outcome, _) = tokio::join!(teller.work(key()), refused);
    assert_eq!(outcome, Outcome::Done);
    tokio::time::pause();
    let failing = async {
        for _ in 0..6 {
            answered(&mut server, 500, "InternalError").await;
        }
    };
    let (outcome, ()) = tokio::join!(teller.work(key()), failing);
    assert_eq!(outcome, Outcome::Retry);
}

#[tokio::test]
async fn v7_claims_of_the_runs_own_namespace_block_it_and_no_others() {
    let cache = Arc::new(Cache::default());
    let blocked = run(&["source", "cache"]);
    cache.apply(blocked.clone());
    let (by_claim, by_volume) = bound_claim(&cache, "ci", "source", "a");
    assert_eq!((by_claim, by_volume), (vec![key()], vec![key()]));
    let elsewhere = bound_claim(&cache, "prod", "cache", "b");
    assert_eq!(elsewhere, (vec![], vec![]));
    let (teller, mut server) = teller(&cache);
    assert_eq!(teller.work(key()).await, Outcome::Done);

    bound_claim(&cache, "ci", "cache", "b");
    let served = async {
        let event = answered(&mut server, 201, "").await;
        (event, answered(&mut server, 200, "").await)
    };
    let (outcome, ((_, path, event), (method, run_path, patch))) =
        tokio::join!(teller.work(key()), served);
    assert_eq!(outcome, Outcome::Done);
    assert_eq!(
        (path.as_str(), &event["reason"]),
        (EVENTS, &json!("VolumeNodeAffinityConflict"))
    );
    assert_eq!(method, Method::PATCH);
    assert_eq!(
        run_path,
        "/apis/tekton.dev/v1/namespaces/ci/pipelineruns/build"
    );
    assert_eq!(patch["metadata"]["uid"], "u");
    let annotation = patch["metadata"]["annotations"][BLOCKED].clone();
    let annotation = annotation.as_str().unwrap().to_owned();
    assert!(
        annotation.contains("\\\"cache\\\" (zone In b)"),
        "{annotation}"
    );

    // What was written is known before the watch says so, and left alone; once the claims fit, it goes.
    assert_eq!(teller.work(key()).await, Outcome::Done);
    cache.apply(blocked.clone());
    assert_eq!(teller.work(key()).await, Outcome::Done);
    let mut annotated = blocked;
    annotated.annotations.insert(BLOCKED.to_owned(), annotation);
    annotated.resource_version = "2".to_owned();
    cache.apply(annotated);
    assert_eq!(teller.work(key()).await, Outcome::Done);
    bound_claim(&cache, "ci", "cache", "a");
    let (_, (_, _, patch)) = tokio::join!(teller.work(key()), answered(&mut server, 200, ""));
    assert_eq!(patch["metadata"]["annotations"], json!({BLOCKED: null}));
    drop(teller);
    assert!(server.next_request().await.is_none());
}

#[tokio::test]
async fn p7_an_author_is_told_of_a_name_that_is_taken() {
    let cache = Arc::new(Cache::default());
    cache.apply(run(&[]));
    let (teller, mut server) = teller(&cache);
    let identity = Identity {
        namespace: "ci".to_owned(),
        name: "build".to_owned(),
        uid: "u".to_owned(),
        resource_version: "1".to_owned(),
    };
    let taken = Error::NameTaken {
        name: "ci/affinity-assistant-0123456789".to_owned(),
        owner: "nobody".to_owned(),
    };
    let (_, (_, _, event)) = tokio::join!(
        teller.tell_of(&identity, &taken),
        answered(&mut server, 201, "")
    );
    assert_eq!(event["reason"], "PlaceholderNameTaken");
    let passing = Error::Terminating {
        name: "ci/affinity-assistant-0123456789".to_owned(),
    };
    for error in [&taken, &passing] {
        teller.tell_of(&identity, error).await;
    }
    drop(teller);
    assert!(server.next_request().await.is_none());
}

/// Goes on to when an author is to be told, and answers those requests.
async fn later(
    teller: &Notices,
    server: &mut Server,
    requests: usize,
) -> Vec<(Method, String, Value)> {
    let outcome = teller.work(key()).await;
    let Outcome::Later(left) = outcome else {
        panic!("{outcome:?}")
    };
    assert!(left <= MOMENT);
    tokio::time::advance(left).await;
    let served = async {
        let mut asked = Vec::new();
        for _ in 0..requests {
            asked.push(answered(server, 200, "").await);
        }
        asked
    };
    let (outcome, asked) = tokio::join!(teller.work(key()), served);
    assert_eq!(outcome, Outcome::Done);
    asked
}

fn quota_on(set: &StatefulSet) -> Complaint {
    let metadata = set.metadata.clone();
    Complaint {
        about: About::StatefulSet,
        namespace: "ci".to_owned(),
        name: metadata.name.unwrap(),
        uid: metadata.uid.unwrap(),
        reason: Reason::new(ReasonCode::QuotaExceeded, "no pods here"),
        event: "e".to_owned(),
        version: "9".to_owned(),
    }
}

fn annotation(patch: &Value) -> Value {
    let annotation = patch["metadata"]["annotations"][BLOCKED].as_str();
    annotation.map_or(Value::Null, |text| serde_json::from_str(text).unwrap())
}

#[tokio::test(start_paused = true)]
async fn n3_what_a_placeholder_waits_for_is_told_after_a_moment_and_withdrawn_when_it_is_gone() {
    let cache = Arc::new(Cache::default());
    let run = run(&[]);
    cache.apply(run.clone());
    cache.apply(set(&run));
    let (teller, mut server) = teller(&cache);
    assert_eq!(teller.work(key()).await, Outcome::Done);

    cache.apply_complaint(0, quota_on(&set(&run)));
    let asked = later(&teller, &mut server, 2).await;
    assert_eq!(
        (asked[0].1.as_str(), &asked[0].2["reason"]),
        (EVENTS, &json!("QuotaExceeded"))
    );
    let told = json!({"reason": "QuotaExceeded", "message": "no pods here"});
    assert_eq!(annotation(&asked[1].2), told);
    assert_eq!(teller.work(key()).await, Outcome::Done);

    // Another cause: what was said before stays until this one has lasted.
    let said = "0/4 nodes are available: 4 Insufficient cpu.";
    let unscheduled = json!({"phase": "Pending", "conditions": [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": said}]});
    cache.apply(placeholder(&run, None, unscheduled));
    let asked = later(&teller, &mut server, 2).await;
    assert_eq!(asked[0].2["reason"], "PlaceholderUnschedulable");
    assert_eq!(
        annotation(&asked[1].2)["reason"],
        "PlaceholderUnschedulable"
    );

    cache.apply(placeholder(
        &run,
        Some("node-1"),
        json!({"phase": "Running"}),
    ));
    let (_, (_, _, patch)) = tokio::join!(teller.work(key()), answered(&mut server, 200, ""));
    assert_eq!(patch["metadata"]["annotations"], json!({BLOCKED: null}));
    drop(teller);
    assert!(server.next_request().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn n3_what_a_placeholder_was_refused_is_told_at_once_when_the_run_ends_and_what_may_pass_is_not()
 {
    let cache = Arc::new(Cache::default());
    let run = run(&[]);
    cache.apply(run.clone());
    cache.apply(set(&run));
    cache.apply_complaint(0, quota_on(&set(&run)));
    let (teller, mut server) = teller(&cache);
    assert_eq!(teller.work(key()).await, Outcome::Later(MOMENT));
    cache.apply(PipelineRun {
        state: RunState::Done,
        resource_version: "2".to_owned(),
        ..run.clone()
    });
    let (outcome, (_, path, event)) =
        tokio::join!(teller.work(key()), answered(&mut server, 201, ""));
    assert_eq!(outcome, Outcome::Done);
    assert_eq!(
        (path.as_str(), &event["reason"]),
        (EVENTS, &json!("QuotaExceeded"))
    );
    assert_eq!(teller.work(key()).await, Outcome::Done);
    let unscheduled = json!({"phase": "Pending", "conditions": [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "none"}]});
    cache.apply(placeholder(&run, None, unscheduled));
    assert_eq!(teller.work(key()).await, Outcome::Done);
    drop(teller);
    assert!(server.next_request().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn n3_a_placeholder_that_is_being_moved_is_not_told_to_fit_nowhere() {
    let cache = Arc::new(Cache::default());
    let run = run(&[]);
    cache.apply(run.clone());
    let mut moving = set(&run);
    let annotation = json!({"nodes": ["node-2"], "before": null}).to_string();
    let annotations = [("coscheduler.dev/move".to_owned(), annotation)];
    moving.metadata.annotations = Some(annotations.into());
    cache.apply(moving);
    let unscheduled = json!({"phase": "Pending", "conditions": [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "none"}]});
    cache.apply(placeholder(&run, None, unscheduled));
    let (teller, _server) = teller(&cache);
    assert_eq!(teller.work(key()).await, Outcome::Done);
}

#[tokio::test(start_paused = true)]
async fn n3_a_claim_that_the_scheduler_has_yet_to_hear_of_is_not_told_to_be_missing() {
    let cache = Arc::new(Cache::default());
    let run = run(&["source"]);
    cache.apply(run.clone());
    cache.apply(set(&run));
    let said = "0/4 nodes are available: persistentvolumeclaim \"source\" not found. not found";
    let unscheduled = json!({"phase": "Pending", "conditions": [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": said}]});
    cache.apply(placeholder(&run, None, unscheduled));
    let (teller, mut server) = teller(&cache);
    assert_eq!(teller.work(key()).await, Outcome::Later(MOMENT));
    bound_claim(&cache, "ci", "source", "a");
    assert_eq!(teller.work(key()).await, Outcome::Done);

    let claim = cache.claim("ci", "source").claim.unwrap();
    cache.delete_claim(&claim);
    let asked = later(&teller, &mut server, 2).await;
    assert_eq!(asked[0].2["reason"], "ReferenceMissing");
}

#[tokio::test(start_paused = true)]
async fn n3_what_passes_within_a_moment_is_not_told() {
    let cache = Arc::new(Cache::default());
    let run = run(&[]);
    cache.apply(run.clone());
    cache.apply(set(&run));
    let (teller, mut server) = teller(&cache);
    let mut complaint = quota_on(&set(&run));
    cache.apply_complaint(0, complaint.clone());
    assert_eq!(teller.work(key()).await, Outcome::Later(MOMENT));
    tokio::time::advance(MOMENT / 2).await;
    // Each cause has a moment of its own.
    complaint.reason = Reason::new(ReasonCode::LimitRangeViolated, "too large");
    complaint.version = "10".to_owned();
    cache.apply_complaint(0, complaint);
    assert_eq!(teller.work(key()).await, Outcome::Later(MOMENT));
    tokio::time::advance(MOMENT / 2).await;
    assert_eq!(teller.work(key()).await, Outcome::Later(MOMENT / 2));
    cache.apply(placeholder(
        &run,
        Some("node-1"),
        json!({"phase": "Running"}),
    ));
    tokio::time::advance(MOMENT).await;
    assert_eq!(teller.work(key()).await, Outcome::Done);
    drop(teller);
    assert!(server.next_request().await.is_none());
}

#[tokio::test]
async fn n3_a_refusal_of_our_own_write_stays_on_the_run_until_the_placeholder_exists() {
    let cache = Arc::new(Cache::default());
    let run = run(&[]);
    cache.apply(run.clone());
    let (teller, mut server) = teller(&cache);
    let identity = Identity {
        namespace: "ci".to_owned(),
        name: "build".to_owned(),
        uid: "u".to_owned(),
        resource_version: "1".to_owned(),
    };
    let answer = |message: &str, code| {
        let status = kube::core::Status::failure(message, "").with_code(code);
        Error::Kubernetes {
            act: "create StatefulSet ci/x".to_owned(),
            source: Box::new(kube::Error::Api(Box::new(status))),
            transient: code >= 500,
        }
    };
    // The API server itself is in trouble: nothing that the author could do.
    let busy = answer("etcdserver: no leader", 500);
    teller.tell_of(&identity, &busy).await;
    let down = "Internal error occurred: failed calling webhook \"a\": failed to call webhook: Post \"https://a\": EOF";
    let refusals = [
        (answer(down, 500), "AdmissionWebhookFailed"),
        (
            answer(
                "statefulsets.apps \"x\" is forbidden: exceeded quota: none",
                403,
            ),
            "QuotaExceeded",
        ),
    ];
    for (version, (refusal, code)) in (2..).zip(&refusals) {
        let served = async {
            let event = answered(&mut server, 201, "").await;
            (event, answered(&mut server, 200, "").await)
        };
        let ((), ((_, _, event), (_, _, patch))) =
            tokio::join!(teller.tell_of(&identity, refusal), served);
        assert_eq!(event["reason"], **code);
        assert_eq!(annotation(&patch)["reason"], **code);
        // As the watch brings it.
        let mut annotated = run.clone();
        let value = patch["metadata"]["annotations"][BLOCKED].as_str();
        annotated
            .annotations
            .insert(BLOCKED.to_owned(), value.unwrap().to_owned());
        annotated.resource_version = version.to_string();
        cache.apply(annotated);
        // Once more, and looked at by the one who leads and was not called.
        teller.tell_of(&identity, refusal).await;
        if *code == "QuotaExceeded" {
            let words = answer(
                "statefulsets.apps \"x\" is forbidden: exceeded quota: all",
                403,
            );
            let once_more = teller.tell_of(&identity, &words);
            let (_, (method, ..)) = tokio::join!(once_more, answered(&mut server, 201, ""));
            assert_eq!(method, Method::POST);
        }
        assert_eq!(teller.work(key()).await, Outcome::Done);
    }
    cache.apply(set(&run));
    let (_, (_, _, patch)) = tokio::join!(teller.work(key()), answered(&mut server, 200, ""));
    assert_eq!(patch["metadata"]["annotations"], json!({BLOCKED: null}));
    drop(teller);
    assert!(server.next_request().await.is_none());
}
