//! Placeholders that ask the scheduler for the room that their runs need (B3, N7).

use super::evacuate::{choose_pods, only_a_pod};
use super::make_room::left;
use super::*;
use crate::annotations::{PLACEHOLDER, SCHEMA_VERSION, SIZES, SUBSETS};
use crate::reconcile::reserve::GATE;

const SIZED: &str = r#"{
    "one": {"requests": {"cpu": "1"}, "workspaces": ["data"]},
    "two": {"requests": {"cpu": "2"}, "after": ["one"], "workspaces": ["other"]},
    "three": {"requests": {"cpu": "1500m"}, "after": ["one"], "workspaces": ["data"]}
}"#;

/// The code of the Event about a placeholder that asks for less.
const REDUCED: Option<&str> = Some("ReservationReduced");
/// The limit of a placeholder's pod that must return to node-1.
const HOME: &str = "node node-1, where pods of the run were";

/// A run that reserves room. The placeholder's pod still has its gate. Tasks `two` and `three` can run at the same time.
fn gated() -> Observed {
    gated_in(Mode::PipelineRuns, &[CLAIM])
}

fn gated_in(mode: Mode, claims: &[&str]) -> Observed {
    let mut observed = observed_in(mode, claims);
    set_annotation(&mut observed, SIZES, SIZED);
    for pod in observed.pods.values_mut().map(Arc::make_mut) {
        pod.node = None;
        let labels = pod.placeholder.as_mut().unwrap();
        (labels.gated, labels.asks) = (true, cpu(50));
    }
    observed
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
    unschedulable(own_pod(&mut observed), NO_ROOM);
    observed
}

/// What the scheduler said about the placeholder's pod.
pub(super) fn refusal(observed: &mut Observed) -> &mut Unscheduled {
    own_pod(observed).unscheduled.as_mut().unwrap()
}

/// Adds a pod that follows the placeholder.
fn join(observed: &mut Observed, mut pod: Pod) {
    pod.follows = vec![name(observed)];
    add(observed, pod);
}

/// A run with these pods. Its placeholder has left node-1, and asks for room again.
fn asks_again(reserves: &str, pods: &[Pod]) -> Observed {
    asks_again_in(Mode::PipelineRuns, reserves, pods)
}

fn asks_again_in(mode: Mode, reserves: &str, pods: &[Pod]) -> Observed {
    let mut observed = gated_in(mode, &[CLAIM]);
    set_reserves(&mut observed, reserves);
    pods.iter().cloned().for_each(|it| join(&mut observed, it));
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
    let mut pod = task(name, "", milli_cpu);
    pod.node = Some("node-1".to_owned());
    pod
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
    let uid = observed.pods[pod].object.uid.clone();
    observed.answers.entry(uid).or_default().own = own;
}

