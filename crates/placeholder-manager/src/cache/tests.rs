use super::*;
use coscheduler_core::labels::PIPELINE_RUN_UID;
use serde_json::json;

fn key(uid: &str) -> RunKey {
    RunKey {
        namespace: "ci".to_owned(),
        uid: uid.to_owned(),
    }
}

fn run(name: &str, uid: &str) -> PipelineRun {
    PipelineRun {
        namespace: "ci".to_owned(),
        name: name.to_owned(),
        uid: uid.to_owned(),
        ..PipelineRun::default()
    }
}

fn set(uid: &str) -> StatefulSet {
    serde_json::from_value(json!({"metadata": {
        "namespace": "ci", "name": "affinity-assistant-0123456789",
        "ownerReferences": [{"apiVersion": "tekton.dev/v1", "kind": "PipelineRun", "name": "run", "uid": uid, "controller": true}],
    }}))
    .unwrap()
}

fn placeholder_pod(uid: &str, node: Option<&str>) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"namespace": "ci", "name": "affinity-assistant-0123456789-0", "labels": {
            PIPELINE_RUN_UID: uid,
            "app.kubernetes.io/component": "affinity-assistant",
            "app.kubernetes.io/instance": "affinity-assistant-0123456789",
        }},
        "spec": {"containers": [], "nodeName": node},
    }))
    .unwrap()
}

#[test]
fn a_run_is_forgotten_with_its_last_object() {
    let cache = Cache::default();
    assert_eq!(cache.apply(run("run", "u")), Some(key("u")));
    assert_eq!(cache.apply(set("u")), Some(key("u")));
    cache.delete(&run("run", "u"));
    assert!(cache.get(&key("u")).is_some());
    cache.delete(&set("u"));
    assert!(cache.get(&key("u")).is_none());
}

#[test]
fn a_fresh_list_forgets_a_run_that_was_replaced_under_its_name() {
    let cache = Cache::default();
    cache.apply(run("run", "old"));
    cache.apply(set("old"));
    cache.apply(run("run", "new"));
    let listed = HashSet::from([(key("new"), "run".to_owned())]);
    assert_eq!(cache.retain::<PipelineRun>(&listed), [key("old")]);
    assert!(cache.get(&key("old")).unwrap().pipeline_run.is_empty());
    assert!(!cache.get(&key("new")).unwrap().pipeline_run.is_empty());
}

#[test]
fn a_run_is_known_by_its_uid_and_newest_version_until_it_goes() {
    let at = |version: &str| PipelineRun {
        resource_version: version.to_owned(),
        ..run("run", "u")
    };
    let uid = |run: Option<Arc<PipelineRun>>| run.map(|run| run.uid.clone());
    let cache = Cache::default();
    cache.apply(at("1"));
    cache.apply(at("2"));
    assert_eq!(uid(cache.pipeline_run("u")), Some("u".to_owned()));
    assert_eq!(uid(cache.pipeline_run_at("2")), Some("u".to_owned()));
    assert_eq!(uid(cache.pipeline_run_at("1")), None);
    // An object of the run says nothing about the run itself.
    cache.apply(set("u"));
    cache.delete(&at("2"));
    assert_eq!(uid(cache.pipeline_run("u")), None);
    assert_eq!(uid(cache.pipeline_run_at("2")), None);
}

#[test]
fn a_placeholder_is_announced_as_it_is_bound_and_goes() {
    let cache = Cache::default();
    let mut changes = cache.subscribe();
    cache.apply(set("u"));
    cache.apply(placeholder_pod("u", None));
    cache.apply(placeholder_pod("u", Some("node-1")));
    cache.delete(&set("u"));
    let mut seen = Vec::new();
    while let Ok(change) = changes.try_recv() {
        seen.push((
            change.placeholder.phase,
            change.placeholder.node,
            change.deleted,
        ));
    }
    assert_eq!(
        seen,
        [
            (Phase::Pending, String::new(), false),
            (Phase::Bound, "node-1".to_owned(), false),
            (Phase::Bound, "node-1".to_owned(), true),
        ]
    );
}

