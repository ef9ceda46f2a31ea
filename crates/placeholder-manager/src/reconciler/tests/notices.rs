//! Tests of the Events and annotations that inform a run's author.

use super::*;
use coscheduler_core::annotations::BLOCKED;
use coscheduler_core::plan::{Reason, ReasonCode};
use coscheduler_kubernetes::complaints::{About, Complaint};

const LEFT_OUT: &str = "$(tasks.make.results.claim)";

/// A run with a claim that no placeholder mounts. An Event must report this claim.
fn left_out() -> PipelineRun {
    run(&[LEFT_OUT])
}

/// The reasons of the Events, and the annotation, that were written.
fn said(manager: &Manager) -> (Vec<Value>, Option<Value>) {
    let asked = manager.server.asked();
    let events = asked.iter().filter(|it| it.short() == "POST events");
    let patch = asked.iter().find(|it| it.short() == "PATCH build");
    let annotation = patch.map(|it| {
        assert_eq!(it.body["metadata"]["uid"], "u");
        let text = it.body["metadata"]["annotations"][BLOCKED].as_str();
        text.map_or(Value::Null, |text| serde_json::from_str(text).unwrap())
    });
    (
        events.map(|it| it.body["reason"].clone()).collect(),
        annotation,
    )
}

#[tokio::test(start_paused = true)]
async fn v9_an_author_is_told_once_by_an_event_of_the_same_name_whoever_tells() {
    let mut names = Vec::new();
    // Two replicas publish the same Event. For the second, the Event exists already.
    for exists in [false, true] {
        let manager = Manager::new(true, move |asked| match asked.method {
            Method::POST if exists => status(409, "AlreadyExists", "exists"),
            _ => usual(asked),
        })
        .await;
        manager.know(&left_out());
        manager.cache.apply_node(node("node-1", false));
        assert_eq!(manager.work().await, Outcome::Done);
        let asked = manager.server.asked();
        let [event] = &asked[..] else {
            panic!("{asked:?}");
        };
        assert_eq!(event.path, "/apis/events.k8s.io/v1/namespaces/ci/events");
        assert_eq!(event.body["reason"], "ClaimNameVariable");
        assert_eq!(event.body["regarding"]["uid"], "u");
        names.push(event.body["metadata"]["name"].clone());
        assert_eq!(manager.work().await, Outcome::Done);
        assert_eq!(manager.server.short(), [""; 0]);
    }
    assert_eq!(names[0], names[1]);
}

#[tokio::test(start_paused = true)]
async fn an_event_that_is_refused_is_not_tried_again_and_one_that_fails_is() {
    for (code, expect) in [(403, Outcome::Done), (500, Outcome::Retry)] {
        let manager = Manager::new(true, move |asked| match asked.method {
            Method::POST => status(code, "", "no"),
            _ => usual(asked),
        })
        .await;
        manager.know(&left_out());
        manager.cache.apply_node(node("node-1", false));
        assert_eq!(manager.work().await, expect, "{code}");
    }
}

fn complaint(run: &PipelineRun) -> Complaint {
    Complaint {
        about: About::Placeholder,
        object: ("ci".to_owned(), planned(run)[0].clone()),
        uid: "s".to_owned(),
        reason: Reason::new(ReasonCode::QuotaExceeded, "no pods here"),
        event: "e".to_owned(),
        version: "9".to_owned(),
    }
}

#[tokio::test(start_paused = true)]
async fn n3_what_a_placeholder_waits_for_is_told_after_a_moment_and_withdrawn_when_it_is_gone() {
    let run = run(&[]);
    let manager = Manager::new(true, usual).await;
    manager.cache.apply_run(run.clone());
    manager.cache.apply_placeholder(placeholder(&run));
    manager
        .cache
        .apply_complaint("FailedCreate", complaint(&run));
    manager.work().await;
    assert_eq!(said(&manager), (vec![], None));
    tokio::time::advance(2 * SECOND).await;
    manager.work().await;
    let waits = json!({"reason": "QuotaExceeded", "message": "no pods here"});
    assert_eq!(said(&manager), (vec![json!("QuotaExceeded")], Some(waits)));
    // The watch delivers an older version. The cache keeps the annotation that was written, so it is not written again.
    manager.cache.apply_run(run.clone());
    manager.work().await;
    assert_eq!(said(&manager), (vec![], None));
    let running = json!({"phase": "Running"});
    manager
        .cache
        .apply_pod(placeholder_pod(&run, Some("node-1"), running));
    manager.cache.apply_node(node("node-1", false));
    manager.work().await;
    assert_eq!(said(&manager), (vec![], Some(Value::Null)));
}

/// Calls `Ensure` on a replica that does not lead. The API server refuses the placeholder with this code and message.
async fn refused(
    run: &PipelineRun,
    code: u16,
    message: &'static str,
) -> (Manager, (Vec<Value>, Option<Value>)) {
    let manager = Manager::new(false, move |asked| match asked.last() {
        "statefulsets" => status(code, "", message),
        _ => usual(asked),
    })
    .await;
    manager.cache.apply_run(run.clone());
    manager.called(Purpose::Ensure).await.0.unwrap_err();
    let said = said(&manager);
    (manager, said)
}

#[tokio::test(start_paused = true)]
async fn n3_a_refusal_of_our_own_write_is_told_at_once_by_the_replica_that_was_called() {
    let run = run(&[]);
    // The API server itself fails. The author cannot correct this, so nothing is published.
    let (_, busy) = refused(&run, 500, "etcdserver: no leader").await;
    assert_eq!(busy, (vec![], None));
    let down = "Internal error occurred: failed calling webhook \"a\": failed to call webhook: Post \"https://a\": EOF";
    let quota = "statefulsets.apps \"x\" is forbidden: exceeded quota: none";
    for (code, message, reason) in [
        (500, down, "AdmissionWebhookFailed"),
        (403, quota, "QuotaExceeded"),
    ] {
        let (manager, (events, annotation)) = refused(&run, code, message).await;
        assert_eq!(events, [reason]);
        assert_eq!(annotation.unwrap()["reason"], reason);
        // A second call publishes nothing, because the Event and the annotation exist already.
        manager.called(Purpose::Ensure).await.0.unwrap_err();
        assert_eq!(said(&manager), (vec![], None));
    }
    // The same reason with another message causes one more Event, but does not change the annotation.
    let mut annotated = run.clone();
    let reason = Reason::new(ReasonCode::QuotaExceeded, "exceeded quota: all");
    annotated
        .annotations
        .insert(BLOCKED.to_owned(), reason.to_annotation());
    let (_, (events, annotation)) = refused(&annotated, 403, quota).await;
    assert_eq!((events, annotation), (vec![json!("QuotaExceeded")], None));
}

#[tokio::test(start_paused = true)]
async fn n3_what_passes_by_itself_is_not_told_after_a_call() {
    let run = run(&[]);
    let mut ending = set(&run, "5");
    ending["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    let manager = Manager::new(false, move |asked| match (&asked.method, asked.last()) {
        (&Method::POST, "statefulsets") => status(409, "AlreadyExists", "exists"),
        (&Method::GET, _) => (200, ending.clone()),
        _ => usual(asked),
    })
    .await;
    manager.cache.apply_run(run);
    let (looked, outcome) = manager.called(Purpose::Ensure).await;
    assert!(matches!(&*looked.unwrap_err(), Error::Terminating { .. }));
    assert_eq!((outcome, said(&manager)), (Outcome::Retry, (vec![], None)));
}