/// For each pod whose gate is removed: the CPU requests to try, in order, the nodes that may take the pod, and whether the
/// manager lists the pods first.
fn opening(observed: &Observed) -> Vec<(Vec<i128>, Place, bool)> {
    let cpu = |sizes: &[Amounts]| sizes.iter().map(|it| it.milli_cpu).collect();
    let decision = reconcile(observed);
    taken!(decision, Step::Open { sizes, place, unless_followed, .. } =>
        (cpu(sizes), place.clone(), *unless_followed))
    .collect()
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
fn shrinking(observed: &Observed) -> Option<(i128, Option<&'static str>)> {
    let decision = reconcile(observed);
    let mut shrinking = taken!(decision, Step::Shrink { size, reason, .. } => (size, reason));
    let (size, reason) = shrinking.next()?;
    Some((size.milli_cpu, reason.as_ref().map(|it| it.code.as_str())))
}

#[test]
fn b3_n2_a_gated_pod_asks_for_the_peak_or_a_pod_that_waits_and_under_a_quota_first_for_nothing() {
    assert!(GATE.starts_with(crate::annotations::PREFIX));
    let pods = [task("a", "", 300), task("b", "", 700)];
    let mut observed = asks_again("placement", &pods);
    // If the API server refuses the peak, the placeholder asks for the largest pod.
    assert_eq!(opened(&observed), [3550, 2050]);
    // Under a quota, a placeholder that has not left a node for lack of room asks for no room. An Event tells the author.
    let mut quota = changed(&observed, |it| it.has_quota = true);
    assert_eq!(opened(&quota), [3550, 2050]);
    own(&mut quota).record.left = None;
    assert_eq!(opened(&quota), [0; 0]);
    assert!(codes(&reconcile(&quota).events).contains(&"ReservationReduced"));
    // The estimate is too low, so the requests of the existing pods count.
    let low = r#"{"one": {"requests": {"cpu": "100m"}}}"#;
    set_annotation(&mut observed, SIZES, low);
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
fn b1_b3_the_tasks_of_another_subset_or_in_workspaces_of_another_claim_do_not_count() {
    let opening = opening(&gated_in(Mode::Workspaces, &["data", "other"]));
    let sizes: BTreeSet<_> = opening.iter().map(|it| it.0[0]).collect();
    // Two tasks use claim `data`, but not at the same time: `three` runs after `one`.
    assert_eq!(sizes, [1550, 2050].into());
    let mut observed = gated();
    assert_eq!(opened(&observed), [3550, 2050]);
    set_annotation(&mut observed, SCHEMA_VERSION, "3");
    let subsets = r#"{"0123456789": {"nodeSelector": {"arch": "arm64"}, "tasks": ["two"]}}"#;
    set_annotation(&mut observed, SUBSETS, subsets);
    assert_eq!(opened(&observed), [1550]);
}

#[test]
fn b3_tasks_that_have_ended_or_are_skipped_do_not_count() {
    #[track_caller]
    fn check(one: &str, started: &[&str], ended: &[&str], skipped: &[&str], expect: &[i128]) {
        let task_run = |task: &&str| format!("build-{task}");
        let mut observed = gated();
        set_annotation(&mut observed, SIZES, &SIZED.replace("\"1\"", one));
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

/// Only node-1 may take the pod.
fn home() -> Place {
    Place {
        only: Some("node-1".to_owned()),
        limited_by: Some(HOME.to_owned()),
        ..Place::default()
    }
}

#[test]
fn b3_a_placeholder_returns_to_pods_that_run_unless_their_node_is_bad() {
    let mut observed = asks_again("placement", &[on_node_1("a", 1000)]);
    // The scheduler bound pod `a` to node-1 while the placeholder left this node.
    for phase in [PodPhase::Pending, PodPhase::Running] {
        pod(&mut observed, "a").phase = phase;
        assert_eq!(opening(&observed), [(vec![], home(), false)]);
    }
    let job = Some(owner("Job", "any", "any"));
    let of_job = changed(&observed, |it| pod(it, "a").controller = job);
    assert_eq!(place(&of_job).only, None, "the pod has no TaskRun");
    node(&mut observed, "node-1").unschedulable = true;
    assert_eq!(opened(&observed), [3550, 2050]);
    assert_eq!(place(&observed).only, None);
}

#[test]
fn n7_a_wish_that_the_scheduler_refuses_becomes_the_need_and_the_need_waits() {
    let mut observed = gated();
    open(&mut observed, 3550);
    assert_eq!(shrinking(&observed), None, "not decided yet");
    let mut observed = refused(observed, 3550);
    assert_eq!(shrinking(&observed), Some((2050, REDUCED)));
    assert_eq!(shrinking(&changed(&observed, |it| it.leads = false)), None);
    refusal(&mut observed).is_newest = false;
    assert_eq!(shrinking(&observed), None, "about an older size");
    // The scheduler does not repeat a condition that has not changed.
    pass(&mut observed, 5 * SECOND);
    assert_eq!(shrinking(&observed), Some((2050, REDUCED)));
    observed.peak_wait = 6 * SECOND;
    assert_eq!(shrinking(&observed), None);
    pass(&mut observed, SECOND);
    assert_eq!(shrinking(&observed), Some((2050, REDUCED)));
    assert_eq!(shrinking(&refused(gated(), 2050)), None);
    // If the run starts no more pods, there is no Event.
    observed.peak_wait = Duration::ZERO;
    let all = ["one", "two", "three"].map(str::to_owned);
    change_run(&mut observed, |run| run.skipped_tasks.extend(all));
    assert_eq!(shrinking(&observed), Some((50, None)));
}

#[test]
fn b3_a_gate_is_no_cause_for_the_author() {
    let mut observed = refused(gated(), 50);
    refusal(&mut observed).no_node = false;
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
    let anew = |step: &Step| matches!(step, Step::Evict(Eviction { record: None, .. }));
    let leaves = |observed: &Observed| reconcile(observed).steps.iter().any(anew);
    let of_pod = Some("nodes that pod a can use");
    for (limit, gone) in [(of_pod, "a"), (Some(HOME), "runs"), (None, "a")] {
        let mut observed = refused(with_special(), 50);
        join(&mut observed, on_node_1("runs", 300));
        labels(&mut observed).limited_by = limit.map(str::to_owned);
        pass(&mut observed, SECOND);
        assert!(!leaves(&observed), "its own binding may be under way");
        pass(&mut observed, SECOND);
        assert_eq!(leaves(&observed), limit.is_none(), "{limit:?}");
        observed.pods.remove(gone);
        pass(&mut observed, 2 * SECOND);
        assert!(leaves(&observed), "{limit:?}");
        own(&mut observed).gated = false;
        let expect = limit.is_some();
        assert_eq!(leaves(&observed), expect, "only a gated pod returns");
        own_pod(&mut observed).unscheduled = None;
        assert!(!leaves(&observed), "the scheduler may find a node");
    }
}

/// The scheduler could not bind the placeholder, and may be binding pod `a` to the node that it had chosen.
fn not_bound(mode: Mode) -> Observed {
    let pods = [task("a", "", 300)];
    let mut observed = refused(asks_again_in(mode, "placement", &pods), 3550);
    fails(&mut observed);
    observed.has_rivals = true;
    observed
}

fn fails(observed: &mut Observed) {
    let refusal = refusal(observed);
    (refusal.no_node, refusal.failed) = (false, true);
}

pub(super) fn evictions(observed: &Observed) -> Vec<&'static str> {
    let decision = reconcile(observed);
    taken!(decision, Step::Evict(it) => it.reason.code.as_str()).collect()
}

pub(super) const MOVED: &[&str] = &["PlaceholderMoved"];

/// Checks the codes of the evictions after a change.
#[track_caller]
fn evicts(observed: &Observed, expect: &[&str], change: impl FnOnce(&mut Observed)) {
    assert_eq!(evictions(&changed(observed, change)), expect);
}

/// The scheduler assumes that its bindings succeed, so it may bind a pod beside a placeholder that it then cannot bind.
#[test]
fn p2_a_placeholder_that_could_not_be_bound_returns_at_once_to_pods_that_were_bound_beside_it() {
    let mut observed = not_bound(Mode::PipelineRuns);
    assert!(evictions(&observed).is_empty(), "no pod is bound");
    pod(&mut observed, "a").node = Some("node-1".to_owned());
    for reserves in ["placement", "peak"] {
        let observed = changed(&observed, |it| set_reserves(it, reserves));
        assert_eq!(shrinking(&observed), Some((50, None)));
        assert!(evictions(&observed).is_empty());
    }
    labels(&mut observed).asks = cpu(50);
    assert_eq!(evictions(&observed), MOVED);
    let nominates = |it: &mut Observed| refusal(it).nominated = Some("node-1".to_owned());
    evicts(&observed, &[], nominates);
    evicts(&observed, &[], |it| node(it, "node-2").unschedulable = true);
    evicts(&observed, &[], |it| {
        let pool = BTreeMap::from([("pool".to_owned(), "gpu".to_owned())]);
        (node(it, "node-2").labels, own(it).needs.selector) = (pool.clone(), pool);
    });
    evicts(&observed, &[], |it| pin(it, CLAIM));
    let no_volume = |it: &mut Observed| it.volumes.get_mut(CLAIM).unwrap().volume = None;
    evicts(&observed, &[], no_volume);
    evicts(&observed, &[], |it| own(it).gated = false);
    evicts(&observed, &[], |it| it.leads = false);
    let came_home = |it: &mut Observed| labels(it).limited_by = Some(HOME.to_owned());
    evicts(&observed, &[], came_home);
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
    evicts(&isolated, &[], |it| it.has_rivals = false);
    pin(&mut isolated, CLAIM);
    assert!(evictions(&isolated).is_empty());
    assert_eq!(shrinking(&isolated), Some((50, None)));
}

#[test]
fn p2_m4_an_isolated_placeholder_that_could_not_be_bound_does_not_wait_until_its_pods_are_bound() {
    let observed = not_bound(Mode::IsolatePipelineRun);
    assert_eq!(evictions(&observed), MOVED);
    let no_claim = "persistentvolumeclaim \"source\" not found";
    evicts(&observed, MOVED, |it| unschedulable(pod(it, "a"), no_claim));
    evicts(&observed, &[], |it| unschedulable(pod(it, "a"), NO_ROOM));
    evicts(&observed, MOVED, |it| {
        unschedulable(pod(it, "a"), NO_ROOM);
        pod(it, "a").unscheduled.as_mut().unwrap().nominated = Some("node-1".to_owned());
    });
    evicts(&observed, &[], |it| drop(it.pods.remove("a")));
    evicts(&observed, &[], |it| it.leads = false);
    evicts(&observed, &[], |it| it.has_rivals = false);
    evicts(&observed, &[], |it| own(it).gated = false);
    evicts(&observed, &[], |it| pin(it, CLAIM));
    // Now the scheduler may have chosen a node again.
    evicts(&observed, &[], |it| drop(pass(it, SECOND)));
}

#[test]
fn p2_after_a_failed_binding_the_gate_stays_until_the_node_of_the_runs_pods_is_known() {
    let mut observed = not_bound(Mode::IsolatePipelineRun);
    pass(&mut observed, SECOND);
    // The pod is deleted, and its controller creates the next one.
    let name = pod_name(&observed);
    let next = observed.pods.remove(&name).unwrap();
    pass(&mut observed, Duration::ZERO);
    observed.pods.insert(name, next);
    own_pod(&mut observed).unscheduled = None;
    let labels = labels(&mut observed);
    (labels.gated, labels.asks) = (true, cpu(50));
    assert_eq!(opening(&changed(&observed, |it| it.leads = false)), []);
    assert_eq!(opening(&observed), []);
    let mut known = observed.clone();
    pod(&mut known, "a").node = Some("node-1".to_owned());
    assert_eq!(opening(&known), [(vec![], home(), false)]);
    let alone = changed(&observed, |it| drop(it.pods.remove("a")));
    assert_eq!(opening(&alone).len(), 1);
    pass(&mut observed, SECOND);
    assert_eq!(opening(&observed), []);
    pass(&mut observed, SECOND);
    let (sizes, place, asks_live) = opening(&observed).remove(0);
    assert_eq!((sizes.len(), place.only, asks_live), (2, None, true));
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
    let gpu = |milli_cpu| with_gpus(milli_cpu, 1);
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
        let shrinks = shrinking(&bound(reserves, asks, &pods));
        assert_eq!(shrinks, expect.map(|size| (size, None)), "{asks} {pods:?}");
    }
    let quota = changed(&bound("peak", 3550, &one()), |it| it.has_quota = true);
    assert_eq!(shrinking(&quota), Some((50, None)));
    // The placeholder asks for less than the peak, so a reduction pod by pod would free no room for a pod that waits. So the
    // placeholder gives up all its room.
    let mut waits = task("waits", "", 2000);
    unschedulable(&mut waits, "Insufficient cpu");
    let mut reduced = bound("peak", 1550, &[waits]);
    settled(&mut reduced);
    assert_eq!(shrinking(&reduced), Some((50, None)));
}

#[test]
fn b3_a_placeholder_comes_back_if_it_is_not_reduced_but_not_because_it_is_reduced_in_many_steps() {
    // The kubelet does not act, or the API server refuses.
    for (resizing, asks) in [(true, 50), (false, 9000)] {
        let mut observed = bound("peak", asks, &[]);
        labels(&mut observed).resizing = resizing;
        pass(&mut observed, 9 * SECOND);
        assert_eq!(left(&pass(&mut observed, SECOND)), None);
        let decision = reconcile(&observed);
        assert_eq!(left(&decision), Some((1, "node-1")));
        assert_eq!(evictions(&observed), ["ReservationRefused"]);
        let keeps_room = |it: &Eviction| it.record.as_ref().unwrap().keeps_room;
        assert!(matches!(&decision.steps[0], Step::Evict(it) if keeps_room(it)));
        own(&mut observed).record.moved = once(&observed, 5, SECOND);
        assert_eq!(left(&reconcile(&observed)), None);
    }
    // With `peak`, each new pod of the run is a reason for a resize, and the kubelet needs a second or two for each.
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
    assert_eq!(shrinking(&observed), None, "a node may come");
    // Pods that use none of the claims may run on other nodes, so they do not count.
    restrict(&mut observed, CLAIM, "zone", "a");
    assert_eq!(shrinking(&observed), Some((1550, REDUCED)));
    // A waiting pod counts until the manager lets it run without its placeholder, even if it uses none of the claims.
    join(&mut observed, task("waits", "", 2000));
    assert_eq!(shrinking(&observed), None);
    // Only one node can take the placeholder, so no new node helps.
    pin(&mut observed, CLAIM);
    assert_eq!(shrinking(&observed), Some((50, REDUCED)));
    let by_driver = "topology.topolvm.io/node";
    restrict(&mut observed, CLAIM, by_driver, "node-1");
    assert_eq!(shrinking(&observed), None, "no node has it");
    for name in ["node-1", "node-2"] {
        node(&mut observed, name).labels = [(by_driver.to_owned(), name.to_owned())].into();
    }
    assert_eq!(shrinking(&observed), Some((50, REDUCED)));
    pass(&mut observed, 2 * SECOND);
    assert_eq!(blocked(&reconcile(&observed)), Some("ClaimsNotMovable"));
    unschedulable(own_pod(&mut observed), "0/2 nodes are available: 2 other.");
    pass(&mut observed, 2 * SECOND);
    assert_eq!(shrinking(&observed), None, "not for want of room");
    let decision = reconcile(&observed);
    assert_eq!(blocked(&decision), Some("PlaceholderUnschedulable"));
}

#[test]
fn b3_a_placeholder_that_waits_for_its_claim_keeps_its_requests() {
    let pods = [task("a", "", 300), task("b", "", 700)];
    let asks = refused(asks_again("placement", &pods), 3550);
    assert!(shrinking(&asks).is_some());
    for said in [
        "persistentvolumeclaim \"source\" not found",
        "pod has unbound immediate PersistentVolumeClaims. not found",
        "0/2 nodes are available: 2 node has pod using PersistentVolumeClaim with the same name and \
         ReadWriteOncePod access mode.",
    ] {
        let waits = changed(&asks, |it| unschedulable(own_pod(it), said));
        assert_eq!(shrinking(&waits), None, "{said}");
    }
}

#[test]
fn b3_v7_a_task_whose_claim_the_placeholder_leaves_out_does_not_count() {
    let mut observed = refused(gated_in(Mode::PipelineRuns, &[CLAIM, "other"]), 2050);
    for (claim, zone, reached) in [(CLAIM, "a", "node-1"), ("other", "b", "node-2")] {
        restrict(&mut observed, claim, "zone", zone);
        node(&mut observed, reached).labels = [("zone".to_owned(), zone.to_owned())].into();
    }
    own(&mut observed).claims.retain(|claim| claim == CLAIM);
    own_pod(&mut observed).claims.retain(|claim| claim == CLAIM);
    assert_eq!(shrinking(&observed), Some((1550, REDUCED)));
}

#[test]
fn p1_b3_a_gated_pod_without_a_controller_counts_as_a_later_pod() {
    let asks_live = |observed: &Observed| {
        let decision = reconcile(observed);
        taken!(decision, Step::Open { unless_followed, .. } => *unless_followed).next()
    };
    let mut observed = gated();
    assert_eq!(asks_live(&observed), Some(false));
    choose_pods(&mut observed);
    only_a_pod(&mut observed);
    assert_eq!(asks_live(&observed), Some(true));
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
    set_annotation(&mut observed, SIZES, SIZED);
    observed.called = true;
    assert_eq!(creating(&observed), None, "a controller creates the pod");
    choose_pods(&mut observed);
    assert_eq!(creating(&observed), Some(vec![3550, 2050]));
    assert_eq!(reconcile(&observed).events, []);
    let quota = changed(&observed, |it| it.has_quota = true);
    assert_eq!(creating(&quota), Some(vec![]));
    assert_eq!(codes(&reconcile(&quota).events), ["ReservationReduced"]);
    let check = |case: &str, change: &dyn Fn(&mut Observed)| {
        assert_eq!(creating(&changed(&observed, change)), None, "{case}");
    };
    let one = ("build-one".to_owned(), "one".to_owned());
    let start = |run: &mut PipelineRun| run.task_runs.extend([one.clone()]);
    // The placeholder had a pod before.
    check("a task has started", &|it| change_run(it, start));
    check("a pod follows it", &|it| join(it, on_node_1("one", 1000)));
    // A placeholder that reserves nothing has no gate.
    check("no sizes", &|it| set_annotation(it, SIZES, "{}"));
    check("no reservation", &|it| set_reserves(it, "nothing"));
}

#[test]
fn b3_only_a_reduction_to_the_own_requests_may_overtake_another_change() {
    for (reserves, version) in [("placement", ""), ("peak", "7")] {
        let steps = reconcile(&bound(reserves, 9000, &[])).steps;
        let [Step::Shrink { pod, .. }] = &steps[..] else {
            panic!("{steps:?}");
        };
        assert_eq!(pod.resource_version, version, "{reserves}");
    }
}
