//! Plans the placeholders of a PipelineRun, with their claims, labels and resources. A plan depends only on the run and its
//! pinned annotations, never on the current configuration (M8). Module [`volumes`](crate::volumes) makes those decisions about a
//! placeholder that depend on the existing claims and volumes.

mod claims;
mod placeholder;

use std::collections::BTreeSet;

use crate::admit::{self, Admission, InForce, Question, admit};
use crate::annotations::{MODE, PART_OF, SIZES};
use crate::config::Reserves;
use crate::document::Faults;
use crate::event_texts;
use crate::mode::Mode;
use crate::names::AssistantName;
use crate::overrides::Setting;
use crate::pinned::{self, Pinned, unknown_schema};
use crate::pipeline_run::{PipelineRun, RunState};
use crate::run_claims;
use crate::sizes::Sizes;
use crate::subsets::MAIN;
use crate::violation::Violation;

use claims::Claims;

pub use crate::event_texts::{Reason, ReasonCode, Severity};
pub use crate::separation::Separation;
pub use placeholder::{ClaimTemplateSpec, PlaceholderSpec};

/// The plan of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The mode pinned on the run. [`Mode::Disabled`] if no mode is pinned, or if the mode cannot be read.
    pub mode: Mode,
    /// The action to take.
    pub action: Action,
    /// The reasons for the plan, in the order of the decisions.
    pub reasons: Vec<Reason>,
}

/// The action to take for a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Do nothing. [`Plan::reasons`] has the cause: for example, the run is not coscheduled, has not started, or needs no
    /// placeholder of its own.
    Nothing,
    /// Create each of these placeholders that does not exist. The list is not empty. An existing placeholder is never changed
    /// (P1).
    Ensure(Vec<PlaceholderSpec>),
    /// Delete the run's placeholders, and the claims for which [`goes_with`](crate::reconcile::claims_to_delete::goes_with) is true.
    /// Owner references with the run's uid identify these objects (P6).
    Release {
        /// The cause.
        cause: ReleaseCause,
    },
}

impl Action {
    /// The placeholders to create. Empty for every action except [`Action::Ensure`].
    pub fn placeholders(&self) -> &[PlaceholderSpec] {
        match self {
            Self::Ensure(placeholders) => placeholders,
            Self::Nothing | Self::Release { .. } => &[],
        }
    }
}

/// The cause for which a run's objects are deleted (P6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReleaseCause {
    /// The run completed, failed, timed out, or was cancelled or stopped.
    Done,
    /// The run is being deleted.
    Deleted,
}

/// Plans the placeholders of a run.
///
/// The watcher reports a change of a run only if function `has_same_plan` of crate `kubernetes` is false. If a plan comes to depend
/// on another part of a run's status, change that function too.
///
/// # Errors
/// If pinned annotations cannot be read: at least one violation for each of these annotations. Otherwise, all violations of
/// these rules: the run has a name and a uid; each workspace with a pinned template exists; in a run that is not adopted, each
/// such workspace is bound to the template's claim; in an adopted run, the template's name is a DNS label.
///
/// There is no error for a child run, or for a run that is pending, done or being deleted.
pub fn plan(run: &PipelineRun) -> Result<Plan, Vec<Violation>> {
    let Some(mode) = run.annotations.get(MODE) else {
        return Ok(not_pinned(run));
    };
    let mode = mode.parse().unwrap_or(Mode::Disabled);
    if let Some(parent) = run.annotations.get(PART_OF) {
        let reason = event_texts::part_of_pipeline_run(parent);
        return Ok(Plan::of(mode, Action::Nothing, reason));
    }
    if run.deletion {
        let cause = ReleaseCause::Deleted;
        return Ok(Plan::of(
            mode,
            Action::Release { cause },
            event_texts::pipeline_run_deleted(),
        ));
    }
    match run.state {
        RunState::Done => {
            let cause = ReleaseCause::Done;
            Ok(Plan::of(
                mode,
                Action::Release { cause },
                event_texts::pipeline_run_done(),
            ))
        }
        RunState::Pending => {
            let reason = event_texts::pipeline_run_pending();
            Ok(Plan::of(mode, Action::Nothing, reason))
        }
        RunState::Active => {
            if let Some(version) = unknown_schema(&run.annotations) {
                let reason = event_texts::schema_version_unknown(version);
                return Ok(Plan::of(mode, Action::Nothing, reason));
            }
            match Pinned::of(run)? {
                Some(pinned) if awaits_pipeline(run, &pinned) => {
                    let reason = event_texts::pipeline_not_known();
                    Ok(Plan::of(mode, Action::Nothing, reason))
                }
                Some(pinned) if pinned.adopted.is_some() && !run.has_begun => {
                    let reason = event_texts::tekton_begins();
                    Ok(Plan::of(mode, Action::Nothing, reason))
                }
                Some(mut pinned) => {
                    if !asks_for_any(run) {
                        pinned.placeholder.reserves = Reserves::Nothing;
                    }
                    ensure(run, &pinned)
                }
                None => Ok(not_pinned(run)),
            }
        }
    }
}

