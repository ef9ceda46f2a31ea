//! Tests of calls. Each test changes one field of a correct call, or one object in the cache.

use super::*;
use crate::fixtures::{
    Manager, object, placeholder, planned, read_claim, run, run_in, set, status, stored, usual,
};
use coscheduler_core::mode::Mode;
use coscheduler_core::pipeline_run::RunState;
use coscheduler_kubernetes::volumes;
use coscheduler_runtime::queue::Outcome;
use http::Method;
use serde_json::{Value, json};
use tokio::time::Instant;

fn mine() -> Identity {
    Identity {
        namespace: "ci".to_owned(),
        name: "build".to_owned(),
        uid: "u".to_owned(),
        resource_version: "10".to_owned(),
    }
}

/// A cache with three runs: the run of the call, another run in its namespace, and a run in another namespace.
fn cache() -> Cache {
    let cache = Cache::default();
    let run = run(&[]);
    let known = |namespace: &str, name: &str, uid: &str, version: &str| {
        cache.apply_run(PipelineRun {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            uid: uid.to_owned(),
            resource_version: version.to_owned(),
            ..run.clone()
        });
    };
    known("ci", "build", "u", "10");
    known("ci", "other", "u-other", "20");
    known("prod", "theirs", "u-theirs", "30");
    cache
}

/// Checks a call after `change`. If `expect` is `None`, the call must be accepted. Otherwise, it must be refused because of
/// this field.
#[track_caller]
fn check(cache: &Cache, change: impl FnOnce(&mut Identity), expect: Option<&str>) {
    let mut identity = mine();
    change(&mut identity);
    let field = |error| match error {
        Error::Mismatch { field, .. } => field,
        other => panic!("{other}"),
    };
    let expect = expect.map(|field| format!("pipeline_run.{field}"));
    let answer = known(cache, &identity).map(|run| run.is_some());
    assert_eq!(answer.map_err(field), expect.clone().map_or(Ok(true), Err));
    let released = known_or_gone(cache, &identity).map(|key| key.uid);
    assert_eq!(released.err().map(field), expect);
}

#[test]
fn each_field_that_names_another_run_is_refused() {
    let cache = cache();
    check(&cache, |_| (), None);
    // A version that belongs to no known run may be an old or a future version of this run.
    check(&cache, |call| call.resource_version = "9".to_owned(), None);
    check(&cache, |call| call.resource_version = "99".to_owned(), None);
    for namespace in ["prod", "absent"] {
        check(
            &cache,
            |call| call.namespace = namespace.to_owned(),
            Some("namespace"),
        );
    }
    for name in ["other", "absent"] {
        check(&cache, |call| call.name = name.to_owned(), Some("name"));
    }
    for version in ["20", "30"] {
        let other = |call: &mut Identity| call.resource_version = version.to_owned();
        check(&cache, other, Some("resource_version"));
    }
    // With the uid of another run, the version does not match. If the version belongs to no known run, the name or the
    // namespace does not match.
    check(
        &cache,
        |call| call.uid = "u-other".to_owned(),
        Some("resource_version"),
    );
    let late = |uid: &'static str| {
        move |call: &mut Identity| {
            call.resource_version = "9".to_owned();
            call.uid = uid.to_owned();
        }
    };
    check(&cache, late("u-other"), Some("name"));
    check(&cache, late("u-theirs"), Some("namespace"));
}

#[test]
fn a_run_that_is_gone_is_judged_by_what_it_left() {
    let cache = cache();
    let unknown = Identity {
        uid: "u-new".to_owned(),
        resource_version: "40".to_owned(),
        ..mine()
    };
    assert!(known(&cache, &unknown).unwrap().is_none());
    assert_eq!(known_or_gone(&cache, &unknown).unwrap().uid, "u-new");
    cache.delete_run(&crate::fixtures::name("build"));
    cache.apply_placeholder(placeholder(&run(&[])));
    assert!(known_or_gone(&cache, &mine()).is_ok());
    let other = Identity {
        name: "other".to_owned(),
        ..mine()
    };
    let error = known_or_gone(&cache, &other).unwrap_err();
    assert!(matches!(error, Error::Mismatch { .. }), "{error}");
}

