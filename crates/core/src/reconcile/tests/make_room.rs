//! Pods that wait although their placeholder is bound (N2, N4).

use super::*;

/// A pod that waits and has no room on node-1. Node-2 has it.
fn waiting() -> Observed {
    waiting_in(Mode::PipelineRuns, &[CLAIM], CLAIM, 2000)
}

fn waiting_in(mode: Mode, claims: &[&str], uses: &str, milli_cpu: i128) -> Observed {
    let mut observed = observed_in(mode, claims);
    let mut waits = task("waits", &name(&observed), milli_cpu);
    waits.claims = vec![uses.to_owned()];
    unschedulable(&mut waits, "0/2 nodes are available: 2 Insufficient cpu.");
    add(&mut observed, waits);
    observed
}

/// As [`waiting`], but the placeholder cannot leave node-1: its claim is there.
fn pinned(mode: Mode, uses: &str) -> Observed {
    let mut observed = waiting_in(mode, &[CLAIM], uses, 2000);
    pin(&mut observed, CLAIM);
    observed
}

/// The nodes that a placeholder is sent to.
fn sent(decision: &Decision) -> Option<&[String]> {
    decision.steps.iter().find_map(|step| match step {
        Step::Send { nodes, .. } => Some(&nodes[..]),
        _ => None,
    })
}

/// The pods that are let go, and for which time.
fn let_go(decision: &Decision) -> Vec<(&str, u32)> {
    let steps = decision.steps.iter();
    let pods = steps.filter_map(|step| match step {
        Step::LetGo { pod, times, .. } => Some((pod.name.as_str(), *times)),
        _ => None,
    });
    pods.collect()
}

fn asks(decision: &Decision) -> bool {
    let mut steps = decision.steps.iter();
    steps.any(|step| matches!(step, Step::Ask { .. }))
}

#[test]
fn n2_a_placeholder_is_sent_once_that_has_settled_and_the_api_server_says_whose_the_pod_is() {
    let mut observed = waiting();
    let decision = pass(&mut observed, SECOND / 4);
    assert_eq!(
        (&decision.steps[..], decision.again),
        (&[][..], Again::After(SECOND))
    );
    let decision = pass(&mut observed, SECOND * 3 / 4);
    assert_eq!(
        (&decision.steps[..], decision.again),
        (&[][..], Again::After(SECOND * 3 / 4))
    );
    let decision = reconcile(&observed);
    let waits = observed.pods["waits"].clone();
    let ask = Step::Ask {
        pod: waits.object.clone(),
        task_run: waits.controller.clone().unwrap(),
        run_uid: "u".to_owned(),
    };
    assert_eq!(decision.steps, [ask]);
    assert_eq!(answer(&mut observed, &decision, |_| ()), 1);
    let decision = reconcile(&observed);
    let [Step::Send { update, nodes }] = &decision.steps[..] else {
        panic!("{:?}", decision.steps);
    };
    assert_eq!(nodes, &["node-2"]);
    assert_eq!(update.placeholder, name(&observed));
    let reason = update.reason.clone().unwrap();
    assert_eq!(reason.code.as_str(), "PlaceholderMoved");
    let moved = Done::again(None, observed.now, &reason.message);
    assert_eq!(
        update.record,
        Record {
            moved,
            ..Record::default()
        }
    );
    // An answer is soon too old for a step to rest on it.
    observed.now += 2 * SECOND;
    let decision = reconcile(&observed);
    assert!(asks(&decision) && sent(&decision).is_none(), "{decision:?}");
}

#[test]
fn n2_what_is_not_wanted_any_more_settles_anew() {
    let mut observed = waiting();
    pass(&mut observed, SECOND);
    room(&mut observed, "node-1").allocatable = cpu(8000);
    pass(&mut observed, SECOND);
    room(&mut observed, "node-1").allocatable = cpu(1000);
    let decision = reconcile(&observed);
    assert_eq!(
        (asks(&decision), decision.again),
        (false, Again::After(SECOND))
    );
}

