//! Pods on nodes that are cordoned, tainted or gone (N1).

use super::*;
use crate::pod_template::{EVACUATED_CLASS, PLACEHOLDER_CLASS};
use crate::reconcile::evacuate::RAISED;

/// The names of the pods that leave their nodes. The second value is true if a pod is deleted without a grace period.
fn leaving(decision: &Decision) -> Vec<(&str, bool)> {
    taken!(decision, Step::Evict(it) => (it.pod.name.as_str(), it.at_once)).collect()
}

fn cordoned() -> Observed {
    let mut observed = observed();
    node(&mut observed, "node-1").unschedulable = true;
    observed
}

/// A pod of the run on node-1 that has not started.
fn there(observed: &mut Observed, task_name: &str, change: impl FnOnce(&mut Pod)) {
    let mut pod = task(task_name, &name(observed), 100);
    pod.node = Some("node-1".to_owned());
    change(&mut pod);
    add(observed, pod);
}

#[test]
fn n1_exactly_the_version_that_was_looked_at_leaves_a_cordoned_node_and_task_pods_go_first() {
    let mut observed = cordoned();
    there(&mut observed, "waits", |_| ());
    there(&mut observed, "runs", |pod| pod.started = true);
    let decision = reconcile(&observed);
    let [Step::Evict(first), Step::Evict(second)] = &decision.steps[..] else {
        panic!("{:?}", decision.steps);
    };
    let expect = |found: &Eviction, pod: &str, at_once, own| Eviction {
        pod: observed.pods[pod].object.clone(),
        at_once,
        unless_exists: None,
        own,
        raise: false,
        record: None,
        control: None,
        reason: found.reason.clone(),
    };
    assert_eq!(*first, expect(first, "waits", true, None));
    let own = observed.placeholders[&name(&observed)].clone();
    let pod = pod_name(&observed);
    assert_eq!(*second, expect(second, &pod, false, Some(own)));
    let reason = second.reason.clone();
    assert_eq!(codes(&[reason]), ["PodEvacuated"]);
}

#[test]
fn n1_nobody_leaves_a_good_node_or_a_run_that_is_done_and_only_the_leader_moves_anybody() {
    assert_eq!(leaving(&reconcile(&observed())), []);
    let mut done = cordoned();
    change_run(&mut done, |run| run.state = RunState::Done);
    assert_eq!(leaving(&reconcile(&done)), []);
    let mut follower = cordoned();
    follower.leads = false;
    follower.called = true;
    assert_eq!(reconcile(&follower).steps, []);
}

/// For each pod that leaves its node: its name, and whether its placeholder gets the higher PriorityClass before the deletion.
fn raising(decision: &Decision) -> Vec<(&str, bool)> {
    taken!(decision, Step::Evict(it) => (it.pod.name.as_str(), it.raise)).collect()
}

#[test]
fn n1_n8_a_placeholder_of_our_class_gets_the_higher_class_before_it_leaves_its_node() {
    let mut observed = cordoned();
    let pod = pod_name(&observed);
    own(&mut observed).priority_class = Some(PLACEHOLDER_CLASS.to_owned());
    let raised = [(pod.as_str(), true)];
    assert_eq!(raising(&reconcile(&observed)), raised);
    // `kubectl drain` has deleted the pod already.
    own_pod(&mut observed).object.deleting = true;
    let decision = reconcile(&observed);
    assert_eq!(raising(&decision), raised);
    assert_eq!(codes(&decision.events), ["PodEvacuated"]);
    own_pod(&mut observed).object.deleting = false;

    // The controller that creates the next pod has a second to observe the change.
    own(&mut observed).priority_class = Some(EVACUATED_CLASS.to_owned());
    own(&mut observed).observed = false;
    let sight = Sight::Raised(own_pod(&mut observed).object.uid.clone());
    let soon = Duration::from_millis(600);
    observed.since.insert(sight.clone(), soon);
    let decision = reconcile(&observed);
    assert_eq!(raising(&decision), []);
    assert_eq!(decision.again, Again::After(RAISED - soon));
    let leaves = [(pod.as_str(), false)];
    observed.since.insert(sight, RAISED);
    assert_eq!(raising(&reconcile(&observed)), leaves);
    observed.since.clear();
    own(&mut observed).observed = true;
    assert_eq!(raising(&reconcile(&observed)), leaves);
    // A placeholder with another class keeps this class.
    own(&mut observed).priority_class = Some("high".to_owned());
    own(&mut observed).observed = false;
    assert_eq!(raising(&reconcile(&observed)), leaves);
}

