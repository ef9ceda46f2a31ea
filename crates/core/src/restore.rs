//! Admission of an update of a PipelineRun. This module restores everything that admission pinned when the run was created (M8).
//! There is one exception: while the run is pending, annotation [`CLAIMS`] follows changes of bindings and pod templates.
//!
//! This module denies no update, because Tekton itself updates PipelineRuns, and authors may apply their manifest again. The
//! manifest differs from the stored run in the parts that admission wrote (V2a).

use crate::admit::copied::claim_of_another_run;
use crate::admit::reserved::{in_tasks, of_tasks};
use crate::admit::{Admission, RewrittenBinding, RewrittenSource, warnings};
use crate::adopt;
use crate::annotations::{CLAIMS, PINNED};
use crate::mode::Mode;
use crate::overrides::Setting;
use crate::pinned::{self, Pinned, carried_templates, claims_to_annotation};
use crate::pipeline_run::{PipelineRun, RunState, WorkspaceSource};
use crate::run_claims;

/// Restores the pinned parts of `old` in its update `new`.
///
/// - Pinned annotations keep their old values. Only annotation [`CLAIMS`] follows the bindings and the pod templates while the
///   run is pending. A pending run has no placeholder yet, and Tekton still allows changes of its bindings.
/// - Bindings that admission wrote keep their old values.
/// - Reserved annotations in `spec.taskRunSpecs` are removed, as for a new run.
///
/// There is no warning if an update only sets bindings back to those of the author's manifest. This happens when the author
/// applies the unchanged manifest again. Other changes that this function undoes cause a warning.
pub fn restore(old: &PipelineRun, new: &PipelineRun) -> Admission {
    let mut warnings = in_tasks(new);
    let bindings = bindings(old, new, &mut warnings);
    let changed = |key: &&str| new.annotations.get(*key) != old.annotations.get(*key);
    let changed: Vec<_> = PINNED.into_iter().filter(changed).collect();
    if !changed.is_empty() {
        warnings.push(warnings::kept_annotations(&changed));
    }
    warnings.extend(
        Setting::ALL
            .iter()
            .filter_map(|setting| override_too_late(*setting, old, new)),
    );
    let mut admission = Admission {
        // If an update does not change this field, admission must not change it either: after a run has started, Tekton refuses
        // a change of this field.
        remove_task_annotations: match new.task_run_specs == old.task_run_specs {
            true => Vec::new(),
            false => of_tasks(new),
        },
        bindings,
        warnings,
        ..Admission::default()
    };
    for key in PINNED {
        let wanted = match old.annotations.get(key) {
            Some(_) if key == CLAIMS && old.state == RunState::Pending => {
                Some(claims(old, &admission.apply(new)))
            }
            wanted => wanted.cloned(),
        };
        match wanted {
            Some(wanted) if new.annotations.get(key) != Some(&wanted) => {
                admission.set_annotations.insert(key.to_owned(), wanted);
            }
            None if new.annotations.contains_key(key) => {
                admission.remove_annotations.push(key.to_owned());
            }
            Some(_) | None => {}
        }
    }
    admission
}

/// The new value of annotation [`CLAIMS`] of a pending run. When the run was created, admission may have taken a claim's name
/// from a Pipeline in the cluster. If the binding is unchanged and this name is not known now, the pinned claim stays (V9).
/// Shared existing claims stay shared, and no other existing claim becomes shared (V8).
fn claims(old: &PipelineRun, new: &PipelineRun) -> String {
    let mut claims = run_claims::of_run(new, None);
    let pinned = Pinned::read(&old.annotations).ok().flatten();
    let mode = pinned.as_ref().map(|pinned| pinned.mode);
    let is_adopted = pinned.as_ref().is_some_and(|it| it.adopted.is_some());
    let pinned = pinned.map(|pinned| pinned.claims).unwrap_or_default();
    run_claims::keep_shared(&mut claims, &pinned);
    for (workspace, claim) in pinned {
        let binding = |run: &PipelineRun| {
            let mut bindings = run.workspaces.iter();
            bindings.find(|it| it.name == workspace).cloned()
        };
        if binding(old).is_some() && binding(old) == binding(new) {
            let now = claims.entry(workspace).or_insert_with(|| claim.clone());
            now.shared |= claim.shared && now.source == claim.source;
        }
    }
    if let Some((_, templates)) = carried_templates(&old.annotations) {
        claims.retain(|workspace, _| !templates.contains_key(workspace));
    }
    match (mode, is_adopted) {
        (Some(Mode::Workspaces), true) => adopt::retain_tektons(&mut claims, new),
        (Some(Mode::PipelineRuns | Mode::IsolatePipelineRun), false) => {
            claims.extend(run_claims::of_volumes_now(old, new));
        }
        _ => {}
    }
    claims_to_annotation(&claims)
}

