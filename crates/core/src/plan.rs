//! Plans the placeholders of a PipelineRun, with their claims, labels and resources. A plan depends only on the run and its pinned
//! annotations, never on the current configuration (M8). The plan has every detail, so nothing is left to decide.

mod claims;
mod placeholder;

use crate::admit::{Admission, InForce, Question, admit};
use crate::annotations::{MODE, OVERRIDE, PART_OF};
use crate::document::Faults;
use crate::mode::Mode;
use crate::names::AssistantName;
use crate::pinned::{Pinned, unknown_schema, whole_run};
use crate::pipeline_run::{PipelineRun, RunState};
use crate::reasons;
use crate::violation::Violation;

use claims::Claims;

pub use crate::reasons::{Reason, ReasonCode, Severity};
pub use crate::separation::Separation;
pub use placeholder::{ClaimTemplateSpec, PlaceholderSpec};

/// The plan of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The mode pinned on the run; [`Mode::Disabled`] if there is none, or if it cannot be read.
    pub mode: Mode,
    /// The act to take.
    pub action: Action,
    /// Its reasons, in the order of the decisions.
    pub reasons: Vec<Reason>,
}

/// The act to take for a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// None: the run is left alone, has not started, or has no claim that needs a placeholder.
    Nothing,
    /// Create these placeholders, at least one, once. They are never updated (P1).
    Ensure(Vec<PlaceholderSpec>),
    /// Tear down every object that the run owns, by uid (P6).
    Release {
        /// Why.
        cause: ReleaseCause,
    },
}

impl Action {
    /// The placeholders to create.
    pub fn placeholders(&self) -> &[PlaceholderSpec] {
        match self {
            Self::Ensure(placeholders) => placeholders,
            Self::Nothing | Self::Release { .. } => &[],
        }
    }
}

/// Why a run's objects are torn down (P6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReleaseCause {
    /// The run has completed, failed, been cancelled, stopped or timed out.
    Done,
    /// The run is being deleted.
    Deleted,
}

/// Plans a run.
///
/// # Errors
/// All violations together: a pinned annotation cannot be read, a workspace is not bound to the claim of its pinned template, or
/// the run has no name or uid. A run that is done or being deleted is released even if it has violations.
pub fn plan(run: &PipelineRun) -> Result<Plan, Vec<Violation>> {
    let Some(mode) = run.annotations.get(MODE) else {
        return Ok(not_pinned(run));
    };
    let mode = mode.parse().unwrap_or(Mode::Disabled);
    if let Some(parent) = run.annotations.get(PART_OF) {
        let reason = reasons::part_of_pipeline_run(parent);
        return Ok(Plan::of(mode, Action::Nothing, reason));
    }
    if run.deletion {
        let cause = ReleaseCause::Deleted;
        return Ok(Plan::of(
            mode,
            Action::Release { cause },
            reasons::pipeline_run_deleted(),
        ));
    }
    match run.state {
        RunState::Done => {
            let cause = ReleaseCause::Done;
            Ok(Plan::of(
                mode,
                Action::Release { cause },
                reasons::pipeline_run_done(),
            ))
        }
        RunState::Pending => {
            let reason = reasons::pipeline_run_pending();
            Ok(Plan::of(mode, Action::Nothing, reason))
        }
        RunState::Active => {
            if let Some(version) = unknown_schema(&run.annotations) {
                let reason = reasons::schema_version_unknown(version);
                return Ok(Plan::of(mode, Action::Nothing, reason));
            }
            match Pinned::read(&run.annotations)? {
                Some(pinned) => ensure(run, &pinned),
                None => Ok(not_pinned(run)),
            }
        }
    }
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
    let mut plan = Plan::of(Mode::Disabled, Action::Nothing, reasons::not_pinned());
    plan.reasons.extend(override_ignored(run, Mode::Disabled));
    plan
}

/// A chosen mode that is not the run's came too late, or did not count, when the run was created. Otherwise it would be the
/// run's mode, or admission would have refused the run (B1).
fn override_ignored(run: &PipelineRun, mode: Mode) -> Option<Reason> {
    let chosen = run.annotations.get(OVERRIDE)?;
    (chosen != mode.as_str()).then(|| reasons::override_ignored(chosen, mode))
}

fn ensure(run: &PipelineRun, pinned: &Pinned) -> Result<Plan, Vec<Violation>> {
    let faults = Faults::default();
    for (field, value) in [("name", &run.name), ("uid", &run.uid)] {
        if value.is_empty() {
            let fault = "is not set; allowed: that of a run that exists";
            faults.add(format!("metadata.{field}"), fault);
        }
    }
    let mut left_out = Vec::new();
    let claims = claims::of(run, pinned, &faults, &mut left_out);
    let claims = faults.unless_any(claims)?;
    let placeholders = match whole_run(pinned.mode, &pinned.group) {
        Some(name) => vec![(name, claims)],
        None => of_each_claim(pinned, claims),
    };
    let mut placeholders: Vec<_> = placeholders
        .into_iter()
        .map(|(name, claims)| placeholder::spec(run, pinned, name, claims))
        .collect();
    let mut reasons: Vec<_> = placeholders
        .iter()
        .map(|spec| why(pinned.mode, spec))
        .collect();
    if placeholders.is_empty() {
        reasons.push(reasons::no_claims());
    }
    reasons.append(&mut left_out);
    reasons.extend(placeholder::dropped(run, pinned));
    reasons.extend(override_ignored(run, pinned.mode));
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

/// A placeholder for each claim (M1), however many workspaces are bound to it (V6).
fn of_each_claim(pinned: &Pinned, claims: Claims) -> Vec<(AssistantName, Claims)> {
    let name = |claim: &str| AssistantName::of_claim(&pinned.group, claim);
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

fn why(mode: Mode, spec: &PlaceholderSpec) -> Reason {
    let name = &spec.name;
    match mode {
        Mode::Workspaces => {
            let claim = spec.claims().next().unwrap_or_default();
            reasons::coschedule_workspace(&claim, name)
        }
        Mode::PipelineRuns => reasons::coschedule_pipeline_run(name),
        Mode::IsolatePipelineRun => reasons::isolate_pipeline_run(name),
        Mode::Disabled => reasons::not_pinned(),
    }
}

/// Admission and plan of a run that is not created yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preview {
    /// The changes that admission would make.
    pub admission: Admission,
    /// The plan that would follow.
    pub plan: Plan,
}

/// Stands for the characters that Kubernetes appends to `generateName`.
const GENERATED_SUFFIX: &str = "xxxxx";

/// Stands for the uid of a run that has none yet.
const NO_UID: &str = "00000000-0000-0000-0000-000000000000";

/// Admits a run that is not created yet, and plans the run that would be stored.
///
/// A run without a name gets `<generateName>xxxxx`. Group and uid depend on the request that creates the run, so names made
/// from them are examples.
///
/// # Errors
/// As [`admit`] and [`plan`].
pub fn preview(
    in_force: InForce<'_>,
    tekton_controller: &str,
    question: &Question<'_>,
) -> Result<Preview, Vec<Violation>> {
    let admission = admit(in_force, tekton_controller, question)?;
    let mut stored = admission.apply(question.run);
    if stored.name.is_empty() && !stored.generate_name.is_empty() {
        stored.name = format!("{}{GENERATED_SUFFIX}", stored.generate_name);
    }
    if stored.uid.is_empty() {
        NO_UID.clone_into(&mut stored.uid);
    }
    let plan = plan(&stored)?;
    Ok(Preview { admission, plan })
}

#[cfg(test)]
mod tests;
