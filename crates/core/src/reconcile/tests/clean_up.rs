//! The order of the clean-up (P6, V4): each step, and whole clean-ups in a small model of a cluster.

use super::*;
use crate::observed::PROTECTION;
use crate::reconcile::claims_to_delete::{PodUse, unprotectable};
use proptest::prelude::*;

fn claim(name: &str, deleting: bool, protected: bool) -> Arc<KnownClaim> {
    Arc::new(KnownClaim {
        object: ObjectRef {
            deleting,
            ..object(name, "c")
        },
        finalizers: protected
            .then(|| PROTECTION.to_owned())
            .into_iter()
            .collect(),
        ..KnownClaim::default()
    })
}

fn over() -> Observed {
    let mut observed = observed();
    observed.claims = vec![claim("pvc", false, true)];
    change_run(&mut observed, |run| run.state = RunState::Done);
    observed
}

#[test]
fn p6_v4_the_placeholder_goes_then_its_pod_then_the_claims_whoever_looks() {
    for (presence, leads) in [
        (RunPresence::Done, true),
        (RunPresence::Done, false),
        (RunPresence::Gone, true),
        (RunPresence::Gone, false),
    ] {
        let mut observed = over();
        (observed.presence, observed.leads) = (presence, leads);
        let steps = |observed: &Observed| {
            let decision = reconcile(observed);
            (decision.steps, decision.released.unwrap(), decision.again)
        };
        let (soon, later) = (Again::OnChange, Again::Backoff);
        let deleted = own(&mut observed).object.clone();
        let expect = (vec![Step::Delete(deleted)], Released::InProgress, soon);
        assert_eq!(steps(&observed), expect);
        own(&mut observed).object.deleting = true;
        assert_eq!(steps(&observed), (vec![], Released::InProgress, soon));
        observed.placeholders.clear();
        assert_eq!(steps(&observed), (vec![], Released::InProgress, soon));
        observed.pods.clear();
        let expect = vec![Step::DeleteClaim(object("pvc", "c"))];
        assert_eq!(steps(&observed), (expect, Released::InProgress, soon));
        observed.claims = vec![claim("pvc", true, true)];
        // No watch reports the end of the last pod that uses the claim, so the manager decides again after a backoff.
        let expect = vec![Step::Unprotect(observed.claims.clone())];
        assert_eq!(steps(&observed), (expect, Released::InProgress, later));
        observed.claims = vec![claim("pvc", true, false)];
        assert_eq!(steps(&observed), (vec![], Released::InProgress, soon));
        observed.claims.clear();
        assert_eq!(steps(&observed), (vec![], Released::Done, soon));
    }
}

#[test]
fn p6_nothing_goes_while_one_of_the_runs_pods_has_not_ended() {
    let mut observed = over();
    let follower = task("build", &name(&observed), 100);
    add(&mut observed, follower);
    let decision = reconcile(&observed);
    assert_eq!(decision.steps, []);
    assert_eq!(decision.released, Some(Released::WaitingForPods));
}

#[test]
fn p6_a_pod_that_its_placeholder_left_behind_is_deleted_by_its_uid() {
    let mut observed = over();
    observed.placeholders.clear();
    let orphan = own_pod(&mut observed);
    orphan.controller = None;
    orphan.placeholder.as_mut().unwrap().orphaned = true;
    let orphan = orphan.object.clone();
    assert_eq!(reconcile(&observed).steps, [Step::DeleteOrphan(orphan)]);
}

#[test]
fn p6_an_active_run_keeps_everything() {
    let mut observed = observed();
    observed.claims = vec![claim("pvc", false, true)];
    observed.called = true;
    let decision = reconcile(&observed);
    assert_eq!(decision.steps, []);
    assert_eq!(decision.released, Some(Released::RunActive));
}

