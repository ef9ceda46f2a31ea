//! Tests of claims and volumes: the run that owns them, the runs that they affect, and other pods that use them.

use super::*;
use coscheduler_core::annotations::{MODE, TEKTON_AUTO_CLEANUP_PVC};
use coscheduler_core::names::tekton_claim_name;
use coscheduler_core::volumes::SeenVolume;

fn giving_up(annotations: &[(&str, &str)]) -> PipelineRun {
    let annotations: serde_json::Map<_, _> = annotations
        .iter()
        .map(|(key, value)| ((*key).to_owned(), Value::from(*value)))
        .collect();
    PipelineRun::parse(&json!({
        "metadata": {"namespace": "ci", "name": "build", "uid": "u", "annotations": annotations},
        "spec": {"workspaces": [{"name": "source", "volumeClaimTemplate": {"spec": {}}}]},
    }))
    .unwrap()
}

const GIVEN_UP: [(&str, &str); 2] = [(MODE, "workspaces"), (TEKTON_AUTO_CLEANUP_PVC, "true")];

fn of_run(name: &str, controller: bool) -> Value {
    json!({"metadata": {
        "namespace": "ci", "name": name, "uid": "c", "resourceVersion": "1",
        "ownerReferences": [
            {"apiVersion": "tekton.dev/v1", "kind": "PipelineRun", "name": "build", "uid": "u", "controller": controller},
        ],
    }})
}

fn ours(uid: &str, owned: bool) -> KnownClaim {
    let mut claim = of_run("ours", false);
    claim["metadata"]["uid"] = uid.into();
    claim["metadata"]["labels"] = json!({"app.kubernetes.io/managed-by": "tekton-coscheduler", "tekton.dev/pipelineRunUID": "u"});
    if !owned {
        claim["metadata"]["ownerReferences"] = Value::Null;
    }
    read_claim(claim)
}

fn existing(volume: Option<&str>) -> KnownClaim {
    read_claim(json!({
        "metadata": {"namespace": "ci", "name": "data", "uid": "d"}, "spec": {"volumeName": volume}}))
}

fn names(cache: &Cache) -> Vec<String> {
    let claims = cache.observe(&key()).claims.into_iter();
    claims.map(|claim| claim.object.name.clone()).collect()
}

#[test]
fn v4_tektons_claims_go_with_a_run_that_gives_them_up_whichever_is_seen_first() {
    let made = tekton_claim_name("source", None, "u");
    let cache = Cache::default();
    assert_eq!(cache.apply_claim(read_claim(of_run(&made, true))), [key()]);
    assert_eq!(names(&cache), [""; 0]);
    cache.apply_run(giving_up(&GIVEN_UP));
    assert_eq!(names(&cache), std::slice::from_ref(&made));
    // The author removes one of the two annotations.
    cache.apply_run(giving_up(&GIVEN_UP[..1]));
    assert_eq!(names(&cache), [""; 0]);
    cache.apply_run(giving_up(&GIVEN_UP));
    assert_eq!(names(&cache), std::slice::from_ref(&made));
    assert_eq!(cache.delete_claim(&name(&made)), [key()]);
    assert_eq!(names(&cache), [""; 0]);
}

#[test]
fn v4_what_has_the_name_of_tektons_claim_and_is_not_is_left_alone() {
    let cache = Cache::default();
    cache.apply_run(giving_up(&GIVEN_UP));
    let made = tekton_claim_name("source", None, "u");
    cache.apply_claim(read_claim(of_run(&made, false)));
    cache.apply_claim(read_claim(of_run("another", true)));
    assert_eq!(names(&cache), [""; 0]);
    // A claim that the manager made belongs to its run, even if the cache does not know the run.
    cache.delete_run(&name("build"));
    assert_eq!(cache.apply_claim(ours("c", true)), [key()]);
    assert_eq!(names(&cache), ["ours"]);
    assert!(cache.retain_claims(&HashSet::new()).contains(&key()));
    assert_eq!(names(&cache), [""; 0]);
}

