//! Placeholders that ask the scheduler for the room that their runs need (B3, N7).

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
    change_run(&mut observed, |run| {
        let defaults = run.annotations.get_mut(PLACEHOLDER).unwrap();
        let mut value: serde_json::Value = serde_json::from_str(defaults).unwrap();
        value["reserves"] = json!("placement");
        *defaults = value.to_string();
        run.annotations.insert(SIZES.to_owned(), SIZED.to_owned());
    });
    change_pods(&mut observed, |pod, placeholder| {
        pod.node = None;
        pod.phase = PodPhase::Pending;
        pod.started = false;
        placeholder.gated = true;
        placeholder.asks = cpu(50);
    });
    observed
}

/// Changes every placeholder's pod.
fn change_pods(observed: &mut Observed, change: impl Fn(&mut Pod, &mut PlaceholderLabels)) {
    for pod in observed.pods.values_mut() {
        let pod = Arc::make_mut(pod);
        if let Some(mut placeholder) = pod.placeholder.take() {
            change(pod, &mut placeholder);
            pod.placeholder = Some(placeholder);
        }
    }
}

/// The placeholder's pod without its gate, as it asks for this much CPU.
fn asking(milli_cpu: i128) -> Observed {
    let mut observed = gated();
    change_pods(&mut observed, |_, placeholder| {
        placeholder.gated = false;
        placeholder.asks = cpu(milli_cpu);
    });
    observed
}

fn refuse(observed: &mut Observed) {
    change_pods(observed, |pod, _| {
        unschedulable(pod, "0/2 nodes are available")
    });
}

/// The CPU that pods are opened with, in the order of the placeholders, and the node for each.
fn opening(decision: &Decision) -> Vec<(Option<i128>, Option<&str>)> {
    let steps = decision.steps.iter();
    let opening = steps.filter_map(|step| match step {
        Step::Open { size, node, .. } => {
            Some((size.as_ref().map(|size| size.milli_cpu), node.as_deref()))
        }
        _ => None,
    });
    opening.collect()
}

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
    assert_eq!(opening(&reconcile(&gated())), [(Some(3550), None)]);
    let mut unknown = gated();
    change_run(&mut unknown, |run| drop(run.annotations.remove(SIZES)));
    assert_eq!(opening(&reconcile(&unknown)), [(None, None)]);
    // Real pods count where nothing is known.
    let follows = name(&unknown);
    add(&mut unknown, task("a", &follows, 400));
    add(&mut unknown, task("b", &follows, 300));
    assert_eq!(opening(&reconcile(&unknown)), [(Some(750), None)]);
}

#[test]
fn b3_under_a_quota_nothing_is_reserved_and_the_author_hears_it() {
    let mut observed = gated();
    observed.has_quota = true;
    let decision = reconcile(&observed);
    assert_eq!(opening(&decision), [(None, None)]);
    let mut told = decision.events.iter().map(|reason| reason.code.as_str());
    assert!(told.any(|code| code == "ReservationRefused"));
}

#[test]
fn b3_in_workspaces_the_tasks_of_each_claim_count() {
    let observed = gated_in(Mode::Workspaces, &["data", "other"]);
    let decision = reconcile(&observed);
    let mut sizes = opening(&decision);
    sizes.sort();
    // Of data's tasks, three comes after one.
    assert_eq!(sizes, [(Some(1550), None), (Some(2050), None)]);
}

#[test]
fn b3_tasks_that_have_ended_or_are_skipped_do_not_count() {
    let mut observed = gated();
    change_run(&mut observed, |run| {
        run.task_runs = [("build-two".to_owned(), "two".to_owned())].into();
    });
    assert_eq!(opening(&reconcile(&observed)), [(Some(1550), None)]);
    change_run(&mut observed, |run| {
        run.skipped_tasks = vec!["three".to_owned()];
    });
    assert_eq!(opening(&reconcile(&observed)), [(Some(1050), None)]);
}

#[test]
fn n5_another_replica_opens_the_gate_a_moment_later() {
    let mut observed = gated();
    observed.leads = false;
    assert_eq!(opening(&pass(&mut observed, SECOND)), []);
    assert_eq!(opening(&pass(&mut observed, SECOND)), []);
    assert_eq!(opening(&reconcile(&observed)), [(Some(3550), None)]);
}

#[test]
fn b3_a_placeholder_returns_to_pods_that_run_unless_their_node_is_bad() {
    let mut observed = gated();
    let runs = Pod {
        node: Some("node-1".to_owned()),
        started: true,
        phase: PodPhase::Running,
        ..task("a", &name(&observed), 1000)
    };
    add(&mut observed, runs);
    assert_eq!(opening(&reconcile(&observed)), [(None, Some("node-1"))]);
    room(&mut observed, "node-1").node.unschedulable = true;
    assert_eq!(opening(&reconcile(&observed)), [(Some(3550), None)]);
}

