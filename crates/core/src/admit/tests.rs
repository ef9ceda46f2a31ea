//! What admission does to one run with a template, a claim of the author's and a secret, under each
//! configuration.

use super::*;
use crate::annotations::{GROUP, MODE, PLACEHOLDER, VOLUME_CLAIM_TEMPLATES};
use crate::config::PlaceholderDefaults;
use proptest::prelude::*;
use serde_json::json;

const UID: &str = "705ab4f5-6393-11e8-b7cc-42010a800002";

fn configuration(mode: Mode) -> Configuration {
    Configuration {
        mode,
        ..Configuration::default()
    }
}

fn template() -> Value {
    json!({"metadata": {"name": "src"}, "spec": {"accessModes": ["ReadWriteOnce"]}})
}

fn run() -> PipelineRun {
    PipelineRun::parse(&json!({
        "metadata": {"generateName": "build-", "annotations": {"note": "mine"}},
        "spec": {"workspaces": [
            {"name": "source", "subPath": "a", "volumeClaimTemplate": template()},
            {"name": "unnamed", "volumeClaimTemplate": {"spec": {}}},
            {"name": "cache", "persistentVolumeClaim": {"claimName": "build-cache"}},
            {"name": "token", "secret": {"secretName": "t"}},
        ]},
    }))
    .unwrap()
}

/// The run as the API server stores it, admitted under another request.
fn stored() -> PipelineRun {
    let run = run();
    admit(&configuration(Mode::PipelineRuns), &run, "another request").apply(&run)
}

fn forge(run: &mut PipelineRun) {
    for key in PINNED {
        run.annotations.insert(key.to_owned(), "forged".to_owned());
    }
}

#[test]
fn m3_m8_v2_a_run_is_pinned_and_its_templates_become_claims() {
    let admission = admit(&configuration(Mode::PipelineRuns), &run(), UID);
    let group = Group::from_request_uid(UID);
    let pinned = Pinned {
        mode: Mode::PipelineRuns,
        group: group.clone(),
        placeholder: PlaceholderDefaults::default(),
        templates: [
            ("source".to_owned(), template()),
            ("unnamed".to_owned(), json!({"spec": {}})),
        ]
        .into(),
    };
    let assistant = AssistantName::of(&group);
    let rewritten = |workspace: &str, name: Option<&str>| RewrittenBinding {
        workspace: workspace.to_owned(),
        claim_name: claim_name(
            &ClaimTemplateName::derive(&group, workspace, name),
            &assistant,
        ),
    };
    assert_eq!(
        admission,
        Admission {
            set_annotations: pinned.to_annotations(),
            remove_annotations: vec![],
            remove_task_annotations: Vec::new(),
            bindings: vec![rewritten("source", Some("src")), rewritten("unnamed", None)],
            warnings: vec![],
        }
    );
}

#[test]
fn v1_v5_the_authors_own_claims_and_other_volumes_stay_as_they_are() {
    let before = run();
    let after = admit(&configuration(Mode::PipelineRuns), &before, UID).apply(&before);
    assert_eq!(after.workspaces[2..], before.workspaces[2..]);
    assert_eq!(after.workspaces[0].sub_path.as_deref(), Some("a"));
    assert_eq!(after.annotations["note"], "mine");
}

#[test]
fn m3_a_run_without_volumes_is_coscheduled_too() {
    let admission = admit(
        &configuration(Mode::PipelineRuns),
        &PipelineRun::default(),
        UID,
    );
    assert_eq!(admission.set_annotations[VOLUME_CLAIM_TEMPLATES], "{}");
    assert_eq!(admission.set_annotations[MODE], "pipelineruns");
}

#[test]
fn m5_disabled_changes_nothing() {
    assert_eq!(
        admit(&configuration(Mode::Disabled), &run(), UID),
        Admission::default()
    );
}

#[test]
fn m5_a_run_of_another_controller_is_left_alone() {
    for (manager, pinned) in [
        (None, true),
        (Some("tekton.dev/pipeline"), true),
        (Some("example.com/multi"), false),
        (Some(""), false),
    ] {
        let run = PipelineRun {
            managed_by: manager.map(str::to_owned),
            ..run()
        };
        let admission = admit(&configuration(Mode::PipelineRuns), &run, UID);
        assert_eq!(admission != Admission::default(), pinned, "{manager:?}");
    }
}

