//! Events, and annotation `coscheduler.dev/blocked` (N3, V7, V9).

use super::*;
use crate::annotations::BLOCKED;
use crate::plan::ReasonCode;

const MOMENT: Duration = Duration::from_secs(2);

fn quota() -> Reason {
    Reason::new(ReasonCode::QuotaExceeded, "no pods here")
}

/// A placeholder whose pod was refused.
fn refused() -> Observed {
    let mut observed = observed();
    observed.pods.clear();
    let name = name(&observed);
    observed.refused.insert(name, quota());
    observed
}

fn complain(observed: &mut Observed, code: ReasonCode) {
    let name = name(observed);
    observed.refused.insert(name, Reason::new(code, "no"));
}

/// Writes the annotation, as the manager does.
fn annotate(observed: &mut Observed, decision: &Decision) {
    let Some(blocked) = &decision.blocked else {
        return;
    };
    let value = blocked.as_ref().map(Reason::to_annotation);
    change_run(observed, |run| match value {
        Some(value) => drop(run.annotations.insert(BLOCKED.to_owned(), value)),
        None => drop(run.annotations.remove(BLOCKED)),
    });
}

/// The codes of the Events, and the code in the annotation.
fn said(decision: &Decision) -> (Vec<&str>, Option<&str>) {
    (codes(&decision.events), blocked(decision))
}

#[test]
fn n3_what_a_placeholder_waits_for_is_told_after_a_moment_and_withdrawn_when_it_is_gone() {
    let mut observed = refused();
    assert_eq!(said(&pass(&mut observed, MOMENT / 2)), (vec![], None));
    assert_eq!(said(&pass(&mut observed, MOMENT / 2)), (vec![], None));
    let decision = reconcile(&observed);
    assert_eq!(decision.events, [quota()]);
    assert_eq!(decision.blocked, Some(Some(quota())));
    annotate(&mut observed, &decision);
    // There is another cause. The annotation stays as it is until the new cause has lasted for two seconds.
    observed.refused.clear();
    observed = Observed {
        pods: super::observed().pods,
        ..observed
    };
    let said_by_scheduler = "0/4 nodes are available: 4 Insufficient cpu.";
    unschedulable(own_pod(&mut observed), said_by_scheduler);
    assert_eq!(said(&pass(&mut observed, MOMENT)), (vec![], None));
    let decision = reconcile(&observed);
    let code = "PlaceholderUnschedulable";
    assert_eq!(said(&decision), (vec![code], Some(code)));
    annotate(&mut observed, &decision);
    own_pod(&mut observed).node = Some("node-1".to_owned());
    assert_eq!(said(&reconcile(&observed)), (vec![], Some("")));
}

#[test]
fn n3_the_task_runs_that_wait_for_a_placeholder_are_told_the_runs_cause() {
    let mut observed = refused();
    let follows = name(&observed);
    for number in 0..12 {
        let mut waits = task(&format!("waits-{number}"), &follows, 100);
        unschedulable(&mut waits, "0/2 nodes are available: no pod to follow.");
        add(&mut observed, waits);
    }
    let mut other = task("other", "another-placeholder", 100);
    unschedulable(&mut other, "0/2 nodes are available: no pod to follow.");
    add(&mut observed, other);
    add(&mut observed, task("not-tried-yet", &follows, 100));
    let told = pass(&mut observed, MOMENT);
    assert_eq!(told.of_task_runs, []);
    let told = reconcile(&observed);
    let names = |decision: &Decision| -> Vec<String> {
        let of_task_runs = decision.of_task_runs.iter();
        of_task_runs.map(|(it, _)| it.name.clone()).collect()
    };
    assert!(told.of_task_runs.iter().all(|(_, it)| *it == quota()));
    // Only ten TaskRuns get the Event, because a run may have hundreds of them.
    assert_eq!(names(&told).len(), 10, "{:?}", names(&told));
    let of_other = &observed.pods["other"].controller.as_ref().unwrap().name;
    let of_untried = &observed.pods["not-tried-yet"]
        .controller
        .as_ref()
        .unwrap()
        .name;
    assert!(!names(&told).contains(of_other) && !names(&told).contains(of_untried));
    // The API server refuses the StatefulSet itself, so the placeholder does not exist.
    annotate(&mut observed, &told);
    observed.placeholders.clear();
    observed.refused.clear();
    let still = reconcile(&observed);
    assert_eq!(still.blocked, None);
    assert_eq!(names(&still), names(&told));
}

