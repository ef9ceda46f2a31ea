//! Tests of the cache: its content after changes, in different orders.

mod claims;
mod complaints;
mod nodes;

use super::*;
use crate::fixtures::{
    key, name, placeholder, placeholder_pod, planned, read_claim, read_pod, read_set, run, set,
    task_pod,
};
use coscheduler_core::annotations::{MODE, PLACEHOLDER};
use coscheduler_core::observed::RunPresence;
use coscheduler_core::pipeline_run::RunState;
use serde_json::{Value, json};

fn running() -> Value {
    json!({"phase": "Running"})
}

fn version(run: &PipelineRun, version: &str) -> PipelineRun {
    PipelineRun {
        resource_version: version.to_owned(),
        ..run.clone()
    }
}

fn pods(cache: &Cache, run: &RunKey) -> Vec<String> {
    cache.observe(run).pods.into_keys().collect()
}

#[test]
fn a_run_is_seen_with_its_plan_and_all_that_belongs_to_it() {
    let cache = Cache::default();
    let run = run(&["data"]);
    assert_eq!(cache.apply_run(run.clone()), [key()]);
    assert_eq!(cache.apply_placeholder(placeholder(&run)), [key()]);
    assert_eq!(
        cache.apply_pod(placeholder_pod(&run, Some("node-1"), running())),
        [key()]
    );
    assert_eq!(cache.apply_pod(read_pod(task_pod("u", "build"))), [key()]);
    cache.apply_pod(read_pod(task_pod("other", "theirs")));
    let observed = cache.observe(&key());
    assert_eq!(observed.presence, RunPresence::Active);
    assert_eq!(observed.planned().len(), 1);
    let names: Vec<_> = observed.placeholders.keys().cloned().collect();
    assert_eq!(names, planned(&run));
    assert_eq!(
        pods(&cache, &key()),
        [format!("{}-0", names[0]), "build".to_owned()]
    );
    for (change, expect) in [
        (RunState::Done, RunPresence::Done),
        (RunState::Pending, RunPresence::Active),
    ] {
        cache.apply_run(PipelineRun {
            state: change,
            ..run.clone()
        });
        assert_eq!(cache.observe(&key()).presence, expect);
    }
    cache.apply_run(PipelineRun {
        deletion: true,
        ..run.clone()
    });
    assert_eq!(cache.observe(&key()).presence, RunPresence::Gone);
    let elsewhere = RunKey::new("prod", "u");
    assert!(cache.observe(&elsewhere).run.is_none());
}

#[test]
fn p2_m4_a_run_hears_whether_a_placeholder_waits_for_a_node() {
    let cache = Cache::default();
    let condition = json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable"});
    let waits = json!({"phase": "Pending", "conditions": [condition]});
    let run = run(&["data"]);
    let pod = |node, status: &Value| placeholder_pod(&run, node, status.clone());
    let has_rivals = || cache.observe(&RunKey::new("prod", "other")).has_rivals;
    let mut task = task_pod("u", "build");
    (task["spec"]["nodeName"], task["status"]) = (Value::Null, waits.clone());
    cache.apply_pod(read_pod(task));
    assert!(!has_rivals());
    cache.apply_pod(pod(None, &waits));
    assert!(has_rivals());
    cache.apply_pod(pod(Some("node-1"), &running()));
    assert!(!has_rivals());
    cache.apply_pod(pod(None, &waits));
    cache.delete_pod(&name(&format!("{}-0", planned(&run)[0])));
    assert!(!has_rivals());
}

#[test]
fn what_a_gone_run_left_over_says_its_name() {
    let cache = Cache::default();
    let run = run(&[]);
    cache.apply_run(run.clone());
    cache.apply_placeholder(placeholder(&run));
    assert_eq!(cache.delete_run(&name("build")), [key()]);
    let observed = cache.observe(&key());
    assert_eq!(
        (observed.presence, observed.placeholders.len()),
        (RunPresence::Gone, 1)
    );
    assert_eq!(cache.name_of_owner(&key()).as_deref(), Some("build"));
    assert_eq!(cache.delete_placeholder(&name(&planned(&run)[0])), [key()]);
    assert_eq!(cache.name_of_owner(&key()), None);
    assert!(cache.observe(&key()).placeholders.is_empty());
}

