//! Tests of plans for one admitted run. Each test changes one part of the run.

use std::collections::BTreeSet;

use super::*;
use crate::admit::TEKTON_CONTROLLER;
use crate::annotations::{
    CHOSEN_PLACEMENT, CHOSEN_RESERVES, GROUP, OVERRIDE, PINNED, SCHEMA_VERSION, SIZES,
};
use crate::config::{Backend, Configuration, PlaceholderDefaults, Reserves};
use crate::event_texts::{NOTE_LENGTH, override_ignored};
use crate::labels;
use crate::mode::IsolationScope;
use crate::names::Group;
use crate::names::{ClaimTemplateName, claim_name, label_value, tekton_claim_name};
use crate::overrides::Override;
use crate::pipeline_run::WorkspaceSource;
use crate::separation::Placement;
use proptest::prelude::*;
use serde_json::json;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

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
    admitted_with(&configuration(Mode::PipelineRuns), &run)
}

fn question(run: &PipelineRun) -> Question<'_> {
    Question::about(run, UID, "alice")
}

#[track_caller]
fn admitted_with(configuration: &Configuration, run: &PipelineRun) -> PipelineRun {
    admit(Ok(configuration), TEKTON_CONTROLLER, &question(run))
        .unwrap()
        .apply(run)
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
        subset: String::new(),
        labels: texts(&[
            ("team", "a"),
            ("app.kubernetes.io/component", "affinity-assistant"),
            ("app.kubernetes.io/instance", name.as_str()),
            ("tekton.dev/pipeline", "build-x7k2p"),
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
                ("tekton.dev/pipeline", "build-x7k2p"),
                ("tekton.dev/pipelineRun", "build-x7k2p"),
            ]),
            annotations: texts(&[("a", "b")]),
        }],
        single_pod_claims: vec![],
        claim_names: vec!["build-cache".to_owned(), "models".to_owned()],
        unmounted_claim_names: vec![],
        separation: Separation::None,
        cpu: "50m".to_owned(),
        memory: "100Mi".to_owned(),
        reserves: Reserves::Placement,
        backend: Backend::Controlled,
        image: "registry.k8s.io/pause:3.10.1".to_owned(),
        pod_template: Map::new(),
        service_account_name: String::new(),
    };
    assert_eq!(placeholder(&admitted(&document())), expect);
}

#[test]
fn m3_a_run_without_workspaces_has_a_placeholder_too() {
    let spec = placeholder(&admitted(
        &json!({"metadata": {"name": "build", "uid": "u"}}),
    ));
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
fn m8_a_run_pinned_before_there_were_schema_versions_is_planned_as_before() {
    let run = admitted(&document());
    let mut older = run.clone();
    older.annotations.remove(SCHEMA_VERSION);
    assert_eq!(plan(&older), plan(&run));
}

#[test]
fn m8_a_run_of_an_unknown_schema_version_is_left_alone_until_it_is_done() {
    let mut run = admitted(&document());
    run.annotations
        .insert(SCHEMA_VERSION.to_owned(), "4".to_owned());
    let why = ReasonCode::SchemaVersionUnknown;
    check(&run, Mode::PipelineRuns, Action::Nothing, why);
    run.state = RunState::Done;
    let cause = ReleaseCause::Done;
    let why = ReasonCode::PipelineRunDone;
    check(&run, Mode::PipelineRuns, Action::Release { cause }, why);
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
        placement: Placement::Pack,
        reserves: Reserves::Placement,
        ..PlaceholderDefaults::default()
    };
    let mut run = admitted_with(&configured, &run);
    let spec = placeholder(&run);
    assert_eq!(
        (spec.cpu.as_str(), spec.memory.as_str(), spec.image.as_str()),
        ("70m", "7Mi", "pause:7")
    );
    assert_eq!(
        (spec.separation, spec.reserves),
        (Separation::Pack, Reserves::Placement)
    );
    for (sizes, reserves) in [
        (
            r#"{"free": {}, "build": {"requests": {"cpu": "1"}}}"#,
            Reserves::Placement,
        ),
        // No task is known to request anything.
        (r#"{"free": {}}"#, Reserves::Nothing),
    ] {
        run.annotations.insert(SIZES.to_owned(), sizes.to_owned());
        assert_eq!(placeholder(&run).reserves, reserves);
    }
}

#[test]
fn v9_claims_whose_names_are_not_known_are_left_out_and_said() {
    let mut document = document();
    document["spec"]["workspaces"][1]["persistentVolumeClaim"] =
        json!({"claimName": "$(params.cache)"});
    document["spec"]["workspaces"][3]["persistentVolumeClaim"] = json!({});
    let mut run = admitted(&document);
    // Until Tekton has fetched the Pipeline, the run has no placeholder.
    check(
        &run,
        Mode::PipelineRuns,
        Action::Nothing,
        ReasonCode::PipelineNotKnown,
    );
    let defaults = json!([{"name": "cache", "default": "of-pipeline"}]);
    run.defaults = Some(crate::params::Params::defaults(&defaults));
    assert_eq!(placeholder(&run).claim_names, ["of-pipeline", "models"]);
    run.defaults = Some(crate::params::Params::default());
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
        "Workspace \"cache\" is bound to claim \"$(params.cache)\". The value of the variable in this name is not known, or it \
         differs between tasks of the run, so no placeholder mounts this claim. In mode workspaces, the pods that use the \
         claim may run on different nodes. In other modes, the run's placeholder may be on a node that cannot reach the claim's volume. To prevent this, create a new run \
         with a claim name that has no variables. Or, if the variable is a parameter, create a new run that sets this parameter in spec.params."
    );
}

