//! Placeholders that ask the scheduler for the room that their runs need (B3, N7).

use super::make_room::left;
use super::*;
use crate::annotations::{PLACEHOLDER, SIZES};
use crate::reconcile::reserve::GATE;

const SIZED: &str = r#"{
    "one": {"requests": {"cpu": "1"}, "workspaces": ["data"]},
    "two": {"requests": {"cpu": "2"}, "after": ["one"], "workspaces": ["other"]},
    "three": {"requests": {"cpu": "1500m"}, "after": ["one"], "workspaces": ["data"]}
}"#;

/// A run that reserves room, whose placeholder's pod has its gate: two and three can run at the same time.
fn gated() -> Observed {
    gated_in(Mode::PipelineRuns, &[CLAIM])
}

fn gated_in(mode: Mode, claims: &[&str]) -> Observed {
    let mut observed = observed_in(mode, claims);
    set_sizes(&mut observed, SIZED);
    for pod in observed.pods.values_mut().map(Arc::make_mut) {
        pod.node = None;
        pod.phase = PodPhase::Pending;
        pod.started = false;
        let labels = pod.placeholder.as_mut().unwrap();
        (labels.gated, labels.asks) = (true, cpu(50));
    }
    observed
}

fn set_sizes(observed: &mut Observed, sizes: &str) {
    change_run(observed, |run| {
        run.annotations.insert(SIZES.to_owned(), sizes.to_owned());
    });
}

fn start(observed: &mut Observed, task: &str) {
    change_run(observed, |run| {
        let task_run = format!("build-{task}");
        run.task_runs.insert(task_run, task.to_owned());
    });
}

fn labels(observed: &mut Observed) -> &mut PlaceholderLabels {
    own_pod(observed).placeholder.as_mut().unwrap()
}

/// The placeholder's pod has no gate any more, and asks for this much CPU.
fn open(observed: &mut Observed, milli_cpu: i128) {
    let labels = labels(observed);
    (labels.gated, labels.asks) = (false, cpu(milli_cpu));
}

/// The scheduler finds no node for the placeholder's pod, which asks for this much CPU.
fn refused(mut observed: Observed, milli_cpu: i128) -> Observed {
    open(&mut observed, milli_cpu);
    unschedulable(own_pod(&mut observed), "0/2 nodes are available");
    observed
}