#[test]
fn a_run_that_was_replaced_under_its_name_is_forgotten() {
    let cache = Cache::default();
    let old = run(&["data"]);
    let new = PipelineRun {
        uid: "new".to_owned(),
        resource_version: "9".to_owned(),
        ..old.clone()
    };
    let of_new = RunKey::new("ci", "new");
    cache.apply_run(old.clone());
    cache.apply_placeholder(placeholder(&old));
    cache.end_pod(&read_pod(task_pod("u", "build")));
    assert!(!cache.read().ended.is_empty());
    let news: BTreeSet<_> = cache.apply_run(new).into_iter().collect();
    assert_eq!(news, BTreeSet::from([key(), of_new.clone()]));
    assert!(cache.run("u").is_none() && cache.run("new").is_some());
    assert!(cache.run_at("10").is_none());
    assert!(cache.read().ended.is_empty());
    let left = cache.observe(&key());
    assert_eq!(
        (left.presence, left.placeholders.len()),
        (RunPresence::Gone, 1)
    );
    assert!(
        cache
            .retain_runs(&HashSet::from([name("build")]))
            .is_empty()
    );
    assert_eq!(cache.retain_runs(&HashSet::new()), [of_new]);
}

#[test]
fn a_run_is_known_by_its_uid_and_newest_version_until_it_goes() {
    let cache = Cache::default();
    let first = run(&[]);
    let versions = cache.version();
    cache.apply_run(first.clone());
    assert!(versions.has_changed().unwrap());
    let at = |version: &str| cache.run_at(version).map(|run| run.uid.clone());
    assert_eq!(at("10").as_deref(), Some("u"));
    cache.apply_run(version(&first, "11"));
    assert_eq!((at("10"), at("11").as_deref()), (None, Some("u")));
    // A list may deliver an older version than the change before it.
    assert!(cache.apply_run(first).is_empty());
    assert_eq!(cache.run("u").unwrap().resource_version, "11");
    cache.delete_run(&name("build"));
    assert_eq!((at("11"), cache.run("u")), (None, None));
}

#[test]
fn a_placeholder_is_announced_as_it_is_bound_and_goes() {
    let cache = Cache::default();
    let run = run(&[]);
    let mut changes = cache.subscribe();
    cache.apply_placeholder(placeholder(&run));
    cache.apply_pod(placeholder_pod(&run, None, json!({"phase": "Pending"})));
    cache.apply_pod(placeholder_pod(&run, Some("node-1"), running()));
    cache.apply_run(run.clone());
    cache.delete_placeholder(&name(&planned(&run)[0]));
    let mut seen = Vec::new();
    while let Ok(change) = changes.try_recv() {
        let Listed {
            phase, node, mode, ..
        } = change.placeholder;
        seen.push((phase, node, mode.is_some(), change.deleted));
    }
    let node = "node-1".to_owned();
    assert_eq!(
        seen,
        [
            (Phase::Pending, String::new(), false, false),
            (Phase::Bound, node.clone(), false, false),
            (Phase::Bound, node.clone(), true, false),
            (Phase::Bound, node, true, true),
        ]
    );
}

#[test]
fn placeholders_are_listed_in_order_page_by_page() {
    let cache = Cache::default();
    for number in [3, 1, 2] {
        let mut own = placeholder(&run(&[]));
        own.object.name = format!("affinity-assistant-{number}");
        own.object.uid = format!("s{number}");
        cache.apply_placeholder(own);
    }
    let names = |after: Option<&str>, size| -> Vec<_> {
        let after = after.map(name);
        let listed = cache.list(after, size, |own| own.object.name != "affinity-assistant-1");
        listed.into_iter().map(|item| item.name).collect()
    };
    assert_eq!(names(None, 1), ["affinity-assistant-2"]);
    assert_eq!(
        names(Some("affinity-assistant-2"), 9),
        ["affinity-assistant-3"]
    );
    assert_eq!(
        cache
            .placeholder(&name("affinity-assistant-1"))
            .unwrap()
            .run_name,
        "build"
    );
    assert_eq!(cache.placeholder(&name("absent")), None);
}

