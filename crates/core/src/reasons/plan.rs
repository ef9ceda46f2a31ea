//! Texts about what a run gets.

use crate::annotations::{OVERRIDE, SCHEMA_VERSION};
use crate::mode::Mode;
use crate::names::AssistantName;
use crate::violation::Violation;

use super::{Reason, ReasonCode};

/// Nothing is pinned on the run (M5).
pub fn not_pinned() -> Reason {
    let message = "The run is not coscheduled: when it was created, coscheduling was disabled, admission could not \
                   decide, or another controller than Tekton's managed the run.";
    Reason::new(ReasonCode::NotPinned, message)
}

/// This version of tekton-coscheduler cannot read the annotations pinned on the run (M8).
pub fn schema_version_unknown(version: &str) -> Reason {
    let message = format!(
        "Annotation {SCHEMA_VERSION}: {version} is not known to this version of tekton-coscheduler, so the run gets no \
         placeholder. Install the version that admitted the run, or create the run again."
    );
    Reason::new(ReasonCode::SchemaVersionUnknown, message)
}

/// The run has not started (P9).
pub fn pipeline_run_pending() -> Reason {
    let message = "The run is pending. It gets its placeholder when it starts.";
    Reason::new(ReasonCode::PipelineRunPending, message)
}

/// The run is done (P6).
pub fn pipeline_run_done() -> Reason {
    Reason::new(ReasonCode::PipelineRunDone, "The run is done.")
}

/// The run is being deleted (P6).
pub fn pipeline_run_deleted() -> Reason {
    Reason::new(ReasonCode::PipelineRunDeleted, "The run is being deleted.")
}

/// The run is a child of PipelineRun `parent`.
pub fn part_of_pipeline_run(parent: &str) -> Reason {
    let message = format!(
        "The run is a child of PipelineRun {parent:?}. Its pods use that run's placeholders."
    );
    Reason::new(ReasonCode::PartOfPipelineRun, message)
}

/// One placeholder serves the whole run (M3).
pub fn coschedule_pipeline_run(placeholder: &AssistantName) -> Reason {
    let message = format!("All pods of the run share the node of placeholder {placeholder}.");
    Reason::new(ReasonCode::CoschedulePipelineRun, message)
}

/// One placeholder serves the whole run and keeps other placeholders away (M4).
pub fn isolate_pipeline_run(placeholder: &AssistantName) -> Reason {
    let message = format!(
        "All pods of the run share the node of placeholder {placeholder}, and no other placeholder is on that node."
    );
    Reason::new(ReasonCode::IsolatePipelineRun, message)
}

/// A placeholder serves one claim (M1).
pub fn coschedule_workspace(claim: &str, placeholder: &AssistantName) -> Reason {
    let message =
        format!("The pods that use claim {claim:?} share the node of placeholder {placeholder}.");
    Reason::new(ReasonCode::CoscheduleWorkspace, message)
}

/// No workspace of the run has a claim (M1).
pub fn no_claims() -> Reason {
    let message =
        "No workspace of the run has a claim with a known name, so the run needs no placeholder.";
    Reason::new(ReasonCode::NoClaims, message)
}

/// The override `chosen` came when `mode` was pinned already, or when nothing was pinned (B1).
pub fn override_ignored(chosen: &str, mode: Mode) -> Reason {
    let cause = match mode {
        Mode::Disabled => "the run was created without coscheduling".to_owned(),
        Mode::Workspaces | Mode::PipelineRuns | Mode::IsolatePipelineRun => {
            format!("the run was created with mode {mode}")
        }
    };
    let message = format!(
        "Annotation {OVERRIDE}: {chosen} has no effect, because {cause}. Put the annotation on the run, on its Namespace or \
         on a Pipeline in the cluster before you create the run."
    );
    Reason::new(ReasonCode::OverrideIgnored, message)
}

/// Placeholders may not have `field` of the run's `securityContext` (P3).
pub fn security_context_reduced(field: &str, value: &impl std::fmt::Display) -> Reason {
    let message = format!(
        "Placeholders do not get {field}: {value} of the run's podTemplate.securityContext, because Pod Security level \
         restricted does not allow it."
    );
    Reason::new(ReasonCode::SecurityContextReduced, message)
}

/// The annotations pinned on the run and its workspaces contradict each other.
pub fn pipeline_run_invalid(violations: &[Violation]) -> Reason {
    let violations: Vec<_> = violations.iter().map(ToString::to_string).collect();
    let violations = violations.join("; ");
    let message = format!(
        "The run's annotations and its workspaces contradict each other: {violations}. Create the run again."
    );
    Reason::new(ReasonCode::PipelineRunInvalid, message)
}

/// `owner` has the StatefulSet `name` that would be the placeholder (P7).
pub fn placeholder_name_taken(name: &str, owner: &str) -> Reason {
    let message = format!(
        "StatefulSet {name} exists and belongs to {owner}, so the placeholder cannot be created. Delete that StatefulSet, or \
         create the run again."
    );
    Reason::new(ReasonCode::PlaceholderNameTaken, message)
}
