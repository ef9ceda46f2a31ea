//! If a resolver fetches the Pipeline of a run, this Pipeline can choose settings after the run was created (B1). Until Tekton
//! has stored the Pipeline in the run's status, the run has neither placeholders nor children ([`AWAITS_PIPELINE`]), so the run's
//! settings can still change. But Tekton refuses a change of the run's bindings.

use std::collections::BTreeMap;

use super::overrides::{self, Chosen};
use super::pin::{Drawn, pin};
use super::{Admission, InForce, Question};
use crate::annotations::{AWAITS_PIPELINE, PINNED};
use crate::mode::Mode;
use crate::names::Group;
use crate::overrides::Setting;
use crate::pinned::Pinned;
use crate::pipeline_run::PipelineRun;
use crate::restore::restore;
use crate::subsets::{self, Subsets};

/// True if the update from `old` to `new` adds annotations that choose settings, while the run awaits its Pipeline. Tekton makes
/// such an update when it copies the Pipeline's annotations to the run.
pub fn is_late_choice(old: &PipelineRun, new: &PipelineRun) -> bool {
    awaits_pipeline(old) && added(old, new).next().is_some()
}

/// True if the run's Pipeline may still choose settings.
pub fn awaits_pipeline(run: &PipelineRun) -> bool {
    run.annotations.contains_key(AWAITS_PIPELINE) && run.defaults.is_none()
}

/// Decides about an update that adds choices while the run awaits its Pipeline. `old` is the run before the update, and
/// `question.run` is the run after it. The choices have no effect in these cases:
///
/// - One of the values does not exist or is not allowed.
/// - The chosen mode is `workspaces` or `disabled`, but admission has replaced `volumeClaimTemplate`s of the run by claims.
/// - Tekton's own flag `coschedule` is not `disabled`, or there has been no valid configuration yet.
/// - The pinned annotations of `old` cannot be read.
pub fn choose_late(in_force: InForce<'_>, old: &PipelineRun, question: &Question<'_>) -> Admission {
    let restored = restore(old, question.run);
    chosen(in_force, old, question, &restored).unwrap_or(restored)
}

fn chosen(
    in_force: InForce<'_>,
    old: &PipelineRun,
    question: &Question<'_>,
    restored: &Admission,
) -> Option<Admission> {
    let new = question.run;
    let configuration = in_force.ok()?;
    if configuration.tekton_coschedule.is_some() {
        return None;
    }
    let of_pipeline = added(old, new)
        .map(|(key, value)| (key.to_owned(), value.clone()))
        .collect();
    let stored = PipelineRun {
        annotations: old.annotations.clone(),
        ..restored.apply(new)
    };
    let question = Question {
        run: &stored,
        pipeline_annotations: Some(&of_pipeline),
        ..*question
    };
    let Chosen { configuration, .. } = overrides::choose(configuration, &question).ok()?;
    let old_pins = Pinned::read(&old.annotations).ok()?;
    let (group, templates, subsets) = match old_pins {
        Some(pinned) => (pinned.group, pinned.templates, pinned.subsets),
        None => {
            let group = Group::from_request_uid(question.request_uid);
            (group, BTreeMap::new(), Subsets::new())
        }
    };
    let mut admission = Admission {
        warnings: Vec::new(),
        ..restored.clone()
    };
    match configuration.mode {
        Mode::Workspaces | Mode::Disabled if !templates.is_empty() => return None,
        Mode::Disabled => {
            admission.set_annotations.clear();
            let pinned = PINNED.into_iter().filter(|key| *key != AWAITS_PIPELINE);
            let pinned = pinned.filter(|key| new.annotations.contains_key(*key));
            admission.remove_annotations = pinned.map(str::to_owned).collect();
        }
        Mode::Workspaces | Mode::PipelineRuns | Mode::IsolatePipelineRun => {
            let drawn = Drawn {
                group,
                // The names of the templates' claims depend on the subsets.
                subsets: match templates.is_empty() {
                    true => subsets::of_run(&stored, configuration.mode, question.catalog),
                    false => subsets,
                },
                templates,
            };
            pin(configuration, &question, drawn, &mut admission);
            let set = &admission.set_annotations;
            admission
                .remove_annotations
                .retain(|key| !set.contains_key(key));
        }
    }
    Some(admission)
}

/// The choices that `new` has and `old` lacks.
fn added<'a>(
    old: &'a PipelineRun,
    new: &'a PipelineRun,
) -> impl Iterator<Item = (&'static str, &'a String)> {
    let keys = Setting::ALL.into_iter().map(Setting::annotation);
    keys.filter(|key| !old.annotations.contains_key(*key))
        .filter_map(|key| Some((key, new.annotations.get(key)?)))
}

#[cfg(test)]
mod tests;