#[test]
fn the_answer_to_a_write_does_not_bring_back_what_is_gone() {
    let cache = Cache::default();
    let run = run(&[]);
    cache.refresh_placeholder(placeholder(&run));
    cache.refresh_pod(placeholder_pod(&run, None, running()));
    let observed = cache.observe(&key());
    assert!(observed.placeholders.is_empty() && observed.pods.is_empty());
    // A placeholder with the same name but another uid is another object, so an answer about it is not stored.
    cache.apply_placeholder(placeholder(&run));
    let mut other = placeholder(&run);
    (other.object.uid, other.object.resource_version) = ("other".to_owned(), "99".to_owned());
    cache.refresh_placeholder(other);
    let observed = cache.observe(&key());
    assert!(
        observed
            .placeholders
            .values()
            .all(|own| own.object.uid == "s")
    );
}

/// The watch may deliver a later version before the answer to a write arrives.
#[test]
fn n2_the_answer_to_a_write_does_not_take_the_place_of_a_later_version() {
    let cache = Cache::default();
    let run = run(&[]);
    let known = || {
        let observed = cache.observe(&key());
        let own = observed.placeholders.values().next().unwrap();
        own.object.resource_version.clone()
    };
    cache.apply_placeholder(read_set(set(&run, "9")));
    for (answer, expect) in [("10", "10"), ("9", "10"), ("11", "11")] {
        cache.refresh_placeholder(read_set(set(&run, answer)));
        assert_eq!(known(), expect);
    }
    // An older version from the watch does not replace a newer answer either.
    assert!(
        cache
            .apply_placeholder(read_set(set(&run, "10")))
            .is_empty()
    );
    assert_eq!(known(), "11");
}

#[test]
fn an_annotation_that_was_written_is_known_before_the_watch_says_so() {
    let cache = Cache::default();
    let run = run(&[]);
    cache.apply_run(run.clone());
    let written = Some("value".to_owned());
    let value = || cache.run("u").unwrap().annotations.get(BLOCKED).cloned();
    let annotate = |run: &PipelineRun, value: Option<String>, version: &str| {
        cache.annotated(run, BLOCKED, value, version.to_owned());
    };
    annotate(&run, written.clone(), "12");
    assert_eq!(value(), written);
    assert!(cache.run_at("12").is_some() && cache.run_at("10").is_none());
    // The watch still delivers an older version.
    cache.apply_run(version(&run, "11"));
    assert_eq!(value(), written);
    annotate(&run, None, "11");
    let other = PipelineRun {
        uid: "other".to_owned(),
        ..run.clone()
    };
    annotate(&other, None, "13");
    assert_eq!(value(), written);
    annotate(&run, None, "13");
    assert_eq!(value(), None);
}

const BLOCKED: &str = coscheduler_core::annotations::BLOCKED;

#[test]
fn p6_pods_of_a_child_are_the_parents_even_once_the_child_itself_is_gone() {
    let child = |name: &str, parent: &str| {
        let owner = json!({"apiVersion": "tekton.dev/v1", "kind": "PipelineRun", "name": "p", "uid": parent, "controller": true});
        let document = json!({"metadata": {
            "namespace": "ci", "name": name, "uid": name, "ownerReferences": [owner],
            "annotations": {"coscheduler.dev/part-of": "p"},
        }});
        PipelineRun::parse(&document).unwrap()
    };
    let cache = Cache::default();
    cache.apply_run(run(&[]));
    // Pods may arrive before their run.
    cache.apply_pod(read_pod(task_pod("grandchild", "deep")));
    cache.apply_pod(read_pod(task_pod("u", "own")));
    assert_eq!(pods(&cache, &key()), ["own"]);
    assert_eq!(cache.apply_run(child("child", "u")), [key()]);
    assert_eq!(cache.apply_run(child("grandchild", "child")), [key()]);
    assert_eq!(pods(&cache, &key()), ["deep", "own"]);
    assert_eq!(cache.delete_run(&name("grandchild")), [key()]);
    assert_eq!(pods(&cache, &key()), ["deep", "own"]);
    assert_eq!(cache.delete_pod(&name("deep")), [key()]);
    assert_eq!(pods(&cache, &key()), ["own"]);
    // An owner reference without the annotation does not make a run a child run.
    let mut stranger = child("stranger", "u");
    stranger.annotations.clear();
    assert_eq!(cache.apply_run(stranger), [RunKey::new("ci", "stranger")]);
}