/// A manager that does not lead, because every replica serves calls.
async fn manager(run: &PipelineRun) -> Manager {
    let manager = Manager::new(false, usual).await;
    manager.cache.apply_run(run.clone());
    manager
}

/// Makes a call, and works on the run that the call queues.
async fn call(manager: &Manager, identity: &Identity) -> Result<Ensured, Arc<Error>> {
    let worked = manager.reconciler.work(crate::fixtures::key());
    let (outcome, _) = tokio::join!(ensure(&manager.reconciler, identity), worked);
    outcome
}

#[tokio::test(start_paused = true)]
async fn another_run_is_refused_at_once_and_one_not_seen_after_a_moment() {
    let manager = manager(&run(&["data"])).await;
    let start = Instant::now();
    let elsewhere = Identity {
        namespace: "prod".to_owned(),
        ..mine()
    };
    let error = call(&manager, &elsewhere).await.unwrap_err();
    assert!(matches!(&*error, Error::Mismatch { field, .. } if field == "pipeline_run.namespace"));
    assert_eq!(start.elapsed(), Duration::ZERO);

    let newer = Identity {
        resource_version: "11".to_owned(),
        ..mine()
    };
    let unknown = Identity {
        uid: "new".to_owned(),
        ..newer.clone()
    };
    for identity in [unknown, newer] {
        let start = Instant::now();
        let error = call(&manager, &identity).await.unwrap_err();
        assert!(matches!(&*error, Error::NotSeen { .. }), "{error:?}");
        let status = tonic::Status::from(&*error);
        assert_eq!(status.code(), tonic::Code::Unavailable);
        assert!(
            start.elapsed() >= CATCH_UP && start.elapsed() < CATCH_UP + Duration::from_millis(10)
        );
    }
    assert_eq!(manager.server.short(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_call_waits_until_the_watch_has_delivered_what_the_caller_has_seen() {
    let run = run(&[]);
    let manager = manager(&run).await;
    let newer = Identity {
        resource_version: "11".to_owned(),
        ..mine()
    };
    let delivered = async {
        tokio::time::advance(CATCH_UP / 2).await;
        manager.cache.apply_run(PipelineRun {
            resource_version: "11".to_owned(),
            ..run.clone()
        });
    };
    let (seen, ()) = tokio::join!(seen(&manager.cache, &newer), delivered);
    assert_eq!(seen.unwrap().resource_version, "11");
}

#[tokio::test(start_paused = true)]
async fn a_late_call_creates_nothing() {
    let manager = manager(&run(&["data"])).await;
    let late = Identity {
        resource_version: "9".to_owned(),
        ..mine()
    };
    assert_eq!(call(&manager, &late).await.unwrap(), Ensured::Superseded);
    assert_eq!(manager.server.short(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn n6_a_call_for_a_run_that_is_done_or_needs_nothing_creates_nothing() {
    let done = PipelineRun {
        state: RunState::Done,
        ..run(&["data"])
    };
    for (run, expect) in [
        (done, Ensured::RunDone),
        (run_in(Mode::Workspaces, &[]), Ensured::NotNeeded),
    ] {
        let manager = manager(&run).await;
        assert_eq!(call(&manager, &mine()).await.unwrap(), expect);
        assert_eq!(manager.server.short(), [""; 0]);
    }
}

#[tokio::test(start_paused = true)]
async fn an_honest_call_creates_the_placeholder_of_the_run_once() {
    let run = run(&[]);
    let manager = manager(&run).await;
    assert_eq!(call(&manager, &mine()).await.unwrap(), Ensured::Created);
    let asked = manager.server.asked();
    let [created] = &asked[..] else {
        panic!("{asked:?}");
    };
    assert_eq!(created.short(), "POST statefulsets");
    assert_eq!(created.body["metadata"]["name"], *planned(&run)[0]);
    assert_eq!(created.body["metadata"]["ownerReferences"][0]["uid"], "u");
    // The watch has not reported the placeholder yet.
    assert_eq!(call(&manager, &mine()).await.unwrap(), Ensured::Unchanged);
    manager.cache.apply_placeholder(placeholder(&run));
    assert_eq!(call(&manager, &mine()).await.unwrap(), Ensured::Unchanged);
    assert_eq!(manager.server.short(), [""; 0]);
    // The watch has reported this placeholder before, so the cache believes the watch at once when it reports the deletion.
    let reported = ("ci".to_owned(), planned(&run)[0].clone());
    manager.cache.delete_placeholder(&reported);
    assert_eq!(call(&manager, &mine()).await.unwrap(), Ensured::Created);
    assert_eq!(manager.server.short(), ["POST statefulsets"]);
    let mut ending = placeholder(&run);
    ending.object.deleting = true;
    manager.cache.apply_placeholder(ending);
    let error = call(&manager, &mine()).await.unwrap_err();
    assert!(matches!(&*error, Error::Terminating { .. }), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn a_placeholder_that_is_deleted_before_the_watch_reports_it_is_created_again() {
    let manager = manager(&run(&[])).await;
    for _ in 0..2 {
        assert_eq!(call(&manager, &mine()).await.unwrap(), Ensured::Created);
        assert_eq!(manager.server.short(), ["POST statefulsets"]);
        tokio::time::advance(Duration::from_secs(2)).await;
    }
}

/// The requests to the API server, without those for Events and annotations.
fn of_placeholders(manager: &Manager) -> Vec<String> {
    let asked = manager.server.asked().into_iter();
    let asked =
        asked.filter(|it| !it.path.contains("/events") && !it.path.contains("/pipelineruns"));
    asked.map(|it| it.short()).collect()
}

/// A claim that is bound to a volume of this zone.
fn claim(name: &str, zone: &str) -> Value {
    json!({
        "metadata": {"namespace": "ci", "name": name},
        "spec": {"accessModes": ["ReadWriteOnce"], "volumeName": format!("pv-{zone}")},
    })
}

fn volume(zone: &str) -> Value {
    json!({
        "metadata": {"name": format!("pv-{zone}")},
        "spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]},
        ]}}},
    })
}

fn know(cache: &Cache, name: &str, zone: &str) {
    cache.apply_claim(read_claim(claim(name, zone)));
    let volume = volumes::view(object(volume(zone)));
    cache.apply_volume(format!("pv-{zone}"), volume);
}

/// A run with one template and one existing claim.
fn of_both() -> PipelineRun {
    stored(
        Mode::PipelineRuns,
        &json!([
            {"name": "source", "volumeClaimTemplate": {"spec": {"accessModes": ["ReadWriteOnce"]}}},
            {"name": "cache", "persistentVolumeClaim": {"claimName": "build-cache"}},
        ]),
    )
}

/// An API server that has claim `build-cache`, bound in zone `b`.
async fn with_a_claim() -> Manager {
    let manager = Manager::new(false, |asked| match asked.last() {
        "persistentvolumeclaims" => (
            200,
            json!({"metadata": {}, "items": [claim("build-cache", "b")]}),
        ),
        "persistentvolumes" => (200, json!({"metadata": {}, "items": [volume("b")]})),
        _ => usual(asked),
    })
    .await;
    manager.cache.apply_run(of_both());
    manager
}

#[tokio::test(start_paused = true)]
async fn v8_only_an_existing_claim_that_is_not_known_is_looked_up() {
    let manager = with_a_claim().await;
    assert_eq!(call(&manager, &mine()).await.unwrap(), Ensured::Created);
    let expected = [
        "GET persistentvolumeclaims",
        "GET persistentvolumes",
        "POST statefulsets",
    ];
    assert_eq!(of_placeholders(&manager), expected);
    let manager = with_a_claim().await;
    know(&manager.cache, "build-cache", "a");
    assert_eq!(call(&manager, &mine()).await.unwrap(), Ensured::Created);
    assert_eq!(of_placeholders(&manager), ["POST statefulsets"]);
}

#[tokio::test(start_paused = true)]
async fn v7_a_placeholder_that_no_node_could_take_is_not_created() {
    let manager = with_a_claim().await;
    know(&manager.cache, "build-cache", "a");
    let run = of_both();
    let plan = coscheduler_core::plan::plan(&run).unwrap();
    let made = plan.action.placeholders()[0]
        .claims()
        .find(|it| it != "build-cache");
    know(&manager.cache, &made.unwrap(), "b");
    let error = call(&manager, &mine()).await.unwrap_err();
    assert!(matches!(&*error, Error::OutOfReach { .. }), "{error:?}");
    let status = tonic::Status::from(&*error);
    assert_eq!(
        status.code(),
        tonic::Code::FailedPrecondition,
        "no channel tries again"
    );
    assert_eq!(of_placeholders(&manager), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn p7_a_name_that_is_taken_keeps_no_other_placeholder_waiting() {
    let run = run_in(Mode::Workspaces, &["one", "two"]);
    let names = planned(&run);
    let taken = names[0].clone();
    let manager = Manager::new(false, move |asked| match asked.method {
        Method::POST if asked.body["metadata"]["name"] == *taken => status(409, "AlreadyExists", "exists"),
        Method::GET if asked.last() == taken => {
            let mut theirs = set(&run_in(Mode::Workspaces, &["one", "two"]), "5");
            theirs["metadata"]["ownerReferences"] = json!([
                {"apiVersion": "v1", "kind": "Deployment", "name": "theirs", "uid": "d", "controller": true}]);
            (200, theirs)
        }
        _ => usual(asked),
    })
    .await;
    manager.cache.apply_run(run);
    for name in ["one", "two"] {
        know(&manager.cache, name, "a");
    }
    let error = call(&manager, &mine()).await.unwrap_err();
    assert!(matches!(&*error, Error::NameTaken { .. }), "{error:?}");
    let asked = manager.server.asked();
    let created = asked.iter().filter(|it| it.short() == "POST statefulsets");
    let created: Vec<_> = created
        .map(|it| it.body["metadata"]["name"].clone())
        .collect();
    assert_eq!(created, [names[0].as_str(), names[1].as_str()]);
    // An Event tells the run's author.
    let event = asked.iter().find(|it| it.short() == "POST events").unwrap();
    assert_eq!(event.body["reason"], "PlaceholderNameTaken");
}

#[tokio::test(start_paused = true)]
async fn calls_for_one_run_are_worked_on_once() {
    let manager = manager(&run(&[])).await;
    let identity = mine();
    let (first, second, outcome) = tokio::join!(
        ensure(&manager.reconciler, &identity),
        ensure(&manager.reconciler, &identity),
        manager.reconciler.work(crate::fixtures::key()),
    );
    assert_eq!(
        (first.unwrap(), second.unwrap()),
        (Ensured::Created, Ensured::Created)
    );
    assert_eq!(outcome, Outcome::Done);
    assert_eq!(manager.server.short(), ["POST statefulsets"]);
}

#[tokio::test(start_paused = true)]
async fn a_release_says_how_far_the_clean_up_is() {
    let run = run(&[]);
    let manager = manager(&run).await;
    manager.cache.apply_placeholder(placeholder(&run));
    let released = async || {
        let identity = mine();
        let (released, _) = tokio::join!(
            release(&manager.reconciler, &identity),
            manager.reconciler.work(crate::fixtures::key()),
        );
        released.unwrap()
    };
    assert_eq!(released().await, Released::RunActive);
    assert_eq!(manager.server.short(), [""; 0]);
    manager.cache.apply_run(PipelineRun {
        state: RunState::Done,
        resource_version: "11".to_owned(),
        ..run
    });
    assert_eq!(released().await, Released::Done);
    assert_eq!(manager.server.asked().len(), 1);
}

#[tokio::test]
async fn n6_a_call_fails_only_for_steps_that_it_asked_for() {
    // The placeholder exists, and its pod must be evicted because its node is gone. The API server refuses the eviction.
    let run = run(&["data"]);
    let manager = Manager::new(true, |asked| match asked.method {
        Method::DELETE => status(403, "Forbidden", "no"),
        _ => usual(asked),
    })
    .await;
    manager.know(&run);
    let ensured = call(&manager, &mine()).await.unwrap();
    assert_eq!(ensured, Ensured::Unchanged);
    let identity = mine();
    let (released, outcome) = tokio::join!(
        release(&manager.reconciler, &identity),
        manager.reconciler.work(crate::fixtures::key()),
    );
    assert_eq!(released.unwrap(), Released::RunActive);
    assert_eq!(outcome, Outcome::Retry);
    let asked = manager.server.short();
    let evictions = asked.iter().filter(|it| it.starts_with("DELETE "));
    assert_eq!(evictions.count(), 2, "{asked:?}");
}
