//! The texts of admission warnings. Whoever creates or updates an object reads them behind `Warning:`.

use crate::annotations::{OVERRIDE, PREFIX};
use crate::mode::Mode;
use crate::reasons::multiple_claims;
use crate::violation::Violation;

use super::TaskAnnotation;

/// No good configuration was ever seen. Bad flags never stop CI: they switch coscheduling off (M7).
pub(super) fn coscheduling_off(violations: &[Violation]) -> String {
    let violations: Vec<_> = violations.iter().map(ToString::to_string).collect();
    format!(
        "coscheduling is off: the ConfigMap of tekton-coscheduler is not valid ({})",
        violations.join("; ")
    )
}

/// Tekton's own flag is on (M9).
pub(super) fn left_to_tekton(flag: &str) -> String {
    format!(
        "tekton-coscheduler leaves this run to Tekton, whose own flag coschedule is {flag:?}; set it to \"disabled\" in \
         Tekton's ConfigMap feature-flags"
    )
}

/// A PipelineRun has reserved annotations.
pub(super) fn reserved(keys: &[String]) -> String {
    format!(
        "ignored annotations {}: only admission writes them",
        keys.join(", ")
    )
}

/// A task of a PipelineRun has a reserved annotation.
pub(super) fn reserved_in_task(annotation: &TaskAnnotation) -> String {
    let TaskAnnotation { index, key } = annotation;
    format!(
        "ignored spec.taskRunSpecs[{index}].metadata.annotations[{key}]: only admission writes it"
    )
}

/// A TaskRun or CustomRun of another maker than Tekton has reserved annotations.
pub(crate) fn reserved_in_child(keys: &[String]) -> String {
    format!(
        "ignored annotations {}: only runs that Tekton makes for a coscheduled PipelineRun have them",
        keys.join(", ")
    )
}

/// A PipelineRun has an annotation with our prefix that means nothing.
pub(super) fn unknown_annotation(key: &str) -> String {
    format!("annotation {key} has no effect: of {PREFIX}*, authors write only {OVERRIDE}")
}

/// A copy of another run gets its template back (V2a).
pub(super) fn fresh_claim(workspace: &str, claim_name: &str) -> String {
    format!(
        "workspace {workspace:?} was bound to claim {claim_name:?} of another run; this run gets a fresh claim from the same \
         volumeClaimTemplate"
    )
}

/// A copy of another run keeps a claim of that run (V2a).
pub(super) fn claim_of_another_run(workspace: &str, claim_name: &str) -> String {
    format!(
        "workspace {workspace:?} is bound to claim {claim_name:?} of another run, which is deleted with that run; bind a \
         volumeClaimTemplate instead"
    )
}

/// A task of an embedded Pipeline uses `claims` claims; `used` says which (M2).
pub(super) fn task_will_not_run(task: &str, used: &[String], claims: usize) -> String {
    let problem = multiple_claims(&format!("task {task:?}"), used, claims);
    format!("{problem}: the task will not run")
}

/// An update changed pinned annotations (M8).
pub(crate) fn kept_annotations(keys: &[&str]) -> String {
    let keys = keys.join(", ");
    format!("kept {keys} as it was when the run was created: it cannot be changed")
}

/// An update changed a binding that admission wrote (M8).
pub(crate) fn kept_binding(workspace: &str, claim_name: &str) -> String {
    format!(
        "kept workspace {workspace:?} bound to claim {claim_name:?}: the bindings of an existing run cannot be changed"
    )
}

/// An update chose a mode for an existing run (B1).
pub(crate) fn override_too_late(chosen: &str, mode: Mode) -> String {
    format!("annotation {OVERRIDE}: {chosen} comes too late: this run was created with mode {mode}")
}