#[test]
fn n3_a_cause_that_the_annotation_names_already_is_no_news_to_a_new_leader() {
    let mut observed = refused();
    pass(&mut observed, MOMENT);
    let decision = reconcile(&observed);
    annotate(&mut observed, &decision);
    observed.since.clear();
    assert_eq!(
        said(&reconcile(&observed)),
        (vec!["QuotaExceeded"], Some("QuotaExceeded"))
    );
}

#[test]
fn n3_what_passes_within_a_moment_is_not_told() {
    let mut observed = refused();
    assert_eq!(said(&pass(&mut observed, MOMENT / 2)), (vec![], None));
    // The second cause must last for two seconds too.
    complain(&mut observed, ReasonCode::LimitRangeViolated);
    assert_eq!(said(&pass(&mut observed, MOMENT / 2)), (vec![], None));
    assert_eq!(said(&pass(&mut observed, MOMENT)), (vec![], None));
    observed = Observed {
        pods: super::observed().pods,
        ..observed
    };
    assert_eq!(said(&reconcile(&observed)), (vec![], Some("")));
}

#[test]
fn n3_a_claim_without_a_volume_is_told_after_a_moment() {
    let mut observed = observed();
    unschedulable(
        own_pod(&mut observed),
        "0/2 nodes are available: pod has unbound immediate PersistentVolumeClaims.",
    );
    pass(&mut observed, MOMENT);
    assert_eq!(
        said(&reconcile(&observed)),
        (vec![], Some("")),
        "it is on its way"
    );
    let reason = Reason::new(ReasonCode::ClaimNotProvisioned, "no class");
    observed.not_provisioned.insert(CLAIM.to_owned(), reason);
    assert_eq!(said(&pass(&mut observed, MOMENT)), (vec![], None));
    let code = "ClaimNotProvisioned";
    assert_eq!(said(&reconcile(&observed)), (vec![code], Some(code)));
}

#[test]
fn n3_a_claim_that_the_scheduler_has_yet_to_hear_of_is_not_told_to_be_missing() {
    let mut observed = observed();
    let said_by_scheduler =
        format!("0/4 nodes are available: persistentvolumeclaim \"{CLAIM}\" not found. not found");
    unschedulable(own_pod(&mut observed), &said_by_scheduler);
    pass(&mut observed, MOMENT);
    assert_eq!(said(&reconcile(&observed)), (vec![], Some("")));
    observed.volumes.clear();
    pass(&mut observed, MOMENT);
    let code = "ReferenceMissing";
    assert_eq!(said(&reconcile(&observed)), (vec![code], Some(code)));
}

/// When the run ends, a refusal is reported without a delay, because Tekton may have failed the run for the same cause.
#[test]
fn n3_a_refusal_is_told_at_once_when_the_run_ends_and_what_may_pass_is_not() {
    let mut observed = refused();
    change_run(&mut observed, |run| run.state = RunState::Done);
    assert_eq!(
        said(&reconcile(&observed)),
        (vec!["QuotaExceeded"], Some(""))
    );
    let mut waits = super::observed();
    unschedulable(own_pod(&mut waits), "none");
    change_run(&mut waits, |run| run.state = RunState::Done);
    assert_eq!(said(&reconcile(&waits)), (vec![], Some("")));
}

