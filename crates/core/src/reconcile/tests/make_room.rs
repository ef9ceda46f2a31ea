//! Pods that wait although their placeholder is bound (N2, N7).

use super::reserve::{MOVED, confirm, evictions, labels, refusal};
use super::*;
use crate::node::{Taint, Toleration};

/// A pod that waits. The placeholder's pod is the only pod on node-1.
fn waiting() -> Observed {
    waiting_in(Mode::PipelineRuns, &[CLAIM], CLAIM)
}

pub(super) fn waiting_in(mode: Mode, claims: &[&str], uses: &str) -> Observed {
    let mut observed = observed_in(mode, claims);
    for own in observed.placeholders.values_mut() {
        Arc::make_mut(own).gated = true;
    }
    waits(&mut observed, "waits", uses);
    observed
}

/// Adds a pod that uses this claim and waits for room beside the placeholder.
fn waits(observed: &mut Observed, name: &str, uses: &str) {
    let mut pod = task(name, &self::name(observed), 2000);
    pod.claims = vec![uses.to_owned()];
    unschedulable(&mut pod, NO_ROOM);
    add(observed, pod);
}

/// As [`waiting`], but the placeholder cannot leave node-1, because only node-1 reaches the volume of its claim.
fn pinned(mode: Mode, uses: &str) -> Observed {
    let mut observed = waiting_in(mode, &[CLAIM], uses);
    pin(&mut observed, CLAIM);
    observed
}

/// If the placeholder leaves its node: the number of times that it has left a node, including this time, and the old node.
pub(super) fn left(decision: &Decision) -> Option<(u32, &str)> {
    let mut records =
        taken!(decision, Step::Evict(Eviction { record: Some(record), .. }) => record);
    records.find_map(|it| Some((it.moved.as_ref()?.times, it.left.as_deref()?)))
}

/// The names of the pods that the manager lets run without their placeholder. The number counts these steps for the pod's
/// TaskRun, including this step.
pub(super) fn let_go(decision: &Decision) -> Vec<(&str, u32)> {
    taken!(decision, Step::LetGo { pod, times, .. } => (pod.name.as_str(), *times)).collect()
}

fn asks(decision: &Decision) -> bool {
    taken!(decision, Step::Ask { .. } => ()).count() > 0
}

/// Checks that no step is taken, and that the next reconcile is due after this many seconds. Then one second passes.
#[track_caller]
fn rests(observed: &mut Observed, seconds: u32) {
    let decision = pass(observed, SECOND);
    assert_eq!(decision.steps, []);
    assert_eq!(decision.again, Again::After(seconds * SECOND));
}

#[test]
fn n2_a_placeholder_leaves_once_that_settled_in_one_go_and_the_api_server_says_whose_the_pod_is() {
    let mut observed = waiting();
    rests(&mut observed, 2);
    rests(&mut observed, 1);
    let decision = reconcile(&observed);
    let waits = observed.pods["waits"].clone();
    let ask = Step::Ask {
        pod: waits.object.clone(),
        task_run: waits.controller.clone().unwrap(),
        run_uid: "u".to_owned(),
    };
    assert_eq!(decision.steps, [ask]);
    answer(&mut observed, &decision, |_| ());
    let decision = reconcile(&observed);
    assert_eq!(left(&decision), Some((1, "node-1")));
    assert_eq!(decision.steps.len(), 1);
    assert_eq!(evictions(&observed), MOVED);
    // Two seconds later, the answer is too old for a step, so the API server is asked again.
    observed.now += 2 * SECOND;
    let decision = reconcile(&observed);
    assert_eq!((asks(&decision), left(&decision)), (true, None));
    // If the pod needs no step for a moment, the two seconds begin anew.
    let mut observed = waiting();
    pass(&mut observed, SECOND);
    let refusal = pod(&mut observed, "waits").unscheduled.take();
    pass(&mut observed, SECOND);
    pod(&mut observed, "waits").unscheduled = refusal;
    rests(&mut observed, 2);
}