#[test]
fn p6_a_claim_that_lost_its_owner_is_still_the_runs_it_was_made_for() {
    let cache = Cache::default();
    cache.apply_claim(ours("c", true));
    // `--cascade=orphan` removes the owner reference.
    assert_eq!(cache.apply_claim(ours("c", false)), [key()]);
    assert_eq!(names(&cache), ["ours"]);
    assert_eq!(cache.delete_claim(&name("ours")), [key()]);
    assert_eq!(names(&cache), [""; 0]);
    // A new claim with the same name belongs to no run.
    cache.apply_claim(ours("d", false));
    assert_eq!(names(&cache), [""; 0]);
}

#[test]
fn the_answer_to_a_write_does_not_bring_back_a_claim_or_an_older_version() {
    let cache = Cache::default();
    cache.refresh_claim(ours("c", true));
    assert_eq!(names(&cache), [""; 0]);
    let version = |version: &str| {
        let mut claim = ours("c", true);
        claim.object.resource_version = version.to_owned();
        claim
    };
    cache.apply_claim(version("9"));
    for (answer, expect) in [("10", "10"), ("9", "10")] {
        cache.refresh_claim(version(answer));
        let (known, _) = cache.claim(&name("ours")).unwrap();
        assert_eq!(known.object.resource_version, expect);
    }
}

#[test]
fn v7_a_claim_and_its_volume_concern_the_runs_that_use_it_and_no_others() {
    let cache = Cache::default();
    cache.apply_run(run(&["data"]));
    let volume = |namespace: &str| {
        let claim = (namespace.to_owned(), "data".to_owned());
        (SeenVolume::default(), Some(claim))
    };
    assert_eq!(cache.apply_claim(existing(Some("pv"))), [key()]);
    let observed = cache.observe(&key());
    assert_eq!(observed.volumes["data"].volume, None);
    assert_eq!(cache.apply_volume("pv".to_owned(), volume("ci")), [key()]);
    let observed = cache.observe(&key());
    assert_eq!(observed.volumes["data"].volume, Some(SeenVolume::default()));
    assert!(
        cache
            .apply_volume("pv-2".to_owned(), volume("prod"))
            .is_empty()
    );
    let mut elsewhere = existing(None);
    elsewhere.namespace = "prod".to_owned();
    assert!(cache.apply_claim(elsewhere).is_empty());
    let listed = HashSet::from([(String::new(), "pv".to_owned())]);
    assert!(cache.retain_volumes(&listed).is_empty());
    assert!(cache.volume("pv").is_some() && cache.volume("pv-2").is_none());
    assert_eq!(cache.delete_volume("pv"), [key()]);
    // A run that has ended uses no claim.
    cache.apply_run(PipelineRun {
        state: RunState::Done,
        ..run(&["data"])
    });
    assert!(cache.apply_claim(existing(None)).is_empty());
}

#[test]
fn n2_pods_of_other_runs_that_share_a_claim_are_seen() {
    let cache = Cache::default();
    cache.apply_run(run(&["data"]));
    cache.apply_claim(existing(None));
    let using = |uid: &str, pod: &str, claim: &str, phase: &str| {
        let mut pod = task_pod(uid, pod);
        pod["spec"]["volumes"] =
            json!([{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]);
        pod["status"]["phase"] = phase.into();
        pod["spec"]["nodeName"] = "node-1".into();
        read_pod(pod)
    };
    cache.apply_pod(using("u", "own", "data", "Running"));
    cache.apply_pod(using("v", "shares", "data", "Running"));
    cache.apply_pod(using("v", "stranger", "other", "Running"));
    let sharing = || -> Vec<_> {
        let pods = cache.observe(&key()).sharing.into_iter();
        pods.map(|pod| pod.object.name.clone()).collect()
    };
    assert_eq!(sharing(), ["shares"]);
    let stranger = using("v", "stranger", "other", "Succeeded");
    assert!(!cache.end_pod(&stranger).contains(&key()));
    let news = cache.end_pod(&using("v", "shares", "data", "Succeeded"));
    assert!(news.contains(&key()), "the placeholder may leave now");
    assert_eq!(sharing(), [""; 0]);
}
