//! Placeholders that do not exist, and those without a pod (N3, N6, P7, P9).

use super::evacuate::choose_pods;
use super::*;

fn missing() -> Observed {
    bare(Mode::PipelineRuns, &[CLAIM])
}

/// The names of the placeholders that the decision creates.
fn creating(decision: &Decision) -> Vec<String> {
    taken!(decision, Step::Create { spec, .. } => spec.name.to_string()).collect()
}

#[test]
fn n6_a_missing_placeholder_is_created_at_once_for_a_call_and_after_a_moment_by_the_leader() {
    let mut called = missing();
    (called.called, called.leads) = (true, false);
    assert_eq!(creating(&reconcile(&called)), [name(&called)]);

    let mut leader = missing();
    let decision = pass(&mut leader, SECOND);
    assert_eq!(creating(&decision), [""; 0]);
    assert_eq!(decision.again, Again::After(2 * SECOND));
    assert_eq!(pass(&mut leader, SECOND).again, Again::After(SECOND));
    assert_eq!(creating(&pass(&mut leader, SECOND)), [name(&leader)]);
}

#[test]
fn a_placeholder_that_was_created_a_moment_ago_is_not_created_again() {
    let mut observed = missing();
    observed.created = [name(&observed)].into();
    for (called, leads) in [(true, false), (true, true), (false, true)] {
        (observed.called, observed.leads) = (called, leads);
        let decision = pass(&mut observed, 60 * SECOND);
        assert_eq!(creating(&decision), [""; 0]);
        assert_eq!(decision.again, Again::After(2 * SECOND));
    }
    observed.created.clear();
    assert_eq!(creating(&reconcile(&observed)), [name(&observed)]);
}

#[test]
fn n6_a_replica_that_neither_leads_nor_is_called_creates_nothing() {
    let mut observed = missing();
    observed.leads = false;
    let decision = pass(&mut observed, 60 * SECOND);
    assert_eq!(
        (creating(&decision).len(), decision.again),
        (0, Again::OnChange)
    );
    assert_eq!(creating(&reconcile(&observed)), [""; 0]);
}

#[test]
fn n6_p9_nothing_is_created_for_a_run_that_is_done_or_gone_or_has_not_started() {
    #[track_caller]
    fn check(change: impl FnOnce(&mut Observed)) {
        let mut observed = missing();
        observed.called = true;
        change(&mut observed);
        pass(&mut observed, 60 * SECOND);
        assert_eq!(creating(&reconcile(&observed)), [""; 0]);
    }
    check(|observed| change_run(observed, |run| run.state = RunState::Done));
    check(|observed| change_run(observed, |run| run.state = RunState::Pending));
    check(|observed| observed.presence = RunPresence::Gone);
    check(|observed| observed.run = None);
    check(|observed| {
        // The annotations of the run cannot be read any more.
        change_run(observed, |run| {
            let mode = crate::annotations::MODE.to_owned();
            run.annotations.insert(mode, "sideways".to_owned());
        });
    });
}

#[test]
fn n6_only_the_placeholder_that_is_missing_is_created() {
    let mut observed = observed_in(Mode::Workspaces, &["one", "two"]);
    observed.called = true;
    assert_eq!(creating(&reconcile(&observed)), [""; 0]);
    let second = observed.planned()[1].name.to_string();
    observed.placeholders.remove(&second);
    assert_eq!(creating(&reconcile(&observed)), [second]);
}