/// The scheduler is slow if it has many pods. So for a long time, its message may be older than the placeholder's binding. If
/// the placeholder left too early, the pod could still be bound to the old node, beside another isolated run.
#[test]
fn m4_n2_a_placeholder_stays_until_the_scheduler_has_tried_the_pod_on_its_node() {
    let only_affinity = "0/2 nodes are available: 2 node(s) didn't match pod affinity rules. no new claims to deallocate, \
         preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling.";
    let of_a_node =
        "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) didn't match pod affinity rules.";
    for (message, seconds) in [(only_affinity, 340), (of_a_node, 12)] {
        let mut observed = waiting();
        own_pod(&mut observed).bound = Some(observed.now);
        unschedulable(pod(&mut observed, "waits"), message);
        rests(&mut observed, seconds);
        rests(&mut observed, seconds - 1);
        // If the scheduler never tries the pod again, the placeholder leaves after this time.
        pass(&mut observed, seconds * SECOND);
        assert!(left(&settled(&mut observed)).is_some(), "{message}");
    }
}

/// With `placeholder-reserves: nothing`, the StatefulSet has no gate before the placeholder first leaves its node.
#[test]
fn n2_the_next_pod_starts_gated_before_the_placeholder_leaves() {
    let mut observed = waiting();
    own(&mut observed).gated = false;
    let gate = Step::Gate(observed.placeholders[&name(&observed)].clone());
    assert_eq!(settled(&mut observed).steps, [gate]);
    own(&mut observed).gated = true;
    own(&mut observed).observed = false;
    assert_eq!(settled(&mut observed).steps, []);
    own(&mut observed).observed = true;
    assert!(left(&settled(&mut observed)).is_some());
}

#[test]
fn n2_only_the_leader_makes_room_and_not_for_a_run_that_is_done_or_cannot_be_read() {
    #[track_caller]
    fn check(change: impl FnOnce(&mut Observed)) {
        let mut observed = waiting();
        change(&mut observed);
        let decision = settled(&mut observed);
        assert_eq!((left(&decision), asks(&decision)), (None, false));
    }
    check(|observed| (observed.leads, observed.called) = (false, true));
    check(|observed| change_run(observed, |run| run.state = RunState::Done));
    check(|observed| set_annotation(observed, crate::annotations::MODE, "sideways"));
    check(|observed| own(observed).object.deleting = true);
    check(|observed| own_pod(observed).object.deleting = true);
    check(|observed| own_pod(observed).node = None);
    // Room that the placeholder gives up is not free yet.
    check(|observed| labels(observed).resizing = true);
    check(|observed| labels(observed).asks = cpu(3550));
    check(|observed| pod(observed, "waits").object.deleting = true);
    check(|observed| pod(observed, "waits").follows.clear());
    check(|observed| pod(observed, "waits").controller = Some(owner("Job", "j", "j")));
    check(|observed| pod(observed, "waits").unscheduled.as_mut().unwrap().no_node = false);
    // No other node would help.
    for of_claim in [
        "0/2 nodes are available: pod has unbound immediate PersistentVolumeClaims.",
        "0/2 nodes are available: persistentvolumeclaim \"a.b\" not found. not found",
        "0/2 nodes are available: 2 node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode.",
    ] {
        check(|observed| unschedulable(pod(observed, "waits"), of_claim));
    }
}

/// With `taskRunSpecs`, a run can give its pods the labels and the affinity of another run's pods.
#[test]
fn n2_p7_nothing_is_done_or_said_for_a_pod_of_another_run_and_it_keeps_no_own_pod_waiting() {
    let stranger = |answer: &mut Answer| answer.own = false;
    for mut observed in [waiting(), pinned(Mode::PipelineRuns, CLAIM)] {
        let decision = settled_with(&mut observed, stranger);
        assert_eq!((decision.steps.len(), decision.events.len()), (0, 0));
        assert_eq!(blocked(&decision), Some(""));
    }
    let mut observed = waiting();
    waits(&mut observed, "a-foreign-pod", CLAIM);
    confirm(&mut observed, "a-foreign-pod", false);
    assert_eq!(left(&settled(&mut observed)), Some((1, "node-1")));
}

#[test]
fn n2_why_nothing_helps_is_reported_for_the_runs_own_pods() {
    let mut observed = pinned(Mode::PipelineRuns, CLAIM);
    assert_eq!(blocked(&reconcile(&observed)), Some(""), "not at once");
    let decision = settled(&mut observed);
    assert_eq!(blocked(&decision), Some("ClaimsNotMovable"));
    assert_eq!(codes(&decision.events), ["ClaimsNotMovable"]);
    // For an Event, an old answer of the API server is enough.
    observed.now += 60 * SECOND;
    let decision = reconcile(&observed);
    assert!(!asks(&decision));
    assert_eq!(blocked(&decision), Some("ClaimsNotMovable"));
}

