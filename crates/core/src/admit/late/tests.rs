use super::*;
use crate::admit::{TEKTON_CONTROLLER, admit};
use crate::annotations::{
    CLAIMS, GROUP, MODE, MODE_SOURCE, OVERRIDE, SIZES, VOLUME_CLAIM_TEMPLATES,
};
use crate::config::Configuration;
use crate::overrides::Override;
use crate::params::Params;
use crate::plan::{Action, ReasonCode, plan};
use serde_json::{Value, json};

/// A configuration with this mode that allows every override.
fn open(mode: Mode) -> Configuration {
    Configuration {
        mode,
        allowed_overrides: Override::all().collect(),
        ..Configuration::default()
    }
}

fn template() -> Value {
    let spec =
        json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
    json!({"name": "made", "volumeClaimTemplate": {"spec": spec}})
}

fn existing() -> Value {
    json!({"name": "cache", "persistentVolumeClaim": {"claimName": "cache"}})
}

/// A run after its admission. A resolver fetches the run's Pipeline.
fn stored(configuration: &Configuration, workspaces: Value, annotations: Value) -> PipelineRun {
    let run = PipelineRun::parse(&json!({
        "metadata": {"name": "run", "namespace": "ci", "uid": "u", "annotations": annotations},
        "spec": {"pipelineRef": {"resolver": "git"}, "workspaces": workspaces},
    }))
    .unwrap();
    let question = Question::about(&run, "request", "alice");
    let admission = admit(Ok(configuration), TEKTON_CONTROLLER, &question).unwrap();
    admission.apply(&run)
}

/// The run after Tekton has copied a Pipeline's annotation to it.
fn chosen_in(configuration: &Configuration, old: &PipelineRun, mode: &str) -> PipelineRun {
    let mut new = old.clone();
    new.annotations.insert(OVERRIDE.to_owned(), mode.to_owned());
    assert!(is_late_choice(old, &new));
    let question = Question::about(&new, "update", TEKTON_CONTROLLER);
    choose_late(Ok(configuration), old, &question).apply(&new)
}

fn fetched(mut run: PipelineRun) -> PipelineRun {
    run.defaults = Some(Params::default());
    run
}

#[test]
fn b1_only_a_run_whose_remote_pipeline_may_choose_awaits_it() {
    let awaits = |configuration: &Configuration, annotations: Value| {
        let run = stored(configuration, json!([]), annotations);
        run.annotations.contains_key(AWAITS_PIPELINE)
    };
    for mode in Mode::ALL {
        assert!(awaits(&open(mode), json!({})), "{mode}");
        let closed = Configuration {
            allowed_overrides: [].into(),
            ..open(mode)
        };
        assert!(!awaits(&closed, json!({})), "{mode}");
    }
    let by_run = json!({OVERRIDE: "disabled"});
    assert!(!awaits(&open(Mode::Workspaces), by_run));
    let all = json!({
        OVERRIDE: "workspaces", "coscheduler.dev/placement": "pack", "coscheduler.dev/placeholder-reserves": "peak",
    });
    assert!(!awaits(&open(Mode::Workspaces), all));
    // An author cannot make a run await its Pipeline.
    let mut forged = PipelineRun::parse(&json!({"spec": {"pipelineSpec": {}}})).unwrap();
    forged
        .annotations
        .insert(AWAITS_PIPELINE.to_owned(), "true".to_owned());
    let question = Question::about(&forged, "request", "alice");
    let admission = admit(Ok(&open(Mode::Workspaces)), TEKTON_CONTROLLER, &question).unwrap();
    assert!(
        !admission
            .apply(&forged)
            .annotations
            .contains_key(AWAITS_PIPELINE)
    );
}

#[test]
fn b1_a_run_that_awaits_its_pipeline_has_no_placeholder_before() {
    let run = stored(&open(Mode::PipelineRuns), json!([template()]), json!({}));
    let before = plan(&run).unwrap();
    assert_eq!(before.action, Action::Nothing);
    assert_eq!(before.reasons[0].code, ReasonCode::PipelineNotKnown);
    assert_eq!(plan(&fetched(run)).unwrap().action.placeholders().len(), 1);
}