#[test]
fn n2_only_the_leader_makes_room_and_not_for_a_run_that_is_done_or_cannot_be_read() {
    #[track_caller]
    fn check(change: impl FnOnce(&mut Observed)) {
        let mut observed = waiting();
        change(&mut observed);
        let decision = settled(&mut observed);
        assert!(
            sent(&decision).is_none() && !asks(&decision),
            "{decision:?}"
        );
    }
    check(|observed| (observed.leads, observed.called) = (false, true));
    check(|observed| change_run(observed, |run| run.state = RunState::Done));
    check(|observed| {
        change_run(observed, |run| {
            let mode = crate::annotations::MODE.to_owned();
            run.annotations.insert(mode, "sideways".to_owned());
        });
    });
    check(|observed| own(observed).object.deleting = true);
    check(|observed| own_pod(observed).object.deleting = true);
    check(|observed| own_pod(observed).node = None);
    check(|observed| pod(observed, "waits").object.deleting = true);
    check(|observed| pod(observed, "waits").follows.clear());
    check(|observed| pod(observed, "waits").controller = Some(owner("Job", "j", "j")));
    check(|observed| pod(observed, "waits").unscheduled.as_mut().unwrap().no_node = false);
    check(|observed| room(observed, "node-1").allocatable = cpu(8000));
}

/// Nothing tells when there is room.
#[test]
fn n2_a_run_that_waits_is_looked_at_with_a_backoff() {
    let mut observed = waiting();
    room(&mut observed, "node-1").allocatable = cpu(8000);
    assert_eq!(reconcile(&observed).again, Again::Backoff);
}

/// By `taskRunSpecs` a run can give its pods the labels and the affinity of another one.
#[test]
fn n2_p7_nothing_is_done_or_said_for_a_pod_whose_task_run_is_another_runs() {
    let stranger = |answer: &mut Answer| answer.own = false;
    let mut observed = waiting();
    let decision = settled_with(&mut observed, stranger);
    assert_eq!(
        (&decision.steps[..], blocked(&decision)),
        (&[][..], Some(""))
    );
    let mut hopeless = waiting();
    Arc::make_mut(&mut hopeless.nodes).remove("node-2");
    let decision = settled_with(&mut hopeless, stranger);
    assert_eq!(
        (&decision.steps[..], blocked(&decision)),
        (&[][..], Some(""))
    );
    assert_eq!(decision.events, []);
}

#[test]
fn n2_why_nothing_helps_is_reported_for_the_runs_own_pods() {
    let mut observed = waiting();
    Arc::make_mut(&mut observed.nodes).remove("node-2");
    assert_eq!(blocked(&reconcile(&observed)), Some(""), "not at once");
    let decision = settled(&mut observed);
    assert_eq!(blocked(&decision), Some("PodFitsNoNode"));
    assert_eq!(codes(&decision.events), ["PodFitsNoNode"]);
    // A report needs no fresh answer.
    observed.now += 60 * SECOND;
    let decision = reconcile(&observed);
    assert_eq!(
        (asks(&decision), blocked(&decision)),
        (false, Some("PodFitsNoNode"))
    );
}

#[test]
fn n2_all_placeholders_of_a_run_share_its_five_moves() {
    let moved = |times: [u32; 2]| {
        let mut observed = waiting_in(Mode::Workspaces, &["one", "two"], "one", 2000);
        let done = times.map(|times| once(&observed, times, 600 * SECOND));
        let names: Vec<_> = observed
            .planned()
            .iter()
            .map(|it| it.name.to_string())
            .collect();
        for (name, done) in names.iter().zip(done) {
            let own = Arc::make_mut(observed.placeholders.get_mut(name).unwrap());
            own.record.moved = done;
        }
        settled(&mut observed)
    };
    let fifth = moved([2, 2]);
    assert!(sent(&fifth).is_some(), "{fifth:?}");
    let sixth = moved([2, 3]);
    assert_eq!(sixth.steps, []);
    assert_eq!(blocked(&sixth), Some("MovesExhausted"));
}

#[test]
fn n2_moves_wait_longer_and_longer_whichever_replica_made_them() {
    let mut observed = waiting();
    own(&mut observed).record.moved = once(&observed, 3, Duration::ZERO);
    for left in [3, 2, 1] {
        pass(&mut observed, SECOND);
        let decision = reconcile(&observed);
        assert_eq!(
            (&decision.steps[..], decision.again),
            (&[][..], Again::After(left * SECOND))
        );
    }
    observed.now += SECOND;
    let decision = reconcile(&observed);
    answer(&mut observed, &decision, |_| ());
    let decision = reconcile(&observed);
    let [Step::Send { update, .. }] = &decision.steps[..] else {
        panic!("{decision:?}");
    };
    assert_eq!(update.record.moved.as_ref().unwrap().times, 4);
}