/// True if settings or claims of the run depend on a Pipeline that Tekton has not stored in the run's status yet (B1, V9).
fn awaits_pipeline(run: &PipelineRun, pinned: &Pinned) -> bool {
    admit::awaits_pipeline(run) || run_claims::awaits_pipeline(run, &pinned.claims)
}

/// False if admission estimated the requests of the run's tasks, and no task is known to request CPU or memory. Then there is
/// nothing to reserve.
fn asks_for_any(run: &PipelineRun) -> bool {
    if !run.annotations.contains_key(SIZES) {
        return true;
    }
    let sizes = Sizes::read(&run.annotations).unwrap_or_default();
    let mut requests = sizes.0.values().filter_map(|task| task.requests.as_ref());
    requests.any(|requests| requests.milli_cpu > 0 || requests.memory > 0)
}

impl Plan {
    fn of(mode: Mode, action: Action, reason: Reason) -> Self {
        Self {
            mode,
            action,
            reasons: vec![reason],
        }
    }
}

fn not_pinned(run: &PipelineRun) -> Plan {
    let mut plan = Plan::of(Mode::Disabled, Action::Nothing, event_texts::not_pinned());
    plan.reasons.extend(overrides_ignored(run));
    plan
}

/// A reason for each annotation of a [`Setting`] that names another value than the run's. There are two possible causes. First:
/// after the run was created, a person set the annotation, or Tekton copied it from the run's Pipeline. Second: admission did not
/// coschedule the run (M5, M7, M9). In all other cases, admission would have used the annotation's value or denied the run (B1).
fn overrides_ignored(run: &PipelineRun) -> impl Iterator<Item = Reason> {
    Setting::ALL.into_iter().filter_map(|setting| {
        let chosen = run.annotations.get(setting.annotation())?;
        let pinned = pinned::value(&run.annotations, setting)?;
        (chosen != pinned.word()).then(|| event_texts::override_ignored(chosen, pinned))
    })
}

fn ensure(run: &PipelineRun, pinned: &Pinned) -> Result<Plan, Vec<Violation>> {
    let faults = Faults::default();
    for (field, value) in [("name", &run.name), ("uid", &run.uid)] {
        if value.is_empty() {
            let fault = "is not set; allowed: the value of an existing run";
            faults.add(format!("metadata.{field}"), fault);
        }
    }
    let mut left_out = Vec::new();
    let naming = pinned.naming(&run.name);
    let keys = pinned.subsets.keys().map(String::as_str);
    let keys: BTreeSet<&str> = keys.chain([MAIN]).collect();
    let mut placeholders = Vec::new();
    for key in keys {
        let name = naming.of_subset(pinned.mode, key);
        let claims = claims::of(run, pinned, key, &faults, &mut left_out);
        let named = match name {
            Some(name) => vec![(name, claims)],
            None => of_each_claim(run, pinned, claims),
        };
        placeholders.extend(
            (named.into_iter())
                .map(|(name, claims)| placeholder::spec(run, pinned, key, name, claims)),
        );
    }
    let mut placeholders = faults.unless_any(placeholders)?;
    let mut reasons: Vec<_> = placeholders.iter().map(|spec| why(pinned, spec)).collect();
    if placeholders.is_empty() && pinned.claims.values().all(|claim| !claim.shared) {
        reasons.push(event_texts::no_claims());
    }
    reasons.append(&mut left_out);
    reasons.extend(placeholder::dropped(run, pinned));
    reasons.extend(overrides_ignored(run));
    placeholders.sort_by(|left, right| left.name.cmp(&right.name));
    Ok(Plan {
        mode: pinned.mode,
        action: match placeholders.is_empty() {
            true => Action::Nothing,
            false => Action::Ensure(placeholders),
        },
        reasons,
    })
}

