//! From a PipelineRun to what is to be done for it, so complete that nothing is left to decide:
//! which placeholders, with which claims, labels and resources. A plan follows from the run and what
//! is pinned on it alone, never from the configuration of the day (M8).

mod claims;
mod placeholder;

use crate::admit::{Admission, InForce, Question, admit};
use crate::annotations::{MODE, OVERRIDE, PART_OF};
use crate::mode::Mode;
use crate::names::AssistantName;
use crate::pinned::{Pinned, unknown_schema, whole_run};
use crate::pipeline_run::{PipelineRun, RunState};
use crate::reasons;
use crate::violation::Violation;

use claims::Claims;

pub use crate::reasons::{Reason, ReasonCode, Severity};
pub use placeholder::{ClaimTemplateSpec, PlaceholderSpec, Separation};

/// What is to be done for a run, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The mode pinned on the run; [`Mode::Disabled`] where none is, or none that can be read.
    pub mode: Mode,
    /// What is to be done.
    pub action: Action,
    /// Why, in the order in which it was decided.
    pub reasons: Vec<Reason>,
}

/// What is to be done for a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Nothing: the run is left alone, has not started, or has no claim that needs a placeholder.
    Nothing,
    /// These placeholders exist, at least one, created once and never updated (P1).
    Ensure(Vec<PlaceholderSpec>),
    /// Whatever belongs to the run, by owner uid, is torn down (P6).
    Release {
        /// Why.
        cause: ReleaseCause,
    },
}

impl Action {
    /// The placeholders that are to exist.
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

/// Plans for a run from what is pinned on it, and nothing else.
///
/// # Errors
/// Every violation at once: a pinned annotation that cannot be read, a pinned template whose
/// workspace is not bound to the claim it becomes, a run without a name or uid. A run that is done or
/// being deleted is released whatever is wrong with it.
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
        let action = Action::Release {
            cause: ReleaseCause::Deleted,
        };
        return Ok(Plan::of(mode, action, reasons::pipeline_run_deleted()));
    }
    match run.state {
        RunState::Done => {
            let action = Action::Release {
                cause: ReleaseCause::Done,
            };
            Ok(Plan::of(mode, action, reasons::pipeline_run_done()))
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

/// A chosen mode that is not the run's cannot have been there, or not have counted, when the run was created: else it
/// would be the run's, or the run would have been refused (B1).
fn override_ignored(run: &PipelineRun, mode: Mode) -> Option<Reason> {
    let chosen = run.annotations.get(OVERRIDE)?;
    (chosen != mode.as_str()).then(|| reasons::override_ignored(chosen, mode))
}

fn ensure(run: &PipelineRun, pinned: &Pinned) -> Result<Plan, Vec<Violation>> {
    let mut faults: Vec<_> = [("name", &run.name), ("uid", &run.uid)]
        .into_iter()
        .filter(|(_, value)| value.is_empty())
        .map(|(field, _)| {
            Violation::new(
                format!("metadata.{field}"),
                "is not set; allowed: that of a run that exists",
            )
        })
        .collect();
    let mut left_out = Vec::new();
    let claims = claims::of(run, pinned, &mut faults, &mut left_out);
    if !faults.is_empty() {
        return Err(faults);
    }
    let placeholders = match whole_run(pinned.mode, &pinned.group) {
        Some(name) => vec![(name, claims)],
        None => of_each_claim(pinned, claims),
    };
    let mut placeholders: Vec<_> = placeholders
        .into_iter()
        .map(|(name, claims)| placeholder::spec(run, pinned, name, claims))
        .collect();
    let mut decided: Vec<_> = placeholders
        .iter()
        .map(|spec| why(pinned.mode, spec))
        .collect();
    if decided.is_empty() {
        decided.push(reasons::no_claims());
    }
    decided.append(&mut left_out);
    decided.extend(placeholder::dropped(run, pinned));
    decided.extend(override_ignored(run, pinned.mode));
    placeholders.sort_by(|left, right| left.name.cmp(&right.name));
    Ok(Plan {
        mode: pinned.mode,
        action: if placeholders.is_empty() {
            Action::Nothing
        } else {
            Action::Ensure(placeholders)
        },
        reasons: decided,
    })
}

/// A placeholder for each claim (M1), however many workspaces are bound to it (V6).
fn of_each_claim(pinned: &Pinned, claims: Claims) -> Vec<(AssistantName, Claims)> {
    let mounted = claims.existing.into_iter().map(|claim| (claim, true));
    let unmounted = claims.unmounted.into_iter().map(|claim| (claim, false));
    mounted
        .chain(unmounted)
        .map(|(claim, mounted)| {
            let name = AssistantName::of_claim(&pinned.group, &claim);
            let mut only = Claims::default();
            if mounted {
                only.existing.push(claim);
            } else {
                only.unmounted.push(claim);
            }
            (name, only)
        })
        .collect()
}

fn why(mode: Mode, spec: &PlaceholderSpec) -> Reason {
    let name = &spec.name;
    match mode {
        Mode::Workspaces => {
            let claim = spec
                .claim_names
                .first()
                .or(spec.unmounted_claim_names.first());
            reasons::coschedule_workspace(claim.map_or("", String::as_str), name)
        }
        Mode::PipelineRuns => reasons::coschedule_pipeline_run(name),
        Mode::IsolatePipelineRun => reasons::isolate_pipeline_run(name),
        Mode::Disabled => reasons::not_pinned(),
    }
}

/// What would become of a run that is not created yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preview {
    /// What admission would change.
    pub admission: Admission,
    /// The plan that would follow.
    pub plan: Plan,
}

/// What Kubernetes appends to `generateName` has this length; which characters cannot be known.
const GENERATED_SUFFIX: &str = "xxxxx";

/// Stands for the uid of a run that has none yet.
const NO_UID: &str = "00000000-0000-0000-0000-000000000000";

/// Admits a run that is not created yet, and plans for what would be stored.
///
/// A run without a name gets `<generateName>xxxxx`. Group and uid depend on the request that really
/// creates the run, so names made of them are examples.
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
