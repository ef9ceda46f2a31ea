//! One honest call; each test changes one thing about it.

use super::*;
use crate::fixtures::admitted;
use coscheduler_core::mode::{IsolationScope, Mode};
use coscheduler_core::plan::Separation;
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

fn planned(run: &PipelineRun) -> PlaceholderSpec {
    match plan(run).unwrap().action {
        Action::Ensure(mut placeholders) => placeholders.remove(0),
        other => panic!("{other:?}"),
    }
}

/// Makes a call at a manager that knows the run and an API server that answers nothing.
async fn call(
    identity: &Identity,
    placeholders: &[PlaceholderSpec],
) -> (Result<Ensured, Error>, Silent) {
    let (service, server) = mock::pair();
    let cache = Cache::default();
    cache.apply(stored());
    let objects = Objects::new(Client::new(service, "ci"));
    (
        ensure(&cache, &objects, identity, placeholders).await,
        server,
    )
}

/// A call that asks for anything but what is planned is refused, and nothing is asked of the API server.
async fn refused(field: &str, change: impl FnOnce(&mut PlaceholderSpec)) {
    let mut spec = planned(&stored());
    change(&mut spec);
    let (outcome, mut server) = call(&identity(), &[spec]).await;
    match outcome {
        Err(Error::Mismatch { field: named, .. }) => {
            assert_eq!(named, format!("placeholders[0].{field}"));
        }
        other => panic!("{field}: {other:?}"),
    }
    assert!(server.next_request().await.is_none(), "{field}");
}

#[tokio::test]
async fn each_field_of_a_placeholder_that_is_not_the_runs_is_refused() {
    refused("name", |spec| {
        spec.name = "affinity-assistant-ffffffffff".parse().unwrap()
    })
    .await;
    refused("labels", |spec| {
        spec.labels.insert("team".to_owned(), "b".to_owned());
    })
    .await;
    refused("labels", |spec| spec.labels.clear()).await;
    refused("claim_templates", |spec| spec.claim_templates.clear()).await;
    refused("claim_templates", |spec| {
        spec.claim_templates[0].name = "pvc-ffffffffff".parse().unwrap();
    })
    .await;
    refused("claim_templates", |spec| {
        spec.claim_templates[0].workspace = "cache".to_owned()
    })
    .await;
    refused("claim_templates", |spec| {
        spec.claim_templates[0].spec = json!({"volumeName": "theirs"});
    })
    .await;
    refused("claim_templates", |spec| {
        spec.claim_templates[0].labels.clear()
    })
    .await;
    refused("claim_templates", |spec| {
        spec.claim_templates[0]
            .annotations
            .insert("a".to_owned(), "b".to_owned());
    })
    .await;
    refused("claim_names", |spec| {
        spec.claim_names = vec!["theirs".to_owned()]
    })
    .await;
    refused("claim_names", |spec| {
        spec.claim_names.push("theirs".to_owned())
    })
    .await;
    refused("single_pod_claims", |spec| {
        spec.single_pod_claims = spec.claim_templates.clone();
    })
    .await;
    refused("unmounted_claim_names", |spec| {
        spec.unmounted_claim_names.push("theirs".to_owned())
    })
    .await;
    refused("separation", |spec| {
        spec.separation = Separation::Isolate(IsolationScope::Cluster)
    })
    .await;
    refused("cpu", |spec| spec.cpu = "64".to_owned()).await;
    refused("memory", |spec| spec.memory = "1Ti".to_owned()).await;
    refused("image", |spec| spec.image = "evil".to_owned()).await;
    refused("pod_template", |spec| {
        spec.pod_template
            .insert("priorityClassName".to_owned(), "high".into());
    })
    .await;
    refused("service_account_name", |spec| {
        spec.service_account_name = "admin".to_owned()
    })
    .await;
}

#[tokio::test]
async fn more_or_fewer_placeholders_than_planned_are_refused() {
    let spec = planned(&stored());
    for asked in [vec![], vec![spec.clone(), spec]] {
        let (outcome, mut server) = call(&identity(), &asked).await;
        assert!(matches!(outcome, Err(Error::Mismatch { field, .. }) if field == "placeholders"));
        assert!(server.next_request().await.is_none());
    }
}

#[tokio::test(start_paused = true)]
async fn another_run_is_refused_at_once_and_one_not_seen_after_a_moment() {
    let start = Instant::now();
    let elsewhere = Identity {
        namespace: "prod".to_owned(),
        ..identity()
    };
    let (outcome, mut server) = call(&elsewhere, &[planned(&stored())]).await;
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
        let (outcome, mut server) = call(&identity, &[planned(&stored())]).await;
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
    let (outcome, mut server) = call(&late, &[planned(&stored())]).await;
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
    let outcome = ensure(&cache, &objects, &identity(), &[planned(&stored())]).await;
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
    let made = planned(&stored()).claims().next().unwrap();
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
    let ensured = ensure(&cache, &objects, &identity, &placeholders);
    let (outcome, created) = tokio::join!(ensured, created);
    assert!(
        matches!(outcome, Err(Error::NameTaken { .. })),
        "{outcome:?}"
    );
    assert_eq!(created.as_deref(), Some(placeholders[1].name.as_str()));
}