#[test]
fn the_answer_to_a_write_does_not_bring_back_what_is_gone() {
    let cache = Cache::default();
    cache.refresh(set("u"));
    assert!(cache.get(&key("u")).is_none());
    cache.apply(set("u"));
    cache.refresh(set("u"));
    assert_eq!(cache.get(&key("u")).unwrap().stateful_sets.len(), 1);
}

/// The watch may be faster than the answer.
#[test]
fn n2_the_answer_to_a_write_does_not_take_the_place_of_a_later_version() {
    let version = |version: &str| {
        let mut set = set("u");
        set.metadata.resource_version = Some(version.to_owned());
        set
    };
    let cache = Cache::default();
    cache.apply(version("9"));
    let known = || {
        let run = cache.get(&key("u")).unwrap();
        let set = run.stateful_sets.values().next().unwrap().clone();
        set.metadata.resource_version.clone().unwrap()
    };
    for (answer, expect) in [("10", "10"), ("9", "10"), ("11", "11")] {
        cache.refresh(version(answer));
        assert_eq!(known(), expect);
    }
    let claim = |version: &str| -> PersistentVolumeClaim {
        serde_json::from_value(json!({"metadata": {
            "namespace": "ci", "name": "c", "uid": "c", "resourceVersion": version}}))
        .unwrap()
    };
    cache.apply_claim(claim("9"));
    for (answer, expect) in [("10", "10"), ("9", "10")] {
        cache.refresh_claim(claim(answer));
        let known = cache.claim("ci", "c").claim.unwrap();
        assert_eq!(known.metadata.resource_version.as_deref(), Some(expect));
    }
}

#[test]
fn p6_pods_of_a_part_are_the_parents_even_once_the_part_itself_is_gone() {
    let part = |name: &str, uid: &str, parent: &str| {
        let owner = json!({"apiVersion": "tekton.dev/v1", "kind": "PipelineRun", "name": "p", "uid": parent, "controller": true});
        let document = json!({"metadata": {
            "namespace": "ci", "name": name, "uid": uid, "ownerReferences": [owner],
            "annotations": {"coscheduler.dev/part-of": "p"},
        }});
        PipelineRun::parse(&document).unwrap()
    };
    let pod = |name: &str, uid: &str| -> Pod {
        let labels = json!({PIPELINE_RUN_UID: uid});
        serde_json::from_value(
            json!({"metadata": {"namespace": "ci", "name": name, "labels": labels}}),
        )
        .unwrap()
    };
    let cache = Cache::default();
    let pods = || -> Vec<_> { cache.get(&key("top")).unwrap().pods.into_keys().collect() };
    cache.apply(run("top", "top"));
    // Pods may arrive before their run does.
    cache.apply(pod("deep", "grandchild"));
    cache.apply(pod("own", "top"));
    assert_eq!(pods(), ["own"]);
    assert_eq!(cache.apply(part("child", "child", "top")), Some(key("top")));
    assert_eq!(
        cache.apply(part("grandchild", "grandchild", "child")),
        Some(key("top"))
    );
    assert_eq!(pods(), ["deep", "own"]);
    cache.delete(&part("grandchild", "grandchild", "child"));
    assert_eq!(pods(), ["deep", "own"]);
    assert_eq!(cache.delete(&pod("deep", "grandchild")), Some(key("top")));
    assert_eq!(pods(), ["own"]);
    // An owner reference alone makes no part.
    let mut stranger = part("stranger", "stranger", "top");
    stranger.annotations.clear();
    assert_eq!(cache.apply(stranger), Some(key("stranger")));
}

#[test]
fn what_belongs_to_nobody_is_not_kept() {
    let cache = Cache::default();
    let stranger: Pod =
        serde_json::from_value(json!({"metadata": {"namespace": "ci", "name": "p"}})).unwrap();
    assert_eq!(cache.apply(stranger), None);
    assert!(cache.placeholders().is_empty());
}