#[test]
fn only_the_leader_speaks_and_nobody_of_a_run_that_is_gone() {
    let mut observed = refused();
    change_run(&mut observed, |run| run.state = RunState::Done);
    observed.leads = false;
    assert_eq!(said(&reconcile(&observed)), (vec![], None));
    observed.leads = true;
    observed.presence = RunPresence::Gone;
    change_run(&mut observed, |run| run.deletion = true);
    assert_eq!(said(&reconcile(&observed)), (vec![], None));
    observed.run = None;
    assert_eq!(said(&reconcile(&observed)), (vec![], None));
}

#[test]
fn p9_a_run_that_has_not_started_waits_for_nobody() {
    let mut observed = refused();
    change_run(&mut observed, |run| run.state = RunState::Pending);
    pass(&mut observed, MOMENT);
    assert_eq!(said(&reconcile(&observed)), (vec![], Some("")));
}

/// A run without placeholder whose claims `one` and `two` are in two zones. Claim `all` can be mounted in any zone.
fn in_two_zones(mode: Mode) -> Observed {
    let claims = ["one", "two", "all"];
    let mut observed = Observed {
        placeholders: BTreeMap::new(),
        pods: BTreeMap::new(),
        ..observed_in(mode, &claims)
    };
    restrict(&mut observed, "one", "zone", "a");
    restrict(&mut observed, "two", "zone", "b");
    observed
}

fn using(observed: &mut Observed, pod: &str, claims: &[&str]) {
    let mut task = task(pod, &name(observed), 0);
    task.claims = claims.iter().map(|claim| (*claim).to_owned()).collect();
    add(observed, task);
}

/// The claims of the placeholder to create.
fn created(decision: &Decision) -> Vec<Vec<String>> {
    let created = decision.steps.iter().filter_map(|step| match step {
        Step::Create { spec, .. } => Some(spec.claims().collect()),
        _ => None,
    });
    created.collect()
}

const CONFLICT: &str = "VolumeNodeAffinityConflict";

#[test]
fn v7_claims_that_one_pod_needs_and_no_node_reaches_block_the_run_at_once() {
    let mut observed = in_two_zones(Mode::PipelineRuns);
    using(&mut observed, "task", &["one", "two"]);
    let decision = reconcile(&observed);
    assert_eq!(said(&decision), (vec![CONFLICT], Some(CONFLICT)));
    let message = &decision.events[0].message;
    for part in ["\"one\" (zone In a)", "\"two\" (zone In b)"] {
        assert!(message.contains(part), "{message}");
    }
    restrict(&mut observed, "two", "zone", "a");
    assert_eq!(said(&reconcile(&observed)), (vec![], Some("")));
}

#[test]
fn v7_where_no_pod_shows_what_it_needs_the_conflict_is_told_after_a_moment() {
    let mut observed = in_two_zones(Mode::PipelineRuns);
    assert_eq!(said(&pass(&mut observed, MOMENT)), (vec![], None));
    let decision = reconcile(&observed);
    assert_eq!(said(&decision), (vec![CONFLICT], Some(CONFLICT)));
    annotate(&mut observed, &decision);
    observed.since.clear();
    assert_eq!(
        said(&reconcile(&observed)),
        (vec![CONFLICT], Some(CONFLICT))
    );
}

#[test]
fn v7_a_placeholder_does_without_claims_that_no_pod_needs_beside_the_others() {
    for (pods, held) in [
        (vec![vec!["one"]], vec!["one", "all"]),
        (vec![vec!["two"], vec!["one"]], vec!["two", "all"]),
        // All claims that one pod needs stay together. So both claims of the second pod are left out, and not only claim `two`.
        (vec![vec!["one"], vec!["two", "all"]], vec!["one"]),
        (vec![vec![]], vec!["one", "all"]),
    ] {
        let mut observed = in_two_zones(Mode::PipelineRuns);
        for (index, claims) in pods.iter().enumerate() {
            using(&mut observed, &format!("task-{index}"), claims);
        }
        pass(&mut observed, MOMENT);
        let decision = reconcile(&observed);
        let found = created(&decision);
        let mut found = found.concat();
        found.sort_by_key(|claim| ["one", "two", "all"].iter().position(|it| it == claim));
        assert_eq!(found, held, "{pods:?}");
        assert_eq!(said(&decision), (vec![CONFLICT], Some("")), "{pods:?}");
        assert!(decision.events[0].message.contains("does not mount"));
    }
}