#[test]
fn n2_moves_wait_longer_and_longer_whichever_replica_made_them_and_all_placeholders_share_five() {
    let mut observed = waiting();
    own(&mut observed).record.moved = once(&observed, 3, Duration::ZERO);
    for seconds in [4, 3, 2, 1] {
        rests(&mut observed, seconds);
    }
    assert_eq!(left(&settled(&mut observed)), Some((4, "node-1")));
    let after = |times: [u32; 2], ended: &[&str]| {
        let mut observed = waiting_in(Mode::Workspaces, &["one", "two"], "one");
        observed.ended = ended.iter().map(|name| (*name).to_owned()).collect();
        let done = times.map(|times| once(&observed, times, 600 * SECOND));
        for (own, done) in observed.placeholders.values_mut().zip(done) {
            Arc::make_mut(own).record.moved = done;
        }
        settled(&mut observed)
    };
    assert_eq!(left(&after([2, 2], &[])), Some((3, "node-1")));
    let sixth = after([2, 3], &[]);
    assert_eq!(sixth.steps, []);
    assert_eq!(blocked(&sixth), Some("MovesExhausted"));
    // A pod has ended since the last move, so the run made progress, and the count begins anew.
    assert_eq!(left(&after([2, 3], &["done"])), Some((1, "node-1")));

    // A pod waits beside each of two placeholders. Both leave, but only one of them can make the fifth move.
    for (times, leave) in [(3, 2), (4, 1)] {
        let mut observed = waiting_in(Mode::Workspaces, &["one", "two"], "one");
        own(&mut observed).record.moved = once(&observed, times, 600 * SECOND);
        let other = observed.planned()[1].name.to_string();
        waits(&mut observed, "waits-too", "two");
        pod(&mut observed, "waits-too").follows = vec![other];
        let decision = settled(&mut observed);
        assert_eq!(taken!(&decision, Step::Evict(_) => ()).count(), leave);
    }

    // A new leader has not seen yet that two pods ended. When it sees this later, this does not count as progress of the run.
    let mut observed = waiting();
    own(&mut observed).record.ended = 2;
    let decision = &settled(&mut observed);
    let mut records =
        taken!(decision, Step::Evict(Eviction { record: Some(record), .. }) => record.ended);
    assert_eq!(records.next(), Some(2));
}

/// Kubernetes resizes no extended resource, so the placeholder cannot ask for it.
#[test]
fn n2_a_placeholder_leaves_only_if_a_node_that_suits_the_pod_has_the_gpu_that_the_pod_lacks() {
    const MISSING: Option<&str> = Some("ResourceMissing");
    let taint = Taint {
        key: "example.dev/gpu".to_owned(),
        effect: "NoSchedule".to_owned(),
        ..Taint::default()
    };
    let toleration = Toleration {
        exists: true,
        ..Toleration::default()
    };
    // Both nodes are in pool `a`. A row has the GPUs of each node, the taints of node-2, the pod's tolerations, and its pool.
    for (case, gpus, taints, tolerations, pool, leaves) in [
        ("node-2 has enough", [0, 2], 0, 0, "a", true),
        ("it has too few", [0, 1], 0, 0, "a", false),
        ("only node-1 has enough", [2, 0], 0, 0, "a", false),
        ("it has a taint", [0, 2], 1, 0, "a", false),
        ("the pod tolerates it", [0, 2], 1, 1, "a", true),
        ("no node is of the pod's pool", [0, 2], 0, 0, "b", false),
    ] {
        let mut observed = waiting();
        let needs = &mut pod(&mut observed, "waits").needs;
        needs.requests = with_gpus(8000, 2);
        needs.selector = [("pool".to_owned(), pool.to_owned())].into();
        needs.tolerations = vec![toleration.clone(); tolerations];
        for (name, gpus) in ["node-1", "node-2"].into_iter().zip(gpus) {
            node(&mut observed, name).allocatable = with_gpus(8000, gpus);
            node(&mut observed, name).labels = [("pool".to_owned(), "a".to_owned())].into();
        }
        node(&mut observed, "node-2").taints = vec![taint.clone(); taints];
        let decision = settled(&mut observed);
        assert_eq!(left(&decision).is_some(), leaves, "{case}: {decision:?}");
        assert_eq!(blocked(&decision) == MISSING, !leaves, "{case}");
        if !leaves {
            assert_eq!(decision.again, Again::After(60 * SECOND), "{case}");
            // The scheduler may be about to bind the pod beside its placeholder, if the pod may run there.
            own_pod(&mut observed).bound = Some(observed.now);
            let at_once = blocked(&settled(&mut observed)) == MISSING;
            assert_eq!(at_once, pool != "a", "{case}");
        }
    }
    // No move helps if the volumes are out of reach of the other node.
    let mut zonal = waiting();
    pod(&mut zonal, "waits").needs.requests = with_gpus(8000, 2);
    node(&mut zonal, "node-2").allocatable = with_gpus(8000, 2);
    for (name, zone) in [("node-1", "a"), ("node-2", "b")] {
        node(&mut zonal, name).labels = [("zone".to_owned(), zone.to_owned())].into();
    }
    restrict(&mut zonal, CLAIM, "zone", "a");
    let decision = settled(&mut zonal);
    assert_eq!((left(&decision), blocked(&decision)), (None, MISSING));
}

