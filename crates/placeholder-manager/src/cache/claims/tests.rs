//! Claims that Tekton made for one run, and that run with and without the annotation that gives them up.

use super::*;
use coscheduler_core::annotations::{MODE, TEKTON_AUTO_CLEANUP_PVC};
use coscheduler_core::labels::{MANAGED_BY, TEKTON_COSCHEDULER};
use coscheduler_core::names::tekton_claim_name;
use serde_json::{Value, json};

fn key() -> RunKey {
    RunKey {
        namespace: "ci".to_owned(),
        uid: "u".to_owned(),
    }
}

fn run(annotations: &[(&str, &str)]) -> PipelineRun {
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

fn giving_up() -> PipelineRun {
    run(&[(MODE, "workspaces"), (TEKTON_AUTO_CLEANUP_PVC, "true")])
}

fn claim(name: &str, controller: bool) -> PersistentVolumeClaim {
    serde_json::from_value(json!({"metadata": {
        "namespace": "ci", "name": name,
        "ownerReferences": [
            {"apiVersion": "tekton.dev/v1", "kind": "PipelineRun", "name": "build", "uid": "u", "controller": controller},
        ],
    }}))
    .unwrap()
}

fn made_by_tekton() -> PersistentVolumeClaim {
    claim(&tekton_claim_name("source", None, "u"), true)
}

fn names(cache: &Cache) -> Vec<String> {
    let run = cache.get(&key()).unwrap_or_default();
    run.claims.into_keys().collect()
}

#[test]
fn v4_tektons_claims_are_the_runs_while_it_gives_them_up_whichever_is_seen_first() {
    let name = tekton_claim_name("source", None, "u");
    let cache = Cache::default();
    cache.apply(giving_up());
    assert_eq!(cache.apply_claim(made_by_tekton()), [key()]);
    assert_eq!(names(&cache), std::slice::from_ref(&name));
    // Its author has changed their mind.
    cache.apply(run(&[(MODE, "workspaces")]));
    assert!(names(&cache).is_empty());
    cache.apply(giving_up());
    assert_eq!(names(&cache), [name]);
    assert_eq!(cache.delete_claim(&made_by_tekton()), [key()]);
    assert!(names(&cache).is_empty());
}

#[test]
fn v4_what_is_called_like_tektons_claim_and_is_not_is_left_alone() {
    let cache = Cache::default();
    cache.apply(giving_up());
    let name = tekton_claim_name("source", None, "u");
    cache.apply_claim(claim(&name, false));
    cache.apply_claim(claim("another", true));
    assert!(names(&cache).is_empty());
}

#[test]
fn claims_of_runs_that_are_not_known_are_nobodys() {
    let cache = Cache::default();
    assert_eq!(cache.apply_claim(made_by_tekton()), []);
    assert!(cache.get(&key()).is_none());
    // What this product made belongs to its run, whether that is known or not.
    let mut ours = claim("ours", false);
    let label = (MANAGED_BY.to_owned(), TEKTON_COSCHEDULER.to_owned());
    ours.metadata.labels = Some([label].into());
    assert_eq!(cache.apply_claim(ours), [key()]);
    assert_eq!(names(&cache), ["ours"]);
    let concerned: HashSet<_> = cache.retain_claims(&HashSet::new()).into_iter().collect();
    assert_eq!(concerned, HashSet::from([key()]));
    assert!(cache.get(&key()).is_none());
}

#[test]
fn the_answer_to_a_write_does_not_bring_back_a_claim_that_is_gone() {
    let cache = Cache::default();
    cache.apply(giving_up());
    cache.refresh_claim(made_by_tekton());
    assert!(names(&cache).is_empty());
    cache.apply_claim(made_by_tekton());
    let mut deleting = made_by_tekton();
    deleting.metadata.deletion_timestamp =
        Some(serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap());
    cache.refresh_claim(deleting);
    let run = cache.get(&key()).unwrap();
    assert!(
        run.claims
            .values()
            .all(|claim| claim.metadata.deletion_timestamp.is_some())
    );
}

#[test]
fn a_volume_is_forgotten_with_its_list() {
    let cache = Cache::default();
    cache.apply_volume("pv".to_owned(), PersistentVolume::default());
    assert!(cache.volume("pv").is_some());
    cache.retain_volumes(&HashSet::from(["pv".to_owned()]));
    assert!(cache.volume("pv").is_some());
    cache.retain_volumes(&HashSet::new());
    assert!(cache.volume("pv").is_none());
}

#[test]
fn p6_a_claim_that_lost_its_owner_is_still_the_runs_it_was_made_for() {
    let ours = |uid: &str, owned: bool| {
        let mut claim = claim("pvc-0123456789-affinity-assistant-0123456789-0", false);
        claim.metadata.uid = Some(uid.to_owned());
        claim.metadata.labels =
            Some([(MANAGED_BY.to_owned(), TEKTON_COSCHEDULER.to_owned())].into());
        if !owned {
            claim.metadata.owner_references = None;
        }
        claim
    };
    let cache = Cache::default();
    cache.apply_claim(ours("c", true));
    // As `--cascade=orphan` has it.
    assert_eq!(cache.apply_claim(ours("c", false)), [key()]);
    assert_eq!(names(&cache).len(), 1);
    assert_eq!(cache.delete_claim(&ours("c", false)), [key()]);
    assert!(names(&cache).is_empty());
    // Another claim of that name is nobody's.
    cache.apply_claim(ours("d", false));
    assert!(names(&cache).is_empty());
}
