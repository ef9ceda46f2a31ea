//! Tests of TaskRuns and CustomRuns of one run that is stored in each mode.

use super::*;
use crate::admit::{Question, TEKTON_CONTROLLER, admit};
use crate::annotations::{CLAIMS, GROUP, MODE, OVERRIDE, PINNED, SCHEMA_VERSION};
use crate::config::Configuration;
use crate::event_texts::ReasonCode;
use crate::names::{Group, tekton_claim_name};
use crate::pipeline_run::PipelineRun;
use proptest::prelude::*;
use serde_json::{Value, json};

const UID: &str = "u1";

/// The annotations of a run that is stored in `mode`. Tekton copies them to TaskRuns.
fn annotations(mode: Mode) -> BTreeMap<String, String> {
    let run = PipelineRun::parse(&json!({
        "metadata": {"name": "build", "annotations": {"note": "mine"}},
        "spec": {"workspaces": [
            {"name": "source", "volumeClaimTemplate": {"metadata": {"name": "src"}, "spec": {}}},
            {"name": "cache", "persistentVolumeClaim": {"claimName": "build-cache"}},
            {"name": "modules", "subPath": "npm", "persistentVolumeClaim": {"claimName": "build-cache"}},
            {"name": "result", "persistentVolumeClaim": {"claimName": "$(params.made)"}},
        ]},
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
        .annotations
}

fn pipeline_run_owner() -> OwnerReference {
    OwnerReference {
        api_version: "tekton.dev/v1".to_owned(),
        kind: "PipelineRun".to_owned(),
        name: "build".to_owned(),
        uid: UID.to_owned(),
    }
}

/// A TaskRun with these workspaces, as Tekton creates it for that run.
fn task_run(mode: Mode, claims: &[(&str, &str)]) -> ChildRun {
    let annotations = annotations(mode);
    ChildRun {
        pipeline_task: String::new(),
        kind: ChildKind::TaskRun,
        name: "build-compile".to_owned(),
        owner_group: annotations.get(GROUP).cloned(),
        annotations,
        controller: Some(pipeline_run_owner()),
        created_by: TEKTON_CONTROLLER.to_owned(),
        claims: claims
            .iter()
            .map(|(workspace, claim_name)| BoundClaim {
                workspace: (*workspace).to_owned(),
                claim_name: (*claim_name).to_owned(),
            })
            .collect(),
        params: Params::default(),
        pipeline_run: None,
    }
}

fn group() -> Group {
    Group::from_request_uid("request")
}

fn source_claim() -> String {
    tekton_claim_name("source", Some("src"), UID)
}

/// The annotations that the TaskRun has after its admission.
fn stored(run: &ChildRun) -> BTreeMap<String, String> {
    let admission = admit_child(run, TEKTON_CONTROLLER);
    let mut annotations = run.annotations.clone();
    annotations.retain(|key, _| !admission.remove_annotations.contains(key));
    annotations.extend(admission.set_annotations);
    annotations
}

/// Checks that exactly two annotations are stored: the author's note, and this placeholder.
#[track_caller]
fn check(run: &ChildRun, assistant: &str) {
    let stored = stored(run);
    assert_eq!(stored[TEKTON_AFFINITY_ASSISTANT], assistant);
    assert_eq!(stored["note"], "mine");
    assert_eq!(stored.len(), 2, "{stored:?}");
    assert_eq!(admit_child(run, TEKTON_CONTROLLER).refusal, None);
}

#[test]
fn m3_m4_every_pod_has_the_placeholder_of_the_run() {
    for mode in [Mode::PipelineRuns, Mode::IsolatePipelineRun] {
        let assistant = AssistantName::of(&group());
        for claims in [
            &[][..],
            &[("in", "build-cache")],
            &[("in", "build-cache"), ("out", "other")],
        ] {
            let run = task_run(mode, claims);
            check(&run, assistant.as_str());
            let custom = ChildRun {
                kind: ChildKind::CustomRun,
                ..run
            };
            check(&custom, assistant.as_str());
        }
    }
}

#[test]
fn m1_v3_v6_a_pod_has_the_placeholder_of_the_claim_it_uses() {
    let of = |claim: &str| AssistantName::of_claim(&group(), claim).to_string();
    let source = source_claim();
    check(&task_run(Mode::Workspaces, &[]), "");
    check(
        &task_run(Mode::Workspaces, &[("in", &source)]),
        &of(&source),
    );
    check(
        &task_run(Mode::Workspaces, &[("cache", "build-cache")]),
        &of("build-cache"),
    );
    check(
        &task_run(
            Mode::Workspaces,
            &[("cache", "build-cache"), ("modules", "build-cache")],
        ),
        &of("build-cache"),
    );
}

#[test]
fn m9_whatever_tekton_stamped_gives_way_to_what_was_pinned() {
    let of_claim = AssistantName::of_claim(&group(), "build-cache").to_string();
    let of_run = AssistantName::of(&group()).to_string();
    for (mode, claims, expect) in [
        (
            Mode::Workspaces,
            &[("cache", "build-cache")][..],
            of_claim.as_str(),
        ),
        (Mode::Workspaces, &[], ""),
        (Mode::PipelineRuns, &[], &of_run),
        (Mode::IsolatePipelineRun, &[], &of_run),
    ] {
        let mut run = task_run(mode, claims);
        run.annotations.insert(
            TEKTON_AFFINITY_ASSISTANT.to_owned(),
            "affinity-assistant-0123456789".to_owned(),
        );
        check(&run, expect);
    }
}

#[test]
fn m9_a_run_that_was_left_to_tekton_keeps_tektons_assistant_and_nothing_else() {
    let mut run = task_run(Mode::Disabled, &[]);
    run.annotations.insert(
        TEKTON_AFFINITY_ASSISTANT.to_owned(),
        "affinity-assistant-0123456789".to_owned(),
    );
    run.annotations
        .insert(GROUP.to_owned(), "0123456789".to_owned());
    check(&run, "affinity-assistant-0123456789");
    let untouched = task_run(Mode::Disabled, &[("cache", "build-cache")]);
    assert_eq!(
        admit_child(&untouched, TEKTON_CONTROLLER),
        ChildAdmission::default()
    );
}

/// Tekton copies an annotation of a Pipeline or an embedded task to the TaskRuns if the run does not have this annotation.
#[test]
fn m8_a_pipeline_cannot_make_tasks_of_a_run_that_was_left_alone_join_a_group() {
    for mode in [
        Mode::Workspaces,
        Mode::PipelineRuns,
        Mode::IsolatePipelineRun,
    ] {
        let claims = [
            ("source", source_claim()),
            ("cache", "build-cache".to_owned()),
        ];
        let claims: Vec<_> = claims
            .iter()
            .map(|(name, claim)| (*name, claim.as_str()))
            .collect();
        let mut run = task_run(mode, &claims);
        run.owner_group = None;
        // The value stays as Tekton wrote it, because the run may use Tekton's own assistant.
        check(&run, run.annotations[TEKTON_AFFINITY_ASSISTANT].as_str());
        assert!(
            admit_child(&run, TEKTON_CONTROLLER)
                .set_annotations
                .is_empty()
        );

        run.owner_group = Some("0123456789".to_owned());
        assert_eq!(stored(&run).into_keys().collect::<Vec<_>>(), ["note"]);
    }
}

#[test]
fn m2_a_task_run_with_more_than_one_claim_may_not_run() {
    let source = source_claim();
    let run = task_run(
        Mode::Workspaces,
        &[
            ("source", &source),
            ("cache", "build-cache"),
            ("modules", "build-cache"),
        ],
    );
    let admission = admit_child(&run, TEKTON_CONTROLLER);
    assert_eq!(
        admission.refusal.unwrap(),
        format!(
            "TaskRun build-compile does not run, because it uses 2 persistent volume claims: claim {source} (workspace source), \
             claim build-cache (workspace cache), claim build-cache (workspace modules). In coschedule mode workspaces, a task \
             may use only one claim. Create the run again, and bind these workspaces to subPaths of one claim. Or, if your \
             operator allows mode pipelineruns, create the run again with annotation coscheduler.dev/coschedule: pipelineruns."
        )
    );
    assert_eq!(admission.set_annotations[TEKTON_AFFINITY_ASSISTANT], "");
    // Only the controller of a CustomRun knows how it uses its workspaces.
    let custom = ChildRun {
        kind: ChildKind::CustomRun,
        ..run
    };
    check(&custom, "");
}

#[test]
fn v9_a_claim_that_is_not_known_beforehand_gets_no_placeholder() {
    let made = |value: &str| Params::read(&json!([{"name": "made", "value": value}]));
    let claims = [("result", "$(params.made)")];
    // Three cases: the claim is unknown; only the task knows the claim; the task names a claim that the run has too.
    check(&task_run(Mode::Workspaces, &claims), "");
    check(
        &ChildRun {
            params: made("by-a-task"),
            ..task_run(Mode::Workspaces, &claims)
        },
        "",
    );
    let known = ChildRun {
        params: made("build-cache"),
        ..task_run(Mode::Workspaces, &claims)
    };
    check(
        &known,
        AssistantName::of_claim(&group(), "build-cache").as_str(),
    );
    // If one claim is known and one is not, the known claim counts. Two known claims are too many.
    let both = [("cache", "build-cache"), ("result", "$(params.made)")];
    let assistant = AssistantName::of_claim(&group(), "build-cache");
    check(&task_run(Mode::Workspaces, &both), assistant.as_str());
    let two = ChildRun {
        params: made("by-a-task"),
        ..task_run(Mode::Workspaces, &both)
    };
    assert!(
        admit_child(&two, TEKTON_CONTROLLER)
            .refusal
            .unwrap()
            .contains("claim by-a-task")
    );
    check(&task_run(Mode::Workspaces, &[("unnamed", "")]), "");
}

/// The PipelineRun of [`task_run`], with the parts that complete the names of claims.
fn owner(spec_and_status: Value) -> PipelineRun {
    let mut object = spec_and_status;
    object["metadata"] = json!({"name": "build", "uid": UID});
    object["spec"]["workspaces"] = json!([
        {"name": "cache", "persistentVolumeClaim": {"claimName": "$(params.pinned)"}},
        {"name": "result", "persistentVolumeClaim": {"claimName": "$(params.made)"}},
    ]);
    PipelineRun::parse(&object).unwrap()
}

#[test]
fn v9_a_name_that_tekton_leaves_with_a_variable_is_completed() {
    let known = json!({"params": [{"name": "made", "default": "of-pipeline"}, {"name": "pinned", "default": "late"}]});
    let fetched = owner(json!({"spec": {}, "status": {"pipelineSpec": known}}));
    let embedded = owner(json!({"spec": {"pipelineSpec": known}}));
    let not_yet = owner(json!({"spec": {}}));
    let claims = [
        ("in", "$(params.made)"),
        ("plain", "plain"),
        ("late", "$(tasks.t.results.r)"),
    ];
    let bound = |workspace: &str, claim_name: &str| BoundClaim {
        workspace: workspace.to_owned(),
        claim_name: claim_name.to_owned(),
    };
    for mode in [Mode::PipelineRuns, Mode::IsolatePipelineRun] {
        for owner in [&fetched, &embedded] {
            let run = ChildRun {
                pipeline_run: Some(owner.clone()),
                ..task_run(mode, &claims)
            };
            assert!(run.names_claims_by_variables() && !run.awaits_pipeline());
            let admission = admit_child(&run, TEKTON_CONTROLLER);
            assert_eq!(admission.bindings, [bound("in", "of-pipeline")]);
            // Tekton itself replaces a variable by a parameter of the TaskRun.
            let own = ChildRun {
                params: Params::read(&json!([{"name": "made", "value": "own"}])),
                ..run
            };
            assert_eq!(admit_child(&own, TEKTON_CONTROLLER).bindings, []);
        }
    }
    // In mode `workspaces`, the claim has a placeholder, because the manager plans from the same Pipeline.
    let mut run = ChildRun {
        pipeline_run: Some(fetched),
        ..task_run(Mode::Workspaces, &[("in", "$(params.made)")])
    };
    let of_pipeline = AssistantName::of_claim(&group(), "of-pipeline");
    check(&run, of_pipeline.as_str());
    // The claim also has a placeholder if the Pipeline passes the parameter on, so that Tekton itself completes the name.
    let mut passed = run.clone();
    passed.params = Params::read(&json!([{"name": "made", "value": "of-pipeline"}]));
    assert!(passed.names_claims_by_variables());
    check(&passed, of_pipeline.as_str());
    passed.pipeline_run = Some(not_yet.clone());
    assert!(passed.awaits_pipeline());
    // The name of workspace `cache` was pinned when the run was created, from another version of the Pipeline.
    run.claims[0].claim_name = "$(params.pinned)".to_owned();
    check(
        &run,
        AssistantName::of_claim(&group(), "build-cache").as_str(),
    );
    let bindings = admit_child(&run, TEKTON_CONTROLLER).bindings;
    assert_eq!(bindings, [bound("in", "build-cache")]);

    // Before Tekton has stored the Pipeline, only the pinned name is known.
    run.pipeline_run = Some(not_yet);
    assert!(!run.awaits_pipeline());
    run.claims[0].claim_name = "$(params.made)".to_owned();
    assert!(run.awaits_pipeline());
    run.owner_group = None;
    assert!(!run.awaits_pipeline());
}

#[test]
fn v3_claims_are_those_of_the_run_with_that_uid() {
    let other = tekton_claim_name("source", Some("src"), "u2");
    check(&task_run(Mode::Workspaces, &[("source", &other)]), "");
}

#[test]
fn m3_nobody_but_tekton_joins_a_group_and_only_for_a_pipeline_run() {
    let owner = |api_version: &str, kind: &str| {
        Some(OwnerReference {
            api_version: api_version.to_owned(),
            kind: kind.to_owned(),
            ..pipeline_run_owner()
        })
    };
    for mode in [
        Mode::Workspaces,
        Mode::PipelineRuns,
        Mode::IsolatePipelineRun,
    ] {
        for (created_by, controller) in [
            (TEKTON_CONTROLLER, None),
            (TEKTON_CONTROLLER, owner("tekton.dev/v1", "TaskRun")),
            (TEKTON_CONTROLLER, owner("example.dev/v1", "PipelineRun")),
            ("alice", owner("tekton.dev/v1", "PipelineRun")),
            ("", None),
        ] {
            let run = ChildRun {
                controller,
                created_by: created_by.to_owned(),
                ..task_run(mode, &[("cache", "build-cache")])
            };
            let stored = stored(&run);
            assert_eq!(
                stored.into_keys().collect::<Vec<_>>(),
                ["note"],
                "{mode}: {created_by}"
            );
            let admission = admit_child(&run, TEKTON_CONTROLLER);
            assert_eq!(admission.refusal, None);
            let events = admission.events.iter().map(|event| event.code);
            let expect = (created_by == "alice").then_some(ReasonCode::TektonAccountUnknown);
            assert_eq!(events.collect::<Vec<_>>(), Vec::from_iter(expect));
            // The warning names each annotation that is removed.
            let told = &admission.warnings[0];
            assert!(
                admission
                    .remove_annotations
                    .iter()
                    .all(|key| told.contains(key)),
                "{told}"
            );
        }
    }
}

#[test]
fn what_a_run_hands_on_and_cannot_be_read_is_removed_altogether() {
    for key in [MODE, GROUP, CLAIMS] {
        let mut run = task_run(Mode::PipelineRuns, &[]);
        run.annotations.insert(key.to_owned(), "garbled".to_owned());
        assert_eq!(
            stored(&run).into_keys().collect::<Vec<_>>(),
            ["note"],
            "{key}"
        );
    }
}

#[test]
fn m8_a_task_run_of_a_run_of_another_schema_version_follows_the_placeholder_that_tekton_copied() {
    let mut run = task_run(Mode::PipelineRuns, &[]);
    run.annotations
        .insert(SCHEMA_VERSION.to_owned(), "4".to_owned());
    let copied = run.annotations[TEKTON_AFFINITY_ASSISTANT].clone();
    let stored = stored(&run);
    assert_eq!(stored[TEKTON_AFFINITY_ASSISTANT], copied);
    assert!(!stored.contains_key(MODE));
}

#[test]
fn b1_a_wish_on_a_task_run_is_nobodys_business() {
    let mut run = task_run(Mode::PipelineRuns, &[]);
    run.annotations
        .insert(OVERRIDE.to_owned(), "disabled".to_owned());
    assert_eq!(
        stored(&run)[TEKTON_AFFINITY_ASSISTANT],
        AssistantName::of(&group()).as_str()
    );
}

proptest! {
    /// For any value of Tekton's annotation and any claims, admission removes all pinned annotations except Tekton's. Tekton's
    /// annotation is then empty, or names a placeholder of the run.
    #[test]
    fn m1_v9_no_pod_waits_for_a_placeholder_that_nobody_makes(
        claims in proptest::collection::vec(("[a-c]", prop_oneof![
            Just("build-cache".to_owned()), Just(source_claim()), "[$(a-z.)]{0,12}",
        ]), 0..4),
        stamped in "\\PC{0,12}",
    ) {
        let claims: Vec<_> = claims.iter().map(|(workspace, claim)| (workspace.as_str(), claim.as_str())).collect();
        let mut run = task_run(Mode::Workspaces, &claims);
        run.annotations.insert(TEKTON_AFFINITY_ASSISTANT.to_owned(), stamped);
        let stored = stored(&run);
        prop_assert!(PINNED.iter().all(|key| !stored.contains_key(*key) || *key == TEKTON_AFFINITY_ASSISTANT));
        let made = [String::new(), AssistantName::of_claim(&group(), "build-cache").to_string(), AssistantName::of_claim(&group(), &source_claim()).to_string()];
        prop_assert!(made.contains(&stored[TEKTON_AFFINITY_ASSISTANT]));
    }
}

/// The digits in the name are the beginning of the SHA-256 of `build`.
#[test]
fn m9_a_claim_that_tekton_has_renamed_meanwhile_is_called_what_it_was_made_as() {
    let renamed = format!("{}-affinity-assistant-44575cf5b2-0", source_claim());
    let run = task_run(
        Mode::Workspaces,
        &[("in", &renamed), ("other", "build-cache")],
    );
    let admission = admit_child(&run, TEKTON_CONTROLLER);
    assert_eq!(
        admission.bindings,
        [BoundClaim {
            workspace: "in".to_owned(),
            claim_name: source_claim(),
        }]
    );
    assert!(admission.refusal.unwrap().contains(&source_claim()));
    let run = task_run(Mode::Workspaces, &[("in", &renamed)]);
    check(
        &run,
        AssistantName::of_claim(&group(), &source_claim()).as_str(),
    );
    // Three names that stay: one made from another run's name, one that is no claim of this run, and one in mode `pipelineruns`.
    for (mode, claim) in [
        (
            Mode::Workspaces,
            format!("{}-affinity-assistant-ffffffffff-0", source_claim()),
        ),
        (
            Mode::Workspaces,
            "mine-affinity-assistant-44575cf5b2-0".to_owned(),
        ),
        (Mode::PipelineRuns, renamed),
    ] {
        let run = task_run(mode, &[("in", &claim)]);
        assert_eq!(admit_child(&run, TEKTON_CONTROLLER).bindings, []);
    }
}