#[test]
fn m5_m8_forged_annotations_never_survive() {
    let mut forged = run();
    forge(&mut forged);
    let warning = "ignored what was given for coscheduler.dev/mode, coscheduler.dev/group, coscheduler.dev/placeholder, \
                   coscheduler.dev/volume-claim-templates, pipeline.tekton.dev/affinity-assistant, coscheduler.dev/traceparent: \
                   admission alone writes it";

    let disabled = admit(&configuration(Mode::Disabled), &forged, UID);
    assert_eq!(
        disabled,
        Admission {
            remove_annotations: PINNED.map(str::to_owned).to_vec(),
            warnings: vec![warning.to_owned()],
            ..Admission::default()
        }
    );
    assert_eq!(disabled.apply(&forged), run());

    let enabled = admit(&configuration(Mode::PipelineRuns), &forged, UID);
    assert_eq!(enabled.warnings, [warning]);
    let clean = run();
    assert_eq!(
        enabled.apply(&forged),
        admit(&configuration(Mode::PipelineRuns), &clean, UID).apply(&clean)
    );
}

#[test]
fn v2a_a_copy_of_a_stored_run_gets_its_own_group_and_fresh_claims() {
    let copy = stored();
    let admission = admit(&configuration(Mode::PipelineRuns), &copy, UID);
    let clean = run();
    let fresh = admit(&configuration(Mode::PipelineRuns), &clean, UID);
    assert_eq!(admission.set_annotations, fresh.set_annotations);
    assert_eq!(admission.bindings, fresh.bindings);
    assert_eq!(admission.apply(&copy), fresh.apply(&clean));
    assert_eq!(admission.warnings.len(), 2);
    assert!(
        admission.warnings[0].starts_with("workspace \"source\" was bound to claim \"src-"),
        "{}",
        admission.warnings[0]
    );
}

#[test]
fn v2a_only_exactly_the_derived_claim_is_replaced() {
    let mut copy = stored();
    let WorkspaceSource::Claim { claim_name } = copy.workspaces[0].source.clone() else {
        panic!("admission left a template")
    };
    // Bound to another workspace, another group, or changed by the author: it is a claim the author
    // brought.
    copy.workspaces[0].source = WorkspaceSource::Claim {
        claim_name: "mine".to_owned(),
    };
    copy.workspaces[2].source = WorkspaceSource::Claim { claim_name };
    let admission = admit(&configuration(Mode::PipelineRuns), &copy, UID);
    let rewritten: Vec<_> = admission
        .bindings
        .iter()
        .map(|binding| binding.workspace.as_str())
        .collect();
    assert_eq!(rewritten, ["unnamed"]);

    let mut regrouped = stored();
    regrouped
        .annotations
        .insert(GROUP.to_owned(), "0123456789".to_owned());
    assert_eq!(
        admit(&configuration(Mode::PipelineRuns), &regrouped, UID).bindings,
        []
    );
}

#[test]
fn v2a_a_copy_that_is_left_alone_is_told_what_to_bind() {
    let admission = admit(&configuration(Mode::Disabled), &stored(), UID);
    assert_eq!(admission.remove_annotations, carried(&stored()));
    assert_eq!(admission.warnings.len(), 2);
    assert!(
        admission.warnings[1].ends_with("bind a volumeClaimTemplate instead"),
        "{}",
        admission.warnings[1]
    );
}

#[test]
fn a_copy_does_not_join_the_trace_of_the_run_it_was_copied_from() {
    let mut copy = stored();
    copy.annotations
        .insert(TRACEPARENT.to_owned(), "00-1-2-01".to_owned());
    let admission = admit(&configuration(Mode::PipelineRuns), &copy, UID);
    assert_eq!(admission.remove_annotations, [TRACEPARENT]);
    assert!(!admission.apply(&copy).annotations.contains_key(TRACEPARENT));
}

/// The pinned annotations that a run has.
fn carried(run: &PipelineRun) -> Vec<&str> {
    let keys = PINNED.into_iter();
    keys.filter(|key| run.annotations.contains_key(*key))
        .collect()
}

#[test]
fn v2a_a_run_that_is_part_of_another_keeps_the_claims_it_was_given() {
    let child = PipelineRun {
        controller: Some(pipeline_run_owner()),
        ..stored()
    };
    assert_eq!(
        admit(&configuration(Mode::PipelineRuns), &child, UID).bindings,
        []
    );
}

fn pipeline_run_owner() -> OwnerReference {
    OwnerReference {
        api_version: "tekton.dev/v1".to_owned(),
        kind: "PipelineRun".to_owned(),
        name: "build".to_owned(),
        uid: "u1".to_owned(),
    }
}

