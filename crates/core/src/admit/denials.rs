//! The texts of denials about runs and TaskRuns. Two rules deny a run, and a third one a TaskRun:
//!
//! - `admit/overrides.rs`: a PipelineRun chooses an unknown mode, or a mode that the operator does not allow (B1).
//! - `admit.rs`: a PipelineRun has a claim of another run, and the claim's template is not known (V2a).
//! - `admit_run.rs`: a TaskRun uses more than one claim (M2). The TaskRun is created as cancelled, so that Tekton ends its
//!   PipelineRun in the same way as after a failed task.
//!
//! The webhook denies two more things by itself: an invalid ConfigMap, and an object that is nested too deep.

use std::collections::BTreeSet;

use crate::config::{ALLOWED_OVERRIDES, Configuration};
use crate::mode::Mode;
use crate::pipeline_run::WorkspaceBinding;
use crate::reasons::task_run_refused;
use crate::violation::Violation;
use crate::words::UnknownWord;

use super::copied::claim_of_another_run;
use super::overrides::Choice;

/// The author chose a mode that does not exist.
pub(super) fn unknown_mode(choice: &Choice<'_>, error: &UnknownWord) -> Violation {
    choice.violation(&error.to_string())
}

/// The author chose a mode that the operator does not allow.
pub(super) fn mode_not_allowed(
    choice: &Choice<'_>,
    mode: Mode,
    configuration: &Configuration,
) -> Violation {
    let overrides = configuration.allowed_overrides.iter();
    let allowed: BTreeSet<_> = overrides.chain([&configuration.mode]).collect();
    let allowed: Vec<_> = allowed.into_iter().map(|mode| mode.as_str()).collect();
    let allowed = allowed.join(", ");
    choice.violation(&format!(
        "\"{mode}\" is not allowed; allowed: {allowed}. Your operator can allow more modes with key {ALLOWED_OVERRIDES} of \
         ConfigMap coscheduler-config."
    ))
}

/// A workspace is bound to another run's claim, and the claim's template is not known.
pub(super) fn claim_of_another(index: usize, binding: &WorkspaceBinding) -> Option<Violation> {
    let claim_name = claim_of_another_run(binding)?;
    let workspace = &binding.name;
    Some(Violation::new(
        format!("spec.workspaces[{index}].persistentVolumeClaim.claimName"),
        format!(
            "claim {claim_name:?} belongs to another run and is deleted with that run; allowed for workspace {workspace:?}: a \
             volumeClaimTemplate, or a claim that you created"
        ),
    ))
}

/// A TaskRun uses `claims` different claims. `used` lists workspaces and claims.
pub(crate) fn too_many_claims(task_run: &str, used: &[(&str, String)], claims: usize) -> String {
    task_run_refused(task_run, used, claims).message
}