#[test]
fn n2_a_pod_is_let_go_by_its_task_run_and_only_where_it_may_be() {
    let mut observed = pinned(Mode::PipelineRuns, "own");
    let decision = settled(&mut observed);
    let [
        Step::LetGo {
            pod,
            task_run,
            placeholder,
            times: 1,
            reason,
        },
    ] = &decision.steps[..]
    else {
        panic!("{:?}", decision.steps);
    };
    assert_eq!(*pod, observed.pods["waits"].object);
    assert_eq!(Some(task_run), observed.pods["waits"].task_run());
    assert_eq!(*placeholder, name(&observed));
    assert_eq!(reason.code.as_str(), "PodLetGo");
    for (mode, claim) in [
        (Mode::PipelineRuns, CLAIM),
        (Mode::IsolatePipelineRun, "own"),
    ] {
        let decision = settled(&mut pinned(mode, claim));
        assert_eq!(decision.steps, [], "{mode:?} {claim}");
        assert!(
            blocked(&decision).is_some_and(|code| !code.is_empty()),
            "{decision:?}"
        );
    }
}

#[test]
fn n2_pods_that_need_the_same_are_let_go_together() {
    let mut observed = pinned(Mode::PipelineRuns, "own");
    let mut other = (*observed.pods["waits"]).clone();
    other.object = object("waits-too", "w2");
    add(&mut observed, other);
    let decision = settled(&mut observed);
    assert_eq!(let_go(&decision), [("waits", 1), ("waits-too", 1)]);
}

/// Tekton may make the pod with its affinity again.
#[test]
fn n2_a_pod_is_let_go_five_times_and_not_at_once_again() {
    for (times, expect) in [(1, Some(2)), (4, Some(5)), (5, None)] {
        let mut observed = pinned(Mode::PipelineRuns, "own");
        pod(&mut observed, "waits").created = Some(observed.now - 60 * SECOND);
        let decision = settled_with(&mut observed, |answer| answer.let_go = times);
        let expect: Vec<_> = expect.into_iter().map(|times| ("waits", times)).collect();
        assert_eq!(let_go(&decision), expect, "{times} times before");
    }
    let mut observed = pinned(Mode::PipelineRuns, "own");
    pod(&mut observed, "waits").created = Some(observed.now);
    let decision = settled_with(&mut observed, |answer| answer.let_go = 3);
    assert_eq!(
        (&decision.steps[..], decision.again),
        (&[][..], Again::After(3 * SECOND))
    );
}

#[test]
fn n4_nothing_is_moved_for_a_pod_that_the_autoscaler_adds_a_node_for() {
    let mut observed = waiting();
    let since = observed.now;
    let decision = settled_with(&mut observed, |answer| answer.scale_up = Some(since));
    assert_eq!(
        (&decision.steps[..], decision.again),
        (&[][..], Again::Backoff)
    );
    // It may not come.
    observed.now = since + 60 * SECOND;
    assert!(sent(&settled(&mut observed)).is_some());
}

#[test]
fn n4_a_node_that_was_added_since_the_pod_waits_holds_a_move_back() {
    let held = |created: Option<i64>| {
        let mut observed = waiting();
        let at = |seconds: i64| observed.now - Duration::from_secs(seconds.unsigned_abs());
        let (waits, added) = (at(30), created.map(at));
        pod(&mut observed, "waits").created = Some(waits);
        room(&mut observed, "node-2").created = added;
        sent(&settled(&mut observed)).is_none()
    };
    assert!(held(Some(10)) && held(Some(30)));
    assert!(!held(Some(40)) && !held(None));
}

#[test]
fn n4_one_hold_follows_no_other_and_nodes_that_come_again_and_again_hold_back_once() {
    let mut observed = waiting();
    let began = observed.now;
    pod(&mut observed, "waits").created = Some(began);
    let mut number = 3;
    while observed.now < began + 60 * SECOND {
        let mut added = room(&mut observed, "node-1").clone();
        added.node.name = format!("node-{number}");
        added.created = Some(observed.now);
        Arc::make_mut(&mut observed.nodes).insert(added.node.name.clone(), Arc::new(added));
        number += 1;
        let decision = settled_with(&mut observed, |_| ());
        assert_eq!(decision.steps, [], "after {:?}", observed.now);
        observed.now += 9 * SECOND;
    }
    // The autoscaler says so only now: the first news counts.
    let now = observed.now;
    let decision = settled_with(&mut observed, |answer| answer.scale_up = Some(now));
    assert!(sent(&decision).is_some(), "{decision:?}");
}