/// A warning if the update chooses another value for a setting than the run has. The author has chosen this value, or Tekton has
/// copied it to the run from a Pipeline that a resolver fetched (B1).
fn override_too_late(setting: Setting, old: &PipelineRun, new: &PipelineRun) -> Option<String> {
    let chosen = new.annotations.get(setting.annotation())?;
    let pinned = pinned::value(&old.annotations, setting)?;
    let is_new = old.annotations.get(setting.annotation()) != Some(chosen);
    (is_new && chosen != pinned.word()).then(|| warnings::override_too_late(chosen, pinned))
}

/// The bindings that admission wrote in `old` and that `new` changes. The result has their old sources.
fn bindings(
    old: &PipelineRun,
    new: &PipelineRun,
    warnings: &mut Vec<String>,
) -> Vec<RewrittenBinding> {
    let templates = carried_templates(&old.annotations).map(|(_, templates)| templates);
    let templates = templates.unwrap_or_default();
    let mut restored = Vec::new();
    for binding in &old.workspaces {
        let workspace = &binding.name;
        let mut updated = new.workspaces.iter();
        let updated = updated.find(|now| now.name == *workspace && now.source != binding.source);
        let Some(now) = updated else {
            continue;
        };
        let source = match (templates.get(workspace), &binding.source) {
            (Some(template), WorkspaceSource::Claim { claim_name }) => {
                let applied_again = match &now.source {
                    WorkspaceSource::ClaimTemplate(own) => own.template == *template,
                    WorkspaceSource::Claim { .. } | WorkspaceSource::Other => false,
                };
                if !applied_again {
                    warnings.push(warnings::kept_binding(workspace, claim_name));
                }
                RewrittenSource::Claim(claim_name.clone())
            }
            // The run is a copy of another run, and its author applied the copy's manifest again. The manifest names the other
            // run's claim.
            (None, WorkspaceSource::ClaimTemplate(own)) if claim_of_another_run(now).is_some() => {
                RewrittenSource::Template(own.template.clone())
            }
            (Some(_) | None, _) => continue,
        };
        restored.push(RewrittenBinding {
            workspace: workspace.clone(),
            source,
        });
    }
    restored
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admit::{Question, TEKTON_CONTROLLER, TaskAnnotation, admit};
    use crate::annotations::{
        ADOPTED, AWAITS_PIPELINE, CHOSEN_PLACEMENT, CHOSEN_RESERVES, GROUP, MODE, OVERRIDE,
        PART_OF, PREFIX, SIZES, SUBSETS, TRACEPARENT,
    };
    use crate::config::Configuration;
    use crate::mode::Mode;
    use serde_json::{Value, json};
    use std::collections::BTreeMap;

    fn template() -> Value {
        json!({"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}})
    }

    /// A run as its author writes it.
    fn manifest() -> PipelineRun {
        PipelineRun::parse(&json!({
            "metadata": {"name": "run", "namespace": "ci"},
            "spec": {"workspaces": [
                {"name": "source", "volumeClaimTemplate": template()},
                {"name": "cache", "persistentVolumeClaim": {"claimName": "brought"}},
            ]},
        }))
        .unwrap()
    }

    /// The run as the API server stores it.
    fn stored() -> PipelineRun {
        let configuration = Configuration {
            mode: Mode::PipelineRuns,
            ..Configuration::default()
        };
        let mut stored = admitted(&configuration, &manifest());
        stored
            .annotations
            .insert(TRACEPARENT.to_owned(), "00-1-2-01".to_owned());
        stored.annotations.insert(SIZES.to_owned(), "{}".to_owned());
        stored
    }

    fn admitted(configuration: &Configuration, run: &PipelineRun) -> PipelineRun {
        let question = Question::about(run, "request", "alice");
        admit(Ok(configuration), TEKTON_CONTROLLER, &question)
            .unwrap()
            .apply(run)
    }

    /// Checks that the pinned annotations are the same after the update. Returns the warnings.
    #[track_caller]
    fn check(change: impl FnOnce(&mut PipelineRun)) -> Vec<String> {
        let mut update = stored();
        change(&mut update);
        let restored = restore(&stored(), &update);
        let after = restored.apply(&update);
        for key in PINNED {
            assert_eq!(
                after.annotations.get(key),
                stored().annotations.get(key),
                "{key}"
            );
        }
        assert_eq!(after.workspaces[0], stored().workspaces[0]);
        let again = Admission {
            warnings: Vec::new(),
            ..restore(&stored(), &after)
        };
        assert_eq!(again, Admission::default(), "a second time changes nothing");
        restored.warnings
    }

    #[test]
    fn m8_an_update_that_touches_nothing_pinned_is_left_alone() {
        let told = check(|run| {
            run.labels.insert("late".to_owned(), "yes".to_owned());
        });
        assert!(told.is_empty());
    }

    #[test]
    fn v2a_the_same_manifest_applied_again_is_put_right_without_a_word() {
        let told = check(|run| run.workspaces = manifest().workspaces);
        assert!(told.is_empty(), "{told:?}");
    }

    #[test]
    fn m8_what_was_pinned_is_restored_with_a_warning() {
        for key in PINNED {
            let changed = check(|run| {
                run.annotations.insert(key.to_owned(), "forged".to_owned());
            });
            let removed = check(|run| {
                run.annotations.remove(key);
            });
            // Only child runs, adopted runs, and runs that await their Pipeline have these annotations.
            let told = if [ADOPTED, AWAITS_PIPELINE, PART_OF, SUBSETS].contains(&key) {
                vec![changed]
            } else {
                vec![changed, removed]
            };
            for told in told {
                assert!(told.len() == 1 && told[0].contains(key), "{told:?}");
            }
        }
        let rebound = check(|run| {
            run.workspaces[0].source = WorkspaceSource::Claim {
                claim_name: "of-somebody-else".to_owned(),
            };
        });
        assert!(
            rebound.len() == 1 && rebound[0].contains("source"),
            "{rebound:?}"
        );
    }

    #[test]
    fn m5_a_run_that_was_left_alone_cannot_be_made_ours_later() {
        let mut update = manifest();
        update
            .annotations
            .insert(MODE.to_owned(), "pipelineruns".to_owned());
        update
            .annotations
            .insert(GROUP.to_owned(), "0123456789".to_owned());
        let restored = restore(&manifest(), &update);
        assert_eq!(restored.apply(&update).annotations, BTreeMap::new());
        assert_eq!(restored.warnings.len(), 1);
    }

    #[test]
    fn annotations_of_single_tasks_are_stripped_as_at_creation() {
        let mut update = stored();
        update.task_run_specs = PipelineRun::parse(&json!({"spec": {"taskRunSpecs": [
            {"pipelineTaskName": "a"},
            {"pipelineTaskName": "b", "metadata": {"annotations": {GROUP: "0123456789", "mine": "x"}}},
        ]}}))
        .unwrap()
        .task_run_specs;
        let restored = restore(&stored(), &update);
        let expect = TaskAnnotation {
            index: 1,
            key: GROUP.to_owned(),
        };
        assert_eq!(restored.remove_task_annotations, [expect]);
        let after = restored.apply(&update);
        assert_eq!(after.task_run_specs[1].annotations.len(), 1);
    }

    #[test]
    fn b1_a_mode_chosen_once_the_run_exists_comes_too_late() {
        let chosen = |mode: &'static str| {
            check(|run| {
                run.annotations.insert(OVERRIDE.to_owned(), mode.to_owned());
            })
        };
        let told = chosen("disabled");
        assert!(
            told.len() == 1 && told[0].contains("create a new run"),
            "{told:?}"
        );
        // Tekton copies annotations of the Pipeline to the run. Here the Pipeline's annotation has chosen the run's mode.
        assert!(chosen("pipelineruns").is_empty());
    }

    #[test]
    fn b1_a_placement_or_reservation_chosen_once_the_run_exists_comes_too_late() {
        for (key, late, pinned) in [
            (CHOSEN_PLACEMENT, "pack", "spread"),
            (CHOSEN_RESERVES, "nothing", "placement"),
        ] {
            let chosen = |word: &str| {
                check(|run| drop(run.annotations.insert(key.to_owned(), word.to_owned())))
            };
            let name = key.trim_start_matches(PREFIX);
            assert_eq!(
                chosen(late),
                [format!(
                    "Your change of annotation {key} has no effect, because this run was created with {name} {pinned} and keeps \
                     it. To use {late:?}, create a new run with the annotation."
                )]
            );
            assert!(chosen(pinned).is_empty());
            // A run that is not coscheduled has no placeholder, so there is no warning.
            let mut update = manifest();
            update.annotations.insert(key.to_owned(), late.to_owned());
            assert_eq!(restore(&manifest(), &update), Admission::default());
        }
    }

    #[test]
    fn v9_a_pending_run_may_still_be_bound_to_another_claim() {
        let pending = |mut run: PipelineRun| {
            run.state = RunState::Pending;
            run
        };
        let mut update = pending(stored());
        update.workspaces[1].source = WorkspaceSource::Claim {
            claim_name: "other".to_owned(),
        };
        let restored = restore(&pending(stored()), &update);
        assert_eq!(
            restored.set_annotations[CLAIMS],
            r#"{"cache":{"name":"other"}}"#
        );
        assert!(restored.warnings.is_empty(), "{:?}", restored.warnings);
        let started = restore(&stored(), &update);
        assert_eq!(started.set_annotations, BTreeMap::new());
    }

    #[test]
    fn v1_a_pending_run_follows_the_claims_of_its_pod_template() {
        let with = |claim: &str| {
            let mut run = stored();
            run.state = RunState::Pending;
            let volume = json!({"name": "v", "persistentVolumeClaim": {"claimName": claim}});
            run.pod_template = Some(json!({"volumes": [volume]}));
            run
        };
        let first = restore(&with("one"), &with("one")).apply(&with("one"));
        assert!(first.annotations[CLAIMS].contains(r#""podTemplate.volumes[v]":{"name":"one"}"#));
        let mut changed = with("two");
        changed.annotations.clone_from(&first.annotations);
        let changed = restore(&first, &changed).apply(&changed);
        let claims = &changed.annotations[CLAIMS];
        assert!(
            claims.contains(r#"{"name":"two"}"#) && !claims.contains("one"),
            "{claims}"
        );
    }

    #[test]
    fn v9_a_pending_run_keeps_a_claim_that_its_pipeline_completed() {
        let mut run = manifest();
        run.workspaces[1].source = WorkspaceSource::Claim {
            claim_name: "$(params.cache)".to_owned(),
        };
        run.state = RunState::Pending;
        let mut old = admitted(&Configuration::default(), &run);
        let known = r#"{"cache":{"name":"of-pipeline"},"source":{"template":""}}"#;
        old.annotations.insert(CLAIMS.to_owned(), known.to_owned());
        assert_eq!(restore(&old, &old), Admission::default());
        let mut other = old.clone();
        other.workspaces[1].source = WorkspaceSource::Claim {
            claim_name: "$(params.other)".to_owned(),
        };
        let restored = restore(&old, &other);
        assert_eq!(
            restored.set_annotations[CLAIMS],
            r#"{"source":{"template":""}}"#
        );
    }

    #[test]
    fn v2a_a_copy_applied_again_keeps_the_template_it_got_back() {
        let workspaces = Configuration::default();
        let stored = admitted(&workspaces, &stored());
        assert!(matches!(
            stored.workspaces[0].source,
            WorkspaceSource::ClaimTemplate(_)
        ));
        let mut update = stored.clone();
        update.workspaces = self::stored().workspaces;
        let restored = restore(&stored, &update);
        assert_eq!(restored.apply(&update), stored);
        assert!(restored.warnings.is_empty(), "{:?}", restored.warnings);
    }
}
