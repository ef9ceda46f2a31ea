//! What is asked of the API server after a run, with the caches filled by hand.

use std::time::Duration;

use super::*;
use coscheduler_core::labels::{MANAGED_BY, PIPELINE_RUN_UID, TEKTON_COSCHEDULER};
use coscheduler_core::pipeline_run::PipelineRun;
use http::{Method, Request, Response};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tower_test::mock::{self, Handle};

fn key() -> RunKey {
    RunKey {
        namespace: "ci".to_owned(),
        uid: "u".to_owned(),
    }
}

fn run(state: RunState) -> PipelineRun {
    PipelineRun {
        namespace: "ci".to_owned(),
        name: "run".to_owned(),
        uid: "u".to_owned(),
        state,
        ..PipelineRun::default()
    }
}

fn owned(name: &str) -> Value {
    json!({
        "namespace": "ci", "name": name, "uid": format!("{name}-uid"), "resourceVersion": "1",
        "ownerReferences": [{"apiVersion": "tekton.dev/v1", "kind": "PipelineRun", "name": "run", "uid": "u", "controller": true}],
    })
}

/// The placeholder's pod, of a StatefulSet or of nobody any more.
fn placeholder_pod(owners: Value) -> Pod {
    serde_json::from_value(json!({"metadata": {
        "namespace": "ci", "name": "affinity-assistant-0123456789-0", "uid": "pod-uid", "resourceVersion": "1",
        "labels": {
            PIPELINE_RUN_UID: "u",
            MANAGED_BY: TEKTON_COSCHEDULER,
            "app.kubernetes.io/component": "affinity-assistant",
            "app.kubernetes.io/instance": "affinity-assistant-0123456789",
        },
        "ownerReferences": owners,
    }}))
    .unwrap()
}

/// A clean-up that knows what `cache` knows, and the API server it writes to.
fn clean_up(cache: Cache) -> (CleanUp, Handle<Request<Body>, Response<Body>>) {
    let (service, server) = mock::pair();
    let objects = Objects::new(Client::new(service, "ci"));
    (CleanUp::new(Arc::new(cache), objects), server)
}

#[tokio::test]
async fn what_an_active_run_needs_costs_no_request() {
    let cache = Cache::default();
    cache.apply(run(RunState::Active));
    let set: StatefulSet =
        serde_json::from_value(json!({"metadata": owned("affinity-assistant-0123456789")}))
            .unwrap();
    cache.apply(set);
    let owner = json!([{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "s", "uid": "s", "controller": true}]);
    cache.apply(placeholder_pod(owner));
    let claim: PersistentVolumeClaim =
        serde_json::from_value(json!({"metadata": owned("pvc")})).unwrap();
    cache.apply(claim);
    assert_eq!(cache.with_objects(), [key()]);
    let (clean_up, mut server) = clean_up(cache);
    assert_eq!(clean_up.work(key()).await, Outcome::Done);
    drop(clean_up);
    assert!(server.next_request().await.is_none());
}

#[test]
fn a_run_of_which_nothing_is_left_is_not_swept() {
    let cache = Cache::default();
    cache.apply(run(RunState::Done));
    let task_pod: Pod = serde_json::from_value(
        json!({"metadata": {"namespace": "ci", "name": "task", "labels": {PIPELINE_RUN_UID: "u"}}}),
    )
    .unwrap();
    cache.apply(task_pod);
    assert!(cache.with_objects().is_empty());
    cache.apply(placeholder_pod(json!([])));
    assert_eq!(cache.with_objects(), [key()]);
}