#[test]
fn v7_pods_that_need_claims_of_two_places_and_isolated_runs_wait() {
    for (mode, pods) in [
        (
            Mode::PipelineRuns,
            vec![vec!["all", "one"], vec!["all", "two"]],
        ),
        (Mode::IsolatePipelineRun, vec![vec!["one"]]),
    ] {
        let mut observed = in_two_zones(mode);
        for (index, claims) in pods.iter().enumerate() {
            using(&mut observed, &format!("task-{index}"), claims);
        }
        let decision = reconcile(&observed);
        assert_eq!(
            said(&decision),
            (vec![CONFLICT], Some(CONFLICT)),
            "{pods:?}"
        );
        assert!(
            decision.events[0]
                .message
                .contains("next pods of the run wait")
        );
    }
    // In mode `workspaces`, each claim has a placeholder of its own.
    let mut observed = in_two_zones(Mode::Workspaces);
    using(&mut observed, "task", &["one"]);
    assert_eq!(said(&reconcile(&observed)), (vec![], Some("")));
}

#[test]
fn v7_a_placeholder_that_mounts_claims_of_two_places_blocks_the_run() {
    let mut observed = observed_in(Mode::PipelineRuns, &["one", "two"]);
    restrict(&mut observed, "one", "zone", "a");
    restrict(&mut observed, "two", "zone", "b");
    assert_eq!(blocked(&reconcile(&observed)), Some(CONFLICT));
}

#[test]
fn v9_what_was_planned_otherwise_than_expected_is_told() {
    let decision = reconcile(&observed_in(
        Mode::PipelineRuns,
        &["$(tasks.make.results.claim)"],
    ));
    assert_eq!(said(&decision), (vec!["ClaimNameVariable"], Some("")));
}

#[test]
fn a_run_that_cannot_be_read_is_told_so() {
    let mut observed = observed();
    change_run(&mut observed, |run| {
        let mode = crate::annotations::MODE.to_owned();
        run.annotations.insert(mode, "sideways".to_owned());
    });
    let decision = reconcile(&observed);
    assert_eq!(blocked(&decision), Some("PipelineRunInvalid"));
    assert!(codes(&decision.events).contains(&"PipelineRunInvalid"));
}

#[test]
fn n3_the_first_cause_is_told_first() {
    let mut observed = refused();
    let pods = super::observed().pods;
    let missing = Reason::new(ReasonCode::ClaimNotProvisioned, "no class");
    observed.not_provisioned.insert(CLAIM.to_owned(), missing);
    pass(&mut observed, MOMENT);
    assert_eq!(codes(&reconcile(&observed).events), ["QuotaExceeded"]);
    observed.pods = pods;
    let on_its_way = "0/0 nodes are available: pod has unbound immediate PersistentVolumeClaims.";
    unschedulable(own_pod(&mut observed), on_its_way);
    pass(&mut observed, MOMENT);
    assert_eq!(codes(&reconcile(&observed).events), ["ClaimNotProvisioned"]);
    observed.not_provisioned.clear();
    assert_eq!(said(&reconcile(&observed)), (vec![], Some("")));
}