/// The placeholder of a run with these pods, which left node-1 to ask anew.
fn asks_again(reserves: &str, pods: &[Pod]) -> Observed {
    let mut observed = gated();
    change_run(&mut observed, |run| {
        let defaults = run.annotations.get_mut(PLACEHOLDER).unwrap();
        let reserves = format!(r#""reserves":"{reserves}""#);
        *defaults = defaults.replace(r#""reserves":"placement""#, &reserves);
    });
    for pod in pods {
        let follows = vec![name(&observed)];
        let pod = pod.clone();
        add(&mut observed, Pod { follows, ..pod });
    }
    own(&mut observed).record.left = Some("node-1".to_owned());
    own(&mut observed).gated = true;
    observed
}

/// As [`asks_again`], but the placeholder's pod is bound to node-1, and asks for this much CPU.
fn bound(reserves: &str, milli_cpu: i128, pods: &[Pod]) -> Observed {
    let mut observed = asks_again(reserves, pods);
    own_pod(&mut observed).node = Some("node-1".to_owned());
    open(&mut observed, milli_cpu);
    observed
}

fn on_node_1(name: &str, milli_cpu: i128) -> Pod {
    Pod {
        node: Some("node-1".to_owned()),
        ..task(name, "", milli_cpu)
    }
}

/// A pod for which the scheduler found no node.
fn waits(milli_cpu: i128) -> Pod {
    let mut pod = task("waits", "", milli_cpu);
    unschedulable(&mut pod, "Insufficient cpu");
    pod
}

/// The API server says whose the pod is.
fn confirm(observed: &mut Observed, pod: &str, own: bool) {
    let answer = Answer {
        at: observed.now,
        own,
        let_go: 0,
    };
    let uid = observed.pods[pod].object.uid.clone();
    observed.answers.insert(uid, answer);
}

/// The CPU that pods may be opened with, and their nodes, in the order of the placeholders.
fn opening(decision: &Decision) -> Vec<(Vec<i128>, &Place)> {
    let steps = decision.steps.iter();
    let opening = steps.filter_map(|step| match step {
        Step::Open { sizes, place, .. } => {
            Some((sizes.iter().map(|it| it.milli_cpu).collect(), place))
        }
        _ => None,
    });
    opening.collect()
}

/// The CPU that the only pod is opened with, if the API server does not refuse it.
fn opened(observed: &Observed) -> Option<i128> {
    opening(&reconcile(observed))[0].0.first().copied()
}

/// The nodes for the only pod.
fn place(observed: &Observed) -> Place {
    opening(&reconcile(observed))[0].1.clone()
}

/// The CPU that the pod is reduced to, and the Event.
fn shrinking(decision: &Decision) -> Option<(i128, Option<&str>)> {
    decision.steps.iter().find_map(|step| match step {
        Step::Shrink { size, reason, .. } => {
            let code = reason.as_ref().map(|reason| reason.code.as_str());
            Some((size.milli_cpu, code))
        }
        _ => None,
    })
}

#[test]
fn b3_a_gated_pod_asks_for_the_peak_beside_its_own_requests() {
    assert!(GATE.starts_with(crate::annotations::PREFIX));
    // If the API server refuses the peak, the largest pod is asked for.
    assert_eq!(opening(&reconcile(&gated()))[0].0, [3550, 2050]);
    // Real pods count where less is known.
    let mut less = asks_again("placement", &[task("a", "", 400), task("b", "", 300)]);
    set_sizes(&mut less, r#"{"one": {"requests": {"cpu": "100m"}}}"#);
    assert_eq!(opened(&less), Some(750));
}

#[test]
fn b3_in_workspaces_the_tasks_of_each_claim_count() {
    let decision = reconcile(&gated_in(Mode::Workspaces, &["data", "other"]));
    let sizes: BTreeSet<_> = opening(&decision).iter().map(|it| it.0[0]).collect();
    // Of data's tasks, three comes after one.
    assert_eq!(sizes, [1550, 2050].into());
}

#[test]
fn b3_tasks_that_have_ended_or_are_skipped_do_not_count() {
    let mut observed = gated();
    start(&mut observed, "two");
    // A TaskRun exists some time before its pod.
    assert_eq!(opened(&observed), Some(3550));
    let needs = refused(observed.clone(), 3550);
    let reduced = Some((2050, Some("ReservationReduced")));
    assert_eq!(shrinking(&reconcile(&needs)), reduced);
    observed.ended = ["build-two".to_owned()].into();
    assert_eq!(opened(&observed), Some(1550));
    change_run(&mut observed, |run| {
        run.skipped_tasks = vec!["three".to_owned()];
    });
    assert_eq!(opened(&observed), Some(1050));
    // One timed out before it had a pod. A task that waits for it has started.
    let mut observed = gated();
    set_sizes(&mut observed, &SIZED.replace("\"1\"", "\"9\""));
    start(&mut observed, "one");
    assert_eq!(opened(&observed), Some(9050));
    start(&mut observed, "two");
    assert_eq!(opened(&observed), Some(3550));
}

#[test]
fn n5_another_replica_opens_the_gate_a_moment_later() {
    let mut observed = gated();
    observed.leads = false;
    assert_eq!(opening(&pass(&mut observed, SECOND)), []);
    assert_eq!(opening(&pass(&mut observed, SECOND)), []);
    assert_eq!(opened(&observed), Some(3550));
}

#[test]
fn b3_a_placeholder_returns_to_pods_that_run_unless_their_node_is_bad() {
    let mut observed = asks_again("placement", &[on_node_1("a", 1000)]);
    let home = Place {
        only: Some("node-1".to_owned()),
        limited_by: Some("node node-1, where pods of the run were".to_owned()),
        ..Place::default()
    };
    // The scheduler bound it while the placeholder left.
    assert_eq!(opening(&reconcile(&observed)), [(vec![], &home)]);
    pod(&mut observed, "a").started = true;
    pod(&mut observed, "a").phase = PodPhase::Running;
    assert_eq!(opening(&reconcile(&observed)), [(vec![], &home)]);
    node(&mut observed, "node-1").unschedulable = true;
    assert_eq!(opened(&observed), Some(3550));
    assert_eq!(place(&observed).only, None);
}

#[test]
fn n7_a_wish_that_the_scheduler_refuses_becomes_the_need_and_the_need_waits() {
    let mut observed = gated();
    open(&mut observed, 3550);
    assert_eq!(shrinking(&reconcile(&observed)), None, "not decided yet");
    let mut observed = refused(observed, 3550);
    let reduced = Some((2050, Some("ReservationReduced")));
    assert_eq!(shrinking(&reconcile(&observed)), reduced);
    observed.leads = false;
    assert_eq!(shrinking(&reconcile(&observed)), None);
    observed.leads = true;
    let refusal = own_pod(&mut observed).unscheduled.as_mut();
    refusal.unwrap().is_newest = false;
    let decision = pass(&mut observed, 5 * SECOND);
    assert_eq!(shrinking(&decision), None, "about an older size");
    // The scheduler does not repeat a condition that has not changed.
    assert_eq!(shrinking(&reconcile(&observed)), reduced);
    assert_eq!(shrinking(&reconcile(&refused(gated(), 2050))), None);
}

#[test]
fn b3_until_the_kubelet_has_given_the_room_up_nothing_moves() {
    let mut observed = bound("placement", 50, &[waits(6000)]);
    labels(&mut observed).resizing = true;
    assert_eq!(left(&settled(&mut observed)), None);
    labels(&mut observed).resizing = false;
    open(&mut observed, 3550);
    assert_eq!(left(&settled(&mut observed)), None);
}

#[test]
fn b3_a_gate_is_no_cause_for_the_author() {
    let mut observed = gated();
    let said = "Scheduling is blocked due to non-empty scheduling gates";
    unschedulable(own_pod(&mut observed), said);
    let refusal = own_pod(&mut observed).unscheduled.as_mut();
    refusal.unwrap().no_node = false;
    // Until the scheduler has looked at the pod, the condition stays.
    for gated in [true, false] {
        labels(&mut observed).gated = gated;
        pass(&mut observed, 60 * SECOND);
        assert_eq!(reconcile(&observed).events, []);
    }
}

#[test]
fn n7_a_placeholder_leaves_for_a_node_that_only_an_autoscaler_can_add() {
    let mut observed = bound("placement", 50, &[waits(6000)]);
    assert_eq!(left(&settled(&mut observed)), Some((1, "node-1")));
    // A volume ties it to its node.
    let hostname = "kubernetes.io/hostname";
    restrict(&mut observed, CLAIM, hostname, "node-1");
    assert_eq!(left(&settled(&mut observed)), None);
}

/// A gated placeholder, a waiting pod that needs another kind of node, and a larger one that does not.
fn with_special() -> Observed {
    let mut special = task("a", "", 300);
    special.needs.selector = [("pool".to_owned(), "gpu".to_owned())].into();
    let mut observed = asks_again("nothing", &[special, task("b", "", 700)]);
    confirm(&mut observed, "a", true);
    observed
}

#[test]
fn n2_a_placeholder_that_asks_for_a_pods_own_kind_of_node_asks_for_this_pod_only() {
    let mut observed = with_special();
    assert_eq!(opened(&observed), Some(350));
    assert_eq!(
        place(&observed).limited_by.as_deref(),
        Some("a node that pod a can use")
    );
    // A pod of another run adds nothing.
    confirm(&mut observed, "a", false);
    assert_eq!(opened(&observed), Some(750));
    assert_eq!(place(&observed).limited_by, None);
    confirm(&mut observed, "b", false);
    assert_eq!(opened(&observed), None);
}

fn leaves(observed: &Observed) -> bool {
    let steps = reconcile(observed).steps;
    let leaves = |step: &Step| matches!(step, Step::Evict { update: None, .. });
    steps.iter().any(leaves)
}

/// Its pod was opened before a pod of the run was bound.
#[test]
fn b3_a_placeholder_that_finds_no_room_beside_running_pods_returns_to_them() {
    let observed = asks_again("placement", &[on_node_1("a", 1000)]);
    let mut observed = refused(observed, 3550);
    assert!(!leaves(&observed), "its own binding may be under way");
    pass(&mut observed, 2 * SECOND);
    assert!(leaves(&observed));
    assert_eq!(shrinking(&reconcile(&observed)), None);
    own(&mut observed).gated = false;
    assert!(!leaves(&observed), "without the gate it would not return");
}

#[test]
fn n2_a_placeholder_asks_again_without_a_pod_that_needs_it_no_more() {
    for (limit, gone) in [
        ("a node that pod a can use", "a"),
        ("node node-1, where pods of the run were", "runs"),
    ] {
        let mut observed = refused(with_special(), 50);
        let follows = vec![name(&observed)];
        let runs = on_node_1("runs", 300);
        add(&mut observed, Pod { follows, ..runs });
        labels(&mut observed).limited_by = Some(limit.to_owned());
        assert!(!leaves(&observed), "{limit}");
        observed.pods.remove(gone);
        pass(&mut observed, 2 * SECOND);
        assert!(leaves(&observed), "{limit}");
        own_pod(&mut observed).unscheduled = None;
        assert!(!leaves(&observed), "the scheduler may find a node");
    }
}

#[test]
fn n2_with_nothing_reserved_a_placeholder_asks_for_the_largest_pod_that_waits() {
    let pods = [task("a", "", 300), task("b", "", 700)];
    assert_eq!(opened(&asks_again("nothing", &pods)), Some(750));
    assert_eq!(opened(&asks_again("nothing", &[])), None);
    assert_eq!(opened(&asks_again("placement", &pods)), Some(3550));
}

#[test]
fn n2_a_placeholder_asks_for_a_node_like_the_waiting_pods_and_prefers_another_than_before() {
    let waits = task("a", "", 300);
    let mut observed = asks_again("nothing", std::slice::from_ref(&waits));
    assert_eq!(place(&observed).with, None, "it may be another run's pod");
    confirm(&mut observed, "a", true);
    let expect = Place {
        with: Some(waits.needs),
        avoid: Some("node-1".to_owned()),
        ..Place::default()
    };
    assert_eq!(place(&observed), expect);
    // Kubernetes resizes no extended resource, so the nodes that have it are preferred.
    let gpu = |amounts: &mut Amounts| {
        amounts.others.insert("example.dev/gpu".to_owned(), 1);
    };
    gpu(&mut pod(&mut observed, "a").needs.requests);
    assert_eq!(place(&observed).prefer, [""; 0]);
    for name in ["node-1", "node-2"] {
        node(&mut observed, name).allocatable = cpu(350);
    }
    gpu(&mut node(&mut observed, "node-2").allocatable);
    assert_eq!(place(&observed).prefer, ["node-2"]);
    // A quota may refuse CPU and memory.
    gpu(&mut node(&mut observed, "node-1").allocatable);
    assert_eq!(place(&observed).prefer, [""; 0]);
    node(&mut observed, "node-1").allocatable.milli_cpu = 349;
    assert_eq!(place(&observed).prefer, ["node-2"]);
    // A placeholder that was never asked to leave may go anywhere.
    assert_eq!(place(&gated()), Place::default());
}

#[test]
fn b3_under_a_quota_a_placeholder_asks_only_for_a_pod_that_waits_and_the_author_hears_it() {
    let mut observed = asks_again("placement", &[task("a", "", 300)]);
    observed.has_quota = true;
    assert_eq!(opened(&observed), Some(3550));
    // The first pod of a run waits for its placeholder, not for room.
    own(&mut observed).record.left = None;
    assert_eq!(opened(&observed), None);
    assert!(codes(&reconcile(&observed).events).contains(&"ReservationReduced"));
}

#[test]
fn b3_a_bound_placeholder_gives_its_room_up_at_once_or_pod_by_pod_and_never_grows() {
    let one = || vec![on_node_1("one", 1000)];
    let more = vec![on_node_1("two", 2000), task("three", "", 1500)];
    for (reserves, asks, pods, expect) in [
        ("placement", 3550, vec![], Some(50)),
        ("placement", 20, vec![], None),
        ("peak", 3550, vec![], None),
        ("peak", 3550, one(), Some(2550)),
        ("peak", 2550, one(), None),
        ("peak", 2550, more, Some(50)),
        // What an estimate forgot is no debt.
        ("peak", 3550, vec![on_node_1("one", 9000)], Some(50)),
    ] {
        let decision = reconcile(&bound(reserves, asks, &pods));
        let expect = expect.map(|size| (size, None));
        assert_eq!(shrinking(&decision), expect, "{asks} {pods:?}");
    }
    let mut quota = bound("peak", 3550, &one());
    quota.has_quota = true;
    assert_eq!(shrinking(&reconcile(&quota)), Some((50, None)));
    // If the scheduler refused the peak, all that is kept may be too little.
    let mut reduced = bound("peak", 1550, &[waits(2000)]);
    assert_eq!(shrinking(&settled(&mut reduced)), Some((50, None)));
    // A pod that finds no room although nothing is kept asks anew.
    let mut observed = bound("peak", 50, &[waits(9000)]);
    assert_eq!(left(&settled(&mut observed)), Some((1, "node-1")));
}

#[test]
fn b3_a_placeholder_comes_back_if_the_kubelet_does_not_reduce_it() {
    let mut observed = bound("peak", 50, &[]);
    labels(&mut observed).resizing = true;
    assert_eq!(pass(&mut observed, 9 * SECOND).steps, []);
    assert_eq!(pass(&mut observed, SECOND).steps, []);
    let decision = reconcile(&observed);
    assert_eq!(left(&decision), Some((1, "node-1")));
    let [Step::Evict { reason, update, .. }] = &decision.steps[..] else {
        panic!("{:?}", decision.steps);
    };
    assert_eq!(reason.code.as_str(), "ReservationRefused");
    assert!(update.as_ref().unwrap().record.keeps_room);
    own(&mut observed).record.moved = once(&observed, 5, SECOND);
    assert_eq!(reconcile(&observed).steps, []);
    // The API server may also refuse to reduce it.
    let mut observed = bound("peak", 9000, &[]);
    assert!(shrinking(&pass(&mut observed, 10 * SECOND)).is_some());
    assert_eq!(left(&reconcile(&observed)), Some((1, "node-1")));
    // Its next pod asks for nothing. Otherwise, it would hold room again.
    let mut observed = gated();
    own(&mut observed).record.keeps_room = true;
    assert_eq!(opened(&observed), None);
}

#[test]
fn b3_a_reservation_that_only_one_node_could_hold_is_given_up() {
    let mut observed = refused(gated(), 2050);
    let said = "0/2 nodes are available: 1 Insufficient cpu.";
    unschedulable(own_pod(&mut observed), said);
    assert_eq!(shrinking(&reconcile(&observed)), None, "a node may come");
    pin(&mut observed, CLAIM);
    let given_up = Some((50, Some("ReservationReduced")));
    assert_eq!(shrinking(&reconcile(&observed)), given_up);
    unschedulable(own_pod(&mut observed), "0/2 nodes are available: 2 other.");
    assert_eq!(
        shrinking(&reconcile(&observed)),
        None,
        "not for want of room"
    );
}

#[test]
fn b3_a_reservation_of_pods_that_may_run_elsewhere_is_given_up_if_few_nodes_reach_the_claims() {
    let mut observed = refused(gated(), 2050);
    let said = "0/2 nodes are available: 1 Insufficient cpu.";
    unschedulable(own_pod(&mut observed), said);
    restrict(&mut observed, CLAIM, "zone", "a");
    let reduced = Some((1550, Some("ReservationReduced")));
    assert_eq!(shrinking(&reconcile(&observed)), reduced);
    // A pod that waits needs the room, until it is let go.
    let waits = task("waits", &name(&observed), 2000);
    add(&mut observed, waits);
    assert_eq!(shrinking(&reconcile(&observed)), None);
}

#[test]
fn n7_b3_the_peak_may_wait_for_a_node() {
    let mut observed = refused(gated(), 3550);
    observed.peak_wait = 30 * SECOND;
    assert_eq!(shrinking(&pass(&mut observed, 29 * SECOND)), None);
    assert_eq!(shrinking(&pass(&mut observed, SECOND)), None);
    let reduced = Some((2050, Some("ReservationReduced")));
    assert_eq!(shrinking(&reconcile(&observed)), reduced);
}

#[test]
fn n7_the_author_hears_of_claims_that_keep_a_placeholder_on_a_full_node() {
    let mut observed = refused(gated(), 2050);
    pin(&mut observed, CLAIM);
    let conflict = "1 Insufficient cpu, 1 node(s) had volume node affinity conflict.";
    for (said, code) in [
        (conflict, "ClaimsNotMovable"),
        ("2 other.", "PlaceholderUnschedulable"),
    ] {
        let said = format!("0/2 nodes are available: {said}");
        unschedulable(own_pod(&mut observed), &said);
        pass(&mut observed, 2 * SECOND);
        assert_eq!(blocked(&reconcile(&observed)), Some(code));
    }
}