#[test]
fn v9_a_claim_whose_name_has_a_known_parameter_is_mounted_under_its_value() {
    let mut document = document();
    document["spec"]["params"] = json!([{"name": "cache", "value": "cache-of-main"}]);
    document["spec"]["workspaces"][1]["persistentVolumeClaim"] =
        json!({"claimName": "$(params.cache)"});
    let mut run = admitted(&document);
    assert_eq!(
        placeholder(&run).claim_names,
        ["cache-of-main", "build-cache", "models"]
    );
    // The plan no longer needs the parameters, so the caches do not keep them.
    run.params = crate::params::Params::default();
    assert_eq!(
        placeholder(&run).claim_names,
        ["cache-of-main", "build-cache", "models"]
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
            "workspace \"source\" is not bound to the claim that was made for it; \
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
            "the run has no workspace \"source\"; allowed: workspaces of the run"
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
    run.uid.clear();
    run.workspaces[0].source = WorkspaceSource::Other;
    let fields: Vec<_> = plan(&run)
        .unwrap_err()
        .into_iter()
        .map(|violation| violation.field)
        .collect();
    assert_eq!(
        fields,
        ["metadata.name", "metadata.uid", "spec.workspaces[0]"]
    );
}

#[test]
fn v4_claims_are_labelled_with_the_pipeline_before_tekton_labels_the_run() {
    let mut document = document();
    let pipeline = |document: &Value| {
        let spec = placeholder(&admitted(document));
        let label = spec.claim_templates[0].labels.get(labels::PIPELINE);
        assert_eq!(spec.labels.get(labels::PIPELINE), label);
        label.cloned()
    };
    assert_eq!(pipeline(&document).unwrap(), "build-x7k2p");
    document["spec"]["pipelineRef"] = json!({"name": "build"});
    assert_eq!(pipeline(&document).unwrap(), "build");
    // When a resolver has fetched the Pipeline, Tekton labels the run with the Pipeline's name.
    document["spec"]["pipelineRef"] = json!({"resolver": "git"});
    assert_eq!(pipeline(&document), None);
    document["metadata"]["labels"]["tekton.dev/pipeline"] = json!("fetched");
    assert_eq!(pipeline(&document).unwrap(), "fetched");
}

#[test]
fn p8_the_longest_names_give_valid_labels() {
    let mut document = document();
    document["metadata"]["name"] = json!(format!("{}.b", "a".repeat(251)));
    document["spec"]["pipelineRef"] = json!({"name": format!("{}.c", "a".repeat(251))});
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
    let preview = preview(
        Ok(&configuration(Mode::PipelineRuns)),
        TEKTON_CONTROLLER,
        &question(&run),
    )
    .unwrap();
    assert_eq!(
        preview.admission,
        admit(
            Ok(&configuration(Mode::PipelineRuns)),
            TEKTON_CONTROLLER,
            &question(&run)
        )
        .unwrap()
    );
    document["metadata"]["name"] = json!("build-xxxxx");
    document["metadata"]["uid"] = json!("00000000-0000-0000-0000-000000000000");
    assert_eq!(preview.plan, plan(&admitted(&document)).unwrap());
}

#[test]
fn m5_a_preview_with_coscheduling_disabled_does_nothing() {
    let run = PipelineRun::parse(&document()).unwrap();
    let preview = preview(
        Ok(&configuration(Mode::Disabled)),
        TEKTON_CONTROLLER,
        &question(&run),
    )
    .unwrap();
    assert_eq!(
        (preview.admission, preview.plan),
        (Admission::default(), not_pinned(&run))
    );
}

#[test]
fn a_preview_needs_some_name() {
    let run = PipelineRun::parse(&json!({})).unwrap();
    let violations = preview(
        Ok(&configuration(Mode::PipelineRuns)),
        TEKTON_CONTROLLER,
        &question(&run),
    )
    .unwrap_err();
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
        let run = PipelineRun::parse(&json!({"metadata": {"name": "r", "uid": "u"}, "spec": {"workspaces": workspaces}})).unwrap();
        let question = Question { request_uid: &request, ..question(&run) };
        let run = admit(Ok(&configuration(Mode::PipelineRuns)), TEKTON_CONTROLLER, &question).unwrap().apply(&run);
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
        let mut run = admitted(&json!({"metadata": {"name": "r", "uid": "u"}}));
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
        reason.message.contains("runAsUser to 0"),
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
    let spec = placeholder(&admitted_with(&configured, &run));
    assert_eq!(
        Value::Object(spec.pod_template),
        json!({"schedulerName": "own", "nodeSelector": {"disk": "ssd"}})
    );
    assert_eq!(spec.service_account_name, "placeholder");
}

/// The placeholders of the test's run in mode `workspaces`. The key is the claim that the placeholder serves.
#[track_caller]
fn of_claims(run: &PipelineRun) -> BTreeMap<String, PlaceholderSpec> {
    let Action::Ensure(placeholders) = plan(run).unwrap().action else {
        panic!("expected placeholders")
    };
    let claims = placeholders.into_iter().map(|spec| {
        let claims = [spec.claim_names.as_slice(), &spec.unmounted_claim_names].concat();
        assert_eq!(claims.len(), 1, "{spec:?}");
        (claims[0].clone(), spec)
    });
    claims.collect()
}

#[test]
fn m1_v3_v6_one_placeholder_for_each_claim() {
    let run = admitted_with(
        &configuration(Mode::Workspaces),
        &PipelineRun::parse(&document()).unwrap(),
    );
    let group = Group::from_request_uid(UID);
    let placeholders = of_claims(&run);
    let source = tekton_claim_name("source", Some("src"), "u1");
    let claims: Vec<_> = placeholders.keys().map(String::as_str).collect();
    assert_eq!(claims, ["build-cache", "models", &source]);
    for (claim, spec) in placeholders {
        let name = AssistantName::of_claim(&group, &claim);
        let expect = PlaceholderSpec {
            subset: String::new(),
            labels: texts(&[
                ("team", "a"),
                ("app.kubernetes.io/component", "affinity-assistant"),
                ("app.kubernetes.io/instance", name.as_str()),
                ("tekton.dev/pipeline", "build-x7k2p"),
                ("tekton.dev/pipelineRun", "build-x7k2p"),
            ]),
            name,
            claim_templates: vec![],
            single_pod_claims: vec![],
            claim_names: vec![claim],
            unmounted_claim_names: vec![],
            separation: Separation::None,
            cpu: "50m".to_owned(),
            memory: "100Mi".to_owned(),
            reserves: Reserves::Placement,
            backend: Backend::Controlled,
            image: "registry.k8s.io/pause:3.10.1".to_owned(),
            pod_template: Map::new(),
            service_account_name: String::new(),
        };
        assert_eq!(spec, expect);
    }
    let codes: Vec<_> = plan(&run)
        .unwrap()
        .reasons
        .into_iter()
        .map(|reason| reason.code)
        .collect();
    assert_eq!(codes, [ReasonCode::CoscheduleWorkspace; 3]);
}

#[test]
fn m1_a_run_without_claims_has_no_placeholder() {
    let document = json!({"metadata": {"name": "r", "uid": "u"}, "spec": {"workspaces": [
        {"name": "scratch", "emptyDir": {}},
    ]}});
    let run = admitted_with(
        &configuration(Mode::Workspaces),
        &PipelineRun::parse(&document).unwrap(),
    );
    check(
        &run,
        Mode::Workspaces,
        Action::Nothing,
        ReasonCode::NoClaims,
    );
    let done = PipelineRun {
        state: RunState::Done,
        ..run
    };
    let cause = ReleaseCause::Done;
    check(
        &done,
        Mode::Workspaces,
        Action::Release { cause },
        ReasonCode::PipelineRunDone,
    );
}

#[test]
fn v9_a_claim_named_by_a_result_has_no_placeholder_and_that_is_said() {
    let document = json!({"metadata": {"name": "r", "uid": "u"}, "spec": {"workspaces": [
        {"name": "result", "persistentVolumeClaim": {"claimName": "$(tasks.make.results.claim)"}},
        {"name": "cache", "persistentVolumeClaim": {"claimName": "cache"}},
    ]}});
    for (mode, code) in [
        (Mode::Workspaces, ReasonCode::CoscheduleWorkspace),
        (Mode::PipelineRuns, ReasonCode::CoschedulePipelineRun),
        (Mode::IsolatePipelineRun, ReasonCode::IsolatePipelineRun),
    ] {
        let run = admitted_with(
            &configuration(mode),
            &PipelineRun::parse(&document).unwrap(),
        );
        assert_eq!(
            of_claims(&run).into_keys().collect::<Vec<_>>(),
            ["cache"],
            "{mode}"
        );
        let codes: Vec<_> = plan(&run)
            .unwrap()
            .reasons
            .into_iter()
            .map(|reason| reason.code)
            .collect();
        assert_eq!(codes, [code, ReasonCode::ClaimNameVariable], "{mode}");
    }
}

#[test]
fn m4_an_isolated_run_is_like_a_coscheduled_one_but_for_its_separation() {
    let run = PipelineRun::parse(&document()).unwrap();
    let shared = placeholder(&admitted(&document()));
    for scope in IsolationScope::ALL {
        let configured = Configuration {
            isolation_scope: scope,
            ..configuration(Mode::IsolatePipelineRun)
        };
        let stored = admitted_with(&configured, &run);
        let expect = PlaceholderSpec {
            subset: String::new(),
            separation: Separation::Isolate(scope),
            ..shared.clone()
        };
        assert_eq!(placeholder(&stored), expect);
        assert_eq!(
            plan(&stored).unwrap().reasons[0].code,
            ReasonCode::IsolatePipelineRun
        );
    }
}

#[test]
fn v8_a_claim_for_one_pod_is_never_a_volume_of_the_placeholder() {
    let mut document = document();
    document["spec"]["workspaces"][0]["volumeClaimTemplate"]["spec"]["accessModes"] =
        json!(["ReadWriteOncePod"]);
    let run = PipelineRun::parse(&document).unwrap();
    for mode in [Mode::PipelineRuns, Mode::IsolatePipelineRun] {
        let stored = admitted_with(&configuration(mode), &run);
        let spec = placeholder(&stored);
        assert_eq!(
            (spec.claim_templates.len(), spec.single_pod_claims.len()),
            (0, 1),
            "{mode}"
        );
        // The claim has the name that the workspace is bound to.
        let name = claim_name(&spec.single_pod_claims[0].name, &spec.name);
        assert_eq!(
            stored.workspaces[0].source,
            WorkspaceSource::Claim { claim_name: name },
            "{mode}"
        );
        assert_eq!(spec.claim_names, ["build-cache", "models"], "{mode}");
        assert_eq!(
            plan(&stored).unwrap().reasons[1].code,
            ReasonCode::ClaimNotMounted,
            "{mode}"
        );
    }
    let stored = admitted_with(&configuration(Mode::Workspaces), &run);
    let claim = tekton_claim_name("source", Some("src"), "u1");
    let spec = &of_claims(&stored)[&claim];
    assert_eq!(
        (spec.claim_names.len(), &spec.unmounted_claim_names),
        (0, &vec![claim])
    );
}

#[test]
fn b1_a_mode_chosen_too_late_is_said() {
    let mut run = admitted(&document());
    run.annotations
        .insert(OVERRIDE.to_owned(), "pipelineruns".to_owned());
    assert_eq!(plan(&run).unwrap().reasons.len(), 1);
    run.annotations
        .insert(OVERRIDE.to_owned(), "disabled".to_owned());
    assert_eq!(
        plan(&run).unwrap().reasons[1].code,
        ReasonCode::OverrideIgnored
    );
    let mut left_alone = PipelineRun::parse(&document()).unwrap();
    left_alone
        .annotations
        .insert(CHOSEN_PLACEMENT.to_owned(), "pack".to_owned());
    assert_eq!(plan(&left_alone).unwrap().reasons.len(), 1);
    left_alone
        .annotations
        .insert(OVERRIDE.to_owned(), "workspaces".to_owned());
    assert_eq!(
        plan(&left_alone).unwrap().reasons[1].code,
        ReasonCode::OverrideIgnored
    );
}

#[test]
fn b1_a_placement_or_reservation_chosen_too_late_is_said() {
    for (key, pinned, late, said) in [
        (
            CHOSEN_PLACEMENT,
            "spread",
            "pack",
            "with placement: spread. ",
        ),
        (
            CHOSEN_RESERVES,
            "placement",
            "nothing",
            "with placeholder-reserves: placement. ",
        ),
    ] {
        let mut run = admitted(&document());
        run.annotations.insert(key.to_owned(), pinned.to_owned());
        assert_eq!(plan(&run).unwrap().reasons.len(), 1);
        run.annotations.insert(key.to_owned(), late.to_owned());
        let ignored = &plan(&run).unwrap().reasons[1];
        assert_eq!(ignored.code, ReasonCode::OverrideIgnored);
        for part in [said, key, &format!("{late:?}")] {
            assert!(ignored.message.contains(part), "{}", ignored.message);
        }
    }
}

#[test]
fn b1_an_event_has_room_for_the_whole_text_about_an_ignored_choice() {
    for pinned in Override::all() {
        for chosen in Override::all() {
            let message = override_ignored(chosen.word(), pinned).message;
            assert!(
                message.len() <= NOTE_LENGTH,
                "{} of {message}",
                message.len()
            );
        }
    }
}

#[test]
fn b1_p4_b3_what_a_run_chose_is_what_its_placeholders_ask_for() {
    let modes = [Mode::Workspaces, Mode::PipelineRuns];
    let cases = modes.map(|mode| Reserves::ALL.map(|reserves| (mode, reserves)));
    for (mode, reserves) in cases.into_iter().flatten() {
        let mut run = PipelineRun::parse(&document()).unwrap();
        for (key, word) in [
            (CHOSEN_PLACEMENT, "pack"),
            (CHOSEN_RESERVES, reserves.as_str()),
        ] {
            run.annotations.insert(key.to_owned(), word.to_owned());
        }
        let configured = Configuration {
            allowed_overrides: Override::all().collect(),
            ..configuration(mode)
        };
        let plan = plan(&admitted_with(&configured, &run)).unwrap();
        let placeholders = plan.action.placeholders();
        assert!(!placeholders.is_empty());
        for spec in placeholders {
            assert_eq!(
                (spec.separation, spec.reserves),
                (Separation::Pack, reserves)
            );
        }
        let ignored = |reason: &Reason| reason.code == ReasonCode::OverrideIgnored;
        assert!(!plan.reasons.iter().any(ignored), "{:?}", plan.reasons);
    }
}

proptest! {
    /// For all names: two claims never have the same placeholder, in one run or in two runs.
    #[test]
    fn m1_p7_p8_no_two_claims_and_no_two_runs_share_a_placeholder(
        runs in proptest::collection::btree_map("[a-z0-9-]{1,8}", ("[a-z][a-z0-9.-]{0,62}", proptest::collection::btree_map(
            "\\PC{1,40}", any_source(), 0..5,
        )), 2..4),
        mode in prop::sample::select(vec![Mode::Workspaces, Mode::PipelineRuns, Mode::IsolatePipelineRun]),
    ) {
        let mut names = BTreeSet::new();
        let mut expected = 0;
        for (uid, (name, workspaces)) in runs {
            let workspaces: Vec<Value> = workspaces.into_iter().map(|(name, mut source)| {
                source["name"] = json!(name);
                source
            }).collect();
            let run = PipelineRun::parse(&json!({"metadata": {"name": name, "uid": uid}, "spec": {"workspaces": workspaces}})).unwrap();
            let question = Question { request_uid: &uid, ..question(&run) };
            let run = admit(Ok(&configuration(mode)), TEKTON_CONTROLLER, &question).unwrap().apply(&run);
            let known: BTreeSet<String> = crate::run_claims::of_run(&run, None)
                .into_iter()
                .map(|(workspace, claim)| claim.name(&workspace, &run.uid))
                .collect();
            let placeholders = match plan(&run).unwrap().action {
                Action::Ensure(placeholders) => placeholders,
                Action::Nothing => vec![],
                Action::Release { .. } => panic!("the run is active"),
            };
            expected += if mode == Mode::Workspaces { known.len() } else { 1 };
            for spec in placeholders {
                prop_assert!(spec.labels.values().all(|value| label_value(value) == *value));
                names.insert(spec.name);
            }
        }
        prop_assert_eq!(names.len(), expected);
    }
}
