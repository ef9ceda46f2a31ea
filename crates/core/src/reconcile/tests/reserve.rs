//! Placeholders that ask the scheduler for the room that their runs need (B3, N7).

use super::evacuate::choose_pods;
use super::make_room::left;
use super::*;
use crate::annotations::{PLACEHOLDER, SIZES};
use crate::reconcile::reserve::GATE;

const SIZED: &str = r#"{
    "one": {"requests": {"cpu": "1"}, "workspaces": ["data"]},
    "two": {"requests": {"cpu": "2"}, "after": ["one"], "workspaces": ["other"]},
    "three": {"requests": {"cpu": "1500m"}, "after": ["one"], "workspaces": ["data"]}
}"#;

/// The code of the Event about a placeholder that asks for less.
const REDUCED: Option<&str> = Some("ReservationReduced");

/// A run that reserves room. The placeholder's pod still has its gate. Tasks `two` and `three` can run at the same time.
fn gated() -> Observed {
    gated_in(Mode::PipelineRuns, &[CLAIM])
}

fn gated_in(mode: Mode, claims: &[&str]) -> Observed {
    let mut observed = observed_in(mode, claims);
    set_sizes(&mut observed, SIZED);
    for pod in observed.pods.values_mut().map(Arc::make_mut) {
        pod.node = None;
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

fn set_reserves(observed: &mut Observed, reserves: &str) {
    change_run(observed, |run| {
        let defaults = run.annotations.get_mut(PLACEHOLDER).unwrap();
        *defaults = defaults.replace(":\"placement\"", &format!(":\"{reserves}\""));
    });
}

pub(super) fn labels(observed: &mut Observed) -> &mut PlaceholderLabels {
    own_pod(observed).placeholder.as_mut().unwrap()
}

/// The placeholder's pod has no gate any more, and asks for this much CPU.
fn open(observed: &mut Observed, milli_cpu: i128) {
    let labels = labels(observed);
    (labels.gated, labels.asks) = (false, cpu(milli_cpu));
}

/// The scheduler finds no node with room for the placeholder's pod, which asks for this much CPU.
fn refused(mut observed: Observed, milli_cpu: i128) -> Observed {
    open(&mut observed, milli_cpu);
    let said = "0/2 nodes are available: 2 Insufficient cpu.";
    unschedulable(own_pod(&mut observed), said);
    observed
}

/// A run with these pods. Its placeholder has left node-1, and asks for room again.
fn asks_again(reserves: &str, pods: &[Pod]) -> Observed {
    asks_again_in(Mode::PipelineRuns, reserves, pods)
}

fn asks_again_in(mode: Mode, reserves: &str, pods: &[Pod]) -> Observed {
    let mut observed = gated_in(mode, &[CLAIM]);
    set_reserves(&mut observed, reserves);
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

/// A gated placeholder, and two waiting pods. Pod `a` needs another kind of node. Pod `b` requests more, and can run on any node.
fn with_special() -> Observed {
    let mut special = task("a", "", 300);
    special.needs.selector = [("pool".to_owned(), "gpu".to_owned())].into();
    let mut observed = asks_again("nothing", &[special, task("b", "", 700)]);
    confirm(&mut observed, "a", true);
    observed
}

/// Stores the API server's answer about the pod: `own` is true if the pod belongs to the run.
pub(super) fn confirm(observed: &mut Observed, pod: &str, own: bool) {
    let answer = Answer {
        own,
        ..Answer::default()
    };
    let uid = observed.pods[pod].object.uid.clone();
    observed.answers.insert(uid, answer);
}

/// For each pod whose gate is removed: the CPU requests to try, in order, and the nodes that may take the pod.
fn opening(observed: &Observed) -> Vec<(Vec<i128>, Place)> {
    let cpu = |sizes: &[Amounts]| sizes.iter().map(|it| it.milli_cpu).collect();
    let decision = reconcile(observed);
    taken!(decision, Step::Open { sizes, place, .. } => (cpu(sizes), place.clone())).collect()
}

/// The CPU requests to try for the only pod, in order.
fn opened(observed: &Observed) -> Vec<i128> {
    opening(observed).remove(0).0
}

/// The nodes that may take the only pod.
fn place(observed: &Observed) -> Place {
    opening(observed).remove(0).1
}

/// The CPU request to which the pod is reduced, and the code of the Event.
fn shrinking(decision: &Decision) -> Option<(i128, Option<&str>)> {
    let mut shrinking = taken!(decision, Step::Shrink { size, reason, .. } => (size, reason));
    let (size, reason) = shrinking.next()?;
    Some((size.milli_cpu, reason.as_ref().map(|it| it.code.as_str())))
}

#[test]
fn b3_n2_a_gated_pod_asks_for_the_peak_or_for_a_pod_that_waits() {
    assert!(GATE.starts_with(crate::annotations::PREFIX));
    let pods = [task("a", "", 300), task("b", "", 700)];
    let mut observed = asks_again("placement", &pods);
    // If the API server refuses the peak, the placeholder asks for the largest pod.
    assert_eq!(opened(&observed), [3550, 2050]);
    // The estimate is too low, so the requests of the existing pods count.
    set_sizes(&mut observed, r#"{"one": {"requests": {"cpu": "100m"}}}"#);
    assert_eq!(opened(&observed), [1050, 750]);
    // The placeholder could not give up its room before, so it asks for none.
    own(&mut observed).record.keeps_room = true;
    assert_eq!(opened(&observed), [0; 0]);
    assert_eq!(opened(&asks_again("nothing", &pods)), [750]);
    let mut nothing = asks_again("nothing", &[]);
    assert_eq!(opened(&nothing), [0; 0]);
    // The manager ended after it had increased the pod's requests to the peak.
    labels(&mut nothing).asks = cpu(3550);
    assert_eq!(opened(&nothing), [50]);
}

#[test]
fn b3_in_workspaces_the_tasks_of_each_claim_count() {
    let opening = opening(&gated_in(Mode::Workspaces, &["data", "other"]));
    let sizes: BTreeSet<_> = opening.iter().map(|it| it.0[0]).collect();
    // Two tasks use claim `data`, but not at the same time: `three` runs after `one`.
    assert_eq!(sizes, [1550, 2050].into());
}

#[test]
fn b1_b3_the_tasks_of_another_subset_do_not_count() {
    let mut observed = gated();
    assert_eq!(opened(&observed), [3550, 2050]);
    change_run(&mut observed, |run| {
        let schema = crate::annotations::SCHEMA_VERSION.to_owned();
        run.annotations.insert(schema, "3".to_owned());
        let subsets = r#"{"0123456789": {"nodeSelector": {"arch": "arm64"}, "tasks": ["two"]}}"#;
        let subsets = subsets.to_owned();
        run.annotations
            .insert(crate::annotations::SUBSETS.to_owned(), subsets);
    });
    assert_eq!(opened(&observed), [1550]);
}

#[test]
fn b3_tasks_that_have_ended_or_are_skipped_do_not_count() {
    #[track_caller]
    fn check(one: &str, started: &[&str], ended: &[&str], skipped: &[&str], expect: &[i128]) {
        let task_run = |task: &&str| format!("build-{task}");
        let mut observed = gated();
        set_sizes(&mut observed, &SIZED.replace("\"1\"", one));
        let started = started.iter().map(|it| (task_run(it), it.to_string()));
        change_run(&mut observed, |run| {
            run.task_runs = started.collect();
            run.skipped_tasks = skipped.iter().map(ToString::to_string).collect();
        });
        observed.ended = ended.iter().map(task_run).collect();
        assert_eq!(opened(&observed), expect);
    }
    // A TaskRun exists some time before its pod.
    check("\"1\"", &["two"], &[], &[], &[3550, 2050]);
    check("\"1\"", &["two"], &["two"], &[], &[1550]);
    check("\"1\"", &["two"], &["two"], &["three"], &[1050]);
    // In the second case, a task that waits for `one` has started. So `one` has ended, although it never had a pod: it timed
    // out.
    check("\"9\"", &["one"], &[], &[], &[9050]);
    check("\"9\"", &["one", "two"], &[], &[], &[3550, 2050]);
}

#[test]
fn n5_another_replica_opens_the_gate_a_moment_later() {
    let mut observed = gated();
    observed.leads = false;
    pass(&mut observed, 2 * SECOND);
    assert_eq!(pass(&mut observed, SECOND).steps, []);
    assert_eq!(opened(&observed), [3550, 2050]);
}

#[test]
fn b3_a_placeholder_returns_to_pods_that_run_unless_their_node_is_bad() {
    let mut observed = asks_again("placement", &[on_node_1("a", 1000)]);
    let home = Place {
        only: Some("node-1".to_owned()),
        limited_by: Some("node node-1, where pods of the run were".to_owned()),
        ..Place::default()
    };
    // The scheduler bound pod `a` to node-1 while the placeholder left this node.
    for phase in [PodPhase::Pending, PodPhase::Running] {
        pod(&mut observed, "a").phase = phase;
        assert_eq!(opening(&observed), [(vec![], home.clone())]);
    }
    let task_run = pod(&mut observed, "a")
        .controller
        .replace(owner("Job", "any", "any"));
    assert_eq!(place(&observed).only, None, "the pod has no TaskRun");
    pod(&mut observed, "a").controller = task_run;
    node(&mut observed, "node-1").unschedulable = true;
    assert_eq!(opened(&observed), [3550, 2050]);
    assert_eq!(place(&observed).only, None);
}

#[test]
fn n7_a_wish_that_the_scheduler_refuses_becomes_the_need_and_the_need_waits() {
    let mut observed = gated();
    open(&mut observed, 3550);
    assert_eq!(shrinking(&reconcile(&observed)), None, "not decided yet");
    let mut observed = refused(observed, 3550);
    assert_eq!(shrinking(&reconcile(&observed)), Some((2050, REDUCED)));
    observed.leads = false;
    assert_eq!(shrinking(&reconcile(&observed)), None);
    observed.leads = true;
    let refusal = own_pod(&mut observed).unscheduled.as_mut();
    refusal.unwrap().is_newest = false;
    let decision = pass(&mut observed, 5 * SECOND);
    assert_eq!(shrinking(&decision), None, "about an older size");
    // The scheduler does not repeat a condition that has not changed.
    assert_eq!(shrinking(&reconcile(&observed)), Some((2050, REDUCED)));
    observed.peak_wait = 6 * SECOND;
    assert_eq!(shrinking(&pass(&mut observed, SECOND)), None);
    assert_eq!(shrinking(&reconcile(&observed)), Some((2050, REDUCED)));
    assert_eq!(shrinking(&reconcile(&refused(gated(), 2050))), None);
    // If the run starts no more pods, there is no Event.
    observed.peak_wait = Duration::ZERO;
    let all = ["one", "two", "three"].map(str::to_owned);
    change_run(&mut observed, |run| run.skipped_tasks.extend(all));
    assert_eq!(shrinking(&reconcile(&observed)), Some((50, None)));
}

#[test]
fn b3_a_gate_is_no_cause_for_the_author() {
    let mut observed = refused(gated(), 50);
    let refusal = own_pod(&mut observed).unscheduled.as_mut();
    refusal.unwrap().no_node = false;
    // After the gate was removed, the condition stays until the scheduler has tried to bind the pod.
    for gated in [true, false] {
        labels(&mut observed).gated = gated;
        pass(&mut observed, 60 * SECOND);
        assert_eq!(reconcile(&observed).events, []);
    }
}

#[test]
fn n2_a_placeholder_that_asks_for_a_pods_own_kind_of_node_asks_for_this_pod_only() {
    let mut observed = with_special();
    assert_eq!(opened(&observed), [350]);
    let limit = place(&observed).limited_by;
    assert_eq!(limit.as_deref(), Some("nodes that pod a can use"));
    // The placeholder itself has stricter requirements on a node than the pod.
    let mut stricter = with_special();
    let nodes = [("pool", "gpu"), ("zone", "a")].map(|(key, value)| (key.into(), value.into()));
    own(&mut stricter).needs.selector = nodes.into();
    assert_eq!(opened(&stricter), [750]);
    // A pod of another run adds nothing.
    confirm(&mut observed, "a", false);
    assert_eq!(opened(&observed), [750]);
    assert_eq!(place(&observed).limited_by, None);
    confirm(&mut observed, "b", false);
    assert_eq!(opened(&observed), [0; 0]);
}

/// In the first two cases, the placeholder is restricted to certain nodes because of a pod. The restriction ends when the pod is
/// gone. In the third case, the gate was removed before a pod of the run was bound, so the placeholder must go to the node of
/// this pod.
#[test]
fn b3_n2_a_placeholder_that_finds_no_node_asks_again_where_its_runs_pods_are() {
    let leaves = |observed: &Observed| {
        let decision = reconcile(observed);
        taken!(decision, Step::Evict(Eviction { record: None, .. }) => ())
            .next()
            .is_some()
    };
    for (limit, gone) in [
        (Some("nodes that pod a can use"), "a"),
        (Some("node node-1, where pods of the run were"), "runs"),
        (None, "a"),
    ] {
        let mut observed = refused(with_special(), 50);
        let follows = vec![name(&observed)];
        let runs = on_node_1("runs", 300);
        add(&mut observed, Pod { follows, ..runs });
        labels(&mut observed).limited_by = limit.map(str::to_owned);
        pass(&mut observed, SECOND);
        assert!(!leaves(&observed), "its own binding may be under way");
        pass(&mut observed, SECOND);
        assert_eq!(leaves(&observed), limit.is_none(), "{limit:?}");
        observed.pods.remove(gone);
        pass(&mut observed, 2 * SECOND);
        assert!(leaves(&observed), "{limit:?}");
        own(&mut observed).gated = false;
        assert_eq!(
            leaves(&observed),
            limit.is_some(),
            "only a gated pod returns"
        );
        own_pod(&mut observed).unscheduled = None;
        assert!(!leaves(&observed), "the scheduler may find a node");
    }
}

/// The scheduler could not bind the placeholder, and may be binding pod `a` to the node that it had chosen.
fn not_bound(mode: Mode) -> Observed {
    let mut observed = refused(
        asks_again_in(mode, "placement", &[task("a", "", 300)]),
        3550,
    );
    fails(&mut observed);
    observed.has_rivals = true;
    observed
}

fn fails(observed: &mut Observed) {
    let refusal = own_pod(observed).unscheduled.as_mut().unwrap();
    (refusal.no_node, refusal.failed) = (false, true);
}

fn evictions(observed: &Observed) -> Vec<&'static str> {
    let decision = reconcile(observed);
    taken!(decision, Step::Evict(it) => it.reason.code.as_str()).collect()
}

const MOVED: &[&str] = &["PlaceholderMoved"];

/// The scheduler assumes that its bindings succeed, so it may bind a pod beside a placeholder that it then cannot bind.
#[test]
fn p2_a_placeholder_that_could_not_be_bound_returns_at_once_to_pods_that_were_bound_beside_it() {
    let mut observed = not_bound(Mode::PipelineRuns);
    assert!(evictions(&observed).is_empty(), "no pod is bound");
    pod(&mut observed, "a").node = Some("node-1".to_owned());
    for reserves in ["placement", "peak"] {
        let mut observed = observed.clone();
        set_reserves(&mut observed, reserves);
        assert_eq!(shrinking(&reconcile(&observed)), Some((50, None)));
        assert!(evictions(&observed).is_empty());
    }
    labels(&mut observed).asks = cpu(50);
    assert_eq!(evictions(&observed), MOVED);
    let nominates: fn(&mut Observed) = |observed| {
        let failed = own_pod(observed).unscheduled.as_mut();
        failed.unwrap().nominated = Some("node-1".to_owned());
    };
    let stays: [fn(&mut Observed); 8] = [
        nominates,
        |observed| node(observed, "node-2").unschedulable = true,
        |observed| {
            let labels = BTreeMap::from([("pool".to_owned(), "gpu".to_owned())]);
            node(observed, "node-2").labels = labels.clone();
            own(observed).needs.selector = labels;
        },
        |observed| pin(observed, CLAIM),
        |observed| observed.volumes.get_mut(CLAIM).unwrap().volume = None,
        |observed| own(observed).gated = false,
        |observed| observed.leads = false,
        |observed| {
            let home = "node node-1, where pods of the run were".to_owned();
            labels(observed).limited_by = Some(home);
        },
    ];
    for change in stays {
        let mut observed = observed.clone();
        change(&mut observed);
        assert!(evictions(&observed).is_empty());
    }
    // After the backoff, the scheduler may have chosen a node again.
    for seconds in 1..=3 {
        pass(&mut observed, SECOND);
        let expect = if seconds < 3 { &[] } else { MOVED };
        assert_eq!(evictions(&observed), expect, "{seconds}");
    }
    // Another isolated run may have taken the nominated node.
    let mut isolated = not_bound(Mode::IsolatePipelineRun);
    pod(&mut isolated, "a").node = Some("node-1".to_owned());
    nominates(&mut isolated);
    assert_eq!(evictions(&isolated), MOVED);
    isolated.has_rivals = false;
    assert!(evictions(&isolated).is_empty());
    isolated.has_rivals = true;
    pin(&mut isolated, CLAIM);
    assert!(evictions(&isolated).is_empty());
    assert_eq!(shrinking(&reconcile(&isolated)), Some((50, None)));
}

#[test]
fn p2_m4_an_isolated_placeholder_that_could_not_be_bound_does_not_wait_until_its_pods_are_bound() {
    let observed = not_bound(Mode::IsolatePipelineRun);
    assert_eq!(evictions(&observed), MOVED);
    let check = |change: &dyn Fn(&mut Observed), expect: &[&str]| {
        let mut observed = observed.clone();
        change(&mut observed);
        assert_eq!(evictions(&observed), expect);
    };
    let said =
        |text: &'static str| move |observed: &mut Observed| unschedulable(pod(observed, "a"), text);
    check(&said("persistentvolumeclaim \"source\" not found"), MOVED);
    check(&said("0/2 nodes are available"), &[]);
    let nominated = |observed: &mut Observed| {
        said("0/2 nodes are available")(observed);
        let refusal = pod(observed, "a").unscheduled.as_mut().unwrap();
        refusal.nominated = Some("node-1".to_owned());
    };
    check(&nominated, MOVED);
    check(&|observed| drop(observed.pods.remove("a")), &[]);
    check(&|observed| observed.leads = false, &[]);
    check(&|observed| observed.has_rivals = false, &[]);
    check(&|observed| own(observed).gated = false, &[]);
    check(&|observed| pin(observed, CLAIM), &[]);
    // Now the scheduler may have chosen a node again.
    check(&|observed| drop(pass(observed, SECOND)), &[]);
}

#[test]
fn p2_after_a_failed_binding_the_gate_stays_until_the_node_of_the_runs_pods_is_known() {
    let mut observed = not_bound(Mode::IsolatePipelineRun);
    pass(&mut observed, SECOND);
    // The pod is deleted, and its controller creates the next one.
    let gone = own_pod(&mut observed).object.name.clone();
    let mut next = Pod::clone(&observed.pods.remove(&gone).unwrap());
    pass(&mut observed, Duration::ZERO);
    next.unscheduled = None;
    let labels = next.placeholder.as_mut().unwrap();
    (labels.gated, labels.asks) = (true, cpu(50));
    add(&mut observed, next);
    let opens = |observed: &Observed| {
        let decision = reconcile(observed);
        let mut opens = taken!(decision, Step::Open { place, sizes, unless_followed, .. } =>
            (place.only.clone(), sizes.len(), *unless_followed));
        opens.next()
    };
    for leads in [true, false] {
        observed.leads = leads;
        assert_eq!(opens(&observed), None);
    }
    observed.leads = true;
    let mut known = observed.clone();
    pod(&mut known, "a").node = Some("node-1".to_owned());
    assert_eq!(opens(&known), Some((Some("node-1".to_owned()), 0, false)));
    let mut alone = observed.clone();
    alone.pods.remove("a");
    assert!(opens(&alone).is_some());
    pass(&mut observed, SECOND);
    assert_eq!(opens(&observed), None);
    pass(&mut observed, SECOND);
    assert_eq!(opens(&observed), Some((None, 2, true)), "asks live");
    // The scheduler finds no node, and later a node to which it cannot bind the pod. That is a new failure.
    let mut later = refused(observed, 3550);
    pass(&mut later, SECOND);
    fails(&mut later);
    assert_eq!(evictions(&later), MOVED);
    // Only a failure within the last second counts.
    pass(&mut later, SECOND);
    assert!(evictions(&later).is_empty());
    let pod = own_pod(&mut later);
    (pod.node, pod.unscheduled) = (Some("node-2".to_owned()), None);
    let mut sights = reconcile(&later).sights.into_iter();
    assert!(!sights.any(|it| matches!(it, Sight::Failed(_))));
}

#[test]
fn n2_a_placeholder_asks_for_a_node_like_the_waiting_pods_and_prefers_another_than_before() {
    let mut observed = asks_again("nothing", &[task("a", "", 300)]);
    assert_eq!(place(&observed).with, None, "it may be another run's pod");
    confirm(&mut observed, "a", true);
    let expect = Place {
        with: Some(observed.pods["a"].needs.clone()),
        avoid: Some("node-1".to_owned()),
        ..Place::default()
    };
    assert_eq!(place(&observed), expect);
    // A placeholder that has never left a node has no such restriction or preference.
    assert_eq!(place(&gated()), Place::default());
    // Kubernetes resizes no extended resource, and a quota may refuse CPU and memory. So nodes that are large enough are
    // preferred.
    let gpu = |milli_cpu| Amounts {
        others: [("example.dev/gpu".to_owned(), 1)].into(),
        ..cpu(milli_cpu)
    };
    pod(&mut observed, "a").needs.requests = gpu(300);
    for (one, two, expect) in [
        (cpu(350), cpu(350), vec![]),
        (cpu(350), gpu(350), vec!["node-2"]),
        (gpu(349), gpu(350), vec!["node-2"]),
        (gpu(350), gpu(350), vec![]),
        // The placeholder left node-1, so it does not prefer node-1.
        (gpu(350), gpu(349), vec![]),
    ] {
        node(&mut observed, "node-1").allocatable = one;
        node(&mut observed, "node-2").allocatable = two;
        assert_eq!(place(&observed).prefer, expect);
    }
}

#[test]
fn b3_under_a_quota_a_placeholder_asks_only_for_a_pod_that_waits_and_the_author_hears_it() {
    let mut observed = asks_again("placement", &[task("a", "", 300)]);
    observed.has_quota = true;
    assert_eq!(opened(&observed), [3550, 2050]);
    // The first pod of a run waits for its placeholder, not for room.
    own(&mut observed).record.left = None;
    assert_eq!(opened(&observed), [0; 0]);
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
        // The pod requests more than was estimated, and the placeholder keeps no room.
        ("peak", 3550, vec![on_node_1("one", 9000)], Some(50)),
    ] {
        let decision = reconcile(&bound(reserves, asks, &pods));
        let expect = expect.map(|size| (size, None));
        assert_eq!(shrinking(&decision), expect, "{asks} {pods:?}");
    }
    let mut quota = bound("peak", 3550, &one());
    quota.has_quota = true;
    assert_eq!(shrinking(&reconcile(&quota)), Some((50, None)));
    // The placeholder's requests are below the peak, so the kept room may be too small for a pod that waits. The placeholder
    // gives up all its room.
    let mut waits = task("waits", "", 2000);
    unschedulable(&mut waits, "Insufficient cpu");
    let mut reduced = bound("peak", 1550, &[waits]);
    assert_eq!(shrinking(&settled(&mut reduced)), Some((50, None)));
}

#[test]
fn b3_a_placeholder_comes_back_if_it_is_not_reduced() {
    // The kubelet does not act, or the API server refuses.
    for (resizing, asks) in [(true, 50), (false, 9000)] {
        let mut observed = bound("peak", asks, &[]);
        labels(&mut observed).resizing = resizing;
        pass(&mut observed, 9 * SECOND);
        assert_eq!(left(&pass(&mut observed, SECOND)), None);
        let decision = reconcile(&observed);
        assert_eq!(left(&decision), Some((1, "node-1")));
        let Some(Step::Evict(eviction)) = decision.steps.first() else {
            panic!("{:?}", decision.steps);
        };
        assert_eq!(eviction.reason.code.as_str(), "ReservationRefused");
        assert!(eviction.record.as_ref().unwrap().keeps_room);
        own(&mut observed).record.moved = once(&observed, 5, SECOND);
        assert_eq!(left(&reconcile(&observed)), None);
    }
}

/// With `peak`, each new pod of the run is a reason for a resize, and the kubelet needs a second or two for each.
#[test]
fn b3_a_placeholder_that_gives_room_up_in_many_steps_does_not_leave() {
    let mut observed = bound("peak", 3550, &[]);
    labels(&mut observed).resizing = true;
    for asks in (1..=12).map(|step| 3550 - 100 * step) {
        labels(&mut observed).asks = cpu(asks);
        assert_eq!(left(&pass(&mut observed, 2 * SECOND)), None, "{asks}");
    }
}

#[test]
fn b3_n7_a_reservation_that_few_nodes_could_hold_is_given_up_and_the_author_hears_of_it() {
    let mut observed = refused(gated(), 2050);
    assert_eq!(shrinking(&reconcile(&observed)), None, "a node may come");
    // Pods that use none of the claims may run on other nodes, so they do not count.
    restrict(&mut observed, CLAIM, "zone", "a");
    assert_eq!(shrinking(&reconcile(&observed)), Some((1550, REDUCED)));
    // A waiting pod counts until the manager lets it run without its placeholder, even if it uses none of the claims.
    let waits = task("waits", &name(&observed), 2000);
    add(&mut observed, waits);
    assert_eq!(shrinking(&reconcile(&observed)), None);
    // Only one node can take the placeholder, so no new node helps.
    pin(&mut observed, CLAIM);
    assert_eq!(shrinking(&reconcile(&observed)), Some((50, REDUCED)));
    let by_driver = "topology.topolvm.io/node";
    restrict(&mut observed, CLAIM, by_driver, "node-1");
    assert_eq!(shrinking(&reconcile(&observed)), None, "no node has it");
    for (node, value) in [("node-1", "node-1"), ("node-2", "node-2")] {
        let labels = &mut self::node(&mut observed, node).labels;
        labels.insert(by_driver.to_owned(), value.to_owned());
    }
    assert_eq!(shrinking(&reconcile(&observed)), Some((50, REDUCED)));
    pass(&mut observed, 2 * SECOND);
    assert_eq!(blocked(&reconcile(&observed)), Some("ClaimsNotMovable"));
    unschedulable(own_pod(&mut observed), "0/2 nodes are available: 2 other.");
    pass(&mut observed, 2 * SECOND);
    let decision = reconcile(&observed);
    assert_eq!(shrinking(&decision), None, "not for want of room");
    assert_eq!(blocked(&decision), Some("PlaceholderUnschedulable"));
}

/// The CPU requests to try for the pod of the placeholder that is created, if the pod has no gate.
fn creating(observed: &Observed) -> Option<Vec<i128>> {
    let decision = reconcile(observed);
    let mut sizes = taken!(decision, Step::Create { sizes, .. } => sizes);
    let sizes = sizes.next().expect("a step that creates the placeholder");
    Some(sizes.as_ref()?.iter().map(|it| it.milli_cpu).collect())
}

#[test]
fn b3_the_first_pod_without_a_controller_asks_for_room_without_a_gate() {
    let mut observed = bare(Mode::PipelineRuns, &[CLAIM]);
    set_sizes(&mut observed, SIZED);
    observed.called = true;
    assert_eq!(creating(&observed), None, "a controller creates the pod");
    choose_pods(&mut observed);
    assert_eq!(creating(&observed), Some(vec![3550, 2050]));
    assert_eq!(reconcile(&observed).events, []);
    let mut with_quota = observed.clone();
    with_quota.has_quota = true;
    assert_eq!(creating(&with_quota), Some(vec![]));
    let decision = reconcile(&with_quota);
    assert_eq!(codes(&decision.events), ["ReservationReduced"]);
    let mut unsized_tasks = observed.clone();
    set_sizes(&mut unsized_tasks, "{}");
    assert_eq!(creating(&unsized_tasks), None, "there is no gate");
    // The placeholder had a pod before.
    let mut started = observed.clone();
    change_run(&mut started, |run| {
        run.task_runs
            .insert("build-one".to_owned(), "one".to_owned());
    });
    assert_eq!(creating(&started), None);
    let mut followed = observed.clone();
    let follows = vec![name(&followed)];
    let pod = on_node_1("one", 1000);
    add(&mut followed, Pod { follows, ..pod });
    assert_eq!(creating(&followed), None);
    // A placeholder that reserves nothing has no gate.
    change_run(&mut observed, |run| {
        let defaults = run.annotations.get_mut(PLACEHOLDER).unwrap();
        *defaults = defaults.replace(":\"placement\"", ":\"nothing\"");
    });
    assert_eq!(creating(&observed), None);
}

#[test]
fn b3_only_a_reduction_to_the_own_requests_may_overtake_another_change() {
    for (reserves, version) in [("placement", ""), ("peak", "7")] {
        let mut observed = bound(reserves, 9000, &[]);
        own_pod(&mut observed).object.resource_version = "7".to_owned();
        let steps = reconcile(&observed).steps;
        let [Step::Shrink { pod, .. }] = &steps[..] else {
            panic!("{steps:?}");
        };
        assert_eq!(pod.resource_version, version, "{reserves}");
    }
}
