//! The texts of admission warnings. kubectl shows them after `Warning:` to the user who creates or updates an object.

use crate::annotations::{OVERRIDE, PREFIX};
use crate::mode::Mode;
use crate::reasons::multiple_claims;
use crate::violation::Violation;

use super::TaskAnnotation;

/// There was no valid configuration yet. Invalid flags never stop CI: coscheduling is off until the flags are valid (M7).
pub(super) fn coscheduling_off(violations: &[Violation]) -> String {
    let violations: Vec<_> = violations.iter().map(ToString::to_string).collect();
    format!(
        "Coscheduling is off, because the ConfigMap of tekton-coscheduler is not valid: {}. Ask your operator to correct it.",
        violations.join("; ")
    )
}

/// Tekton's own flag is on (M9).
pub(super) fn left_to_tekton(flag: &str) -> String {
    format!(
        "tekton-coscheduler leaves this run to Tekton, because Tekton's own flag coschedule is {flag:?}. To use \
         tekton-coscheduler, set the flag to \"disabled\" in Tekton's ConfigMap feature-flags."
    )
}

/// A PipelineRun has reserved annotations.
pub(super) fn reserved(keys: &[String]) -> String {
    format!(
        "These annotations are ignored, because only tekton-coscheduler may write them: {}. Remove them.",
        keys.join(", ")
    )
}

/// A task of a PipelineRun has a reserved annotation.
pub(super) fn reserved_in_task(annotation: &TaskAnnotation) -> String {
    let TaskAnnotation { index, key } = annotation;
    format!(
        "Annotation {key} in spec.taskRunSpecs[{index}].metadata is ignored, because only tekton-coscheduler may write it. \
         Remove it."
    )
}

/// A TaskRun or CustomRun that Tekton did not create has reserved annotations.
pub(crate) fn reserved_in_child(keys: &[String]) -> String {
    format!(
        "These annotations are ignored, because only runs that Tekton creates for a coscheduled PipelineRun may have them: {}. \
         Remove them.",
        keys.join(", ")
    )
}

/// A PipelineRun has an unknown annotation with our prefix.
pub(super) fn unknown_annotation(key: &str) -> String {
    format!(
        "Annotation {key} has no effect. The only annotation that you can set below {PREFIX} is {OVERRIDE}."
    )
}

/// A copy of another run gets its template back (V2a).
pub(super) fn fresh_claim(workspace: &str, claim_name: &str) -> String {
    format!(
        "Workspace {workspace:?} was bound to claim {claim_name:?} of another run. This run gets a new claim from the same \
         volumeClaimTemplate."
    )
}

/// A copy of another run keeps a claim of that run (V2a).
pub(super) fn claim_of_another_run(workspace: &str, claim_name: &str) -> String {
    format!(
        "Workspace {workspace:?} is bound to claim {claim_name:?} of another run. The claim is deleted with that run. Bind the \
         workspace to a volumeClaimTemplate instead."
    )
}

/// A task of an embedded Pipeline uses `claims` claims (M2). `used` lists workspaces and claims.
pub(super) fn task_will_not_run(task: &str, used: &[String], claims: usize) -> String {
    multiple_claims(&format!("Task {task:?} will not run"), used, claims)
}

/// An update changed pinned annotations (M8).
pub(crate) fn kept_annotations(keys: &[&str]) -> String {
    let keys = keys.join(", ");
    format!(
        "Your change of {keys} has no effect, because these annotations of an existing run cannot change."
    )
}

/// An update changed a binding that admission wrote (M8).
pub(crate) fn kept_binding(workspace: &str, claim_name: &str) -> String {
    format!(
        "Your change of workspace {workspace:?} has no effect. The workspace stays bound to claim {claim_name:?}, because the \
         bindings of an existing run cannot change."
    )
}

/// An update chose a mode for an existing run (B1).
pub(crate) fn override_too_late(chosen: &str, mode: Mode) -> String {
    format!(
        "Your change of annotation {OVERRIDE} has no effect, because this run was created with mode {mode} and keeps it. To \
         use {chosen:?}, create a new run with the annotation."
    )
}