/// One placeholder for each claim (M1). If several workspaces are bound to one claim, they share its placeholder (V6).
fn of_each_claim(
    run: &PipelineRun,
    pinned: &Pinned,
    claims: Claims,
) -> Vec<(AssistantName, Claims)> {
    let naming = pinned.naming(&run.name);
    let name = |claim: &str| naming.of_claim(claim, &pinned.claims, &run.uid);
    let mounted = claims.existing.into_iter().map(|claim| {
        let existing = vec![claim];
        (
            name(&existing[0]),
            Claims {
                existing,
                ..Claims::default()
            },
        )
    });
    let unmounted = claims.unmounted.into_iter().map(|claim| {
        let unmounted = vec![claim];
        (
            name(&unmounted[0]),
            Claims {
                unmounted,
                ..Claims::default()
            },
        )
    });
    mounted.chain(unmounted).collect()
}

fn why(pinned: &Pinned, spec: &PlaceholderSpec) -> Reason {
    let name = &spec.name;
    let pods = match pinned.subsets.get(&spec.subset) {
        Some(subset) if spec.subset != MAIN => {
            let tasks: Vec<_> = subset.tasks.iter().map(String::as_str).collect();
            format!("The pods of the tasks {}", tasks.join(", "))
        }
        _ if pinned.subsets.is_empty() => "All pods of the run".to_owned(),
        _ => "All other pods of the run".to_owned(),
    };
    match pinned.mode {
        Mode::Workspaces => {
            let claim = spec.claims().next().unwrap_or_default();
            event_texts::coschedule_workspace(&claim, name)
        }
        Mode::PipelineRuns => event_texts::coschedule_pipeline_run(&pods, name),
        Mode::IsolatePipelineRun => event_texts::isolate_pipeline_run(&pods, name),
        Mode::Disabled => event_texts::not_pinned(),
    }
}

/// The admission and the plan of a run that does not exist yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preview {
    /// The changes that admission would make on the run.
    pub admission: Admission,
    /// The run with these changes.
    pub stored: PipelineRun,
    /// The plan for the run with these changes.
    pub plan: Plan,
}

/// True if the API server has stored the run: it has a uid. [`plan`] plans such a run. [`preview`] plans any other run, for
/// example a copy with the annotations of another run.
pub fn is_stored(run: &PipelineRun) -> bool {
    !run.uid.is_empty()
}

/// Stands for the random characters that Kubernetes appends to `generateName`.
const GENERATED_SUFFIX: &str = "xxxxx";

/// Stands for the uid of a run that has no uid yet.
const NO_UID: &str = "00000000-0000-0000-0000-000000000000";

/// Admits a run that does not exist yet, and plans the run as the API server would store it.
///
/// A run without a name gets the name `<generateName>xxxxx`. The group derives from the uid of the admission request, and the API
/// server sets the run's uid. So names that derive from the group or the uid are only examples.
///
/// # Errors
/// The errors of [`admit()`] and [`plan`].
pub fn preview(
    in_force: InForce<'_>,
    tekton_controller: &str,
    question: &Question<'_>,
) -> Result<Preview, Vec<Violation>> {
    let admission = admit(in_force, tekton_controller, question)?;
    preview_admitted(question.run, admission)
}

/// Plans a run that does not exist yet, as the API server would store it after this admission.
///
/// # Errors
/// The errors of [`plan`].
pub fn preview_admitted(
    run: &PipelineRun,
    admission: Admission,
) -> Result<Preview, Vec<Violation>> {
    let mut stored = admission.apply(run);
    if stored.name.is_empty() && !stored.generate_name.is_empty() {
        stored.name = format!("{}{GENERATED_SUFFIX}", stored.generate_name);
    }
    if stored.uid.is_empty() {
        NO_UID.clone_into(&mut stored.uid);
    }
    let plan = plan(&stored)?;
    Ok(Preview {
        admission,
        stored,
        plan,
    })
}

#[cfg(test)]
mod tests;
