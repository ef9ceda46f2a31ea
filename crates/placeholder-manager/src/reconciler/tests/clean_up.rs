//! Tests of the requests that are sent to the API server after a run has ended (P6, V4, N6).

use super::*;
use coscheduler_core::observed::KnownClaim;
use coscheduler_core::pipeline_run::RunState;
use std::sync::atomic::{AtomicUsize, Ordering};

fn done() -> PipelineRun {
    PipelineRun {
        state: RunState::Done,
        ..run(&["data"])
    }
}

fn orphan() -> Value {
    let mut pod = placeholder_pod_json(&run(&["data"]));
    pod["metadata"]["ownerReferences"] = json!([]);
    pod
}

fn claim(version: &str, deleting: bool, protected: bool) -> Value {
    let mut claim = json!({"metadata": {
        "namespace": "ci", "name": "pvc-0123456789-affinity-assistant-0123456789-0", "uid": "c", "resourceVersion": version,
        "labels": {"app.kubernetes.io/managed-by": "tekton-coscheduler", "tekton.dev/pipelineRunUID": "u"},
        "ownerReferences": [{"apiVersion": "tekton.dev/v1", "kind": "PipelineRun", "name": "build", "uid": "u"}],
    }});
    if deleting {
        claim["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    }
    if protected {
        claim["metadata"]["finalizers"] = json!(["kubernetes.io/pvc-protection"]);
    }
    claim
}

#[tokio::test(start_paused = true)]
async fn p6_v4_all_that_is_left_goes_in_order_without_waiting_for_the_watch() {
    let manager = Manager::new(false, |asked| {
        if asked.method == Method::DELETE && asked.path.contains("/persistentvolumeclaims/") {
            return (200, claim("2", true, true));
        }
        if asked.method == Method::PATCH {
            return (200, claim("3", true, false));
        }
        usual(asked)
    })
    .await;
    let run = done();
    manager.cache.apply_run(run.clone());
    manager.cache.apply_placeholder(placeholder(&run_of(&run)));
    let known: KnownClaim = read_claim(claim("1", false, true));
    let name = known.object.name.clone();
    manager.cache.apply_claim(known);
    manager.work().await;
    let expected = [
        format!("DELETE {}", planned(&run_of(&run))[0]),
        format!("DELETE {name}"),
        "GET pods".to_owned(),
        format!("PATCH {name}"),
    ];
    assert_eq!(manager.server.short(), expected);
}

/// The same run before it ended, because only an active run has a plan.
fn run_of(run: &PipelineRun) -> PipelineRun {
    PipelineRun {
        state: RunState::Active,
        ..run.clone()
    }
}

#[tokio::test(start_paused = true)]
async fn p6_a_placeholders_pod_that_was_left_behind_is_deleted_by_its_uid_once() {
    let manager = Manager::new(false, |asked| {
        let mut ending = orphan();
        ending["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        if asked.method == Method::DELETE {
            (200, ending)
        } else {
            usual(asked)
        }
    })
    .await;
    manager.cache.apply_run(done());
    manager.cache.apply_pod(read_pod(orphan()));
    assert_eq!(manager.work().await, Outcome::Done);
    let asked = manager.server.asked();
    let [delete] = &asked[..] else {
        panic!("{asked:?}");
    };
    assert!(
        delete.path.starts_with("/api/v1/namespaces/ci/pods/"),
        "{}",
        delete.path
    );
    assert_eq!(delete.body["preconditions"], json!({"uid": "p"}));
    assert_eq!(manager.work().await, Outcome::Done);
    assert_eq!(manager.server.short(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn v4_a_claim_is_let_go_of_once_however_late_the_watch_is() {
    let manager = Manager::new(false, |asked| match asked.method {
        Method::PATCH => (200, claim("8", true, false)),
        _ => usual(asked),
    })
    .await;
    manager.cache.apply_run(done());
    manager
        .cache
        .apply_claim(read_claim(claim("7", true, true)));
    manager.work().await;
    let short = manager.server.short();
    assert_eq!((short.len(), &short[0][..]), (2, "GET pods"));
    // The watch delivers an older version than the answer.
    manager
        .cache
        .apply_claim(read_claim(claim("7", true, true)));
    let (outcome, asked) = manager.asks().await;
    assert_eq!((outcome, asked), (Outcome::Done, vec![]));
}

#[tokio::test(start_paused = true)]
async fn v4_a_claim_that_a_pod_still_uses_is_looked_at_again_later() {
    let manager = Manager::new(false, |asked| {
        let volume = json!({"name": "v", "persistentVolumeClaim": {"claimName": claim("7", true, true)["metadata"]["name"]}});
        let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [], "volumes": [volume]}, "status": {"phase": "Running"}});
        if asked.last() == "pods" {
            (200, json!({"metadata": {}, "items": [pod]}))
        } else {
            usual(asked)
        }
    })
    .await;
    manager.cache.apply_run(done());
    manager
        .cache
        .apply_claim(read_claim(claim("7", true, true)));
    assert_eq!(manager.work().await, Outcome::Retry);
    assert_eq!(manager.server.short(), ["GET pods"]);
}

/// The cache does not know every run that exists: the watch can be late, or our annotations were removed from the run.
#[tokio::test(start_paused = true)]
async fn n6_a_run_that_is_not_known_is_looked_up_before_its_objects_go() {
    let gone = || status(404, "NotFound", "no such run");
    let of = |uid: &'static str, done: bool| {
        let conditions = if done {
            json!([{"type": "Succeeded", "status": "True"}])
        } else {
            json!([])
        };
        (
            200,
            json!({"apiVersion": "tekton.dev/v1", "kind": "PipelineRun",
            "metadata": {"namespace": "ci", "name": "build", "uid": uid}, "spec": {}, "status": {"conditions": conditions}}),
        )
    };
    for (found, deletes) in [
        (gone(), true),
        (of("u", false), false),
        (of("u", true), true),
        (of("new", false), true),
    ] {
        let says = format!("{found:?}");
        let manager = Manager::new(true, move |asked| {
            if asked.last() == "build" {
                found.clone()
            } else {
                usual(asked)
            }
        })
        .await;
        manager
            .cache
            .apply_placeholder(placeholder(&run(&["data"])));
        manager.work().await;
        let asked = manager.server.short();
        assert_eq!(asked[0], "GET build");
        assert_eq!(
            asked.iter().any(|it| it.starts_with("DELETE")),
            deletes,
            "{says}"
        );
    }
}

/// The run has ended, and two of its claims are left.
fn leave_two_claims(manager: &Manager, deleting: bool) {
    manager.cache.apply_run(done());
    for name in ["one", "two"] {
        let mut claim = claim("1", deleting, true);
        claim["metadata"]["name"] = name.into();
        manager.cache.apply_claim(read_claim(claim));
    }
}

#[tokio::test(start_paused = true)]
async fn n6_a_failure_is_tried_again_and_keeps_no_other_step_waiting() {
    let number = AtomicUsize::new(0);
    let manager = Manager::new(false, move |asked| match asked.method {
        Method::DELETE if number.fetch_add(1, Ordering::SeqCst) == 0 => {
            status(403, "Forbidden", "no")
        }
        Method::DELETE => (200, success()),
        _ => usual(asked),
    })
    .await;
    leave_two_claims(&manager, false);
    assert_eq!(manager.work().await, Outcome::Retry);
    assert_eq!(manager.server.short(), ["DELETE one", "DELETE two"]);
    assert_eq!(manager.work().await, Outcome::Done);
    assert_eq!(manager.server.short(), ["DELETE one"]);
    assert!(
        format!("{:?}", manager.reconciler.memory).contains("{}"),
        "n8: nothing is remembered"
    );
}

#[tokio::test(start_paused = true)]
async fn p6_a_claim_that_cannot_be_changed_keeps_no_other_claim_waiting() {
    let number = AtomicUsize::new(0);
    let manager = Manager::new(false, move |asked| match asked.method {
        Method::PATCH if number.fetch_add(1, Ordering::SeqCst) == 0 => {
            status(403, "Forbidden", "no")
        }
        Method::PATCH => status(404, "NotFound", "gone"),
        _ => usual(asked),
    })
    .await;
    leave_two_claims(&manager, true);
    assert_eq!(manager.work().await, Outcome::Retry);
    let expected = ["GET pods", "PATCH one", "PATCH two"];
    assert_eq!(manager.server.short(), expected);
}

/// Each request would take as long as the API server waits for the webhook, up to thirty seconds.
#[tokio::test(start_paused = true)]
async fn n3_a_webhook_that_is_down_is_not_asked_about_each_claim() {
    let manager = Manager::new(false, move |asked| match asked.method {
        Method::DELETE => status(
            500,
            "InternalError",
            "failed calling webhook \"a.example.dev\": timeout",
        ),
        _ => usual(asked),
    })
    .await;
    leave_two_claims(&manager, false);
    assert_eq!(manager.work().await, Outcome::Retry);
    assert_eq!(manager.server.short(), ["DELETE one"]);
}

#[tokio::test(start_paused = true)]
async fn p6_nothing_is_released_while_a_finalizer_keeps_the_placeholder() {
    let run = run(&["data"]);
    let mut left = set(&run, "6");
    left["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    left["metadata"]["finalizers"] = json!(["example.com/keep"]);
    let manager = Manager::new(false, move |asked| match asked.method {
        Method::DELETE => (200, left.clone()),
        _ => usual(asked),
    })
    .await;
    manager.cache.apply_run(done());
    manager.cache.apply_placeholder(placeholder(&run));
    let (released, _) = manager.called(Purpose::Release).await;
    assert_eq!(released.unwrap().released, Some(Released::InProgress));
    assert_eq!(
        manager.server.short(),
        [format!("DELETE {}", planned(&run)[0])]
    );
    let observed = manager.cache.observe(&key());
    assert!(
        observed
            .placeholders
            .values()
            .all(|own| own.object.deleting)
    );
}
