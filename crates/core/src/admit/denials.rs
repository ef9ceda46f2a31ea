//! Where admission denies an author's request: a PipelineRun with an override that is not allowed (B1), a PipelineRun with a
//! claim of another run (V2a), and a TaskRun with more than one claim (M2). A denied TaskRun is created as cancelled, so that
//! Tekton ends its PipelineRun as after any failed task.

use crate::config::{ALLOWED_OVERRIDES, COSCHEDULE, Configuration};
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
    let mut allowed = format!("{}, as the cluster's {COSCHEDULE} says", configuration.mode);
    let overrides = configuration.allowed_overrides.iter();
    let overrides: Vec<_> = overrides.map(|mode| mode.as_str()).collect();
    if !overrides.is_empty() {
        let overrides = overrides.join(", ");
        allowed.push_str(&format!(", and {overrides} of {ALLOWED_OVERRIDES}"));
    }
    choice.violation(&format!(
        "\"{mode}\" may not be chosen here; the operator allows it with key {ALLOWED_OVERRIDES} of ConfigMap \
         coscheduler-config; allowed: {allowed}"
    ))
}

/// A workspace is bound to another run's claim. Nobody makes that claim for this run, and its template is not known.
pub(super) fn claim_of_another(index: usize, binding: &WorkspaceBinding) -> Option<Violation> {
    let claim_name = claim_of_another_run(binding)?;
    let workspace = &binding.name;
    Some(Violation::new(
        format!("spec.workspaces[{index}].persistentVolumeClaim.claimName"),
        format!(
            "{claim_name:?} belongs to another run and is deleted with it; allowed for workspace {workspace:?}: a \
             volumeClaimTemplate, or a claim of your own"
        ),
    ))
}

/// A TaskRun uses `claims` different claims; `used` lists workspaces and claims.
pub(crate) fn too_many_claims(task_run: &str, used: &[(&str, String)], claims: usize) -> String {
    task_run_refused(task_run, used, claims).message
}
