//! What admission puts back when a run is updated. What was pinned when the run was created stays as it was (M8): it is
//! restored, never refused, since Tekton itself updates PipelineRuns, and since the author's own manifest, applied a
//! second time, differs from the stored run in nothing but what admission wrote (V2a).

use std::collections::BTreeMap;

use crate::admit::{Admission, RewrittenBinding, forged_in_tasks, of_tasks};
use crate::annotations::PINNED;
use crate::pinned::carried_templates;
use crate::pipeline_run::{PipelineRun, WorkspaceSource};

/// Decides what to put back into `new`, an update of `old`.
///
/// - Pinned annotations are what they were, or absent where they were absent.
/// - A binding that admission had rewritten is rewritten again.
/// - Pinned annotations in `spec.taskRunSpecs` are removed, as at creation.
///
/// A manifest applied again, with its `volumeClaimTemplate`s, is put right without a word; for anything else there is a
/// warning.
pub fn restore(old: &PipelineRun, new: &PipelineRun) -> Admission {
    let mut warnings = forged_in_tasks(new);
    let mut set_annotations = BTreeMap::new();
    let mut remove_annotations = Vec::new();
    let mut changed = Vec::new();
    for key in PINNED {
        match (old.annotations.get(key), new.annotations.get(key)) {
            (Some(was), is) if is != Some(was) => {
                set_annotations.insert(key.to_owned(), was.clone());
            }
            (None, Some(_)) => remove_annotations.push(key.to_owned()),
            (Some(_) | None, Some(_) | None) => continue,
        }
        changed.push(key);
    }
    if !changed.is_empty() {
        warnings.push(format!(
            "kept {} as it was when the run was created: it cannot be changed",
            changed.join(", ")
        ));
    }
    Admission {
        set_annotations,
        remove_annotations,
        remove_task_annotations: of_tasks(new),
        bindings: bindings(old, new, &mut warnings),
        warnings,
    }
}

/// The bindings that admission had rewritten in `old` and that `new` binds otherwise.
fn bindings(
    old: &PipelineRun,
    new: &PipelineRun,
    warnings: &mut Vec<String>,
) -> Vec<RewrittenBinding> {
    let Some((_, templates)) = carried_templates(&old.annotations) else {
        return Vec::new();
    };
    let mut restored = Vec::new();
    for binding in &old.workspaces {
        let (Some(template), WorkspaceSource::Claim { claim_name }) =
            (templates.get(&binding.name), &binding.source)
        else {
            continue;
        };
        let Some(now) = new.workspaces.iter().find(|now| now.name == binding.name) else {
            continue;
        };
        if now.source == binding.source {
            continue;
        }
        let applied_again = match &now.source {
            WorkspaceSource::ClaimTemplate(own) => own.template == *template,
            WorkspaceSource::Claim { .. } | WorkspaceSource::Other => false,
        };
        if !applied_again {
            warnings.push(format!(
                "kept workspace {:?} bound to claim {claim_name:?}: the binding of a run that exists cannot be changed",
                binding.name
            ));
        }
        restored.push(RewrittenBinding {
            workspace: binding.name.clone(),
            claim_name: claim_name.clone(),
        });
    }
    restored
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admit::{TaskAnnotation, admit};
    use crate::annotations::{GROUP, MODE, TRACEPARENT};
    use crate::config::Configuration;
    use crate::mode::Mode;
    use serde_json::{Value, json};

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

    /// The run as it is stored.
    fn stored() -> PipelineRun {
        let configuration = Configuration {
            mode: Mode::PipelineRuns,
            ..Configuration::default()
        };
        let mut stored = admit(&configuration, &manifest(), "request").apply(&manifest());
        stored
            .annotations
            .insert(TRACEPARENT.to_owned(), "00-1-2-01".to_owned());
        stored
    }

    /// Whatever an update does, what was pinned is what is stored; answers what the author is told.
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
        assert_eq!(
            restore(&stored(), &after),
            Admission::default(),
            "a second time changes nothing"
        );
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
            for told in [changed, removed] {
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
}
