//! Plans for one admitted run; each test changes one thing about it.

use std::collections::BTreeSet;

use super::*;
use crate::annotations::{GROUP, PINNED};
use crate::config::PlaceholderDefaults;
use crate::names::Group;
use crate::names::{ClaimTemplateName, claim_name};
use crate::pipeline_run::WorkspaceSource;
use proptest::prelude::*;
use serde_json::json;

const UID: &str = "705ab4f5-6393-11e8-b7cc-42010a800002";

fn configuration(mode: Mode) -> Configuration {
    Configuration {
        mode,
        ..Configuration::default()
    }
}

fn document() -> Value {
    json!({
        "metadata": {
            "namespace": "ci", "name": "build-x7k2p", "uid": "u1",
            "labels": {
                "team": "a",
                "kueue.x-k8s.io/queue-name": "ci",
                "app.kubernetes.io/component": "theirs",
                "tekton.dev/pipelineRun": "theirs",
            },
        },
        "spec": {"workspaces": [
            {"name": "source", "volumeClaimTemplate": {
                "metadata": {"name": "src", "labels": {"tier": "fast", "tekton.dev/workspace": "theirs"}, "annotations": {"a": "b"}},
                "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "fast"},
            }},
            {"name": "cache", "subPath": "go", "persistentVolumeClaim": {"claimName": "build-cache"}},
            {"name": "token", "secret": {"secretName": "t"}},
            {"name": "modules", "subPath": "npm", "persistentVolumeClaim": {"claimName": "build-cache"}},
            {"name": "models", "persistentVolumeClaim": {"claimName": "models"}},
        ]},
    })
}

fn admitted(document: &Value) -> PipelineRun {
    let run = PipelineRun::parse(document).unwrap();
    admit(&configuration(Mode::PipelineRuns), &run, UID).apply(&run)
}

fn texts(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect()
}

#[track_caller]
fn placeholder(run: &PipelineRun) -> PlaceholderSpec {
    match plan(run).unwrap().action {
        Action::Ensure(mut placeholders) if placeholders.len() == 1 => placeholders.remove(0),
        other => panic!("expected one placeholder, got {other:?}"),
    }
}

#[track_caller]
fn check(run: &PipelineRun, mode: Mode, action: Action, code: ReasonCode) {
    let plan = plan(run).unwrap();
    assert_eq!((plan.mode, plan.action), (mode, action));
    assert_eq!(
        plan.reasons
            .iter()
            .map(|reason| reason.code)
            .collect::<Vec<_>>(),
        [code]
    );
}

#[test]
fn m3_p1_p5_v1_v2_v6_the_whole_placeholder() {
    let group = Group::from_request_uid(UID);
    let name = AssistantName::of(&group);
    let expect = PlaceholderSpec {
        labels: texts(&[
            ("team", "a"),
            ("app.kubernetes.io/component", "affinity-assistant"),
            ("app.kubernetes.io/instance", name.as_str()),
            ("tekton.dev/pipelineRun", "build-x7k2p"),
        ]),
        name,
        claim_templates: vec![ClaimTemplateSpec {
            name: ClaimTemplateName::derive(&group, "source", Some("src")),
            workspace: "source".to_owned(),
            spec: json!({"accessModes": ["ReadWriteOnce"], "storageClassName": "fast"}),
            labels: texts(&[
                ("tier", "fast"),
                ("tekton.dev/workspace", "source"),
                ("tekton.dev/pipelineRun", "build-x7k2p"),
            ]),
            annotations: texts(&[("a", "b")]),
        }],
        claim_names: vec!["build-cache".to_owned(), "models".to_owned()],
        cpu: "50m".to_owned(),
        memory: "100Mi".to_owned(),
        image: "registry.k8s.io/pause:3.10.1".to_owned(),
        pod_template: Map::new(),
        service_account_name: String::new(),
    };
    assert_eq!(placeholder(&admitted(&document())), expect);
}

#[test]
fn m3_a_run_without_workspaces_has_a_placeholder_too() {
    let spec = placeholder(&admitted(&json!({"metadata": {"name": "build"}})));
    assert_eq!((spec.claim_templates, spec.claim_names), (vec![], vec![]));
}

#[test]
fn m5_a_run_on_which_nothing_is_pinned_is_left_alone() {
    let run = PipelineRun::parse(&document()).unwrap();
    check(&run, Mode::Disabled, Action::Nothing, ReasonCode::NotPinned);
    let done = PipelineRun {
        state: RunState::Done,
        deletion: true,
        ..run
    };
    check(
        &done,
        Mode::Disabled,
        Action::Nothing,
        ReasonCode::NotPinned,
    );
}

