//! When the API server is asked to have a placeholder tried again, with the cache filled by hand and a clock of the test's.

use super::*;
use crate::fixtures::{placeholder, run, set, set_name};
use coscheduler_core::pipeline_run::{PipelineRun, RunState};
use http::{Method, Request, Response};
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

fn retries(cache: &Arc<Cache>) -> (Retries, Server) {
    let (service, server) = mock::pair();
    let objects = Objects::new(Client::new(service, "ci"));
    (Retries::new(cache.clone(), objects), server)
}

/// A run whose StatefulSet has no pod.
fn refused() -> Arc<Cache> {
    let cache = Arc::new(Cache::default());
    let run = run(&[]);
    cache.apply(set(&run));
    cache.apply(run);
    cache
}

#[track_caller]
fn pause(outcome: Outcome) -> Duration {
    match outcome {
        Outcome::Later(pause) => pause,
        Outcome::Done | Outcome::Retry => panic!("{outcome:?}"),
    }
}

/// Answers one request with this status, and says what it was.
async fn answered(server: &mut Server, code: u16) -> (Method, String, Value) {
    let asked = tokio::time::timeout(Duration::from_secs(60), server.next_request()).await;
    let (request, respond) = asked.expect("nothing is asked for").unwrap();
    let (parts, body) = request.into_parts();
    let body = body.collect_bytes().await.unwrap();
    let answer = json!({"metadata": {"name": "x"}, "kind": "Status", "status": "Failure", "code": code,
        "message": "", "reason": ""});
    let answer = Body::from(serde_json::to_vec(&answer).unwrap());
    respond.send_response(Response::builder().status(code).body(answer).unwrap());
    let body = serde_json::from_slice(&body).unwrap_or_default();
    (parts.method, parts.uri.path().to_owned(), body)
}

#[tokio::test(start_paused = true)]
async fn n3_a_placeholder_without_a_pod_is_tried_again_at_least_every_thirty_seconds() {
    let cache = refused();
    let (retries, mut server) = retries(&cache);
    let mut pauses = vec![pause(retries.work(key()).await)];
    for code in [200, 500, 404, 200, 200, 200, 200, 200] {
        // A change of the run before that is no reason to hurry.
        tokio::time::advance(Duration::from_millis(500)).await;
        let left = pause(retries.work(key()).await);
        tokio::time::advance(left).await;
        let (outcome, (method, path, patch)) =
            tokio::join!(retries.work(key()), answered(&mut server, code));
        let name = set_name(&run(&[]));
        assert_eq!(method, Method::PATCH);
        assert_eq!(
            path,
            format!("/apis/apps/v1/namespaces/ci/statefulsets/{name}")
        );
        let expected =
            json!({"metadata": {"uid": "s", "annotations": {"coscheduler.dev/retried": "5"}}});
        assert_eq!(patch, expected);
        pauses.push(pause(outcome));
    }
    let seconds = |from, to| Duration::from_secs(from)..=Duration::from_secs(to);
    let bounds = [seconds(1, 2), seconds(2, 4), seconds(4, 8), seconds(8, 16)];
    for (pause, bounds) in pauses.iter().zip(bounds) {
        assert!(bounds.contains(pause), "{pauses:?}");
    }
    for pause in &pauses[4..] {
        assert!(seconds(15, 30).contains(pause), "{pauses:?}");
    }
    // Jitter: no two are the same.
    let different: std::collections::HashSet<_> = pauses[4..].iter().collect();
    assert!(different.len() > 1, "{pauses:?}");
}

#[tokio::test(start_paused = true)]
async fn n3_a_placeholder_that_has_its_pod_begins_anew_when_it_loses_it() {
    let cache = refused();
    let run = run(&[]);
    let (retries, mut server) = retries(&cache);
    tokio::time::advance(pause(retries.work(key()).await)).await;
    let (outcome, _) = tokio::join!(retries.work(key()), answered(&mut server, 200));
    assert!(pause(outcome) >= Duration::from_secs(2));

    cache.apply(placeholder(&run, None, json!({"phase": "Pending"})));
    assert_eq!(retries.work(key()).await, Outcome::Done);
    cache.delete(&placeholder(&run, None, json!({})));
    assert!(pause(retries.work(key()).await) <= Duration::from_secs(2));
    drop(retries);
    assert!(server.next_request().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn n3_nothing_is_tried_again_for_a_run_that_needs_nothing_or_by_somebody_else() {
    let run = run(&[]);
    let check = async |run: PipelineRun, set: StatefulSet| {
        let cache = Arc::new(Cache::default());
        cache.apply(run);
        cache.apply(set);
        let (retries, mut server) = retries(&cache);
        assert_eq!(retries.work(key()).await, Outcome::Done);
        drop(retries);
        assert!(server.next_request().await.is_none());
    };
    let done = PipelineRun {
        state: RunState::Done,
        ..run.clone()
    };
    check(done, set(&run)).await;
    let deleted = PipelineRun {
        deletion: true,
        ..run.clone()
    };
    check(deleted, set(&run)).await;
    let mut ending = set(&run);
    ending.metadata.deletion_timestamp =
        Some(serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap());
    check(run.clone(), ending).await;
    let mut other = set(&run);
    other.metadata.name = Some("database".to_owned());
    check(run, other).await;
}
