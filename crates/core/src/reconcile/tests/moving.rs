//! Placeholders that are being moved (N2).

use super::*;
use crate::observed::Move;

/// The placeholder is on node-1 and is to go to one of these nodes.
fn sent_to(nodes: &[&str]) -> Observed {
    let mut observed = observed();
    own(&mut observed).moving = Some(Move {
        nodes: nodes.iter().map(|name| (*name).to_owned()).collect(),
        before: serde_json::Value::Null,
    });
    observed
}

fn ends(observed: &mut Observed, lost: Option<ObjectRef>) -> Step {
    let update = Update {
        placeholder: name(observed),
        record: own(observed).record.clone(),
        reason: None,
    };
    Step::EndMove { update, lost }
}

#[test]
fn n2_a_move_ends_where_the_placeholder_has_arrived() {
    let mut observed = sent_to(&["node-2", "node-1"]);
    let expect = ends(&mut observed, None);
    assert_eq!(reconcile(&observed).steps, [expect]);
}

#[test]
fn n2_a_placeholder_leaves_once_its_controller_knows_where_it_goes() {
    let mut observed = sent_to(&["node-2"]);
    own(&mut observed).observed = false;
    let decision = reconcile(&observed);
    assert_eq!(
        (&decision.steps[..], decision.again),
        (&[][..], Again::After(SECOND))
    );
    own(&mut observed).observed = true;
    let leaves = own_pod(&mut observed).object.clone();
    let decision = reconcile(&observed);
    assert_eq!(
        (&decision.steps[..], decision.again),
        (&[Step::Leave(leaves)][..], Again::After(SECOND))
    );
    own_pod(&mut observed).object.deleting = true;
    assert_eq!(reconcile(&observed).steps, []);
    observed.pods.clear();
    own(&mut observed).record.retried = None;
    assert_eq!(reconcile(&observed).steps, []);
}

/// The decision to move is a moment old by then.
#[test]
fn n2_a_placeholder_does_not_leave_a_pod_that_has_come_since() {
    let with = |of_run: bool, change: fn(&mut Pod)| {
        let mut observed = sent_to(&["node-2"]);
        let mut resident = task("resident", &name(&observed), 0);
        (resident.node, resident.started) = (Some("node-1".to_owned()), true);
        change(&mut resident);
        if of_run {
            add(&mut observed, resident);
        } else {
            resident.follows.clear();
            observed.sharing.push(Arc::new(resident));
        }
        let stays = ends(&mut observed, None);
        let leaves = Step::Leave(own_pod(&mut observed).object.clone());
        match &reconcile(&observed).steps[..] {
            [step] if *step == stays => true,
            [step] if *step == leaves => false,
            other => panic!("{other:?}"),
        }
    };
    assert!(with(true, |_| ()), "it follows the placeholder");
    assert!(with(true, |pod| pod.follows.clear()), "it uses the claim");
    assert!(with(false, |_| ()), "another run's uses the claim");
    assert!(!with(true, |pod| {
        pod.follows.clear();
        pod.claims.clear();
    }));
    assert!(!with(true, |pod| pod.node = Some("node-2".to_owned())));
    assert!(!with(false, |pod| pod.phase = PodPhase::Succeeded));
}

#[test]
fn n2_a_placeholder_that_no_node_takes_may_go_anywhere_again_and_is_not_sent_there_again() {
    let mut observed = sent_to(&["node-2", "node-3"]);
    unschedulable(own_pod(&mut observed), "0/2 nodes are available.");
    let decision = pass(&mut observed, 9 * SECOND);
    assert_eq!(
        (&decision.steps[..], decision.again),
        (&[][..], Again::After(SECOND))
    );
    assert_eq!(pass(&mut observed, SECOND).steps, []);
    let decision = reconcile(&observed);
    let [
        Step::EndMove {
            update,
            lost: Some(lost),
        },
    ] = &decision.steps[..]
    else {
        panic!("{:?}", decision.steps);
    };
    assert_eq!(*lost, own_pod(&mut observed).object);
    let refused = ["node-2", "node-3"].map(|node| (node.to_owned(), observed.now));
    assert_eq!(update.record.refused, refused.into());
    // Each pod has its own time.
    own_pod(&mut observed).object.uid = "next".to_owned();
    assert_eq!(reconcile(&observed).steps, []);
    // As long as the scheduler has said nothing, it is on its way.
    let waits = own_pod(&mut observed);
    (waits.object.uid, waits.unscheduled) = ("p0".to_owned(), None);
    assert_eq!(reconcile(&observed).steps, []);
}

#[test]
fn n2_only_the_leader_goes_on_with_a_move_and_only_while_the_run_needs_it() {
    let mut observed = sent_to(&["node-2"]);
    observed.leads = false;
    observed.called = true;
    assert_eq!(reconcile(&observed).steps, []);
    let mut deleting = sent_to(&["node-2"]);
    own(&mut deleting).object.deleting = true;
    assert_eq!(reconcile(&deleting).steps, []);
    let mut done = sent_to(&["node-2"]);
    change_run(&mut done, |run| run.state = RunState::Done);
    let deletes = Step::Delete(own(&mut done).object.clone());
    assert_eq!(reconcile(&done).steps, [deletes]);
}

#[test]
fn n2_a_placeholder_that_is_being_moved_is_not_moved_for_another_pod() {
    let mut observed = sent_to(&["node-2"]);
    let mut waits = task("waits", &name(&observed), 2000);
    unschedulable(&mut waits, "none");
    add(&mut observed, waits);
    own(&mut observed).observed = false;
    assert_eq!(settled(&mut observed).steps, []);
}
