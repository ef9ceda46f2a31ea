//! Tests with one run that uses two existing claims. Each test changes the volumes of these claims.

use super::*;
use crate::admit::{Question, TEKTON_CONTROLLER, admit};
use crate::annotations::GROUP;
use crate::config::Configuration;
use crate::mode::Mode;
use crate::plan::plan;
use crate::volumes::{NodeRequirement, NodeTerm, Operator, SeenVolume};
use serde_json::Value;

fn admitted(mode: Mode, spec: Value) -> PipelineRun {
    let run = PipelineRun::parse(&json!({
        "metadata": {"namespace": "ci", "name": "build", "uid": "u"},
        "spec": spec,
    }))
    .unwrap();
    let configuration = Configuration {
        mode,
        ..Configuration::default()
    };
    let question = Question::about(&run, "request", "alice");
    admit(Ok(&configuration), TEKTON_CONTROLLER, &question)
        .unwrap()
        .apply(&run)
}

fn two_claims(mode: Mode) -> PipelineRun {
    let bound = |name: &str| json!({"name": name, "persistentVolumeClaim": {"claimName": name}});
    admitted(
        mode,
        json!({"workspaces": [bound("source"), bound("cache")]}),
    )
}

fn in_zone(name: &str, zone: &str, single_pod: bool) -> SeenClaim {
    let requirement = NodeRequirement {
        key: "zone".to_owned(),
        operator: Operator::In,
        values: vec![zone.to_owned()],
    };
    let term = NodeTerm {
        expressions: vec![requirement],
        fields: vec![],
    };
    SeenClaim {
        name: name.to_owned(),
        single_pod,
        volume: Some(SeenVolume { terms: vec![term] }),
    }
}

type Told = (Vec<Reason>, Option<Reason>);

fn told(run: &PipelineRun, claims: &[SeenClaim]) -> Told {
    told_with(run, claims, &[])
}

/// As [`told`], with placeholders that mount the claims with these names.
fn told_with(run: &PipelineRun, claims: &[SeenClaim], mounted: &[&str]) -> Told {
    let claim = |name: &str| claims.iter().find(|claim| claim.name == name).cloned();
    of_plan(&plan(run), claim, |_, name| mounted.contains(&name))
}

fn codes((events, _): &Told) -> Vec<ReasonCode> {
    events.iter().map(|reason| reason.code).collect()
}

#[test]
fn what_goes_as_it_should_is_not_told() {
    for mode in [
        Mode::Workspaces,
        Mode::PipelineRuns,
        Mode::IsolatePipelineRun,
    ] {
        let run = two_claims(mode);
        assert_eq!(told(&run, &[]), Told::default());
        let near = [in_zone("source", "a", false), in_zone("cache", "a", false)];
        assert_eq!(told(&run, &near), Told::default());
    }
}

#[test]
fn v8_a_claim_that_turns_out_to_be_for_one_pod_is_told() {
    let claims = [in_zone("source", "a", true), in_zone("cache", "a", false)];
    for mode in [Mode::Workspaces, Mode::PipelineRuns] {
        let notices = told(&two_claims(mode), &claims);
        assert_eq!(codes(&notices), [ReasonCode::ClaimNotMounted]);
        assert!(notices.0[0].message.contains("\"source\""));
        assert_eq!(notices.1, None);
    }
}

#[test]
fn v8_a_claim_for_one_pod_that_a_placeholder_mounts_is_not_said_to_do_no_harm() {
    let claims = [in_zone("source", "a", true), in_zone("cache", "a", false)];
    for mode in [Mode::Workspaces, Mode::PipelineRuns] {
        let run = two_claims(mode);
        let other = told_with(&run, &claims, &["cache"]);
        assert_eq!(codes(&other), [ReasonCode::ClaimNotMounted]);
        assert_eq!(
            told_with(&run, &claims, &["source", "cache"]),
            Told::default()
        );
    }
}

#[test]
fn v9_a_claim_left_out_is_told_even_where_nothing_else_is_to_be_done() {
    let claim = json!({"claimName": "$(tasks.make.results.claim)"});
    let workspaces = json!([{"name": "source", "persistentVolumeClaim": claim}]);
    let run = admitted(Mode::Workspaces, json!({"workspaces": workspaces}));
    assert_eq!(codes(&told(&run, &[])), [ReasonCode::ClaimNameVariable]);
}

#[test]
fn a_run_that_cannot_be_planned_for_waits_and_is_told_why() {
    let mut run = two_claims(Mode::PipelineRuns);
    run.annotations.insert(GROUP.to_owned(), "x".to_owned());
    let (events, blocked) = told(&run, &[]);
    let blocked = blocked.unwrap();
    assert_eq!(blocked.code, ReasonCode::PipelineRunInvalid);
    assert!(blocked.message.contains(GROUP), "{}", blocked.message);
    assert_eq!(events, [blocked]);
}