/// A run of two placeholders that has ended.
fn two() -> Observed {
    let mut observed = observed_in(Mode::Workspaces, &["one", "two"]);
    observed.claims = vec![claim("a", false, true), claim("b", false, true)];
    change_run(&mut observed, |run| run.state = RunState::Done);
    assert_eq!(observed.placeholders.len(), 2);
    observed
}

#[track_caller]
fn check(observed: &Observed, steps: &[Step], released: Released) {
    for presence in [RunPresence::Done, RunPresence::Gone] {
        let ended = Observed {
            presence,
            ..observed.clone()
        };
        let decision = reconcile(&ended);
        assert_eq!(
            (&decision.steps[..], decision.released),
            (steps, Some(released))
        );
    }
    // Nothing of an active run is deleted.
    let active = Observed {
        presence: RunPresence::Active,
        leads: false,
        ..observed.clone()
    };
    let decision = reconcile(&active);
    assert_eq!(decision.steps, []);
    assert_eq!(decision.released, Some(Released::RunActive));
}

/// Marks the placeholder with this number as being deleted.
fn delete(observed: &mut Observed, number: usize) -> ObjectRef {
    let mut placeholders = observed.placeholders.values_mut();
    let own = Arc::make_mut(placeholders.nth(number).unwrap());
    let before = own.object.clone();
    own.object.deleting = true;
    before
}

#[test]
fn m1_p6_every_placeholder_of_a_run_goes_before_its_claims() {
    let mut observed = two();
    // One decision deletes both placeholders: the API server may refuse to delete one of them.
    let before = observed.clone();
    let both = [0, 1].map(|number| Step::Delete(delete(&mut observed, number)));
    check(&before, &both, Released::InProgress);
    let mut before = before;
    delete(&mut before, 0);
    check(&before, &both[1..], Released::InProgress);
    check(&observed, &[], Released::InProgress);
    observed.pods.clear();
    check(&observed, &[], Released::InProgress);
    observed.placeholders.clear();
    let claims = observed.claims.iter();
    let deletes = claims.map(|claim| Step::DeleteClaim(claim.object.clone()));
    let deletes: Vec<_> = deletes.collect();
    check(&observed, &deletes, Released::InProgress);
}

/// The run's placeholders are gone, but one of their pods still exists.
fn left_behind(deleting: bool) -> Observed {
    let mut observed = two();
    observed.placeholders.clear();
    let pod = observed.pods.values_mut().next().unwrap();
    let pod = Arc::make_mut(pod);
    pod.object.deleting = deleting;
    pod.placeholder.as_mut().unwrap().orphaned = true;
    observed
}

#[test]
fn p6_n6_a_pod_whose_stateful_set_went_without_it_is_deleted_before_the_claims() {
    let observed = left_behind(false);
    let orphan = observed.pods.values().next().unwrap().object.clone();
    let delete = [Step::DeleteOrphan(orphan)];
    check(&observed, &delete, Released::InProgress);
    check(&left_behind(true), &[], Released::InProgress);
    // The pod stays while a placeholder exists that could adopt it, and while a pod of the run has not ended.
    let mut adopted = left_behind(false);
    adopted.placeholders = two().placeholders;
    let own = adopted.placeholders.values();
    let deletes: Vec<_> = own.map(|own| Step::Delete(own.object.clone())).collect();
    check(&adopted, &deletes, Released::InProgress);
    let mut needed = left_behind(false);
    add(&mut needed, task("build", "none", 100));
    check(&needed, &[], Released::WaitingForPods);
}