#[test]
fn p6_a_run_that_is_done_or_being_deleted_is_released() {
    let run = admitted(&document());
    let release = |cause| Action::Release { cause };
    let done = PipelineRun {
        state: RunState::Done,
        ..run.clone()
    };
    check(
        &done,
        Mode::PipelineRuns,
        release(ReleaseCause::Done),
        ReasonCode::PipelineRunDone,
    );
    for state in [RunState::Pending, RunState::Active, RunState::Done] {
        let deleted = PipelineRun {
            state,
            deletion: true,
            ..run.clone()
        };
        check(
            &deleted,
            Mode::PipelineRuns,
            release(ReleaseCause::Deleted),
            ReasonCode::PipelineRunDeleted,
        );
    }
}

#[test]
fn p6_release_does_not_depend_on_readable_annotations() {
    let mut run = admitted(&document());
    run.annotations = texts(&[(MODE, "garbled")]);
    assert!(plan(&run).is_err());
    run.state = RunState::Done;
    check(
        &run,
        Mode::Disabled,
        Action::Release {
            cause: ReleaseCause::Done,
        },
        ReasonCode::PipelineRunDone,
    );
}

#[test]
fn p9_a_pending_run_gets_nothing_until_it_starts() {
    let run = PipelineRun {
        state: RunState::Pending,
        ..admitted(&document())
    };
    check(
        &run,
        Mode::PipelineRuns,
        Action::Nothing,
        ReasonCode::PipelineRunPending,
    );
}

#[test]
fn m8_the_plan_is_what_was_pinned() {
    let run = PipelineRun::parse(&document()).unwrap();
    let mut configured = configuration(Mode::PipelineRuns);
    configured.placeholder = PlaceholderDefaults {
        cpu: "70m".to_owned(),
        memory: "7Mi".to_owned(),
        image: "pause:7".to_owned(),
        ..PlaceholderDefaults::default()
    };
    let spec = placeholder(&admit(&configured, &run, UID).apply(&run));
    assert_eq!(
        (spec.cpu.as_str(), spec.memory.as_str(), spec.image.as_str()),
        ("70m", "7Mi", "pause:7")
    );
}

#[test]
fn v9_claims_whose_names_are_not_known_are_left_out_and_said() {
    let mut document = document();
    document["spec"]["workspaces"][1]["persistentVolumeClaim"] =
        json!({"claimName": "$(params.cache)"});
    document["spec"]["workspaces"][3]["persistentVolumeClaim"] = json!({});
    let run = admitted(&document);
    assert_eq!(placeholder(&run).claim_names, ["models"]);
    let reasons = plan(&run).unwrap().reasons;
    let codes: Vec<_> = reasons.iter().map(|reason| reason.code).collect();
    assert_eq!(
        codes,
        [
            ReasonCode::CoschedulePipelineRun,
            ReasonCode::ClaimNameVariable,
            ReasonCode::ClaimNameEmpty
        ]
    );
    assert_eq!(
        reasons[1].message,
        "workspace \"cache\" is bound to claim \"$(params.cache)\", whose name is not known yet; it is left out"
    );
}

#[test]
fn v6_a_claim_of_the_run_itself_is_mounted_once() {
    let mut run = admitted(&document());
    run.workspaces[4].source = run.workspaces[0].source.clone();
    let spec = placeholder(&run);
    assert_eq!(
        (spec.claim_templates.len(), spec.claim_names),
        (1, vec!["build-cache".to_owned()])
    );
}

#[test]
fn v2_a_template_that_admission_did_not_see_is_said() {
    let mut run = admitted(&document());
    let late =
        json!({"spec": {"workspaces": [{"name": "late", "volumeClaimTemplate": {"spec": {}}}]}});
    run.workspaces
        .extend(PipelineRun::parse(&late).unwrap().workspaces);
    let reasons = plan(&run).unwrap().reasons;
    assert_eq!(reasons[1].code, ReasonCode::ClaimTemplateNotReplaced);
}