#[tokio::test]
async fn p6_a_pod_that_its_stateful_set_left_behind_is_deleted_by_its_uid() {
    let cache = Cache::default();
    cache.apply(run(RunState::Done));
    cache.apply(placeholder_pod(json!([])));
    let (clean_up, mut server) = clean_up(cache);
    let served = async {
        let (request, respond) = server.next_request().await.unwrap();
        assert_eq!(request.method(), Method::DELETE);
        assert_eq!(
            request.uri().path(),
            "/api/v1/namespaces/ci/pods/affinity-assistant-0123456789-0"
        );
        let body = request.into_body().collect_bytes().await.unwrap();
        let body: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(body["preconditions"], json!({"uid": "pod-uid"}));
        let mut ending = placeholder_pod(json!([]));
        ending.metadata.deletion_timestamp =
            Some(serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap());
        let ending = serde_json::to_vec(&ending).unwrap();
        respond.send_response(Response::new(Body::from(ending)));
    };
    let key = key();
    let (released, ()) = tokio::join!(clean_up.release(&key), served);
    assert_eq!(released.unwrap(), Released::InProgress);
    drop(clean_up);
    assert!(server.next_request().await.is_none());
}

fn deleted_claim(version: &str) -> PersistentVolumeClaim {
    let mut metadata = owned("pvc-0123456789-affinity-assistant-0123456789-0");
    // Tekton's own claims have their run as controller, ours do not.
    metadata["ownerReferences"][0]["controller"] = json!(null);
    metadata["resourceVersion"] = json!(version);
    metadata["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    metadata["finalizers"] = json!(["kubernetes.io/pvc-protection"]);
    serde_json::from_value(json!({"metadata": metadata})).unwrap()
}

#[tokio::test(start_paused = true)]
async fn v4_a_claim_is_let_go_of_once_however_late_the_watch_is() {
    let cache = Arc::new(Cache::default());
    cache.apply(run(RunState::Done));
    cache.apply(deleted_claim("7"));
    let (service, mut server) = mock::pair::<Request<Body>, Response<Body>>();
    let clean_up = CleanUp::new(cache.clone(), Objects::new(Client::new(service, "ci")));
    let served = async {
        let (request, respond) = server.next_request().await.unwrap();
        assert_eq!(request.uri().path(), "/api/v1/namespaces/ci/pods");
        let pods = json!({"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": []});
        respond.send_response(Response::new(Body::from(pods.to_string().into_bytes())));
        let (request, respond) = server.next_request().await.unwrap();
        assert_eq!(request.method(), Method::PATCH);
        let mut left = deleted_claim("8");
        left.metadata.finalizers = None;
        let left = serde_json::to_vec(&left).unwrap();
        respond.send_response(Response::new(Body::from(left)));
    };
    let key = key();
    let both = async { tokio::join!(clean_up.release(&key), served) };
    let (released, ()) = tokio::time::timeout(Duration::from_secs(60), both)
        .await
        .unwrap();
    assert_eq!(released.unwrap(), Released::InProgress);
    // What the watch had on the way is older than the answer.
    cache.apply(deleted_claim("7"));
    assert_eq!(clean_up.release(&key).await.unwrap(), Released::InProgress);
    cache.delete(&deleted_claim("9"));
    assert_eq!(clean_up.release(&key).await.unwrap(), Released::Done);
    drop(clean_up);
    assert!(server.next_request().await.is_none());
}

#[tokio::test]
async fn one_caller_at_a_time_and_no_lock_is_kept() {
    let locks = Locks::default();
    let key = key();
    let first = Turn::take(&locks, &key).await;
    let mut second = Box::pin(Turn::take(&locks, &key));
    assert!(futures::poll!(&mut second).is_pending());
    drop(first);
    let second = second.await;
    assert_eq!(locks.lock().unwrap().len(), 1);
    drop(second);
    assert!(locks.lock().unwrap().is_empty());
    // A caller that gives up waiting leaves nothing either.
    let first = Turn::take(&locks, &key).await;
    let mut second = Box::pin(Turn::take(&locks, &key));
    assert!(futures::poll!(&mut second).is_pending());
    drop(second);
    drop(first);
    assert!(locks.lock().unwrap().is_empty());
}
