//! Tests of the admission of one run, under each configuration. The run has a template, an existing claim and a secret.

use super::*;
use crate::annotations::{
    ADOPTED, ALLOWED_OVERRIDES, AWAITS_PIPELINE, CHOSEN_PLACEMENT, CHOSEN_RESERVES, CLAIMS, GROUP,
    HANDED_ON, MODE, MODE_SOURCE, OVERRIDE, PART_OF, PINNED, PLACEHOLDER, SCHEMA_VERSION, SIZES,
    SUBSETS, TEKTON_AFFINITY_ASSISTANT, TRACEPARENT, VOLUME_CLAIM_TEMPLATES,
};
use crate::config::PlaceholderDefaults;
use crate::mode::IsolationScope;
use crate::names::assistant_of;
use crate::names::{AssistantName, tekton_claim_name};
use crate::overrides::{Override, Setting, listed, words};
use crate::pinned::Pinned;
use crate::pipeline_run::WorkspaceBinding;
use crate::run_claims::ClaimSource;
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

/// A question about a run that `alice` creates. Pipeline and Namespace choose no mode.
fn by_alice<'a>(run: &'a PipelineRun, request_uid: &'a str) -> Question<'a> {
    Question::about(run, request_uid, "alice")
}

#[track_caller]
fn admit(configuration: &Configuration, run: &PipelineRun, request_uid: &str) -> Admission {
    ask(configuration, &by_alice(run, request_uid)).unwrap()
}

fn ask(
    configuration: &Configuration,
    question: &Question<'_>,
) -> Result<Admission, Vec<Violation>> {
    super::admit(Ok(configuration), TEKTON_CONTROLLER, question)
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

/// The run as the API server stores it, after its admission under another request.
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
        isolation_scope: IsolationScope::Cluster,
        claims: [(
            "cache".to_owned(),
            ClaimSource::Name("build-cache".to_owned()).into(),
        )]
        .into(),
        adopted: None,
        subsets: Default::default(),
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
        source: RewrittenSource::Claim(claim_name(
            &ClaimTemplateName::derive(&group, workspace, name),
            &assistant,
        )),
    };
    let mut annotations = pinned.to_annotations();
    let source = "key coschedule of ConfigMap coscheduler-config".to_owned();
    annotations.insert(MODE_SOURCE.to_owned(), source);
    assert_eq!(
        admission,
        Admission {
            set_annotations: annotations,
            remove_annotations: vec![],
            remove_task_annotations: Vec::new(),
            bindings: vec![rewritten("source", Some("src")), rewritten("unnamed", None)],
            warnings: vec![],
            claims_to_read: BTreeSet::new(),
        }
    );
}