/// Anybody can write a label, so a label does not prove that a pod belongs to the run.
#[test]
fn n1_what_is_not_the_runs_own_is_left_where_it_is() {
    let mut observed = cordoned();
    own_pod(&mut observed).controller = Some(owner("StatefulSet", "s", "another-set"));
    there(&mut observed, "bare", |pod| {
        pod.controller = Some(owner("Job", "j", "j"));
    });
    there(&mut observed, "elsewhere", |pod| pod.follows.clear());
    there(&mut observed, "another", |pod| {
        pod.follows = vec!["affinity-assistant-ffffffffff".to_owned()];
    });
    there(&mut observed, "running", |pod| {
        pod.phase = PodPhase::Running;
    });
    there(&mut observed, "ended", |pod| pod.phase = PodPhase::Failed);
    assert_eq!(leaving(&reconcile(&observed)), []);
}

#[test]
fn n1_a_node_that_is_not_known_is_looked_for_before_it_counts_as_gone() {
    let mut observed = observed();
    Arc::make_mut(&mut observed.nodes).remove("node-1");
    let decision = reconcile(&observed);
    let [Step::Evict(eviction)] = &decision.steps[..] else {
        panic!("{:?}", decision.steps);
    };
    assert!(eviction.at_once);
    assert_eq!(eviction.unless_exists.as_deref(), Some("node-1"));
}

/// Another program may have deleted the pod already. For example, Kubernetes itself deletes the pods on a node with a
/// `NoExecute` taint, perhaps before the manager does.
#[test]
fn n1_a_placeholder_that_ends_already_is_only_deleted_again_where_nobody_confirms_it() {
    let mut observed = cordoned();
    own_pod(&mut observed).object.deleting = true;
    let decision = reconcile(&observed);
    assert_eq!(leaving(&decision), []);
    assert_eq!(codes(&decision.events), ["PodEvacuated"]);
    Arc::make_mut(&mut observed.nodes).remove("node-1");
    let gone = pod_name(&observed);
    assert_eq!(leaving(&reconcile(&observed)), [(gone.as_str(), true)]);
}

#[test]
fn n1_the_first_move_is_made_at_once_and_later_ones_wait_longer_and_longer() {
    let mut observed = cordoned();
    let created = observed.now - Duration::from_secs(10);
    own(&mut observed).created = Some(created);
    own_pod(&mut observed).created = Some(created + Duration::from_secs(1));
    let moment = Duration::from_millis(1);
    for (times, pause) in (0..).zip([0, 1, 2, 4, 8, 16, 32, 60, 60]) {
        if times > 0 {
            observed.now += Duration::from_secs(pause) - moment;
            let decision = reconcile(&observed);
            assert_eq!(leaving(&decision), [], "before {pause} s");
            assert_eq!(decision.again, Again::After(moment), "before {pause} s");
            observed.now += moment;
        }
        let decision = reconcile(&observed);
        let [Step::Evict(Eviction { record, .. })] = &decision.steps[..] else {
            panic!("after {pause} s: {:?}", decision.steps);
        };
        let evacuated = record.as_ref().and_then(|record| record.evacuated.as_ref());
        let written = evacuated.map(|evacuated| (evacuated.times, evacuated.last));
        // The first move is not recorded: the age of the next pod shows the move.
        assert_eq!(written, (times > 0).then_some((times + 1, observed.now)));
        let now = observed.now;
        own(&mut observed).record = record.clone().unwrap_or_default();
        own_pod(&mut observed).created = Some(now - Duration::from_secs(1));
    }
}