#[test]
fn v2_every_pinned_template_is_bound_to_its_claim() {
    let run = admitted(&document());
    let WorkspaceSource::Claim { claim_name } = &run.workspaces[0].source else {
        panic!("admission left a template")
    };
    let expect = Violation::new(
        "spec.workspaces[0]",
        format!(
            "workspace \"source\" is not bound to the claim of its pinned template; \
             allowed: persistentVolumeClaim.claimName {claim_name:?}"
        ),
    );
    for source in [
        WorkspaceSource::Other,
        WorkspaceSource::Claim {
            claim_name: "other".to_owned(),
        },
    ] {
        let mut run = run.clone();
        run.workspaces[0].source = source;
        assert_eq!(plan(&run), Err(vec![expect.clone()]));
    }
    let mut unbound = run.clone();
    unbound.workspaces.remove(0);
    assert_eq!(
        plan(&unbound),
        Err(vec![Violation::new(
            "metadata.annotations[coscheduler.dev/volume-claim-templates][source]",
            "workspace \"source\" is not bound; allowed: workspaces of the run"
        )])
    );
}

#[test]
fn p7_a_changed_group_is_refused_rather_than_followed() {
    let mut run = admitted(&document());
    run.annotations
        .insert(GROUP.to_owned(), "0123456789".to_owned());
    assert_eq!(plan(&run).unwrap_err()[0].field, "spec.workspaces[0]");
}

#[test]
fn all_violations_come_at_once() {
    let mut run = admitted(&document());
    run.name.clear();
    run.workspaces[0].source = WorkspaceSource::Other;
    let fields: Vec<_> = plan(&run)
        .unwrap_err()
        .into_iter()
        .map(|violation| violation.field)
        .collect();
    assert_eq!(fields, ["metadata.name", "spec.workspaces[0]"]);
}

#[test]
fn p8_the_longest_names_give_valid_labels() {
    let mut document = document();
    document["metadata"]["name"] = json!(format!("{}.b", "a".repeat(251)));
    document["spec"]["workspaces"][0]["name"] = json!("w ".repeat(100));
    let spec = placeholder(&admitted(&document));
    for labels in [&spec.labels, &spec.claim_templates[0].labels] {
        assert!(
            labels.values().all(|value| label_value(value) == *value),
            "{labels:?}"
        );
    }
    assert_eq!(
        spec.labels[labels::PIPELINE_RUN],
        spec.claim_templates[0].labels[labels::PIPELINE_RUN]
    );
}

#[test]
fn a_preview_is_admission_and_the_plan_that_follows() {
    let mut document = document();
    document["metadata"] = json!({"generateName": "build-"});
    let run = PipelineRun::parse(&document).unwrap();
    let preview = preview(&configuration(Mode::PipelineRuns), &run, UID).unwrap();
    assert_eq!(
        preview.admission,
        admit(&configuration(Mode::PipelineRuns), &run, UID)
    );
    document["metadata"]["name"] = json!("build-xxxxx");
    assert_eq!(preview.plan, plan(&admitted(&document)).unwrap());
}

#[test]
fn m5_a_preview_with_coscheduling_disabled_does_nothing() {
    let run = PipelineRun::parse(&document()).unwrap();
    let preview = preview(&configuration(Mode::Disabled), &run, UID).unwrap();
    assert_eq!(
        (preview.admission, preview.plan),
        (Admission::default(), not_pinned())
    );
}

#[test]
fn a_preview_needs_some_name() {
    let run = PipelineRun::parse(&json!({})).unwrap();
    let violations = preview(&configuration(Mode::PipelineRuns), &run, UID).unwrap_err();
    assert_eq!(violations[0].field, "metadata.name");
}

fn any_source() -> impl Strategy<Value = Value> {
    prop_oneof![
        proptest::option::of("[a-zA-Z.]{0,70}").prop_map(
            |name| json!({"volumeClaimTemplate": {"metadata": {"name": name}, "spec": {}}})
        ),
        "[ab$(]{0,3}".prop_map(|name| json!({"persistentVolumeClaim": {"claimName": name}})),
        Just(json!({"emptyDir": {}})),
    ]
}