#[test]
fn n8_a_task_runs_pod_that_has_ended_is_forgotten() {
    let cache = Cache::default();
    cache.apply_run(run(&[]));
    let mut pod = task_pod("u", "build");
    pod["spec"]["nodeName"] = "node-1".into();
    cache.apply_pod(read_pod(pod.clone()));
    assert_eq!(cache.end_pod(&read_pod(pod)), [key()]);
    let index = cache.read();
    assert!(index.pods.all().is_empty() && index.pods_by_node.is_empty());
    drop(index);
    // The cache keeps the name of the pod's TaskRun until the run has ended.
    assert_eq!(cache.observe(&key()).ended.len(), 1);
    let mut done = run(&[]);
    done.state = RunState::Done;
    cache.apply_run(done);
    assert!(cache.read().ended.is_empty());
    // The cache keeps nothing about pods of runs that have ended or are unknown, and does not queue these runs.
    for run in ["u", "gone"] {
        let old = read_pod(task_pod(run, "old"));
        assert!(cache.end_pod(&old).is_empty() && cache.read().ended.is_empty());
    }
    cache.apply_run(run(&[]));
    cache.end_pod(&read_pod(task_pod("u", "build")));
    assert!(!cache.read().ended.is_empty());
    cache.delete_run(&name("build"));
    assert!(cache.read().ended.is_empty());
}

#[test]
fn n2_a_late_notice_about_an_ended_pod_does_not_remove_its_namesake() {
    let cache = Cache::default();
    cache.apply_run(run(&[]));
    let old = task_pod("gone", "build");
    let mut new = task_pod("u", "build");
    new["metadata"]["uid"] = "new".into();
    cache.apply_pod(read_pod(new));
    cache.end_pod(&read_pod(old));
    assert_eq!(pods(&cache, &key()), ["build"]);
}

