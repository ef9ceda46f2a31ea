//! Tests of the claims that are deleted with a run, and of the removal of their finalizer.

use super::*;
use crate::observed::{ObjectRef, PROTECTION};
use crate::reconcile::Again;

fn claim(name: &str, deleting: bool, protected: bool) -> Arc<KnownClaim> {
    Arc::new(KnownClaim {
        object: ObjectRef {
            name: name.to_owned(),
            deleting,
            ..ObjectRef::default()
        },
        finalizers: protected
            .then(|| PROTECTION.to_owned())
            .into_iter()
            .collect(),
        ..KnownClaim::default()
    })
}

#[test]
fn v4_claims_in_different_states_are_dealt_with_in_one_pass() {
    let (fresh, held, freed) = (
        claim("a", false, true),
        claim("b", true, true),
        claim("c", true, false),
    );
    let check = |claims: &[&Arc<KnownClaim>], steps: &[Step], again: Again| {
        let claims: Vec<_> = claims.iter().copied().cloned().collect();
        let mut decision = Decision::default();
        let released = delete_claims(&claims, &mut decision);
        assert_eq!(released, Released::InProgress);
        assert_eq!((&decision.steps[..], decision.again), (steps, again));
    };
    let delete = Step::DeleteClaim(fresh.object.clone());
    check(&[&fresh, &held, &freed], &[delete], Again::OnChange);
    let unprotect = Step::Unprotect(vec![held.clone()]);
    check(&[&held, &freed], &[unprotect], Again::Backoff);
    check(&[&freed], &[], Again::OnChange);
}

#[test]
fn v4_a_claim_of_the_author_never_goes_with_the_run() {
    let run = run(&[(TEKTON_AUTO_CLEANUP_PVC, "true"), (MODE, "workspaces")]);
    let name = tekton_claim_name("source", Some("src"), "u1");
    let goes = |by_us: bool, by_tekton: bool, name: &str, run: Option<&PipelineRun>| {
        let claim = KnownClaim {
            by_us,
            by_tekton,
            ..KnownClaim::clone(&claim(name, false, true))
        };
        goes_with(&claim, run)
    };
    assert!(goes(true, false, "any", None));
    assert!(goes(false, true, &name, Some(&run)));
    assert!(!goes(false, true, &name, None));
    assert!(!goes(false, true, "build-cache", Some(&run)));
    assert!(!goes(false, false, &name, Some(&run)));
}

/// A run with two templates, an existing claim, and these annotations.
fn run(annotations: &[(&str, &str)]) -> PipelineRun {
    let annotations: std::collections::BTreeMap<_, _> = annotations.iter().copied().collect();
    PipelineRun::parse(&serde_json::json!({
        "metadata": {"name": "r", "uid": "u1", "annotations": annotations},
        "spec": {"workspaces": [
            {"name": "source", "volumeClaimTemplate": {"metadata": {"name": "src"}, "spec": {}}},
            {"name": "scratch", "volumeClaimTemplate": {"spec": {}}},
            {"name": "cache", "persistentVolumeClaim": {"claimName": "build-cache"}},
        ]},
    }))
    .unwrap()
}

#[test]
fn v4_only_claims_of_templates_are_cleaned_up_and_only_when_asked_for() {
    let wanted = (TEKTON_AUTO_CLEANUP_PVC, "true");
    let ours = (MODE, "workspaces");
    let names = [
        tekton_claim_name("source", Some("src"), "u1"),
        tekton_claim_name("scratch", None, "u1"),
    ];
    assert_eq!(auto_cleaned(&run(&[wanted, ours])), names);
    for annotations in [
        &[ours][..],
        &[wanted],
        &[(TEKTON_AUTO_CLEANUP_PVC, "True"), ours],
        &[(TEKTON_AUTO_CLEANUP_PVC, "false"), ours],
        &[wanted, ours, (PART_OF, "parent")],
    ] {
        assert_eq!(
            auto_cleaned(&run(annotations)),
            Vec::<String>::new(),
            "{annotations:?}"
        );
    }
}

#[test]
fn v4_protection_is_only_removed_where_every_using_pod_has_ended() {
    #[track_caller]
    fn check(phases: &[PodPhase], expect: bool) {
        let pods: Vec<PodUse> = phases
            .iter()
            .map(|phase| PodUse {
                phase: *phase,
                claims: vec!["other".to_owned(), "a".to_owned()],
            })
            .collect();
        assert_eq!(
            !unprotectable(&[claim("a", true, true)], &pods).is_empty(),
            expect,
            "{phases:?}"
        );
    }
    check(&[], true);
    check(&[PodPhase::Succeeded], true);
    check(&[PodPhase::Failed, PodPhase::Succeeded], true);
    check(&[PodPhase::Pending], false);
    check(&[PodPhase::Running], false);
    check(&[PodPhase::Unknown], false);
    check(
        &[PodPhase::Succeeded, PodPhase::Running, PodPhase::Failed],
        false,
    );
}

#[test]
fn v4_only_deleted_and_protected_claims_are_unprotected_and_only_of_their_own_pods() {
    let claims = [
        claim("a", true, true),
        claim("b", true, true),
        claim("c", false, true),
        claim("d", true, false),
    ];
    let pods = [PodUse {
        phase: PodPhase::Running,
        claims: vec!["b".to_owned()],
    }];
    assert_eq!(unprotectable(&claims, &pods), [&claims[0]]);
}