/// The API server refused the placeholder's object. The replica that was called has written the annotation.
#[test]
fn n3_a_refusal_stays_on_the_run_until_its_placeholders_exist() {
    #[track_caller]
    fn check(annotation: Option<&str>, exist: bool, stays: bool) {
        let mut observed = if exist {
            observed()
        } else {
            bare(Mode::PipelineRuns, &[CLAIM])
        };
        change_run(&mut observed, |run| {
            let annotation = annotation.map(|text| (BLOCKED.to_owned(), text.to_owned()));
            run.annotations.extend(annotation);
        });
        let expect = if stays { None } else { Some("") };
        let decision = reconcile(&observed);
        assert_eq!(said(&decision), (vec![], expect), "{annotation:?}");
    }
    let refused = quota().to_annotation();
    check(Some(&refused), false, true);
    check(Some(&refused), true, false);
    check(None, false, false);
    check(Some("{}"), false, false);
    // A reason that is no refusal is removed from the annotation.
    for code in ["VolumeNodeAffinityConflict", "MovesExhausted"] {
        let other = json!({"reason": code, "message": ""}).to_string();
        check(Some(&other), false, false);
    }
}

/// The terms of a volume are alternatives: a node that meets one of them reaches the volume.
#[test]
fn n2_a_volume_that_two_nodes_reach_does_not_tie_a_placeholder() {
    let mut observed = observed_in(Mode::PipelineRuns, &[CLAIM]);
    restrict(&mut observed, CLAIM, "kubernetes.io/hostname", "node-1");
    let tied = |observed: &Observed| {
        let placed = super::super::reserve::placed(observed).next().unwrap();
        observed.tied(placed.spec, placed.pod)
    };
    assert_eq!(tied(&observed), [CLAIM]);
    let seen = observed.volumes.get_mut(CLAIM).unwrap();
    let terms = &mut seen.volume.as_mut().unwrap().terms;
    terms.push(terms[0].clone());
    assert_eq!(tied(&observed), [CLAIM]);
    let seen = observed.volumes.get_mut(CLAIM).unwrap();
    let terms = &mut seen.volume.as_mut().unwrap().terms;
    terms[1].expressions[0].values = vec!["node-2".to_owned()];
    assert_eq!(tied(&observed), [""; 0]);
}

/// The API server's error names the used part of the quota. If the Event's text did too, each change of this part would become
/// another Event.
#[test]
fn b3_a_refused_reservation_is_told_without_the_used_part_of_a_quota() {
    let told = |used: &str| {
        let message = format!(
            "pods \"p\" is forbidden: exceeded quota: q, requested: requests.cpu=3, used: requests.cpu={used}, limited: requests.cpu=4"
        );
        crate::event_texts::reservation_refused("s", &Amounts::default(), &message, None).message
    };
    assert_eq!(told("1"), told("2"));
    assert!(
        told("1").contains("limited: requests.cpu=4"),
        "{}",
        told("1")
    );
}

/// Lets only node-1 reach the volume of the claim.
fn restrict_to_node_1(observed: &mut Observed) {
    restrict(observed, CLAIM, "kubernetes.io/hostname", "node-1");
    for name in ["node-1", "node-2"] {
        let labels = &mut node(observed, name).labels;
        labels.insert("kubernetes.io/hostname".to_owned(), name.to_owned());
    }
}

#[test]
fn n3_a_volume_that_no_allowed_node_reaches_is_told_whatever_other_nodes_lack() {
    let mut observed = observed();
    let said = "0/2 nodes are available: 1 node(s) were unschedulable, 1 node(s) didn't match PersistentVolume's node affinity.";
    unschedulable(own_pod(&mut observed), said);
    restrict_to_node_1(&mut observed);
    let allow = |observed: &mut Observed, node: &str| {
        let own = Arc::make_mut(observed.placeholders.values_mut().next().unwrap());
        let label = "kubernetes.io/hostname".to_owned();
        own.needs.selector = BTreeMap::from([(label, node.to_owned())]);
    };
    allow(&mut observed, "node-2");
    // The cause must last for two seconds, because a new node may get its labels late.
    assert_eq!(blocked(&pass(&mut observed, MOMENT)), None);
    let decision = reconcile(&observed);
    assert_eq!(blocked(&decision), Some("VolumeOutOfReach"));
    let [told] = &decision.events[..] else {
        panic!("{:?}", decision.events);
    };
    assert!(told.message.contains("node-1"), "{}", told.message);
    // The node selector allows no existing node, so the volume is not the cause.
    allow(&mut observed, "node-3");
    assert_eq!(blocked(&reconcile(&observed)), None);
    allow(&mut observed, "node-1");
    assert_eq!(blocked(&reconcile(&observed)), None);
}