#[test]
fn n7_a_wish_that_the_scheduler_refuses_becomes_the_need_and_the_need_waits() {
    let mut observed = asking(3550);
    assert_eq!(shrinking(&reconcile(&observed)), None, "not decided yet");
    refuse(&mut observed);
    let reduced = Some((2050, Some("ReservationReduced")));
    assert_eq!(shrinking(&reconcile(&observed)), reduced);
    observed.leads = false;
    assert_eq!(shrinking(&reconcile(&observed)), None);
    observed.leads = true;
    change_pods(&mut observed, |pod, _| {
        pod.unscheduled.as_mut().unwrap().is_newest = false;
    });
    assert_eq!(
        shrinking(&reconcile(&observed)),
        None,
        "about an older size"
    );
    let mut needs = asking(2050);
    refuse(&mut needs);
    assert_eq!(shrinking(&reconcile(&needs)), None);
}

#[test]
fn b3_a_bound_placeholder_gives_its_room_up_and_never_grows() {
    let bind = |observed: &mut Observed| {
        change_pods(observed, |pod, _| pod.node = Some("node-2".to_owned()));
    };
    let mut observed = asking(3550);
    bind(&mut observed);
    assert_eq!(shrinking(&reconcile(&observed)), Some((50, None)));
    for small in [50, 20] {
        let mut observed = asking(small);
        bind(&mut observed);
        assert_eq!(shrinking(&reconcile(&observed)), None);
    }
}

/// A bound placeholder, and a pod of its run that fits no node.
fn too_large() -> Observed {
    let mut observed = asking(50);
    change_pods(&mut observed, |pod, _| {
        pod.node = Some("node-1".to_owned());
        pod.phase = PodPhase::Running;
    });
    let mut large = task("large", &name(&observed), 6000);
    unschedulable(&mut large, "Insufficient cpu");
    add(&mut observed, large);
    observed
}

#[test]
fn b3_until_the_kubelet_has_given_the_room_up_nothing_moves() {
    let mut observed = too_large();
    change_pods(&mut observed, |_, placeholder| placeholder.resizing = true);
    assert!(!asks_anew(&mut observed));
    change_pods(&mut observed, |_, placeholder| {
        placeholder.resizing = false;
        placeholder.asks = cpu(3550);
    });
    assert!(!asks_anew(&mut observed));
}

#[test]
fn b3_a_gate_is_no_cause_for_the_author() {
    let mut observed = gated();
    change_pods(&mut observed, |pod, _| {
        unschedulable(
            pod,
            "Scheduling is blocked due to non-empty scheduling gates",
        );
        pod.unscheduled.as_mut().unwrap().no_node = false;
    });
    pass(&mut observed, 60 * SECOND);
    let told = reconcile(&observed).events;
    assert!(told.is_empty(), "{told:?}");
}

fn asks_anew(observed: &mut Observed) -> bool {
    pass(observed, 2 * SECOND);
    let decision = reconcile(observed);
    answer(observed, &decision, |_| {});
    let decision = reconcile(observed);
    decision.steps.iter().any(|step| match step {
        Step::Evict { update, reason, .. } => {
            let moved = update.as_ref().unwrap().record.moved.as_ref();
            assert_eq!(
                (moved.unwrap().times, reason.code.as_str()),
                (1, "PlaceholderMoved")
            );
            true
        }
        _ => false,
    })
}

#[test]
fn n7_a_placeholder_leaves_for_a_node_that_only_an_autoscaler_can_add() {
    let mut observed = too_large();
    assert!(asks_anew(&mut observed));
    // A volume ties it to its node.
    let mut tied = too_large();
    let term = NodeTerm {
        expressions: vec![NodeRequirement {
            key: "kubernetes.io/hostname".to_owned(),
            operator: Operator::In,
            values: vec!["node-1".to_owned()],
        }],
        ..NodeTerm::default()
    };
    let seen = tied.volumes.get_mut(CLAIM).unwrap();
    seen.volume = Some(SeenVolume { terms: vec![term] });
    assert!(!asks_anew(&mut tied));
    // Without a reservation it would only wait elsewhere.
    let mut nothing = too_large();
    change_run(&mut nothing, |run| {
        let defaults = run.annotations.get_mut(PLACEHOLDER).unwrap();
        *defaults = defaults.replace("placement", "nothing");
    });
    assert!(!asks_anew(&mut nothing));
}
