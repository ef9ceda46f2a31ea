//! Tests of the number of times that a request is sent, and of its preconditions.

use super::*;
use crate::fixtures::{Asked, Server, object, placeholder, read_claim, run, set, status, success};
use coscheduler_core::annotations::{ADOPTED, SCHEMA_VERSION};
use coscheduler_core::plan::plan;
use coscheduler_core::volumes::Volumes;
use coscheduler_kubernetes::placeholder::patch;
use http::Method;
use serde_json::Value;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Creates a claim. The API server gives the answers of the script in order, and then repeats the last answer. Each answer is a
/// code and a reason. Returns the result and the number of requests. The error is `true` if a retry may help.
async fn create(script: &'static [(u16, &'static str)]) -> (Result<(), bool>, usize) {
    let number = AtomicUsize::new(0);
    let (client, server) = Server::new(move |asked| {
        assert_eq!(asked.method, Method::POST);
        let number = number.fetch_add(1, Ordering::SeqCst);
        match script[number.min(script.len() - 1)] {
            (201, _) => (201, asked.body.clone()),
            (code, reason) => status(code, reason, reason),
        }
    });
    let outcome = Requests::new(client)
        .create_claim("ci", &object(json!({"metadata": {"name": "c"}})))
        .await;
    let outcome = outcome.map_err(|error| error.is_transient());
    (outcome, server.asked().len())
}

#[tokio::test(start_paused = true)]
async fn a_server_that_cannot_take_a_write_is_asked_again_until_it_can() {
    let script = &[
        (409, "Conflict"),
        (429, "TooManyRequests"),
        (500, "InternalError"),
        (201, ""),
    ];
    assert_eq!(create(script).await, (Ok(()), 4));
}

#[tokio::test(start_paused = true)]
async fn asking_again_is_bounded_and_the_caller_may_try_later() {
    assert_eq!(create(&[(500, "InternalError")]).await, (Err(true), 6));
}

/// The API server itself gives up after thirty seconds at most, and its answer names the webhook that does not answer.
#[tokio::test(start_paused = true)]
async fn n3_a_server_that_does_not_answer_is_asked_once_and_for_longer_than_a_webhook_may_take() {
    let asked = AtomicUsize::new(0);
    let began = tokio::time::Instant::now();
    let answer = retried(|| {
        asked.fetch_add(1, Ordering::SeqCst);
        std::future::pending::<Result<(), kube::Error>>()
    });
    assert!(answer.await.is_err_and(|error| is_transient(&error)));
    assert_eq!(asked.into_inner(), 1);
    assert!(began.elapsed() > Duration::from_secs(30));
}

#[tokio::test(start_paused = true)]
async fn what_exists_is_no_error_and_what_is_forbidden_is_final() {
    assert_eq!(create(&[(409, "AlreadyExists")]).await, (Ok(()), 1));
    assert_eq!(create(&[(403, "Forbidden")]).await, (Err(false), 1));
}

/// Creates a placeholder when object `found` with its name exists already, and returns the result. `None` means that this
/// object is gone a moment later.
async fn meets(found: Option<Value>) -> Result<bool, Error> {
    let (client, _) = Server::new(move |asked| match (&asked.method, &found) {
        (&Method::POST, _) => status(409, "AlreadyExists", "exists"),
        (_, Some(found)) => (200, found.clone()),
        (_, None) => status(404, "NotFound", "gone"),
    });
    let run = run(&["data"]);
    let plan = plan(&run).unwrap();
    let spec = &plan.action.placeholders()[0];
    let requests = Requests::new(client);
    let volumes = Volumes::default();
    let created = requests.create_placeholder(&run, spec, None, &volumes);
    created.await.map(|created| created.is_some())
}