/// The run can continue when the node is no longer cordoned, without another podTemplate.
#[test]
fn n3_a_cordoned_node_that_is_allowed_and_reaches_the_volume_is_not_a_fault_of_the_pod_template() {
    let mut observed = observed();
    let third = Arc::new(Node {
        name: "node-3".to_owned(),
        ..Node::default()
    });
    Arc::make_mut(&mut observed.nodes).insert("node-3".to_owned(), third);
    for (name, zone, pool) in [
        ("node-1", "a", "a"),
        ("node-2", "b", "a"),
        ("node-3", "a", "b"),
    ] {
        let labels = [("zone", zone), ("pool", pool)];
        node(&mut observed, name).labels = labels
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into();
    }
    restrict(&mut observed, CLAIM, "zone", "a");
    unschedulable(own_pod(&mut observed), "0/3 nodes are available");
    own(&mut observed).needs.selector = [("pool".to_owned(), "a".to_owned())].into();
    let told = |observed: &mut Observed| {
        let decision = settled(observed);
        let blocked = blocked(&decision);
        blocked.is_some_and(|code| code == "VolumeOutOfReach")
    };
    node(&mut observed, "node-1").unschedulable = true;
    assert!(!told(&mut observed));
    node(&mut observed, "node-1").labels.remove("zone");
    assert!(told(&mut observed));
}

#[test]
fn n3_an_isolated_placeholder_on_the_only_node_of_the_volumes_is_told_with_or_without_room() {
    let anti_affinity = "1 node(s) didn't satisfy existing pods anti-affinity rules";
    let check = |mode: Mode, causes: &str| {
        let mut observed = observed_in(mode, &[CLAIM]);
        let said = format!("0/2 nodes are available: {causes}.");
        unschedulable(own_pod(&mut observed), &said);
        restrict_to_node_1(&mut observed);
        pass(&mut observed, MOMENT);
        let told = reconcile(&observed).blocked.flatten().unwrap();
        assert_eq!(told.code, ReasonCode::ClaimsNotMovable, "{mode}: {causes}");
        let says = "keeps placeholder";
        assert!(told.message.contains(says), "{}", told.message);
    };
    for mode in [Mode::IsolatePipelineRun, Mode::PipelineRuns] {
        check(mode, anti_affinity);
        check(mode, &format!("1 Insufficient cpu, {anti_affinity}"));
    }
}

/// Two pods wait for room beside a pod of the run.
fn beside() -> Observed {
    let mut observed = observed();
    own_pod(&mut observed).bound = Some(observed.now);
    let follows = name(&observed);
    for name in ["waits", "waits-too"] {
        let mut waits = task(name, &follows, 2000);
        unschedulable(&mut waits, "0/2 nodes are available: 1 Insufficient cpu.");
        add(&mut observed, waits);
    }
    let mut runs = task("runs", &follows, 3000);
    runs.node = Some("node-1".to_owned());
    add(&mut observed, runs);
    observed.now += Duration::from_secs(60);
    observed
}

/// The codes of the Events after two seconds. The API server answers that each pod belongs to the run, except pod `stranger`.
fn told(mut observed: Observed) -> Vec<&'static str> {
    assert_eq!(said(&pass(&mut observed, MOMENT)), (vec![], Some("")));
    let asks = reconcile(&observed);
    answer(&mut observed, &asks, |_| ());
    if let Some(stranger) = observed.pods.get("stranger") {
        let answer = observed.answers.get_mut(&stranger.object.uid);
        answer.unwrap().own = false;
    }
    let decision = reconcile(&observed);
    assert_eq!(blocked(&decision), Some(""));
    let of_task_runs = decision.of_task_runs.iter().map(|(_, reason)| reason);
    let of_run = decision.events.iter();
    assert!(of_task_runs.eq(of_run.filter(|it| it.code.as_str() != "SchedulingGated")));
    decision.events.iter().map(|it| it.code.as_str()).collect()
}