#[test]
fn n8_nothing_is_kept_of_a_run_that_is_gone_with_all_that_was_its() {
    let cache = Cache::default();
    let run = run(&["data"]);
    cache.apply_run(run.clone());
    cache.apply_placeholder(placeholder(&run));
    let mut pod = task_pod("u", "build");
    pod["spec"] = json!({"nodeName": "node-1", "containers": [], "volumes": [
        {"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]});
    cache.apply_pod(read_pod(pod));
    cache.apply_pod(placeholder_pod(&run, None, running()));
    cache.retain_pods(&HashSet::new());
    cache.retain_placeholders(&HashSet::new());
    cache.retain_runs(&HashSet::new());
    let index = cache.read();
    let Index {
        versions,
        names,
        users,
        pods_by_claim,
        pods_by_node,
        placeholder_pods,
        ..
    } = &*index;
    assert!(versions.is_empty() && names.is_empty() && users.is_empty());
    assert!(pods_by_claim.is_empty() && pods_by_node.is_empty());
    assert!(placeholder_pods.is_empty());
    assert!(index.is_empty(&key()));
}

#[test]
fn n6_what_is_active_or_has_left_anything_is_swept() {
    let cache = Cache::default();
    let active = run(&[]);
    cache.apply_run(active.clone());
    let swept = || cache.runs_to_sweep().into_iter().collect::<Vec<_>>();
    assert_eq!(swept(), [key()]);
    cache.apply_run(PipelineRun {
        state: RunState::Done,
        ..active.clone()
    });
    cache.apply_pod(read_pod(task_pod("u", "build")));
    assert_eq!(swept(), []);
    // A placeholder's pod whose placeholder does not exist.
    cache.apply_pod(placeholder_pod(&active, None, running()));
    assert_eq!(swept(), [key()]);
    cache.retain_pods(&HashSet::new());
    cache.apply_placeholder(placeholder(&active));
    assert_eq!(swept(), [key()]);
    cache.retain_placeholders(&HashSet::new());
    cache.apply_claim(read_claim(json!({"metadata": {
        "namespace": "ci", "name": "made", "uid": "c", "labels": {"app.kubernetes.io/managed-by": "tekton-coscheduler", "tekton.dev/pipelineRunUID": "u"},
        "ownerReferences": [{"apiVersion": "tekton.dev/v1", "kind": "PipelineRun", "name": "build", "uid": "u"}],
    }})));
    assert_eq!(swept(), [key()]);
    cache.retain_claims(&HashSet::new());
    assert_eq!(swept(), []);
}

#[test]
fn p6_a_placeholder_that_lost_its_owner_is_still_its_runs() {
    let (cache, run) = (Cache::default(), run(&["data"]));
    let owned = set(&run, "5");
    let mut orphan = set(&run, "6");
    orphan["metadata"]["ownerReferences"] = Value::Null;
    orphan["metadata"]["labels"] = json!({"app.kubernetes.io/managed-by": "tekton-coscheduler", "tekton.dev/pipelineRunUID": "u"});
    // Without an owner reference, the cache cannot know the run of this placeholder.
    assert_eq!(cache.apply_placeholder(read_set(orphan.clone())), []);
    cache.apply_placeholder(read_set(owned));
    // `--cascade=orphan` removes the owner reference.
    assert_eq!(cache.apply_placeholder(read_set(orphan)), [key()]);
    let observed = cache.observe(&key());
    let own = observed.placeholders.values().next().unwrap();
    assert_eq!(own.object.resource_version, "6");
    assert_eq!(own.controller.as_ref().unwrap().uid, run.uid);
}

#[test]
fn n8_a_child_run_whose_last_object_is_a_claim_leaves_nothing() {
    let cache = Cache::default();
    let owner = json!({"apiVersion": "tekton.dev/v1", "kind": "PipelineRun", "name": "build", "uid": "u", "controller": true});
    let child = PipelineRun::parse(&json!({"metadata": {
        "namespace": "ci", "name": "child", "uid": "child", "resourceVersion": "11",
        "annotations": {"coscheduler.dev/part-of": "build"}, "ownerReferences": [owner],
    }}))
    .unwrap();
    assert_eq!(cache.apply_run(child), [key()]);
    cache.apply_claim(read_claim(json!({"metadata": {
        "namespace": "ci", "name": "made", "uid": "c",
        "ownerReferences": [{"apiVersion": "tekton.dev/v1", "kind": "PipelineRun", "name": "child", "uid": "child"}],
    }})));
    cache.delete_run(&name("child"));
    let top = |cache: &Cache| cache.read().children.top(&RunKey::new("ci", "child"));
    assert_eq!(top(&cache), key(), "the claim is still there");
    assert_eq!(cache.delete_claim(&name("made")), [key()]);
    assert_eq!(top(&cache), RunKey::new("ci", "child"));
    assert!(cache.read().children.of(&key()).is_empty());
}

#[test]
fn n8_a_run_that_is_done_and_has_no_objects_is_small_and_queues_nothing() {
    let done = |version: &str, annotation: &str| {
        let mut done = run(&["data"]);
        done.state = RunState::Done;
        done.resource_version = version.to_owned();
        let long = "x".repeat(1000);
        done.labels.insert("long".to_owned(), long.clone());
        done.annotations.insert(annotation.to_owned(), long);
        done
    };
    let cache = Cache::default();
    // The run was done before this process first saw it.
    assert_eq!(cache.apply_run(done("11", PLACEHOLDER)), []);
    let kept = cache.run("u").unwrap();
    assert_eq!(kept.annotations.keys().collect::<Vec<_>>(), [MODE]);
    assert!(kept.labels.is_empty() && kept.workspaces.is_empty());
    assert_eq!(cache.apply_run(done("12", PLACEHOLDER)), []);
    // Work is left if the run has annotation `coscheduler.dev/blocked`, or an object.
    assert!(cache.runs_to_sweep().is_empty());
    assert_eq!(cache.apply_run(done("13", BLOCKED)), [key()]);
    assert_eq!(cache.runs_to_sweep(), [key()].into());
    cache.apply_placeholder(placeholder(&run(&["data"])));
    assert_eq!(cache.apply_run(done("14", PLACEHOLDER)), [key()]);
    // The run was active before, and ends now.
    let cache = Cache::default();
    cache.apply_run(run(&["data"]));
    assert_eq!(cache.apply_run(done("11", PLACEHOLDER)), [key()]);
}