#[test]
fn n2_pods_are_let_go_together_by_their_task_runs_and_only_where_they_may_be() {
    let mut observed = pinned(Mode::PipelineRuns, "own");
    waits(&mut observed, "waits-too", "own");
    let decision = settled(&mut observed);
    let let_go = ["waits", "waits-too"].map(|pod| Step::LetGo {
        pod: observed.pods[pod].object.clone(),
        task_run: observed.pods[pod].controller.clone().unwrap(),
        placeholder: name(&observed),
        times: 1,
        reason: crate::event_texts::pod_let_go(pod, &name(&observed)),
    });
    assert_eq!(decision.steps, let_go);
    let isolated = Mode::IsolatePipelineRun;
    for (mode, claim) in [(Mode::PipelineRuns, CLAIM), (isolated, "own")] {
        let decision = settled(&mut pinned(mode, claim));
        assert_eq!(decision.steps, [], "{mode:?} {claim}");
        assert_eq!(blocked(&decision), Some("ClaimsNotMovable"));
    }
}

/// Because of its claims, the placeholder can run only in one zone, and the scheduler finds no node there.
#[test]
fn n2_a_placeholder_that_waits_for_a_node_of_its_zone_lets_other_pods_go() {
    let mut observed = waiting_in(Mode::PipelineRuns, &[CLAIM], "own");
    unschedulable(own_pod(&mut observed), "0/2 nodes are available");
    assert_eq!(let_go(&settled(&mut observed)), [], "every node is left");
    restrict(&mut observed, CLAIM, "zone", "a");
    assert_eq!(let_go(&settled(&mut observed)), [("waits", 1)]);
    // The scheduler has not decided about the newest size.
    observed.since.clear();
    refusal(&mut observed).is_newest = false;
    assert_eq!(let_go(&settled(&mut observed)), []);
}

/// Tekton may create the pod again with its affinity, so the step may be needed several times.
#[test]
fn n2_a_pod_is_let_go_five_times_and_not_at_once_again() {
    for (times, age, expect) in [
        (1, 60, vec![("waits", 2)]),
        (4, 60, vec![("waits", 5)]),
        (5, 60, vec![]),
        (3, 0, vec![]),
    ] {
        let mut observed = pinned(Mode::PipelineRuns, "own");
        pod(&mut observed, "waits").created = Some(observed.now - age * SECOND);
        let decision = settled_with(&mut observed, |answer| answer.let_go = times);
        assert_eq!(let_go(&decision), expect, "{times} times before");
    }
}

/// The placeholder stays while pods of its run follow it, or pods of any run use one of its claims.
#[test]
fn n2_claims_in_use_are_not_left() {
    for (follows, claim, node, stays) in [
        (false, "own", "node-1", [false, false]),
        (true, "own", "node-1", [true, false]),
        (false, CLAIM, "node-1", [true, true]),
        (false, CLAIM, "node-2", [false, false]),
    ] {
        let (mut own, mut shared) = (waiting(), waiting());
        let follows = if follows { name(&own) } else { String::new() };
        let mut resident = task("resident", &follows, 0);
        resident.node = Some(node.to_owned());
        resident.claims = vec![claim.to_owned()];
        shared.sharing.push(Arc::new(resident.clone()));
        add(&mut own, resident);
        let stayed = [own, shared].map(|mut it| left(&settled(&mut it)).is_none());
        assert_eq!(stayed, stays, "{follows:?} {claim} {node}");
    }
}