/// The scheduler has the last word.
#[test]
fn n2_room_that_the_scheduler_leaves_for_a_while_counts_as_refused() {
    let mut observed = waiting_in(Mode::PipelineRuns, &[CLAIM], CLAIM, 500);
    pass(&mut observed, 29 * SECOND);
    assert!(sent(&settled(&mut observed)).is_none(), "not after 29 s");
    assert_eq!(
        sent(&settled(&mut observed)),
        Some(&["node-2".to_owned()][..])
    );
    // The time of another node does not count.
    let mut observed = waiting_in(Mode::PipelineRuns, &[CLAIM], CLAIM, 500);
    pass(&mut observed, 20 * SECOND);
    own_pod(&mut observed).node = Some("node-2".to_owned());
    pass(&mut observed, 20 * SECOND);
    assert!(sent(&settled(&mut observed)).is_none());
}

#[test]
fn n2_a_node_that_the_scheduler_did_not_take_is_not_tried_for_two_minutes() {
    for (ago, expect) in [(100, false), (120, true)] {
        let mut observed = waiting();
        let at = observed.now - Duration::from_secs(ago);
        own(&mut observed).record.refused = [("node-2".to_owned(), at)].into();
        let decision = settled(&mut observed);
        assert_eq!(sent(&decision).is_some(), expect, "after {ago} s");
        let code = if expect { "" } else { "PodUnschedulable" };
        assert_eq!(blocked(&decision), Some(code));
    }
}

#[test]
fn n2_the_runs_own_pods_are_waited_for() {
    let mut observed = waiting_in(Mode::PipelineRuns, &[CLAIM], CLAIM, 500);
    let mut runs = task("runs", "", 700);
    runs.claims.clear();
    (runs.node, runs.started) = (Some("node-1".to_owned()), true);
    add(&mut observed, runs);
    room(&mut observed, "node-1").requested = cpu(750);
    let decision = settled(&mut observed);
    assert_eq!(
        (&decision.steps[..], blocked(&decision)),
        (&[][..], Some(""))
    );
    // Once it has ended, there is room.
    pod(&mut observed, "runs").phase = PodPhase::Succeeded;
    assert!(sent(&settled(&mut observed)).is_some());
}

/// Pods on a node that the placeholder cannot leave: those that follow it, and those that use a claim that it holds.
#[test]
fn n2_claims_in_use_are_not_left() {
    let stays = |of_run: bool, change: fn(&mut Pod, &str)| {
        let mut observed = waiting();
        let mut resident = task("resident", "", 0);
        resident.node = Some("node-1".to_owned());
        resident.started = true;
        resident.claims = vec!["own".to_owned()];
        change(&mut resident, &name(&observed));
        if of_run {
            add(&mut observed, resident);
        } else {
            observed.sharing.push(Arc::new(resident));
        }
        sent(&settled(&mut observed)).is_none()
    };
    assert!(stays(true, |pod, name| pod.follows = vec![name.to_owned()]));
    assert!(stays(true, |pod, _| pod.claims = vec![CLAIM.to_owned()]));
    assert!(stays(false, |pod, _| pod.claims = vec![CLAIM.to_owned()]));
    assert!(!stays(true, |_, _| ()));
    assert!(!stays(false, |_, _| ()));
    assert!(!stays(false, |pod, name| pod.follows = vec![name.to_owned()]));
    let elsewhere = |pod: &mut Pod, _: &str| {
        pod.claims = vec![CLAIM.to_owned()];
        pod.node = Some("node-2".to_owned());
    };
    assert!(!stays(true, elsewhere) && !stays(false, elsewhere));
    let ended = |pod: &mut Pod, _: &str| {
        pod.claims = vec![CLAIM.to_owned()];
        pod.phase = PodPhase::Failed;
    };
    assert!(!stays(true, ended) && !stays(false, ended));
}