#[test]
fn n1_each_placeholder_rests_on_its_own() {
    let mut observed = observed_in(Mode::Workspaces, &["one", "two"]);
    node(&mut observed, "node-1").unschedulable = true;
    own(&mut observed).record.evacuated = once(&observed, 3, SECOND);
    let other = format!("{}-0", observed.planned()[1].name);
    assert_eq!(leaving(&reconcile(&observed)), [(other.as_str(), false)]);
}

#[test]
fn n1_a_placeholder_whose_claims_cannot_follow_is_reported() {
    let mut observed = cordoned();
    own_pod(&mut observed).node = None;
    let decision = reconcile(&observed);
    assert_eq!(blocked(&decision), Some(""));
    pin(&mut observed, CLAIM);
    let decision = reconcile(&observed);
    assert_eq!(blocked(&decision), Some("ClaimsNotMovable"));
    assert_eq!(codes(&decision.events), ["ClaimsNotMovable"]);
    // A pod of another object does not count, even if it has the run's labels.
    own_pod(&mut observed).controller = Some(owner("StatefulSet", "s", "another-set"));
    assert_eq!(blocked(&reconcile(&observed)), Some(""));
}

/// Pins [`Backend::Pod`] on the run.
pub(super) fn choose_pods(observed: &mut Observed) {
    change_run(observed, |run| {
        let settings = run
            .annotations
            .get_mut(crate::annotations::PLACEHOLDER)
            .unwrap();
        *settings = settings.replace("\"statefulset\"", "\"pod\"");
    });
}

/// Makes the placeholder consist only of its pod.
pub(super) fn only_a_pod(observed: &mut Observed) {
    let pod = own_pod(observed);
    pod.controller = Some(owner("PipelineRun", "build", "u"));
    pod.placeholder.as_mut().unwrap().of_run = true;
    let own = pod.to_placeholder().unwrap();
    let name = own.object.name.clone();
    observed.placeholders.insert(name, Arc::new(own));
}

#[test]
fn n1_p1_a_pod_without_a_controller_leaves_once_it_has_one_that_keeps_the_record() {
    let mut observed = cordoned();
    choose_pods(&mut observed);
    only_a_pod(&mut observed);
    let decision = reconcile(&observed);
    let [Step::Evict(eviction)] = &decision.steps[..] else {
        panic!("{:?}", decision.steps);
    };
    assert_eq!(eviction.pod, observed.pods[&pod_name(&observed)].object);
    let spec = eviction.control.as_ref().unwrap();
    assert_eq!(spec.name.as_str(), name(&observed));
    let record = eviction.record.as_ref().unwrap();
    assert_eq!(record.evacuated.as_ref().unwrap().times, 1);
    // `kubectl drain` has deleted the pod already.
    own_pod(&mut observed).object.deleting = true;
    assert_eq!(leaving(&reconcile(&observed)).len(), 1);
}

#[test]
fn n1_p1_the_controller_creates_the_next_pod_once_the_old_pod_is_gone() {
    let mut observed = cordoned();
    choose_pods(&mut observed);
    let uid = own(&mut observed).object.uid.clone();
    only_a_pod(&mut observed);
    let own = own(&mut observed);
    own.object.uid = uid;
    own.backend = Backend::Controlled;
    own.parked = true;
    // The manager ended between the creation of the controller and the deletion of the pod.
    let decision = reconcile(&observed);
    let [Step::Evict(Eviction { control: None, .. })] = &decision.steps[..] else {
        panic!("{:?}", decision.steps);
    };
    let pod = pod_name(&observed);
    observed.pods.remove(&pod);
    let start = Step::Start(observed.placeholders[&name(&observed)].clone());
    assert_eq!(reconcile(&observed).steps, [start]);
}

#[test]
fn p7_a_pod_is_no_placeholder_of_a_run_whose_placeholders_have_controllers() {
    let mut observed = observed();
    observed.called = true;
    only_a_pod(&mut observed);
    let steps = reconcile(&observed).steps;
    assert!(matches!(steps[..], [Step::Create { .. }]), "{steps:?}");
}
