//! One call about one run; each test changes one thing about it.

use super::*;
use crate::fixtures::admitted;
use coscheduler_core::mode::Mode;
use http::{Request, Response};
use kube::Client;
use kube::client::Body;
use serde_json::json;
use tokio::time::Instant;
use tower_test::mock;

/// The API server, which must not be asked.
type Silent = mock::Handle<Request<Body>, Response<Body>>;

/// A run as it is stored, with one template, one claim, a podTemplate and a service account.
fn stored() -> PipelineRun {
    stored_in(
        Mode::PipelineRuns,
        &json!([
            {"name": "source", "volumeClaimTemplate": {"spec": {"accessModes": ["ReadWriteOnce"]}}},
            {"name": "cache", "persistentVolumeClaim": {"claimName": "build-cache"}},
        ]),
    )
}

fn stored_in(mode: Mode, workspaces: &serde_json::Value) -> PipelineRun {
    let run = PipelineRun::parse(&json!({
        "metadata": {
            "namespace": "ci", "name": "build", "uid": "u", "resourceVersion": "10", "labels": {"team": "a"},
        },
        "spec": {
            "taskRunTemplate": {"serviceAccountName": "builder", "podTemplate": {"nodeSelector": {"disk": "ssd"}}},
            "workspaces": workspaces,
        },
    }))
    .unwrap();
    admitted(&run, mode)
}

fn identity() -> Identity {
    Identity {
        namespace: "ci".to_owned(),
        name: "build".to_owned(),
        uid: "u".to_owned(),
        resource_version: "10".to_owned(),
    }
}

/// Makes a call at a manager that knows the run and an API server that answers nothing.
async fn call(identity: &Identity) -> (Result<Ensured, Error>, Silent) {
    let (service, server) = mock::pair();
    let cache = Cache::default();
    cache.apply(stored());
    let objects = Objects::new(Client::new(service, "ci"));
    (ensure(&cache, &objects, identity).await, server)
}

#[tokio::test(start_paused = true)]
async fn another_run_is_refused_at_once_and_one_not_seen_after_a_moment() {
    let start = Instant::now();
    let elsewhere = Identity {
        namespace: "prod".to_owned(),
        ..identity()
    };
    let (outcome, mut server) = call(&elsewhere).await;
    assert!(
        matches!(outcome, Err(Error::Mismatch { field, .. }) if field == "pipeline_run.namespace")
    );
    assert!(server.next_request().await.is_none());
    assert_eq!(start.elapsed(), Duration::ZERO);

    let unknown = Identity {
        uid: "new".to_owned(),
        resource_version: "11".to_owned(),
        ..identity()
    };
    let newer = Identity {
        resource_version: "11".to_owned(),
        ..identity()
    };
    for identity in [unknown, newer] {
        let start = Instant::now();
        let (outcome, mut server) = call(&identity).await;
        assert!(matches!(outcome, Err(Error::NotSeen { .. })), "{outcome:?}");
        assert!(server.next_request().await.is_none());
        assert_eq!(start.elapsed(), CATCH_UP);
    }
}

#[tokio::test]
async fn a_late_call_creates_nothing() {
    let late = Identity {
        resource_version: "9".to_owned(),
        ..identity()
    };
    let (outcome, mut server) = call(&late).await;
    assert_eq!(outcome.unwrap(), Ensured::Superseded);
    assert!(server.next_request().await.is_none());
}

#[test]
fn resource_versions_compare_as_numbers() {
    assert!(is_newer("10", "9"));
    assert!(!is_newer("9", "10"));
    assert!(!is_newer("9", "9"));
    assert!(!is_newer("x", "9"));
}

/// Makes the honest call at a manager that knows the run and what `fill` adds, and an API server that has claim
/// `build-cache` for one pod, bound in zone `b`. Answers the requests that it got, and what came of the call.
async fn honest(fill: impl FnOnce(&Cache)) -> (Vec<String>, Result<Ensured, Error>) {
    let (service, mut server) = mock::pair::<Request<Body>, Response<Body>>();
    let cache = Cache::default();
    cache.apply(stored());
    fill(&cache);
    let objects = Objects::new(Client::new(service, "ci"));
    let served = tokio::spawn(async move {
        let mut requests = Vec::new();
        while let Some((request, respond)) = server.next_request().await {
            let path = request.uri().path();
            let kind = path.rsplit('/').next().unwrap_or_default();
            requests.push(format!("{} {kind}", request.method()));
            let answer = match kind {
                "persistentvolumeclaims" => json!({"metadata": {}, "items": [claim("b")]}),
                "persistentvolumes" => json!({"metadata": {}, "items": [volume("b")]}),
                _ => {
                    let set = request.into_body().collect_bytes().await.unwrap();
                    serde_json::from_slice(&set).unwrap()
                }
            };
            let body = Body::from(serde_json::to_vec(&answer).unwrap());
            respond.send_response(Response::new(body));
        }
        requests
    });
    let outcome = ensure(&cache, &objects, &identity()).await;
    drop(objects);
    (served.await.unwrap(), outcome)
}