#[test]
fn b1_a_remote_pipeline_chooses_among_all_modes_where_no_binding_has_to_change() {
    let of_tekton = json!([template(), existing()]);
    for (before, workspaces, after, placeholders) in [
        (Mode::Workspaces, &of_tekton, Mode::PipelineRuns, 1),
        (Mode::Workspaces, &of_tekton, Mode::IsolatePipelineRun, 1),
        (Mode::Workspaces, &of_tekton, Mode::Disabled, 0),
        (Mode::Disabled, &of_tekton, Mode::Workspaces, 2),
        (Mode::Disabled, &of_tekton, Mode::PipelineRuns, 1),
        (Mode::PipelineRuns, &of_tekton, Mode::IsolatePipelineRun, 1),
        (
            Mode::PipelineRuns,
            &json!([existing()]),
            Mode::Workspaces,
            1,
        ),
        (Mode::PipelineRuns, &json!([existing()]), Mode::Disabled, 0),
    ] {
        let configuration = open(before);
        let old = stored(&configuration, workspaces.clone(), json!({}));
        let run = fetched(chosen_in(&configuration, &old, after.as_str()));
        assert_eq!(run.workspaces, old.workspaces, "{before} to {after}");
        let plan = plan(&run).unwrap();
        assert_eq!(plan.mode, after, "{before} to {after}");
        let specs = plan.action.placeholders();
        assert_eq!(specs.len(), placeholders, "{before} to {after}");
        let claims: usize = specs.iter().map(|spec| spec.claims().count()).sum();
        let wanted = run.workspaces.len();
        assert_eq!(claims, if placeholders == 0 { 0 } else { wanted });
        let pinned = run.annotations.get(MODE_SOURCE).map(String::as_str);
        let source = "annotation coscheduler.dev/coschedule of the Pipeline";
        assert_eq!(pinned, (placeholders > 0).then_some(source));
        if let (Some(before), Some(after)) =
            (old.annotations.get(GROUP), run.annotations.get(GROUP))
        {
            assert_eq!(before, after);
        }
    }
}

#[test]
fn b1_a_late_choice_that_needs_other_bindings_or_is_not_allowed_changes_nothing() {
    let ignored = |configuration: &Configuration, old: &PipelineRun, mode: &str| {
        let run = fetched(chosen_in(configuration, old, mode));
        for key in PINNED {
            assert_eq!(run.annotations.get(key), old.annotations.get(key), "{key}");
        }
        let reasons = plan(&run).unwrap().reasons;
        let codes: Vec<_> = reasons.iter().map(|reason| reason.code).collect();
        assert!(codes.contains(&ReasonCode::OverrideIgnored), "{codes:?}");
    };
    let whole = open(Mode::PipelineRuns);
    let old = stored(&whole, json!([template()]), json!({}));
    ignored(&whole, &old, "workspaces");
    ignored(&whole, &old, "disabled");
    ignored(&whole, &old, "sideways");
    let limited = Configuration {
        allowed_overrides: [Override::Mode(Mode::IsolatePipelineRun)].into(),
        ..open(Mode::Workspaces)
    };
    let old = stored(&limited, json!([existing()]), json!({}));
    ignored(&limited, &old, "pipelineruns");
    // Tekton's own flag was turned on after the creation of the run.
    let on = Configuration {
        tekton_coschedule: Some("workspaces".to_owned()),
        ..limited.clone()
    };
    ignored(&on, &old, "isolate-pipelinerun");
}

#[test]
fn b1_a_pipeline_cannot_write_what_only_admission_writes() {
    let configuration = open(Mode::Workspaces);
    let old = stored(&configuration, json!([existing()]), json!({}));
    let mut new = old.clone();
    for key in [
        SIZES,
        CLAIMS,
        VOLUME_CLAIM_TEMPLATES,
        GROUP,
        "coscheduler.dev/adopted",
    ] {
        new.annotations.insert(key.to_owned(), "forged".to_owned());
    }
    let asked = |mode: &str| {
        let mut new = new.clone();
        new.annotations.insert(OVERRIDE.to_owned(), mode.to_owned());
        let question = Question::about(&new, "update", TEKTON_CONTROLLER);
        choose_late(Ok(&configuration), &old, &question).apply(&new)
    };
    for mode in ["pipelineruns", "disabled"] {
        let forged = asked(mode)
            .annotations
            .into_values()
            .any(|value| value == "forged");
        assert!(!forged, "{mode}");
    }
    assert_eq!(asked("disabled").annotations.get(MODE), None);
}

#[test]
fn b1_a_choice_after_the_pipeline_is_known_comes_too_late() {
    let configuration = open(Mode::Workspaces);
    let old = fetched(stored(&configuration, json!([existing()]), json!({})));
    let mut new = old.clone();
    new.annotations
        .insert(OVERRIDE.to_owned(), "disabled".to_owned());
    assert!(!is_late_choice(&old, &new));
}
