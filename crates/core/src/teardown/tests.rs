//! The steps one by one, and the whole way down against a small model of a cluster.

use super::*;
use proptest::prelude::*;

fn object(deleting: bool) -> ObjectRef {
    ObjectRef {
        name: "affinity-assistant-79340742ab".to_owned(),
        uid: "u".to_owned(),
        resource_version: "1".to_owned(),
        deleting,
    }
}

fn claim(name: &str, deleting: bool, protected: bool) -> Claim {
    Claim {
        name: name.to_owned(),
        uid: format!("{name}-uid"),
        resource_version: "2".to_owned(),
        deleting,
        protected,
    }
}

fn placeholder(orphaned: bool, deleting: bool) -> PlaceholderPod {
    PlaceholderPod {
        pod: ObjectRef {
            name: "affinity-assistant-79340742ab-0".to_owned(),
            ..object(deleting)
        },
        orphaned,
    }
}

fn nothing_left() -> Leftovers {
    Leftovers {
        run: RunPresence::Done,
        active_pods: 0,
        placeholders: vec![],
        placeholder_pods: vec![],
        claims: vec![],
    }
}

fn everything_left() -> Leftovers {
    Leftovers {
        placeholders: vec![object(false)],
        placeholder_pods: vec![placeholder(false, false)],
        claims: vec![claim("a", false, true), claim("b", false, true)],
        ..nothing_left()
    }
}

#[track_caller]
fn check(leftovers: Leftovers, expect: Step) {
    assert_eq!(next_step(&leftovers), expect);
    let gone = Leftovers {
        run: RunPresence::Gone,
        ..leftovers.clone()
    };
    assert_eq!(next_step(&gone), expect);
    // Whatever is there, an active run keeps it.
    let active = Leftovers {
        run: RunPresence::Active,
        ..leftovers
    };
    assert_eq!(next_step(&active), Step::Keep);
}

#[test]
fn p6_nothing_goes_while_a_pod_is_pending_or_running() {
    check(
        Leftovers {
            active_pods: 2,
            ..everything_left()
        },
        Step::WaitForPods { count: 2 },
    );
    check(
        Leftovers {
            active_pods: 1,
            ..nothing_left()
        },
        Step::WaitForPods { count: 1 },
    );
}

#[test]
fn p6_v4_the_stateful_set_goes_first_then_the_claims() {
    check(everything_left(), Step::DeletePlaceholder(object(false)));
    check(
        Leftovers {
            placeholders: vec![object(true)],
            ..everything_left()
        },
        Step::WaitForPlaceholder,
    );
    check(
        Leftovers {
            placeholders: vec![object(true)],
            placeholder_pods: vec![],
            ..everything_left()
        },
        Step::WaitForPlaceholder,
    );
    check(
        Leftovers {
            placeholders: vec![],
            ..everything_left()
        },
        Step::WaitForPlaceholder,
    );
    let (a, b) = (claim("a", false, true), claim("b", false, true));
    check(
        Leftovers {
            claims: vec![a.clone(), b.clone()],
            ..nothing_left()
        },
        Step::ClearClaims {
            delete: vec![a.to_ref(), b.to_ref()],
            unprotect: vec![],
        },
    );
    check(nothing_left(), Step::Done);
}

#[test]
fn p6_n6_a_pod_whose_stateful_set_went_without_it_is_deleted_before_the_claims() {
    let orphan = placeholder(true, false);
    let pods = vec![placeholder(false, false), orphan.clone()];
    check(
        Leftovers {
            placeholders: vec![],
            placeholder_pods: pods.clone(),
            ..everything_left()
        },
        Step::DeleteOrphans(vec![orphan.pod.clone()]),
    );
    check(
        Leftovers {
            placeholders: vec![],
            placeholder_pods: vec![placeholder(true, true)],
            ..everything_left()
        },
        Step::WaitForPlaceholder,
    );
    // A StatefulSet may still adopt it, and it is needed while a pod of the run is.
    check(
        Leftovers {
            placeholder_pods: pods.clone(),
            ..everything_left()
        },
        Step::DeletePlaceholder(object(false)),
    );
    check(
        Leftovers {
            placeholders: vec![],
            active_pods: 1,
            placeholder_pods: pods,
            ..everything_left()
        },
        Step::WaitForPods { count: 1 },
    );
}

#[test]
fn m1_p6_every_placeholder_of_a_run_goes_before_its_claims() {
    let named = |name: &str, deleting| ObjectRef {
        name: name.to_owned(),
        ..object(deleting)
    };
    let sets = |one, two| Leftovers {
        placeholders: vec![named("one", one), named("two", two)],
        ..everything_left()
    };
    check(
        sets(false, false),
        Step::DeletePlaceholder(named("one", false)),
    );
    check(
        sets(true, false),
        Step::DeletePlaceholder(named("two", false)),
    );
    check(sets(true, true), Step::WaitForPlaceholder);
}