/// The brought claim, bound to a volume of this zone.
fn claim(zone: &str) -> serde_json::Value {
    json!({
        "metadata": {"namespace": "ci", "name": "build-cache"},
        "spec": {"accessModes": ["ReadWriteOncePod"], "volumeName": format!("pv-{zone}")},
    })
}

fn volume(zone: &str) -> serde_json::Value {
    json!({
        "metadata": {"name": format!("pv-{zone}")},
        "spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]},
        ]}}},
    })
}

fn know(cache: &Cache, zone: &str) {
    cache.apply_claim(serde_json::from_value(claim(zone)).unwrap());
    let volume = serde_json::from_value(volume(zone)).unwrap();
    cache.apply_volume(format!("pv-{zone}"), volume);
}

#[tokio::test]
async fn v8_only_a_brought_claim_that_is_not_known_is_looked_up() {
    let (requests, outcome) = honest(|_| ()).await;
    assert_eq!(outcome.unwrap(), Ensured::Created);
    let expected = [
        "GET persistentvolumeclaims",
        "GET persistentvolumes",
        "POST statefulsets",
    ];
    assert_eq!(requests, expected);
    let (requests, outcome) = honest(|cache| know(cache, "a")).await;
    assert_eq!(outcome.unwrap(), Ensured::Created);
    assert_eq!(requests, ["POST statefulsets"]);
}

#[tokio::test]
async fn v7_a_placeholder_that_no_node_could_take_is_not_made() {
    let made = planned(&stored()).unwrap()[0].claims().next().unwrap();
    let (requests, outcome) = honest(|cache| {
        know(cache, "a");
        let mut elsewhere = claim("b");
        elsewhere["metadata"]["name"] = made.clone().into();
        cache.apply_claim(serde_json::from_value(elsewhere).unwrap());
        cache.apply_volume(
            "pv-b".to_owned(),
            serde_json::from_value(volume("b")).unwrap(),
        );
    })
    .await;
    let error = outcome.unwrap_err();
    assert!(error.is_transient() && matches!(error, Error::OutOfReach { .. }));
    assert_eq!(requests, [""; 0]);
}

#[tokio::test]
async fn p7_a_name_that_is_taken_keeps_no_other_placeholder_waiting() {
    let bound = |name| json!({"name": name, "persistentVolumeClaim": {"claimName": name}});
    let run = stored_in(Mode::Workspaces, &json!([bound("one"), bound("two")]));
    let Action::Ensure(placeholders) = plan(&run).unwrap().action else {
        panic!("nothing is planned");
    };
    let cache = Cache::default();
    cache.apply(run);
    for name in ["one", "two"] {
        let mut brought = claim("a");
        brought["metadata"]["name"] = name.into();
        brought["spec"] = json!({});
        cache.apply_claim(serde_json::from_value(brought).unwrap());
    }
    let taken: StatefulSet = serde_json::from_value(json!({"metadata": {
        "namespace": "ci", "name": placeholders[0].name.as_str(), "uid": "s",
        "ownerReferences": [
            {"apiVersion": "v1", "kind": "Deployment", "name": "theirs", "uid": "d", "controller": true},
            {"apiVersion": "tekton.dev/v1", "kind": "PipelineRun", "name": "build", "uid": "u"},
        ],
    }}))
    .unwrap();
    cache.apply(taken);
    let (service, mut server) = mock::pair::<Request<Body>, Response<Body>>();
    let objects = Objects::new(Client::new(service, "ci"));
    let created = async {
        let (request, respond) = server.next_request().await.unwrap();
        let body = request.into_body().collect_bytes().await.unwrap();
        let set: StatefulSet = serde_json::from_slice(&body).unwrap();
        respond.send_response(Response::new(Body::from(body.to_vec())));
        set.metadata.name
    };
    let identity = identity();
    let ensured = ensure(&cache, &objects, &identity);
    let (outcome, created) = tokio::join!(ensured, created);
    assert!(
        matches!(outcome, Err(Error::NameTaken { .. })),
        "{outcome:?}"
    );
    assert_eq!(created.as_deref(), Some(placeholders[1].name.as_str()));
}