#[track_caller]
fn check_child(created_by: &str, controller: Option<OwnerReference>, keeps: &[&str]) {
    let mut annotations = stored().annotations;
    annotations.insert("note".to_owned(), "mine".to_owned());
    annotations.insert(TRACEPARENT.to_owned(), "00-1-2-01".to_owned());
    let child = ChildRun {
        annotations,
        controller,
        created_by: created_by.to_owned(),
    };
    let ChildAdmission {
        remove_annotations: removed,
        warnings,
    } = admit_run(&child, TEKTON_CONTROLLER);
    let kept: Vec<_> = PINNED
        .into_iter()
        .filter(|key| !removed.iter().any(|removed| removed == key))
        .collect();
    assert_eq!(kept, keeps);
    assert!(removed.iter().all(|key| PINNED.contains(&key.as_str())));
    // Whoever loses what the pod builder reads is told so.
    assert_eq!(warnings.is_empty(), !keeps.is_empty(), "{warnings:?}");
    assert!(
        warnings
            .iter()
            .all(|told| removed.iter().all(|key| told.contains(key)))
    );
}

#[test]
fn m3_children_that_tekton_makes_join_the_group_and_nobody_else_does() {
    let task_run_owner = || OwnerReference {
        kind: "TaskRun".to_owned(),
        ..pipeline_run_owner()
    };
    let other_group = || OwnerReference {
        api_version: "example.dev/v1".to_owned(),
        ..pipeline_run_owner()
    };
    check_child(
        TEKTON_CONTROLLER,
        Some(pipeline_run_owner()),
        &[TEKTON_AFFINITY_ASSISTANT],
    );
    check_child(TEKTON_CONTROLLER, None, &[]);
    check_child(TEKTON_CONTROLLER, Some(task_run_owner()), &[]);
    check_child(TEKTON_CONTROLLER, Some(other_group()), &[]);
    check_child("alice", Some(pipeline_run_owner()), &[]);
    check_child("", None, &[]);
}

#[test]
fn m5_children_without_our_annotations_are_not_changed() {
    let child = ChildRun {
        annotations: [("note".to_owned(), "mine".to_owned())].into(),
        controller: Some(pipeline_run_owner()),
        created_by: TEKTON_CONTROLLER.to_owned(),
    };
    assert_eq!(
        admit_run(&child, TEKTON_CONTROLLER),
        ChildAdmission::default()
    );
}

#[test]
fn m8_what_is_pinned_is_what_was_in_force() {
    let mut configured = configuration(Mode::PipelineRuns);
    configured.placeholder.cpu = "70m".to_owned();
    let admission = admit(&configured, &run(), UID);
    assert!(admission.set_annotations[PLACEHOLDER].contains("\"70m\""));
}

proptest! {
    #[test]
    fn v2_after_admission_no_template_is_left_and_every_claim_is_derived(
        workspaces in proptest::collection::btree_map("\\PC{1,90}", proptest::option::of("\\PC{0,90}"), 0..6),
        request in "\\PC*",
    ) {
        let run = PipelineRun {
            workspaces: workspaces.into_iter().map(|(name, template)| WorkspaceBinding {
                name,
                sub_path: None,
                source: match template {
                    Some(name) => WorkspaceSource::ClaimTemplate(crate::pipeline_run::ClaimTemplate {
                        template: json!({"metadata": {"name": name}, "spec": {}}),
                        name: Some(name),
                    }),
                    None => WorkspaceSource::Other,
                },
            }).collect(),
            ..PipelineRun::default()
        };
        let admitted = admit(&configuration(Mode::PipelineRuns), &run, &request).apply(&run);
        let assistant = AssistantName::of(&Group::from_request_uid(&request));
        for (before, after) in run.workspaces.iter().zip(&admitted.workspaces) {
            match (&before.source, &after.source) {
                (WorkspaceSource::ClaimTemplate(_), WorkspaceSource::Claim { claim_name }) => {
                    prop_assert!(assistant.owns_claim(claim_name), "{claim_name}");
                }
                (before, after) => prop_assert_eq!(before, after),
            }
        }
        prop_assert!(Pinned::read(&admitted.annotations).unwrap().is_some());
    }
}

#[test]
fn m3_annotations_given_to_single_tasks_are_removed_with_a_warning() {
    let run = PipelineRun::parse(&json!({"spec": {"taskRunSpecs": [
        {"pipelineTaskName": "a", "metadata": {"annotations": {"mine": "x"}}},
        {"pipelineTaskName": "b", "metadata": {"annotations": {TEKTON_AFFINITY_ASSISTANT: "affinity-assistant-of-another"}}},
    ]}}))
    .unwrap();
    for mode in Mode::ALL {
        let admission = admit(&configuration(mode), &run, UID);
        let expect = TaskAnnotation {
            index: 1,
            key: TEKTON_AFFINITY_ASSISTANT.to_owned(),
        };
        assert_eq!(admission.remove_task_annotations, [expect], "{mode}");
        assert!(
            admission.warnings[0].contains("spec.taskRunSpecs[1]"),
            "{mode}"
        );
        let after = admission.apply(&run);
        assert_eq!(after.task_run_specs[0].annotations.len(), 1, "{mode}");
        assert!(after.task_run_specs[1].annotations.is_empty(), "{mode}");
    }
}