#[test]
fn m4_b1_the_placeholders_of_isolated_runs_take_their_nodes_in_the_same_order() {
    let subsets = |main: &str, other: &str| {
        let subset =
            |arch: &str, tasks: &[&str]| json!({"nodeSelector": {"arch": arch}, "tasks": tasks});
        json!({"": subset(main, &[]), "0123456789": subset(other, &["two"])}).to_string()
    };
    for (main, other) in [("amd64", "arm64"), ("arm64", "amd64")] {
        let mut observed = missing();
        change_run(&mut observed, |run| {
            *run = super::run(Mode::IsolatePipelineRun, &[]);
            let schema = crate::annotations::SCHEMA_VERSION.to_owned();
            run.annotations.insert(schema, "3".to_owned());
            let key = crate::annotations::SUBSETS.to_owned();
            run.annotations.insert(key, subsets(main, other));
        });
        let of = |observed: &Observed, arch: &str| {
            let mut specs = observed.planned().iter();
            let spec = specs.find(|spec| spec.pod_template["nodeSelector"]["arch"] == *arch);
            spec.unwrap().name.to_string()
        };
        let (first, second) = (of(&observed, "amd64"), of(&observed, "arm64"));
        observed.called = true;
        assert_eq!(
            creating(&reconcile(&observed)),
            std::slice::from_ref(&first)
        );

        // The first placeholder exists, but is not bound.
        let whole = observed_in(Mode::IsolatePipelineRun, &[]);
        let (own, pod) = (
            whole.placeholders.values().next(),
            whole.pods.values().next(),
        );
        let (mut own, mut pod) = ((**own.unwrap()).clone(), (**pod.unwrap()).clone());
        own.object.name.clone_from(&first);
        pod.object.name = format!("{first}-0");
        pod.placeholder.as_mut().unwrap().name.clone_from(&first);
        pod.controller = Some(owner("StatefulSet", &first, "s0"));
        pod.node = None;
        observed.placeholders.insert(first.clone(), Arc::new(own));
        add(&mut observed, pod.clone());
        assert_eq!(creating(&reconcile(&observed)), [""; 0]);
        pod.node = Some("node-1".to_owned());
        add(&mut observed, pod);
        observed.called = false;
        assert_eq!(creating(&reconcile(&observed)), [second]);
    }
}

/// The step that creates the placeholder fails, and its error names the owner of the object.
#[test]
fn p7_an_object_of_the_right_name_with_another_controller_is_never_adopted() {
    let mut observed = observed();
    observed.called = true;
    for controller in [Some(owner("Deployment", "theirs", "d")), None] {
        own(&mut observed).controller = controller;
        assert_eq!(creating(&reconcile(&observed)), [name(&observed)]);
    }
}

/// Somebody deleted the StatefulSet of a placeholder that has moved.
#[test]
fn n6_a_pod_that_has_lost_its_controller_gets_another_one() {
    let mut observed = observed();
    choose_pods(&mut observed);
    observed.placeholders.clear();
    observed.called = true;
    let backend = |observed: &Observed| match &reconcile(observed).steps[..] {
        [Step::Create { spec, .. }] => spec.backend,
        steps => panic!("{steps:?}"),
    };
    let pod = own_pod(&mut observed);
    pod.controller = None;
    assert_eq!(backend(&observed), Backend::Pod);
    let pod = own_pod(&mut observed);
    pod.placeholder.as_mut().unwrap().orphaned = true;
    assert_eq!(backend(&observed), Backend::Controlled);
}

/// A placeholder without a pod.
fn without_pod() -> Observed {
    let mut observed = observed();
    observed.pods.clear();
    observed
}

/// If a placeholder is retried: its new record.
fn retrying(decision: &Decision) -> Option<&Record> {
    taken!(decision, Step::Retry(_, record) => record).next()
}

#[track_caller]
fn pause(decision: &Decision) -> Duration {
    match decision.again {
        Again::After(pause) => pause,
        Again::OnChange | Again::Backoff => panic!("{decision:?}"),
    }
}

/// The pauses before each of nine tries.
fn pauses(observed: &mut Observed) -> Vec<Duration> {
    let mut pauses = Vec::new();
    for times in 1..=9 {
        let whole = pause(&reconcile(observed));
        pauses.push(whole);
        // A change of the run does not make the next try come earlier.
        assert_eq!(retrying(&pass(observed, whole / 4)), None);
        let left = pause(&pass(observed, whole * 3 / 4));
        assert!(left <= whole - whole / 4, "{left:?} of {whole:?}");
        observed.now += Duration::from_nanos(1);
        for since in observed.since.values_mut() {
            *since += Duration::from_nanos(1);
        }
        let decision = reconcile(observed);
        let record = retrying(&decision).unwrap_or_else(|| panic!("after {whole:?}: {decision:?}"));
        let retried = record.retried.as_ref().unwrap();
        assert_eq!((retried.times, retried.last), (times, observed.now));
        own(observed).record = record.clone();
    }
    pauses
}