#[test]
fn v1_v5_the_authors_own_claims_and_other_volumes_stay_as_they_are() {
    let before = run();
    let after = admit(&configuration(Mode::PipelineRuns), &before, UID).apply(&before);
    assert_eq!(after.workspaces[2..], before.workspaces[2..]);
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
fn b1_a_key_that_does_not_exist_is_warned_of_whatever_is_in_force() {
    let run = PipelineRun {
        annotations: [
            ("coscheduler.dev/coshedule", "disabled"),
            ("coscheduler.dev/coschedule", "pipelineruns"),
            ("example.com/coscheduler.dev", "x"),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into(),
        ..PipelineRun::default()
    };
    for mode in [Mode::Disabled, Mode::PipelineRuns] {
        let mut configuration = configuration(mode);
        configuration.allowed_overrides = [Override::Mode(Mode::PipelineRuns)].into();
        let admission = admit(&configuration, &run, UID);
        assert_eq!(
            admission.warnings,
            [
                "Annotation coscheduler.dev/coshedule has no effect. The only annotations with prefix coscheduler.dev/ that \
                 you can set on a PipelineRun are coscheduler.dev/coschedule, coscheduler.dev/placement, \
                 coscheduler.dev/placeholder-reserves."
            ]
        );
    }
}

#[test]
fn m5_m8_forged_annotations_never_survive() {
    let mut forged = run();
    forge(&mut forged);
    let warning = "These annotations are ignored, because only tekton-coscheduler may write them: \
                   coscheduler.dev/schema-version, coscheduler.dev/mode, coscheduler.dev/mode-source, coscheduler.dev/isolation-scope, coscheduler.dev/group, coscheduler.dev/placeholder, coscheduler.dev/volume-claim-templates, \
                   coscheduler.dev/claims, coscheduler.dev/sizes, coscheduler.dev/subsets, coscheduler.dev/part-of, coscheduler.dev/adopted, coscheduler.dev/awaits-pipeline, pipeline.tekton.dev/affinity-assistant, \
                   coscheduler.dev/traceparent. Remove them.";

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
    assert_eq!(
        enabled.remove_annotations,
        [
            SIZES,
            SUBSETS,
            PART_OF,
            ADOPTED,
            AWAITS_PIPELINE,
            TRACEPARENT
        ]
    );
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
        admission.warnings[0].starts_with("Workspace \"source\" was bound to claim \"src-"),
        "{}",
        admission.warnings[0]
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

/// The claim of the workspace with this index.
fn claim_of(run: &PipelineRun, index: usize) -> String {
    match &run.workspaces[index].source {
        WorkspaceSource::Claim { claim_name } => claim_name.clone(),
        other => panic!("expected a claim, got {other:?}"),
    }
}

#[test]
fn v2a_only_exactly_the_derived_claim_is_replaced() {
    let mut copy = stored();
    // The author of the copy has bound the workspace to an existing claim.
    copy.workspaces[0].source = WorkspaceSource::Claim {
        claim_name: "mine".to_owned(),
    };
    let admission = admit(&configuration(Mode::PipelineRuns), &copy, UID);
    let rewritten: Vec<_> = admission
        .bindings
        .iter()
        .map(|binding| binding.workspace.as_str())
        .collect();
    assert_eq!(rewritten, ["unnamed"]);
}

#[test]
fn v2a_a_claim_whose_template_is_not_known_is_refused_with_what_to_bind_instead() {
    #[track_caller]
    fn refused(copy: &PipelineRun, fields: &[&str]) {
        for mode in Mode::ALL {
            let violations = ask(&configuration(mode), &by_alice(copy, UID)).unwrap_err();
            let found: Vec<_> = violations
                .iter()
                .map(|violation| violation.field.as_str())
                .collect();
            assert_eq!(found, fields, "{mode}");
            for violation in &violations {
                assert!(
                    violation
                        .description
                        .contains("a volumeClaimTemplate, or a claim that you created"),
                    "{violation}"
                );
            }
        }
        // While Tekton's own flag is on, the run is admitted with a warning.
        let mut to_tekton = configuration(Mode::PipelineRuns);
        to_tekton.tekton_coschedule = Some("workspaces".to_owned());
        let left_alone = admit(&to_tekton, copy, UID);
        let told = left_alone
            .warnings
            .iter()
            .filter(|warning| warning.contains("Bind the workspace to a volumeClaimTemplate"));
        assert_eq!(told.count(), fields.len(), "{:?}", left_alone.warnings);
    }
    let field = |index: usize| format!("spec.workspaces[{index}].persistentVolumeClaim.claimName");
    // A copy without annotations, as `tkn pipeline start --last` makes it.
    let mut bare = stored();
    bare.annotations.clear();
    refused(&bare, &[&field(0), &field(1)]);
    // A copy with another group than the one that the claims' names derive from.
    let mut regrouped = stored();
    regrouped
        .annotations
        .insert(GROUP.to_owned(), "0123456789".to_owned());
    refused(&regrouped, &[&field(0), &field(1)]);
    // A copy with a workspace that is bound to the claim of another workspace.
    let mut moved = stored();
    moved.workspaces[2].source = WorkspaceSource::Claim {
        claim_name: claim_of(&moved, 0),
    };
    refused(&moved, &[&field(2)]);
}

#[test]
fn v2a_a_copy_without_annotations_gets_the_templates_of_the_stored_run() {
    let mut bare = stored();
    bare.annotations.clear();
    let templates = stored().annotations[VOLUME_CLAIM_TEMPLATES].clone();
    let group = stored().annotations[GROUP].clone();
    let of_other = ("0123456789".to_owned(), templates.clone());
    let known = BTreeMap::from([(group, templates), of_other]);
    let admitted = |mode: Mode, source_templates: Option<&BTreeMap<String, String>>| {
        let question = Question {
            source_templates,
            ..by_alice(&bare, UID)
        };
        ask(&configuration(mode), &question)
    };
    for mode in Mode::ALL {
        let mut clean = run();
        clean.annotations.clear();
        let fresh = admit(&configuration(mode), &clean, UID);
        let again = admitted(mode, Some(&known)).unwrap();
        assert_eq!(again.apply(&bare), fresh.apply(&clean), "{mode}");
        assert_eq!(again.warnings.len(), 2, "{:?}", again.warnings);
        assert!(admitted(mode, Some(&BTreeMap::new())).is_err());
    }
}

#[test]
fn v2a_a_copy_gets_its_template_back_where_tekton_makes_the_claims() {
    let clean = run();
    for (mode, annotated) in [(Mode::Workspaces, true), (Mode::Disabled, false)] {
        let admission = admit(&configuration(mode), &stored(), UID);
        let after = admission.apply(&stored());
        assert_eq!(after.workspaces, clean.workspaces, "{mode}");
        assert_eq!(after.annotations.contains_key(MODE), annotated, "{mode}");
        assert_eq!(
            admission.warnings.len(),
            2,
            "{mode}: {:?}",
            admission.warnings
        );
    }
}

#[test]
fn v2a_a_copy_that_somebody_makes_of_a_part_of_a_run_is_a_run_of_its_own() {
    let copy = PipelineRun {
        controller: Some(pipeline_run_owner()),
        ..stored()
    };
    let clean = run();
    let fresh = admit(&configuration(Mode::PipelineRuns), &clean, UID);
    let admission = admit(&configuration(Mode::PipelineRuns), &copy, UID);
    assert_eq!(admission.set_annotations, fresh.set_annotations);
    assert_eq!(admission.bindings, fresh.bindings);
}

fn pipeline_run_owner() -> OwnerReference {
    OwnerReference {
        api_version: "tekton.dev/v1".to_owned(),
        kind: "PipelineRun".to_owned(),
        name: "build".to_owned(),
        uid: "u1".to_owned(),
    }
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
                    prop_assert_eq!(assistant_of(claim_name), Some(assistant.clone()));
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

#[test]
fn m1_m8_v3_a_run_with_placeholders_for_claims_keeps_its_templates() {
    let before = run();
    let admission = admit(&configuration(Mode::Workspaces), &before, UID);
    assert_eq!(
        (&admission.bindings, &admission.warnings),
        (&vec![], &vec![])
    );
    assert_eq!(admission.apply(&before).workspaces, before.workspaces);
    let pinned = Pinned::read(&admission.set_annotations).unwrap().unwrap();
    assert_eq!((pinned.mode, pinned.templates.len()), (Mode::Workspaces, 0));
    assert_eq!(
        admission.set_annotations[CLAIMS],
        r#"{"cache":{"name":"build-cache"},"source":{"template":"src"},"unnamed":{"template":""}}"#
    );
    // No placeholder serves the whole run. The value is empty, so that Tekton does not copy a Task's annotation with this key.
    assert_eq!(admission.set_annotations[TEKTON_AFFINITY_ASSISTANT], "");
}

#[test]
fn m4_m8_isolation_and_its_scope_are_pinned() {
    for isolation_scope in IsolationScope::ALL {
        let configured = Configuration {
            isolation_scope,
            ..configuration(Mode::IsolatePipelineRun)
        };
        let admission = admit(&configured, &run(), UID);
        let pinned = Pinned::read(&admission.set_annotations).unwrap().unwrap();
        assert_eq!(
            (pinned.mode, pinned.isolation_scope),
            (Mode::IsolatePipelineRun, isolation_scope)
        );
        assert_eq!(
            admission.bindings,
            admit(&configuration(Mode::PipelineRuns), &run(), UID).bindings
        );
    }
}

#[test]
fn m9_while_tektons_own_flag_is_on_runs_are_left_to_tekton_and_told() {
    for mode in Mode::ALL {
        let configured = Configuration {
            tekton_coschedule: Some("workspaces".to_owned()),
            ..configuration(mode)
        };
        let admission = admit(&configured, &run(), UID);
        assert_eq!(admission.apply(&run()), run(), "{mode}");
        assert!(
            admission.warnings[0].contains(
                "leaves this run to Tekton, because Tekton's own flag coschedule is \"workspaces\""
            ),
            "{mode}: {:?}",
            admission.warnings
        );
    }
}

#[test]
fn m7_without_any_good_configuration_coscheduling_is_off_and_says_why() {
    let reasons = [Violation::new("coschedule", "\"sideways\" is no mode")];
    let mut wished = run();
    wished
        .annotations
        .insert(OVERRIDE.to_owned(), "nonsense".to_owned());
    let admission =
        super::admit(Err(&reasons), TEKTON_CONTROLLER, &by_alice(&wished, UID)).unwrap();
    assert_eq!(admission.apply(&wished), wished);
    assert_eq!(
        admission.warnings,
        [
            "Coscheduling is off, because the ConfigMap of tekton-coscheduler is not valid: coschedule: \"sideways\" is no \
             mode. Ask your operator to correct it."
        ]
    );
}

fn annotated(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    pairs.iter().map(owned).collect()
}

/// The mode that results from the choices of a run, its Pipeline and its Namespace. The flag is `pipelineruns`, and the operator
/// allows `disabled` and `workspaces`.
#[track_caller]
fn chosen(
    run: Option<&str>,
    pipeline: Option<&str>,
    namespace: Option<&str>,
) -> Result<String, Violation> {
    let configured = Configuration {
        allowed_overrides: [Mode::Disabled, Mode::Workspaces]
            .map(Override::Mode)
            .into(),
        ..configuration(Mode::PipelineRuns)
    };
    let mut wished = PipelineRun {
        namespace: "ci".to_owned(),
        pipeline_name: Some("build".to_owned()),
        ..self::run()
    };
    wished
        .annotations
        .extend(run.map(|mode| (OVERRIDE.to_owned(), mode.to_owned())));
    let [pipeline, namespace] =
        [pipeline, namespace].map(|mode| mode.map(|mode| annotated(&[(OVERRIDE, mode)])));
    let question = Question {
        pipeline_annotations: pipeline.as_ref(),
        namespace_annotations: namespace.as_ref(),
        ..by_alice(&wished, UID)
    };
    ask(&configured, &question)
        .map(|admission| {
            admission
                .set_annotations
                .get(MODE)
                .cloned()
                .unwrap_or("disabled".to_owned())
        })
        .map_err(|mut violations| violations.remove(0))
}

#[test]
fn b1_the_run_chooses_before_its_pipeline_before_its_namespace_before_the_flag() {
    let check = |run, pipeline, namespace, expect: &str| {
        assert_eq!(chosen(run, pipeline, namespace).unwrap(), expect);
    };
    check(None, None, None, "pipelineruns");
    check(None, None, Some("disabled"), "disabled");
    check(None, Some("workspaces"), Some("disabled"), "workspaces");
    check(
        Some("disabled"),
        Some("workspaces"),
        Some("workspaces"),
        "disabled",
    );
    check(Some("workspaces"), None, Some("disabled"), "workspaces");
    // The flag's own mode is always allowed. Only the first choice is read.
    check(
        Some("pipelineruns"),
        Some("isolate-pipelinerun"),
        Some("nonsense"),
        "pipelineruns",
    );
    check(None, Some("pipelineruns"), Some("disabled"), "pipelineruns");
}

#[test]
fn b1_what_is_not_allowed_is_refused_with_who_allows_what() {
    for (run, pipeline, namespace, field, who) in [
        (
            Some("isolate-pipelinerun"),
            None,
            None,
            "metadata.annotations[coscheduler.dev/coschedule]",
            "\"isolate",
        ),
        (
            None,
            Some("isolate-pipelinerun"),
            None,
            "spec.pipelineRef.name",
            "annotation coscheduler.dev/coschedule of Pipeline \"build\": ",
        ),
        (
            None,
            None,
            Some("isolate-pipelinerun"),
            "metadata.namespace",
            "annotation coscheduler.dev/coschedule of Namespace \"ci\": ",
        ),
    ] {
        let violation = chosen(run, pipeline, namespace).unwrap_err();
        assert_eq!(violation.field, field);
        assert!(violation.description.starts_with(who), "{violation}");
        for part in [
            "\"isolate-pipelinerun\" is not allowed; allowed: workspaces, pipelineruns, disabled. Your operator can",
            "allow more values with key allowed-overrides of ConfigMap coscheduler-config.",
        ] {
            assert!(violation.description.contains(part), "{violation}");
        }
    }
    let nothing_allowed = ask(
        &configuration(Mode::Workspaces),
        &Question {
            namespace_annotations: Some(&annotated(&[(OVERRIDE, "disabled")])),
            ..by_alice(&run(), UID)
        },
    );
    assert!(
        nothing_allowed.unwrap_err()[0]
            .description
            .contains("allowed: workspaces. ")
    );
}

#[test]
fn b1_what_is_no_mode_is_refused_by_name() {
    for (run, pipeline) in [(Some("all"), None), (None, Some("all"))] {
        let violation = chosen(run, pipeline, Some("disabled")).unwrap_err();
        assert!(
            violation
                .description
                .contains("\"all\" is not a coschedule mode; allowed: workspaces"),
            "{violation}"
        );
    }
}

#[test]
fn b1_a_disabled_cluster_may_let_runs_choose() {
    let configured = Configuration {
        allowed_overrides: Mode::ALL.map(Override::Mode).into(),
        ..configuration(Mode::Disabled)
    };
    for mode in Mode::ALL {
        let mut wished = run();
        wished
            .annotations
            .insert(OVERRIDE.to_owned(), mode.to_string());
        let admission = admit(&configured, &wished, UID);
        let pinned = Pinned::read(&admission.set_annotations)
            .unwrap()
            .map(|pinned| pinned.mode);
        assert_eq!(pinned, (mode != Mode::Disabled).then_some(mode));
        assert_eq!(
            admission.apply(&wished).annotations[OVERRIDE],
            mode.as_str()
        );
    }
}

/// A cluster in mode `pipelineruns` with the defaults of all other settings.
fn limited(allowed: &str, namespace_may_allow: &str) -> Configuration {
    let read = |text: &str| words(text).map(|word| word.parse().unwrap()).collect();
    Configuration {
        allowed_overrides: read(allowed),
        namespace_may_allow: read(namespace_may_allow),
        ..configuration(Mode::PipelineRuns)
    }
}

/// The annotations of a run, its Pipeline and its Namespace.
type Of<'a> = [&'a [(&'a str, &'a str)]; 3];

/// Mode, placement and reservation of such a run, and its warnings; or its denials.
fn settled(
    configuration: &Configuration,
    [run, pipeline, namespace]: Of<'_>,
) -> Result<(String, Vec<String>), Vec<Violation>> {
    let run = PipelineRun {
        annotations: annotated(run),
        namespace: "ci".to_owned(),
        pipeline_name: Some("build".to_owned()),
        ..self::run()
    };
    let question = Question {
        pipeline_annotations: Some(&annotated(pipeline)),
        namespace_annotations: Some(&annotated(namespace)),
        ..by_alice(&run, UID)
    };
    let admission = ask(configuration, &question)?;
    let words = match Pinned::read(&admission.set_annotations).unwrap() {
        Some(Pinned {
            mode, placeholder, ..
        }) => format!("{mode} {} {}", placeholder.placement, placeholder.reserves),
        None => "disabled".to_owned(),
    };
    Ok((words, admission.warnings))
}

#[test]
fn b1_p4_b3_placement_and_reservation_are_chosen_as_the_mode_is_each_by_itself() {
    let all = Override::all().map(|it| it.to_string()).collect::<Vec<_>>();
    let configured = limited(&all.join(","), "");
    #[track_caller]
    fn check(configured: &Configuration, of: Of<'_>, expect: &str) {
        let (words, warnings) = settled(configured, of).unwrap();
        assert_eq!((words.as_str(), warnings), (expect, vec![]));
    }
    let pack = (CHOSEN_PLACEMENT, "pack");
    let none = (CHOSEN_PLACEMENT, "none");
    let reserve = (CHOSEN_RESERVES, "peak");
    let nothing = (CHOSEN_RESERVES, "nothing");
    let mode = (OVERRIDE, "workspaces");
    check(
        &configured,
        [&[], &[], &[]],
        "pipelineruns spread placement",
    );
    check(
        &configured,
        [&[pack, reserve], &[], &[]],
        "pipelineruns pack peak",
    );
    check(
        &configured,
        [&[], &[pack], &[none, reserve]],
        "pipelineruns pack peak",
    );
    check(
        &configured,
        [&[nothing], &[mode, reserve], &[none]],
        "workspaces none nothing",
    );
    // The run is not coscheduled, so its other annotations are not checked.
    let odd = (CHOSEN_PLACEMENT, "odd");
    check(
        &configured,
        [&[(OVERRIDE, "disabled"), odd], &[], &[]],
        "disabled",
    );
}

#[test]
fn b1_what_is_not_allowed_of_placement_and_reservation_is_refused_by_name_all_at_once() {
    let configured = limited("placement=pack", "placeholder-reserves=peak");
    let none = (CHOSEN_PLACEMENT, "none");
    let reserve = (CHOSEN_RESERVES, "peak");
    let own = [
        (
            "metadata.annotations[coscheduler.dev/placement]",
            "\"none\" is not allowed; allowed: spread, pack. Your operator can allow more values with key allowed-overrides of \
             ConfigMap coscheduler-config.",
        ),
        (
            "metadata.annotations[coscheduler.dev/placeholder-reserves]",
            "\"peak\" is not allowed; allowed: placement. Annotation coscheduler.dev/allowed-overrides of Namespace \"ci\" can \
             allow it.",
        ),
    ];
    let own = own.map(|(field, description)| Violation::new(field, description));
    assert_eq!(
        settled(&configured, [&[none, reserve], &[], &[]]).unwrap_err(),
        own
    );
    let foreign = settled(&configured, [&[], &[reserve], &[none]]).unwrap_err();
    for (violation, field, beginning) in [
        (
            &foreign[0],
            "metadata.namespace",
            "annotation coscheduler.dev/placement of Namespace \"ci\": \"none\" is not",
        ),
        (
            &foreign[1],
            "spec.pipelineRef.name",
            "annotation coscheduler.dev/placeholder-reserves of Pipeline \"build\": \"peak\" is not",
        ),
    ] {
        assert_eq!(violation.field, field);
        assert!(violation.description.starts_with(beginning), "{violation}");
    }
    for setting in [CHOSEN_PLACEMENT, CHOSEN_RESERVES] {
        let unknown = settled(&configured, [&[(setting, "odd")], &[], &[]]).unwrap_err();
        assert_eq!(unknown[0].field, format!("metadata.annotations[{setting}]"));
        assert!(
            unknown[0].description.starts_with("\"odd\" is not "),
            "{unknown:?}"
        );
        assert!(
            unknown[0].description.contains("; allowed: "),
            "{unknown:?}"
        );
    }
}

#[test]
fn b1_a_namespace_narrows_and_widens_what_may_be_chosen_within_the_operators_bound() {
    let configured = limited("workspaces, placement=pack", "disabled");
    let allows = |words: &'static str| (ALLOWED_OVERRIDES, words);
    let admitted = |of: Of<'_>| settled(&configured, of).map(|(words, _)| words);
    let [workspaces, disabled, isolate] =
        ["workspaces", "disabled", "isolate-pipelinerun"].map(|mode| (OVERRIDE, mode));
    // If the Namespace has no list, the cluster's list has an effect.
    assert!(admitted([&[workspaces], &[], &[]]).is_ok());
    assert!(admitted([&[disabled], &[], &[]]).is_err());
    // A Namespace's list can allow less than the cluster's list. The denial then names the Namespace.
    for narrow in ["", "placement=pack"] {
        let denied = admitted([&[workspaces], &[], &[allows(narrow)]]).unwrap_err();
        assert_eq!(
            denied[0].description,
            "\"workspaces\" is not allowed; allowed: pipelineruns. Annotation coscheduler.dev/allowed-overrides of Namespace \
             \"ci\" can allow it."
        );
    }
    assert!(admitted([&[(CHOSEN_PLACEMENT, "pack")], &[], &[allows("")]]).is_err());
    // A Namespace's list can also allow the values in the operator's key `namespace-may-allow`.
    assert!(admitted([&[disabled], &[], &[allows("disabled")]]).is_ok());
    assert!(admitted([&[workspaces], &[], &[allows("disabled")]]).is_err());
    // A Namespace's list can allow no other values.
    let denied = admitted([&[isolate], &[], &[allows("isolate-pipelinerun")]]).unwrap_err();
    assert!(
        denied[0]
            .description
            .contains("Your operator can allow more values"),
        "{denied:?}"
    );
    let (_, warnings) = settled(
        &configured,
        [&[], &[], &[allows("isolate-pipelinerun,all disabled")]],
    )
    .unwrap();
    assert_eq!(
        warnings,
        [
            "Annotation coscheduler.dev/allowed-overrides of Namespace \"ci\" contains values that have no effect: \
             \"isolate-pipelinerun\", \"all\". Allowed values: workspaces, pipelineruns, disabled, placement=spread, \
             placement=pack, placeholder-reserves=placement. Your operator can permit more values with key namespace-may-allow \
             of ConfigMap coscheduler-config."
        ]
    );
    // The Namespace itself may choose the same values. With its list, it can also forbid the cluster's own mode to its runs.
    assert_eq!(admitted([&[], &[], &[disabled]]).unwrap(), "disabled");
    let cluster = (OVERRIDE, "pipelineruns");
    assert!(admitted([&[cluster], &[], &[workspaces]]).is_ok());
    assert!(admitted([&[cluster], &[], &[workspaces, allows("")]]).is_err());
    assert!(admitted([&[workspaces], &[], &[workspaces, allows("")]]).is_ok());
    // The annotation has no effect on a run or a Pipeline.
    assert!(admitted([&[disabled, allows("disabled")], &[allows("disabled")], &[]]).is_err());
}

fn any_list() -> impl Strategy<Value = Vec<Override>> {
    proptest::sample::subsequence(Override::all().collect::<Vec<_>>(), 0..6)
}

/// Choices of one object: a value of some settings.
fn any_choices() -> impl Strategy<Value = Vec<Override>> {
    any_list().prop_map(|mut values| {
        values.dedup_by_key(|value| value.setting());
        values
    })
}

proptest! {
    /// For any choices of the run, the Pipeline, the Namespace and the configuration, three rules hold. Every value is the
    /// cluster's value or an allowed value. In a Namespace without a list, authors can choose only from the cluster's list. In
    /// a Namespace with a list, they can choose only from this list. (Authors can always choose the value that applies without
    /// their choice.)
    #[test]
    fn b1_nobody_passes_the_bounds_and_the_first_choice_counts(
        allowed in any_list(),
        may_allow in any_list(),
        list in proptest::option::of(any_list()),
        run in any_choices(),
        pipeline in any_choices(),
        namespace in any_choices(),
    ) {
        let text = |values: &[Override]| listed(values);
        let configured = limited(&text(&allowed), &text(&may_allow));
        let choices = |values: &[Override]| -> Vec<_> {
            values.iter().map(|it| (it.setting().annotation(), it.word())).collect()
        };
        let mut of_namespace = choices(&namespace);
        let list_text = list.as_deref().map(text);
        of_namespace.extend(list_text.as_deref().map(|text| (ALLOWED_OVERRIDES, text)));
        let of_run = choices(&run);
        let of_pipeline = choices(&pipeline);
        let answer = settled(&configured, [&of_run, &of_pipeline, &of_namespace]);

        let find = |values: &[Override], setting| values.iter().copied().find(|it| it.setting() == setting);
        let bound = |value: Override| {
            value == configured.value(value.setting()) || allowed.contains(&value) || may_allow.contains(&value)
        };
        let mut expect = Vec::new();
        for setting in Setting::ALL {
            let author = find(&run, setting).or(find(&pipeline, setting));
            let by_namespace = find(&namespace, setting);
            let default = by_namespace.filter(|it| bound(*it)).unwrap_or(configured.value(setting));
            let of_list = |value: Override| match &list {
                Some(list) => list.contains(&value) && bound(value),
                None => value == configured.value(setting) || allowed.contains(&value),
            };
            let good = match (author, by_namespace) {
                (Some(value), _) => (value == default || of_list(value)).then_some(value),
                (None, Some(value)) => bound(value).then_some(value),
                (None, None) => Some(configured.value(setting)),
            };
            expect.push(good);
            if good == Some(Override::Mode(Mode::Disabled)) {
                break;
            }
        }
        match (answer, expect.iter().copied().collect::<Option<Vec<_>>>()) {
            (Ok((words, _)), Some(values)) => {
                let values: Vec<_> = values.iter().map(|it| it.word()).collect();
                prop_assert_eq!(words, values.join(" "));
            }
            (Err(violations), None) => {
                prop_assert_eq!(violations.len(), expect.iter().filter(|it| it.is_none()).count());
            }
            (answer, expect) => prop_assert!(false, "{answer:?}, expected {expect:?}"),
        }
    }
}

/// A child run, as Tekton creates it for a parent in `mode`: with the parent's annotations.
fn part(mode: Mode) -> PipelineRun {
    let parent = run();
    let annotations = admit(&configuration(mode), &parent, "request of the parent")
        .apply(&parent)
        .annotations;
    PipelineRun {
        annotations,
        controller: Some(pipeline_run_owner()),
        ..PipelineRun::parse(&json!({"metadata": {"name": "part", "uid": "u2"}, "spec": {}}))
            .unwrap()
    }
}

#[test]
fn a_part_of_a_run_has_its_parents_placeholders_and_none_of_its_own() {
    for mode in [
        Mode::Workspaces,
        Mode::PipelineRuns,
        Mode::IsolatePipelineRun,
    ] {
        let part = part(mode);
        let by_tekton = Question {
            created_by: TEKTON_CONTROLLER,
            owner_group: part.annotations.get(GROUP).map(String::as_str),
            source_templates: None,
            catalog: None,
            access_modes: None,
            ..by_alice(&part, UID)
        };
        // The configuration may have changed since the parent was created (M8).
        for in_force in [
            Ok(&configuration(Mode::Disabled)),
            Ok(&configuration(Mode::PipelineRuns)),
            Err(&[][..]),
        ] {
            let admission = super::admit(in_force, TEKTON_CONTROLLER, &by_tekton).unwrap();
            let stored = admission.apply(&part);
            assert_eq!(admission.warnings, Vec::<String>::new());
            assert_eq!(stored.annotations[PART_OF], "build");
            let kept = HANDED_ON
                .into_iter()
                .chain([TEKTON_AFFINITY_ASSISTANT, "note"])
                // The next test checks the claims in mode `workspaces`.
                .filter(|key| mode != Mode::Workspaces || *key != CLAIMS);
            for key in kept {
                assert_eq!(
                    stored.annotations[key], part.annotations[key],
                    "{mode}: {key}"
                );
            }
            assert_eq!(
                stored.annotations.len(),
                HANDED_ON.len() + 3,
                "{mode}: {:?}",
                stored.annotations
            );
            let plan = crate::plan::plan(&stored).unwrap();
            assert_eq!(plan.action, crate::plan::Action::Nothing, "{mode}");
            for done in [true, false] {
                let ended = PipelineRun {
                    state: crate::pipeline_run::RunState::Done,
                    deletion: !done,
                    ..stored.clone()
                };
                assert_eq!(
                    crate::plan::plan(&ended).unwrap().action,
                    crate::plan::Action::Nothing,
                    "{mode}"
                );
            }
        }
    }
}

#[test]
fn v3_a_part_of_a_run_knows_the_claims_that_tekton_creates_for_its_parent() {
    let part = part(Mode::Workspaces);
    let by_tekton = Question {
        created_by: TEKTON_CONTROLLER,
        owner_group: part.annotations.get(GROUP).map(String::as_str),
        source_templates: None,
        catalog: None,
        access_modes: None,
        ..by_alice(&part, UID)
    };
    let admission = ask(&configuration(Mode::Workspaces), &by_tekton).unwrap();
    let stored = &admission.apply(&part).annotations[CLAIMS];
    let parents_uid = pipeline_run_owner().uid;
    let made = |workspace, template| tekton_claim_name(workspace, template, &parents_uid);
    assert_eq!(
        serde_json::from_str::<Value>(stored).unwrap(),
        json!({
            "cache": {"name": "build-cache"},
            "source": {"name": made("source", Some("src"))},
            "unnamed": {"name": made("unnamed", None)},
        })
    );
}

#[test]
fn m8_a_part_of_a_run_of_an_unknown_schema_version_keeps_what_tekton_copied() {
    let mut part = part(Mode::PipelineRuns);
    part.annotations
        .insert(SCHEMA_VERSION.to_owned(), "4".to_owned());
    let by_tekton = Question {
        created_by: TEKTON_CONTROLLER,
        owner_group: part.annotations.get(GROUP).map(String::as_str),
        source_templates: None,
        catalog: None,
        access_modes: None,
        ..by_alice(&part, UID)
    };
    let admission = ask(&configuration(Mode::PipelineRuns), &by_tekton).unwrap();
    let stored = admission.apply(&part);
    for key in HANDED_ON.into_iter().chain([TEKTON_AFFINITY_ASSISTANT]) {
        assert_eq!(stored.annotations[key], part.annotations[key], "{key}");
    }
    let plan = crate::plan::plan(&stored).unwrap();
    assert_eq!(plan.action, crate::plan::Action::Nothing);
}

#[test]
fn a_part_of_a_run_that_was_left_alone_is_left_alone() {
    let part = PipelineRun {
        controller: Some(pipeline_run_owner()),
        ..PipelineRun::default()
    };
    let by_tekton = Question {
        created_by: TEKTON_CONTROLLER,
        ..by_alice(&part, UID)
    };
    assert_eq!(
        ask(&configuration(Mode::PipelineRuns), &by_tekton),
        Ok(Admission::default())
    );
}

/// The parent has no annotations. Tekton copied annotations of the parent's Pipeline to the child instead.
#[test]
fn m8_a_pipeline_cannot_make_a_part_of_a_run_join_a_group() {
    let forged = part(Mode::PipelineRuns);
    for owner_group in [None, Some("0123456789")] {
        let by_tekton = Question {
            created_by: TEKTON_CONTROLLER,
            owner_group,
            source_templates: None,
            catalog: None,
            access_modes: None,
            ..by_alice(&forged, UID)
        };
        let admission = ask(&configuration(Mode::PipelineRuns), &by_tekton).unwrap();
        let stored = admission.apply(&forged).annotations;
        assert_eq!(stored.into_keys().collect::<Vec<_>>(), ["note"]);
    }
}

#[test]
fn p7_pretending_to_be_a_part_of_a_run_makes_a_run_of_its_own() {
    let mut pretended = part(Mode::PipelineRuns);
    pretended
        .annotations
        .insert(PART_OF.to_owned(), "build".to_owned());
    let admission = admit(&configuration(Mode::PipelineRuns), &pretended, UID);
    let after = admission.apply(&pretended);
    assert_eq!(
        after.annotations[GROUP],
        Group::from_request_uid(UID).as_str()
    );
    assert!(!after.annotations.contains_key(PART_OF));
    // A run that Tekton creates without an owner is not a child run either.
    let orphan = PipelineRun {
        controller: None,
        ..pretended
    };
    let question = Question {
        created_by: TEKTON_CONTROLLER,
        ..by_alice(&orphan, UID)
    };
    let after = ask(&configuration(Mode::PipelineRuns), &question)
        .unwrap()
        .apply(&orphan);
    assert_eq!(
        after.annotations[GROUP],
        Group::from_request_uid(UID).as_str()
    );
}

#[test]
fn m2_an_embedded_task_with_more_than_one_claim_is_warned_about() {
    let document = json!({"spec": {
        "pipelineSpec": {
            "tasks": [
                {"name": "clone", "workspaces": [{"name": "source"}, {"name": "token"}]},
                {"name": "build", "workspaces": [{"name": "in", "workspace": "source"}, {"name": "cache"}]},
                {"name": "same", "workspaces": [{"name": "cache"}, {"name": "modules"}]},
                {"name": "custom", "taskRef": {"apiVersion": "example.dev/v1", "kind": "Approval"},
                    "workspaces": [{"name": "source"}, {"name": "cache"}]},
                {"name": "child", "pipelineRef": {"name": "child"}, "workspaces": [{"name": "source"}, {"name": "cache"}]},
            ],
            "finally": [{"name": "report", "workspaces": [{"name": "source"}, {"name": "scratch"}]}],
        },
        "workspaces": [
            {"name": "source", "volumeClaimTemplate": template()},
            {"name": "scratch", "volumeClaimTemplate": template()},
            {"name": "cache", "persistentVolumeClaim": {"claimName": "build-cache"}},
            {"name": "modules", "subPath": "npm", "persistentVolumeClaim": {"claimName": "build-cache"}},
            {"name": "token", "secret": {"secretName": "t"}},
        ],
    }});
    let run = PipelineRun::parse(&document).unwrap();
    let warnings = admit(&configuration(Mode::Workspaces), &run, UID).warnings;
    assert_eq!(
        warnings,
        [
            "Task \"build\" will not run, because it uses 2 persistent volume claims: workspace \"cache\": claim \
             \"build-cache\", workspace \"source\": a claim from the volumeClaimTemplate of \"source\". In coschedule mode \
             workspaces, a task may use only one claim. Create the run again, and bind these workspaces to subPaths of one \
             claim. Or, if your operator allows mode pipelineruns, create the run again with annotation \
             coscheduler.dev/coschedule: pipelineruns.",
            "Task \"report\" will not run, because it uses 2 persistent volume claims: workspace \"scratch\": a claim from the \
             volumeClaimTemplate of \"scratch\", workspace \"source\": a claim from the volumeClaimTemplate of \"source\". In \
             coschedule mode workspaces, a task may use only one claim. Create the run again, and bind these workspaces to \
             subPaths of one claim. Or, if your operator allows mode pipelineruns, create the run again with annotation \
             coscheduler.dev/coschedule: pipelineruns.",
        ]
    );
    assert!(
        admit(&configuration(Mode::PipelineRuns), &run, UID)
            .warnings
            .is_empty()
    );
}

#[test]
fn v3_the_claims_that_are_pinned_are_those_that_tekton_makes() {
    let admission = admit(&configuration(Mode::Workspaces), &run(), UID);
    let pinned = Pinned::read(&admission.set_annotations).unwrap().unwrap();
    assert_eq!(
        pinned.claims["source"].name("source", "u1"),
        tekton_claim_name("source", Some("src"), "u1")
    );
}
