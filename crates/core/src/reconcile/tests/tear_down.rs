//! The order of the clean-up (P6, V4); what each step is, the tests of `teardown` say.

use super::*;

fn claim(deleting: bool, protected: bool) -> Claim {
    Claim {
        name: "pvc".to_owned(),
        uid: "c".to_owned(),
        resource_version: "3".to_owned(),
        deleting,
        protected,
    }
}

fn over() -> Observed {
    let mut observed = observed();
    observed.claims = vec![claim(false, true)];
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
        let (deletes, released, _) = steps(&observed);
        assert_eq!(
            format!("{deletes:?}"),
            format!("{expect:?}").replace("\"7\"", "\"3\"")
        );
        assert_eq!(released, Released::InProgress);
        observed.claims = vec![claim(true, true)];
        // No change of an object tells when the last pod that uses the claim ends.
        let expect = vec![Step::Unprotect(observed.claims.clone())];
        assert_eq!(steps(&observed), (expect, Released::InProgress, later));
        observed.claims = vec![claim(true, false)];
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
    observed.claims = vec![claim(false, true)];
    observed.called = true;
    let decision = reconcile(&observed);
    assert_eq!(decision.steps, []);
    assert_eq!(decision.released, Some(Released::RunActive));
}
