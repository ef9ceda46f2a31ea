//! Texts about the placeholders that a run gets.

use crate::annotations::{OVERRIDE, SCHEMA_VERSION};
use crate::mode::Mode;
use crate::names::AssistantName;
use crate::violation::Violation;

use super::{Reason, ReasonCode};

texts! {
    /// Nothing is pinned on the run (M5).
    not_pinned(): NotPinned =
        "The run is not coscheduled. When it was created, coscheduling was disabled or not possible, or its spec.managedBy \
         named another controller.";

    /// This version of tekton-coscheduler cannot read the annotations pinned on the run (M8).
    schema_version_unknown(version: &str): SchemaVersionUnknown =
        "This version of tekton-coscheduler cannot read the run's annotations, because {SCHEMA_VERSION} is {version:?}. So the \
         run gets no placeholder. Install the version that admitted the run, or create the run again.";

    /// The run has not started (P9).
    pipeline_run_pending(): PipelineRunPending =
        "The run is pending. It gets its placeholder when it starts.";

    /// The run is done (P6).
    pipeline_run_done(): PipelineRunDone = "The run is done.";

    /// The run is being deleted (P6).
    pipeline_run_deleted(): PipelineRunDeleted = "The run is being deleted.";

    /// The run is a child of PipelineRun `parent`.
    part_of_pipeline_run(parent: &str): PartOfPipelineRun =
        "The run is a child of PipelineRun {parent:?}. Its pods use that run's placeholders.";

    /// One placeholder serves the whole run (M3).
    coschedule_pipeline_run(placeholder: &AssistantName): CoschedulePipelineRun =
        "All pods of the run share the node of placeholder {placeholder}.";

    /// One placeholder serves the whole run and keeps other placeholders of the isolation scope away (M4).
    isolate_pipeline_run(placeholder: &AssistantName): IsolatePipelineRun =
        "All pods of the run share the node of placeholder {placeholder}. No other placeholder of the run's isolation scope \
         (cluster or namespace) is on this node.";

    /// A placeholder serves one claim (M1).
    coschedule_workspace(claim: &str, placeholder: &AssistantName): CoscheduleWorkspace =
        "The pods that use claim {claim:?} share the node of placeholder {placeholder}.";

    /// No workspace of the run has a claim (M1).
    no_claims(): NoClaims =
        "No workspace of the run has a claim with a known name, so the run needs no placeholder.";

    /// The placeholder does not get `field` of the run's `securityContext` (P3).
    security_context_reduced(field: &str, value: &str): SecurityContextReduced =
        "The run's podTemplate.securityContext sets {field} to {value}. The placeholder does not get this field, because Pod \
         Security level \"restricted\" does not allow it. Your task pods get the field, so you need not change anything.";

    /// An object of `owner` already has the placeholder's name (P7).
    placeholder_name_taken(name: &str, owner: &str): PlaceholderNameTaken =
        "StatefulSet {name} belongs to {owner}, so the run's placeholder of the same name cannot be created. Delete this \
         StatefulSet, or create the run again.";
}

/// The override `chosen` has no effect (B1): it came after the run was created with `mode`, or admission did not read it.
pub fn override_ignored(chosen: &str, mode: Mode) -> Reason {
    let cause = match mode {
        Mode::Disabled => "without coscheduling".to_owned(),
        Mode::Workspaces | Mode::PipelineRuns | Mode::IsolatePipelineRun => {
            format!("with mode {mode}")
        }
    };
    let message = format!(
        "The run was created {cause}, so its annotation {OVERRIDE} with value {chosen:?} has no effect. To choose a mode, \
         create a new run that has the annotation from the start. Or set the annotation on the Namespace, or on a Pipeline \
         in the cluster, and then create a new run."
    );
    Reason::new(ReasonCode::OverrideIgnored, message)
}

/// The annotations pinned on the run cannot be read, or do not match its workspaces.
pub fn pipeline_run_invalid(violations: &[Violation]) -> Reason {
    let violations: Vec<_> = violations.iter().map(ToString::to_string).collect();
    let violations = violations.join("; ");
    let message = format!(
        "The run's annotations cannot be read, or do not match its workspaces: {violations}. Create the run again."
    );
    Reason::new(ReasonCode::PipelineRunInvalid, message)
}