#[tokio::test(start_paused = true)]
async fn p7_an_object_of_the_right_name_is_the_placeholder_only_if_its_controller_is_the_run() {
    let found = |change: fn(&mut Value)| {
        let mut set = set(&run(&["data"]), "5");
        change(&mut set["metadata"]);
        meets(Some(set))
    };
    assert!(!found(|_| ()).await.unwrap());
    let taken = [
        found(|set| set["ownerReferences"][0]["uid"] = "other".into()).await,
        found(|set| set["ownerReferences"][0]["controller"] = false.into()).await,
        found(|set| set["ownerReferences"] = json!([])).await,
        found(|set| {
            let ours = set["ownerReferences"][0].take();
            let mut second = ours.clone();
            second["controller"] = Value::Null;
            let theirs = json!({"apiVersion": "v1", "kind": "Deployment", "name": "theirs", "uid": "d", "controller": true});
            set["ownerReferences"] = json!([theirs, second]);
        })
        .await,
    ];
    for outcome in taken {
        assert!(
            matches!(outcome, Err(Error::NameTaken { .. })),
            "{outcome:?}"
        );
    }
    let ending = found(|set| set["deletionTimestamp"] = "2026-01-01T00:00:00Z".into()).await;
    assert!(
        matches!(ending, Err(Error::Terminating { .. })),
        "{ending:?}"
    );
    let gone = meets(None).await;
    assert!(matches!(gone, Err(Error::Terminating { .. })), "{gone:?}");
}

/// Creates a placeholder of an adopted run when Tekton's StatefulSet exists. The API server refuses patches of objects with the
/// name `failing`. Returns the result, and the patches in order.
async fn adopts(failing: &'static str) -> (Result<bool, Error>, Vec<String>) {
    let mut run = run(&["data"]);
    run.annotations
        .insert(SCHEMA_VERSION.to_owned(), "2".to_owned());
    run.annotations.insert(ADOPTED.to_owned(), String::new());
    run.has_begun = true;
    let plan = plan(&run).unwrap();
    let spec = &plan.action.placeholders()[0];
    let mut set = set(&run, "5");
    set["metadata"]["name"] = spec.name.as_str().into();
    set["metadata"]["labels"] = json!({});
    let pod = json!({"metadata": {
        "name": format!("{}-0", spec.name), "uid": "p",
        "ownerReferences": [{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "x", "uid": "s", "controller": true}],
    }});
    let (client, server) = Server::new(move |asked| match asked.method {
        Method::POST => status(409, "AlreadyExists", "exists"),
        Method::PATCH if asked.path.contains(failing) => status(500, "InternalError", "failed"),
        _ if asked.path.ends_with("/pods") => (200, json!({"metadata": {}, "items": [pod]})),
        _ if asked.path.contains("/pods/") => (200, pod.clone()),
        _ => (200, set.clone()),
    });
    let requests = Requests::new(client);
    let volumes = Volumes::default();
    let created = requests.create_placeholder(&run, spec, None, &volumes);
    let outcome = created.await.map(|created| created.is_some());
    let asked = server.asked().into_iter();
    let patches = asked.filter(|asked| asked.method == Method::PATCH);
    let kinds = patches.filter_map(|asked| Some(asked.path.rsplit('/').nth(1)?.to_owned()));
    (outcome, kinds.collect())
}

#[tokio::test(start_paused = true)]
async fn b7_the_set_of_an_adopted_run_is_taken_over_after_its_pod() {
    let (outcome, patched) = adopts("nothing").await;
    assert!(!outcome.unwrap());
    assert_eq!(patched, ["pods", "statefulsets"]);
    // If the pod cannot be taken over, the StatefulSet is not taken over either, so the next `Ensure` tries again.
    let (outcome, patched) = adopts("/pods/").await;
    assert!(outcome.unwrap_err().is_transient());
    assert_eq!(patched, ["pods"]);
}

fn seen() -> ObjectRef {
    ObjectRef {
        name: "x".to_owned(),
        uid: "u".to_owned(),
        resource_version: "7".to_owned(),
        deleting: false,
    }
}