#[test]
fn an_event_has_the_same_name_for_the_same_reason_alone() {
    let run = OwnerReference::to_pipeline_run(&two_claims(Mode::PipelineRuns));
    let reason = |message: &str| Reason::new(ReasonCode::ClaimNameEmpty, message);
    let name = reason("one").event_name(&run);
    assert_eq!(name, reason("one").event_name(&run));
    assert!(name.starts_with("build.") && name.len() == "build.".len() + 10);
    let again = OwnerReference {
        uid: "another".to_owned(),
        ..run.clone()
    };
    let others = [
        reason("two").event_name(&run),
        reason("one").event_name(&again),
        Reason::new(ReasonCode::OverrideIgnored, "one").event_name(&run),
    ];
    assert!(!others.contains(&name), "{others:?}");
}

#[test]
fn v7_the_annotation_follows_what_blocks_the_run() {
    let reason = Reason::new(ReasonCode::VolumeNodeAffinityConflict, "apart");
    let text = r#"{"message":"apart","reason":"VolumeNodeAffinityConflict"}"#.to_owned();
    let mut run = two_claims(Mode::PipelineRuns);
    assert_eq!(blocked_annotation(&run, None), None);
    assert_eq!(
        blocked_annotation(&run, Some(&reason)),
        Some(Some(text.clone()))
    );
    run.annotations.insert(BLOCKED.to_owned(), text);
    assert_eq!(blocked_annotation(&run, Some(&reason)), None);
    assert_eq!(blocked_annotation(&run, None), Some(None));
}

#[test]
fn v7_the_annotation_cannot_be_forged() {
    let forged = json!({
        "metadata": {"name": "r", "annotations": {BLOCKED: "{}"}},
        "spec": {"taskRunSpecs": [{"pipelineTaskName": "t", "metadata": {"annotations": {BLOCKED: "{}"}}}]},
    });
    let run = PipelineRun::parse(&forged).unwrap();
    for mode in [Mode::Workspaces, Mode::PipelineRuns, Mode::Disabled] {
        let configuration = Configuration {
            mode,
            ..Configuration::default()
        };
        let question = Question::about(&run, "request", "alice");
        let admission = admit(Ok(&configuration), TEKTON_CONTROLLER, &question).unwrap();
        assert!(!admission.warnings.is_empty(), "{mode}");
        let stored = admission.apply(&run);
        assert!(!stored.annotations.contains_key(BLOCKED), "{mode}");
        assert!(stored.task_run_specs[0].annotations.is_empty(), "{mode}");
    }
}

#[test]
fn n1_a_claim_that_cannot_follow_is_reported_while_its_nodes_turn_pods_away() {
    let zone = |value: &str, cordoned: bool| Node {
        name: format!("node-{value}"),
        unschedulable: cordoned,
        labels: [("zone".to_owned(), value.to_owned())].into(),
        ..Node::default()
    };
    let claim = |operator: Operator, values: &[&str]| SeenClaim {
        name: "data".to_owned(),
        volume: Some(SeenVolume {
            terms: vec![NodeTerm {
                expressions: vec![NodeRequirement {
                    key: "zone".to_owned(),
                    operator,
                    values: values.iter().map(ToString::to_string).collect(),
                }],
                ..NodeTerm::default()
            }],
        }),
        ..SeenClaim::default()
    };
    let check = |claim: &SeenClaim, nodes: &[Node], expect: Option<&str>| {
        let nodes: Vec<&Node> = nodes.iter().collect();
        let stranded = stranded(&[], std::slice::from_ref(claim), &nodes);
        let message = stranded.map(|reason| reason.message);
        match (&message, expect) {
            (None, None) => {}
            (Some(message), Some(part)) => assert!(message.contains(part), "{message}"),
            _ => panic!("{message:?} instead of {expect:?}"),
        }
    };
    let in_a = claim(Operator::In, &["a"]);
    let cordoned = "For example, node-a is cordoned. Uncordon";
    check(&in_a, &[zone("a", true), zone("b", false)], Some(cordoned));
    check(&in_a, &[zone("a", false), zone("b", true)], None);
    check(
        &in_a,
        &[zone("b", false)],
        Some("No node of the cluster can"),
    );
    check(
        &in_a,
        &[Node::default()],
        Some("No node of the cluster can"),
    );
    let two = [zone("a", true), zone("a", false)];
    check(&in_a, &two, None);
    let not_b = claim(Operator::NotIn, &["b"]);
    check(&not_b, &[Node::default()], None);
    check(
        &not_b,
        &[zone("b", false)],
        Some("No node of the cluster can"),
    );
    let movable = SeenClaim {
        name: "data".to_owned(),
        volume: Some(SeenVolume::default()),
        ..SeenClaim::default()
    };
    check(&movable, &[zone("a", true)], None);
}