#[test]
fn n3_a_placeholder_without_a_pod_is_retried_at_least_every_thirty_seconds() {
    let silent = pauses(&mut without_pod());
    assert_eq!(silent[0].as_secs(), 5, "its controller may only be slow");
    assert!(
        silent.iter().all(|pause| *pause <= 22 * SECOND),
        "{silent:?}"
    );
    let mut refused = without_pod();
    let name = name(&refused);
    let reason = crate::event_texts::no_claims();
    change_run(&mut refused, |run| {
        // The annotation already names this cause.
        let blocked = crate::annotations::BLOCKED.to_owned();
        run.annotations.insert(blocked, reason.to_annotation());
    });
    refused.refused.insert(name, reason);
    let pauses = pauses(&mut refused);
    let seconds = |from, to| Duration::from_secs(from)..=Duration::from_secs(to);
    let bounds = [
        seconds(1, 3),
        seconds(2, 4),
        seconds(4, 6),
        seconds(8, 10),
        seconds(16, 18),
    ];
    for (pause, bounds) in pauses.iter().zip(bounds) {
        assert!(bounds.contains(pause), "{pauses:?}");
    }
    for pause in &pauses[5..] {
        assert!(seconds(20, 22).contains(pause), "{pauses:?}");
    }
}

#[test]
fn n3_placeholders_that_were_refused_together_are_not_retried_together() {
    let of = |uid: &str| {
        let mut observed = without_pod();
        own(&mut observed).object.uid = uid.to_owned();
        pause(&reconcile(&observed))
    };
    let different: BTreeSet<_> = (0..20).map(|n| of(&format!("uid-{n}"))).collect();
    assert!(different.len() > 5, "{different:?}");
}

#[test]
fn n3_a_placeholder_that_has_its_pod_begins_anew_when_it_loses_it() {
    let mut observed = observed();
    own(&mut observed).record.retried = once(&observed, 6, 600 * SECOND);
    let decision = pass(&mut observed, SECOND);
    assert_eq!(
        (retrying(&decision), decision.again),
        (None, Again::OnChange)
    );
    // The pod was evicted, for example. The placeholder's controller creates the next pod in a moment.
    observed.pods.clear();
    let decision = reconcile(&observed);
    assert_eq!(retrying(&decision), None);
    assert!(pause(&decision) <= 7 * SECOND, "{decision:?}");
    pass(&mut observed, 7 * SECOND);
    let decision = reconcile(&observed);
    let retried = retrying(&decision).unwrap().retried.clone();
    assert_eq!(retried.unwrap().times, 1);
}

#[test]
fn n3_nothing_is_retried_for_a_run_that_needs_nothing_or_by_another_replica() {
    #[track_caller]
    fn check(change: impl FnOnce(&mut Observed)) {
        let mut observed = without_pod();
        change(&mut observed);
        pass(&mut observed, 60 * SECOND);
        assert_eq!(retrying(&reconcile(&observed)), None);
    }
    check(|observed| change_run(observed, |run| run.state = RunState::Done));
    check(|observed| observed.presence = RunPresence::Gone);
    check(|observed| own(observed).object.deleting = true);
    check(|observed| observed.leads = false);
    check(|observed| own(observed).controller = Some(owner("Deployment", "d", "d")));
    check(|observed| {
        // A placeholder that is not in the plan.
        let other = own(observed).clone();
        observed.placeholders.clear();
        observed
            .placeholders
            .insert("database".to_owned(), Arc::new(other));
    });
}