/// A run with two templates, a claim that somebody brought, and these annotations.
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
fn v4_claims_in_different_states_are_dealt_with_in_one_pass() {
    let (fresh, held, freed) = (
        claim("a", false, true),
        claim("b", true, true),
        claim("c", true, false),
    );
    check(
        Leftovers {
            claims: vec![fresh.clone(), held.clone(), freed.clone()],
            ..nothing_left()
        },
        Step::ClearClaims {
            delete: vec![fresh.to_ref()],
            unprotect: vec![held],
        },
    );
    check(
        Leftovers {
            claims: vec![freed],
            ..nothing_left()
        },
        Step::WaitForClaims,
    );
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
    assert_eq!(unprotectable(&claims, &pods), [claims[0].to_ref()]);
}

#[test]
fn phases_of_other_versions_are_not_known() {
    assert_eq!(PodPhase::read(Some("Succeeded")), PodPhase::Succeeded);
    for text in [
        None,
        Some(""),
        Some("Unknown"),
        Some("succeeded"),
        Some("Evicted"),
    ] {
        assert_eq!(PodPhase::read(text), PodPhase::Unknown);
    }
}

/// Carries a step out as a cluster would, all at once.
fn carry_out(step: &Step, left: &mut Leftovers, pods: &[PodUse]) {
    match step {
        Step::Keep | Step::Done => {}
        Step::WaitForPods { .. } => left.active_pods -= 1,
        Step::DeletePlaceholder(deleted) => {
            let sets = &mut left.placeholders;
            let set = sets
                .iter_mut()
                .find(|set| set.name == deleted.name)
                .unwrap();
            set.deleting = true;
        }
        Step::DeleteOrphans(orphans) => {
            for placeholder in &mut left.placeholder_pods {
                placeholder.pod.deleting |= orphans.contains(&placeholder.pod);
            }
        }
        // What a StatefulSet owns goes with it; what nothing owns goes only if it was deleted.
        Step::WaitForPlaceholder => {
            left.placeholders.retain(|set| !set.deleting);
            left.placeholder_pods
                .retain(|placeholder| placeholder.orphaned && !placeholder.pod.deleting);
        }
        Step::ClearClaims { delete, unprotect } => {
            let unprotect = unprotectable(unprotect, pods);
            for claim in &mut left.claims {
                claim.deleting |= delete.iter().any(|object| object.name == claim.name);
                claim.protected &= !unprotect.iter().any(|object| object.name == claim.name);
            }
        }
        Step::WaitForClaims => left.claims.retain(|claim| claim.protected),
    }
}

fn any_leftovers() -> impl Strategy<Value = Leftovers> {
    (
        0_usize..3,
        proptest::collection::vec(any::<bool>(), 0..4),
        proptest::collection::vec(any::<(bool, bool)>(), 0..3),
        proptest::collection::btree_map("[a-d]", any::<(bool, bool)>(), 0..4),
        prop::sample::select(vec![RunPresence::Done, RunPresence::Gone]),
    )
        .prop_map(
            |(active_pods, sets, placeholder_pods, claims, run)| Leftovers {
                run,
                active_pods,
                placeholders: sets
                    .into_iter()
                    .enumerate()
                    .map(|(index, deleting)| ObjectRef {
                        name: format!("set-{index}"),
                        ..object(deleting)
                    })
                    .collect(),
                placeholder_pods: placeholder_pods
                    .into_iter()
                    .map(|(orphaned, deleting)| placeholder(orphaned, deleting))
                    .collect(),
                claims: claims
                    .into_iter()
                    .map(|(name, (deleting, protected))| claim(&name, deleting, protected))
                    .collect(),
            },
        )
}

proptest! {
    #[test]
    fn p6_v4_from_any_state_everything_goes_and_claims_go_last(left in any_leftovers()) {
        let mut left = left;
        let pods = [PodUse { phase: PodPhase::Succeeded, claims: ["a", "b", "c", "d"].map(str::to_owned).to_vec() }];
        for _ in 0..20 {
            let step = next_step(&left);
            if let Step::ClearClaims { .. } = step {
                prop_assert!(left.placeholders.is_empty() && left.placeholder_pods.is_empty() && left.active_pods == 0);
            }
            if step == Step::Done {
                break;
            }
            carry_out(&step, &mut left, &pods);
        }
        prop_assert_eq!(next_step(&left), Step::Done);
        prop_assert!(left.claims.is_empty() && left.placeholders.is_empty() && left.placeholder_pods.is_empty());
    }
}