/// Carries out all steps, as a cluster would. If there is no step, the cluster makes progress by itself.
fn carry_out(decision: &Decision, left: &mut Observed, pods: &[PodUse]) {
    let deleted = |object: &ObjectRef| ObjectRef {
        deleting: true,
        ..object.clone()
    };
    for step in &decision.steps {
        match step {
            Step::Delete(own) => {
                let own = left.placeholders.get_mut(&own.name).unwrap();
                Arc::make_mut(own).object = deleted(&own.object);
            }
            Step::DeleteOrphan(orphan) => pod(left, &orphan.name).object = deleted(orphan),
            Step::DeleteClaim(object) => {
                let mut claims = left.claims.iter_mut();
                let claim = claims.find(|claim| claim.object == *object).unwrap();
                Arc::make_mut(claim).object = deleted(object);
            }
            Step::Unprotect(candidates) => {
                let free = unprotectable(candidates, pods);
                for claim in &mut left.claims {
                    if free.contains(&&*claim) {
                        Arc::make_mut(claim).finalizers.clear();
                    }
                }
            }
            other => panic!("{other:?}"),
        }
    }
    if !decision.steps.is_empty() {
        return;
    }
    if decision.released == Some(Released::WaitingForPods) {
        let mut tasks = left.pods.values().filter(|pod| pod.placeholder.is_none());
        let ended = tasks.next().unwrap().object.name.clone();
        left.pods.remove(&ended);
        return;
    }
    // Kubernetes deletes a pod with the StatefulSet that owns it. An orphaned pod is gone only if a step deleted it.
    left.placeholders.retain(|_, own| !own.object.deleting);
    left.pods.retain(|_, pod| {
        let orphaned = pod.placeholder.as_ref().unwrap().orphaned;
        orphaned && !pod.object.deleting
    });
    let goes = |claim: &Arc<KnownClaim>| claim.object.deleting && !claim.is_protected();
    left.claims.retain(|claim| !goes(claim));
}

fn any_leftovers() -> impl Strategy<Value = Observed> {
    (
        0_usize..3,
        proptest::collection::vec(any::<bool>(), 0..4),
        proptest::collection::vec(any::<(bool, bool)>(), 0..3),
        proptest::collection::btree_map("[a-d]", any::<(bool, bool)>(), 0..4),
        prop::sample::select(vec![RunPresence::Done, RunPresence::Gone]),
    )
        .prop_map(|(tasks, sets, pods, claims, presence)| {
            let mut left = over();
            left.presence = presence;
            let set = left.placeholders.pop_first().unwrap().1;
            let placeholder_pod = left.pods.pop_first().unwrap().1;
            for (index, deleting) in sets.into_iter().enumerate() {
                let mut set = Placeholder::clone(&set);
                set.object.name = format!("set-{index}");
                set.object.deleting = deleting;
                left.placeholders
                    .insert(set.object.name.clone(), Arc::new(set));
            }
            for (index, (orphaned, deleting)) in pods.into_iter().enumerate() {
                let mut pod = Pod::clone(&placeholder_pod);
                pod.object.name = format!("pod-{index}");
                pod.object.deleting = deleting;
                pod.placeholder.as_mut().unwrap().orphaned = orphaned;
                add(&mut left, pod);
            }
            for index in 0..tasks {
                add(&mut left, task(&format!("task-{index}"), "set-0", 100));
            }
            let claims = claims.into_iter();
            left.claims = claims
                .map(|(name, (deleting, protected))| claim(&name, deleting, protected))
                .collect();
            left
        })
}

proptest! {
    #[test]
    fn p6_v4_from_any_state_everything_goes_and_claims_go_last(left in any_leftovers()) {
        let mut left = left;
        let pods = [PodUse { phase: PodPhase::Succeeded, claims: ["a", "b", "c", "d"].map(str::to_owned).to_vec() }];
        for _ in 0..30 {
            let decision = reconcile(&left);
            let claims = |step: &Step| matches!(step, Step::DeleteClaim(_) | Step::Unprotect(_));
            if decision.steps.iter().any(claims) {
                prop_assert!(left.placeholders.is_empty() && left.pods.is_empty());
            }
            if decision.released == Some(Released::Done) {
                break;
            }
            carry_out(&decision, &mut left, &pods);
        }
        prop_assert_eq!(reconcile(&left).released, Some(Released::Done));
        prop_assert!(left.claims.is_empty() && left.placeholders.is_empty() && left.pods.is_empty());
    }
}