#[tokio::test(start_paused = true)]
async fn every_delete_names_the_object_that_was_looked_at() {
    let (client, server) = Server::new(|_| (200, success()));
    let requests = Requests::new(client);
    requests.delete_placeholder("ci", &seen()).await.unwrap();
    requests.delete_pod("ci", &seen()).await.unwrap();
    requests.delete_claim("ci", &seen()).await.unwrap();
    assert!(requests.evict("ci", &seen(), true).await.unwrap());
    assert!(requests.evict("ci", &seen(), false).await.unwrap());
    let bodies: Vec<_> = server.asked().into_iter().map(|asked| asked.body).collect();
    let by_uid = json!({"uid": "u"});
    for body in &bodies[..3] {
        assert_eq!(body["preconditions"], by_uid);
        assert_eq!(body["propagationPolicy"], "Background");
    }
    for (body, grace) in bodies[3..].iter().zip([json!(0), Value::Null]) {
        assert_eq!(
            body["preconditions"],
            json!({"uid": "u", "resourceVersion": "7"})
        );
        assert_eq!(body["gracePeriodSeconds"], grace);
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_gone_or_replaced_is_left_alone() {
    for (code, message) in [
        (404, "gone"),
        (409, "Precondition failed: UID in precondition: u"),
    ] {
        let (client, server) = Server::new(move |_| status(code, "", message));
        let requests = Requests::new(client);
        requests.delete_placeholder("ci", &seen()).await.unwrap();
        assert_eq!(requests.delete_pod("ci", &seen()).await.unwrap(), None);
        assert_eq!(requests.delete_claim("ci", &seen()).await.unwrap(), None);
        assert!(!requests.evict("ci", &seen(), true).await.unwrap());
        let own = placeholder(&run(&[]));
        let record = Patch::Merge(patch::record(&own, &own.record));
        assert_eq!(requests.patch(&own, record).await.unwrap(), None);
        assert_eq!(server.asked().len(), 5);
    }
}

#[tokio::test(start_paused = true)]
async fn v4_a_protection_is_removed_from_exactly_the_version_that_was_looked_at() {
    let claim = read_claim(json!({"metadata": {
        "namespace": "ci", "name": "c", "uid": "u", "resourceVersion": "7",
        "finalizers": ["kubernetes.io/pvc-protection", "example.com/keep"],
    }}));
    let (client, server) = Server::new(|_| status(409, "Conflict", "changed"));
    let outcome = Requests::new(client).unprotect(&claim).await;
    assert!(outcome.unwrap_err().is_transient());
    let asked = server.asked();
    assert_eq!(asked.len(), 1, "it is looked at again, not patched again");
    let expect = json!({"uid": "u", "resourceVersion": "7", "finalizers": ["example.com/keep"]});
    assert_eq!(asked[0].body["metadata"], expect);
}

#[tokio::test]
async fn the_pods_that_have_not_ended_are_read_page_by_page() {
    let (client, server) = Server::new(|asked| {
        let pod = |name: &str| {
            json!({"metadata": {"name": name}, "spec": {"containers": [], "volumes": [
                {"name": "data", "persistentVolumeClaim": {"claimName": format!("of-{name}")}}]}})
        };
        let page = if asked.query.contains("continue=page-2") {
            json!({"metadata": {"continue": ""}, "items": [pod("c")]})
        } else {
            json!({"metadata": {"continue": "page-2"}, "items": [pod("a"), pod("b")]})
        };
        (200, page)
    });
    let used = Requests::new(client).live_pods("ci").await.unwrap();
    let claims: Vec<_> = used.iter().flat_map(|pod| &pod.claims).collect();
    assert_eq!(claims, ["of-a", "of-b", "of-c"]);
    let asked = server.asked();
    assert_eq!(asked.len(), 2);
    for Asked { path, query, .. } in asked {
        assert_eq!(path, "/api/v1/namespaces/ci/pods");
        let not_ended = "fieldSelector=status.phase%21%3DSucceeded%2Cstatus.phase%21%3DFailed";
        assert!(
            query.contains(not_ended) && query.contains("limit=100"),
            "{query}"
        );
    }
}
