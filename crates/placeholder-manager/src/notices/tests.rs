//! What is asked of the API server to tell a run's author, with the cache filled by hand.

use super::*;
use coscheduler_core::admit::{Question, TEKTON_CONTROLLER, admit};
use coscheduler_core::config::Configuration;
use coscheduler_core::mode::Mode;
use http::{Method, Request, Response};
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

/// A run that is bound to these claims.
fn run(claims: &[&str]) -> PipelineRun {
    let bound = |name: &&str| json!({"name": name.trim_matches(['$', '(', ')', '.']), "persistentVolumeClaim": {"claimName": name}});
    let run = PipelineRun::parse(&json!({
        "metadata": {"namespace": "ci", "name": "build", "uid": "u", "resourceVersion": "1"},
        "spec": {"workspaces": claims.iter().map(bound).collect::<Vec<_>>()},
    }))
    .unwrap();
    let configuration = Configuration {
        mode: Mode::PipelineRuns,
        ..Configuration::default()
    };
    let question = Question {
        run: &run,
        request_uid: "request",
        created_by: "alice",
        pipeline_override: None,
        namespace_override: None,
        owner_group: None,
    };
    let admission = admit(Ok(&configuration), TEKTON_CONTROLLER, &question);
    admission.unwrap().apply(&run)
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
    let (request, respond) = server.next_request().await.unwrap();
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