proptest! {
    #[test]
    fn v1_v2_v6_every_known_claim_of_an_admitted_run_is_mounted_exactly_once(
        workspaces in proptest::collection::btree_map("\\PC{1,70}", any_source(), 0..6),
        request in "\\PC*",
    ) {
        let workspaces: Vec<Value> = workspaces.into_iter().map(|(name, mut source)| {
            source["name"] = json!(name);
            source
        }).collect();
        let run = PipelineRun::parse(&json!({"metadata": {"name": "r"}, "spec": {"workspaces": workspaces}})).unwrap();
        let run = admit(&configuration(Mode::PipelineRuns), &run, &request).apply(&run);
        let spec = placeholder(&run);
        let mut mounted: Vec<String> = spec.claim_templates.iter().map(|template| claim_name(&template.name, &spec.name)).collect();
        mounted.extend(spec.claim_names.clone());
        let known: BTreeSet<String> = run.workspaces.iter().filter_map(|binding| match &binding.source {
            WorkspaceSource::Claim { claim_name } if !claim_name.is_empty() && !claim_name.contains("$(") => Some(claim_name.clone()),
            _ => None,
        }).collect();
        prop_assert_eq!(mounted.len(), known.len());
        prop_assert_eq!(mounted.into_iter().collect::<BTreeSet<_>>(), known);
    }

    #[test]
    fn p1_labels_are_the_runs_own_except_kueues_and_ours_win(
        own in proptest::collection::btree_map("(kueue.x-k8s.io/|app.kubernetes.io/|tekton.dev/|)(queue-name|component|instance|pipelineRun|x)", "[a-z]{0,3}", 0..8),
    ) {
        let mut run = admitted(&json!({"metadata": {"name": "r"}}));
        run.labels.clone_from(&own);
        let labels = placeholder(&run).labels;
        let ours = [labels::COMPONENT, labels::INSTANCE, labels::PIPELINE_RUN];
        prop_assert!(labels.keys().all(|key| !key.starts_with("kueue.x-k8s.io/")));
        for (key, value) in own.iter().filter(|(key, _)| !key.starts_with("kueue.x-k8s.io/")) {
            prop_assert_eq!(ours.contains(&key.as_str()) || labels[key] == *value, true);
        }
        prop_assert_eq!(labels[labels::COMPONENT].as_str(), "affinity-assistant");
        prop_assert_eq!(labels[labels::PIPELINE_RUN].as_str(), "r");
    }

    #[test]
    fn a_plan_follows_from_pinned_annotations_alone(garbage in proptest::collection::btree_map(
        prop::sample::select(PINNED.to_vec()), "\\PC{0,12}", 0..3,
    )) {
        let mut run = admitted(&document());
        run.annotations.extend(garbage.into_iter().map(|(key, value)| (key.to_owned(), value)));
        if let Err(violations) = plan(&run) {
            prop_assert!(!violations.is_empty());
        }
    }
}

#[test]
fn p3_the_placeholder_shares_what_decides_where_the_runs_pods_may_run() {
    let mut run = PipelineRun {
        pod_template: Some(json!({
            "nodeSelector": {"arch": "arm64"},
            "tolerations": [{"key": "ci", "operator": "Exists"}],
            "schedulerName": null,
            "env": [{"name": "SECRET", "value": "x"}],
            "securityContext": {"runAsUser": 0, "fsGroup": 7},
        })),
        service_account_name: Some("builder".to_owned()),
        ..admitted(&document())
    };
    let spec = placeholder(&run);
    assert_eq!(
        Value::Object(spec.pod_template),
        json!({
            "nodeSelector": {"arch": "arm64"},
            "tolerations": [{"key": "ci", "operator": "Exists"}],
            "securityContext": {"fsGroup": 7},
        })
    );
    assert_eq!(spec.service_account_name, "builder");
    let reason = plan(&run).unwrap().reasons.pop().unwrap();
    assert_eq!(reason.code, ReasonCode::SecurityContextReduced);
    assert!(
        reason.message.contains("runAsUser: 0"),
        "{}",
        reason.message
    );
    run.pod_template = None;
    assert!(placeholder(&run).pod_template.is_empty());
}

#[test]
fn m8_p3_the_default_template_that_was_pinned_holds_where_the_run_has_nothing() {
    let run = PipelineRun {
        pod_template: Some(json!({"schedulerName": "own"})),
        ..PipelineRun::parse(&document()).unwrap()
    };
    let mut configured = configuration(Mode::PipelineRuns);
    let default = json!({"schedulerName": "default", "nodeSelector": {"disk": "ssd"}, "serviceAccountName": "placeholder"});
    configured.placeholder.pod_template = default.as_object().cloned().unwrap();
    let spec = placeholder(&admit(&configured, &run, UID).apply(&run));
    assert_eq!(
        Value::Object(spec.pod_template),
        json!({"schedulerName": "own", "nodeSelector": {"disk": "ssd"}})
    );
    assert_eq!(spec.service_account_name, "placeholder");
}