#[test]
fn b2_what_pods_wait_for_is_told_in_one_event_and_in_no_annotation() {
    assert_eq!(told(beside()), ["WaitsForOwnPods"]);
    let says = |pod: &str, said: &str| {
        let mut observed = beside();
        unschedulable(self::pod(&mut observed, pod), said);
        told(observed)
    };
    let missing = "0/2 nodes are available: persistentvolumeclaim \"c\" not found. not found";
    let own_claim = missing.replace("\"c\"", &format!("{CLAIM:?}"));
    // The order of causes: first a cause that somebody must end, then one that ends by itself, then one without an Event.
    assert_eq!(says("waits-too", missing), ["ClaimMissing"]);
    assert_eq!(says("waits", &own_claim), ["WaitsForOwnPods"]);
    let tainted = "0/2 nodes are available: 2 node(s) had untolerated taint {a: }.";
    assert_eq!(says("waits", tainted), ["WaitsForOwnPods"]);
    let mut alone = beside();
    for name in ["waits", "waits-too"] {
        pod(&mut alone, name).follows.clear();
    }
    assert_eq!(told(alone), ["PodUnschedulable"]);
    let mut gated = beside();
    own_pod(&mut gated).gate = Some("other".to_owned());
    for name in ["waits", "waits-too"] {
        gated.pods.remove(name);
    }
    assert_eq!(told(gated), ["SchedulingGated"]);
}

/// A run can give its pods the labels of another run's pods, and anybody can create a pod with labels.
#[test]
fn b2_p7_nothing_is_told_about_a_pod_of_another_run() {
    let of = |controller| {
        let mut observed = observed();
        let mut stranger = task("stranger", &name(&observed), 2000);
        stranger.gate = Some("other".to_owned());
        stranger.controller = controller;
        add(&mut observed, stranger);
        observed
    };
    assert_eq!(told(of(Some(owner("TaskRun", "t", "t")))), [""; 0]);
    let mut forged = of(None);
    pass(&mut forged, MOMENT);
    assert_eq!(said(&reconcile(&forged)), (vec![], Some("")));
}

/// The scheduler has perhaps not tried a pod since its placeholder was bound.
#[test]
fn b2_an_old_message_of_the_scheduler_is_not_told_and_is_looked_at_again() {
    let mut observed = beside();
    own_pod(&mut observed).bound = Some(observed.now);
    let wait = observed.first_wait().unwrap();
    assert_eq!(wait.reason.code, ReasonCode::WaitsForScheduler);
    let recheck = wait.recheck;
    assert_eq!(recheck, Duration::from_secs(12));
    let mut later = observed.clone();
    for name in ["waits", "waits-too"] {
        let unscheduled = pod(&mut later, name).unscheduled.as_mut().unwrap();
        unscheduled.written = Some(observed.now + Duration::from_secs(1));
    }
    let wait = later.first_wait().unwrap();
    assert_eq!(wait.reason.code, ReasonCode::WaitsForOwnPods);
    observed.now += recheck;
    let wait = observed.first_wait().unwrap();
    assert_eq!(wait.reason.code, ReasonCode::WaitsForOwnPods);
    assert_eq!(wait.recheck, Duration::ZERO);
}

#[test]
fn b2_a_pod_waits_for_each_of_its_placeholders() {
    let mut observed = beside();
    pod(&mut observed, "waits").follows.push("other".to_owned());
    observed.pods.remove("waits-too");
    let wait = observed.first_wait().unwrap();
    assert_eq!(wait.reason.code, ReasonCode::PlaceholderMissing);
}
