//! Texts about the plan of a run: the placeholders that the run gets, or the cause for which it gets none.

use crate::annotations::SCHEMA_VERSION;
use crate::mode::Mode;
use crate::names::AssistantName;
use crate::overrides::Override;
use crate::violation::{self, Violation};

use super::{Reason, ReasonCode};

texts! {
    /// Admission did not coschedule the run (M5).
    not_pinned(): NotPinned =
        "The run is not coscheduled. Possible causes when the run was created: (1) The run's mode was disabled. (2) \
         tekton-coscheduler had no valid configuration, or was not available. (3) Tekton's own flag coschedule was not \
         \"disabled\". (4) The run's spec.managedBy names another controller.";

    /// This version of tekton-coscheduler cannot read the annotations pinned on the run (M8).
    schema_version_unknown(version: &str): SchemaVersionUnknown =
        "The run's annotation {SCHEMA_VERSION} is {version:?}. The installed version of tekton-coscheduler cannot read \
         annotations in this format, so the run gets no placeholder. Ask your operator to install the version that wrote these \
         annotations, or create the run again.";

    /// The run has not started (P9).
    pipeline_run_pending(): PipelineRunPending =
        "The run is pending. If it is coscheduled, it gets its placeholder when it starts. To start it, remove spec.status. If a queue \
         such as Kueue set spec.status, wait for the queue.";

    /// Tekton creates the placeholders of an adopted run before the run's first child (B7).
    tekton_begins(): TektonBegins =
        "Tekton's own affinity assistant creates the placeholders of this run. tekton-coscheduler takes over these \
         placeholders when Tekton has created the first child of the run: a TaskRun, a CustomRun or a PipelineRun.";

    /// Settings or claims of the run depend on a Pipeline that Tekton has not fetched yet (B1, V9).
    pipeline_not_known(): PipelineNotKnown =
        "Annotations or parameters of the run's Pipeline may change the run's placeholders. So the run gets its placeholders \
         when Tekton has fetched the Pipeline.";

    /// The run is done (P6).
    pipeline_run_done(): PipelineRunDone = "The run is done.";

    /// The run is being deleted (P6).
    pipeline_run_deleted(): PipelineRunDeleted = "The run is being deleted.";

    /// The run is a child of PipelineRun `parent`.
    part_of_pipeline_run(parent: &str): PartOfPipelineRun =
        "The run is a child of PipelineRun {parent:?}. Its pods use the placeholders of its topmost parent run.";

    /// One placeholder serves these `pods` (M3, B1).
    coschedule_pipeline_run(pods: &str, placeholder: &AssistantName): CoschedulePipelineRun =
        "{pods} share the node of placeholder {placeholder}.";

    /// One placeholder serves these `pods`. No other placeholder of the isolation scope may be on its node (M4, B1).
    isolate_pipeline_run(pods: &str, placeholder: &AssistantName): IsolatePipelineRun =
        "{pods} share the node of placeholder {placeholder}. No other placeholder in the run's isolation scope \
         (cluster or namespace) may be on this node.";

    /// One placeholder serves the pods that use one claim (M1).
    coschedule_workspace(claim: &str, placeholder: &AssistantName): CoscheduleWorkspace =
        "The pods that use claim {claim:?} share the node of placeholder {placeholder}.";

    /// In mode `workspaces`, no workspace of the run has a claim with a known name (M1).
    no_claims(): NoClaims =
        "No workspace of the run has a claim with a known name, so the run gets no placeholder.";

    /// The placeholder does not get `field` of the run's `securityContext` (P3).
    security_context_reduced(field: &str, value: &str): SecurityContextReduced =
        "The run's podTemplate.securityContext sets {field} to {value}. The run's placeholder pod does not get this field, \
         because Pod Security level \"restricted\" does not allow it, or because the placeholder does not need it. The pods of \
         the tasks get the field. You need not change anything.";

    /// `object` has the placeholder's name, and belongs to `owner` (P7).
    placeholder_name_taken(object: &str, owner: &str): PlaceholderNameTaken =
        "{object} exists already and belongs to {owner}. The run's placeholder must have the same name, so \
         tekton-coscheduler cannot create the placeholder. If the owner is another run, wait until that run has ended. \
         Otherwise delete {object}. This run then continues.";
}

/// An annotation chooses value `chosen` for a setting, without effect (B1). The run has value `pinned` of this setting.
pub fn override_ignored(chosen: &str, pinned: Override) -> Reason {
    let setting = pinned.setting();
    let (cause, more) = match pinned {
        Override::Mode(Mode::Disabled) => (
            "without coscheduling".to_owned(),
            " (3) The run's spec.managedBy names another controller. (4) When the run was created, Tekton's own flag coschedule \
             was not \"disabled\", or tekton-coscheduler had no valid configuration, or was not available. If cause 3 or 4 still \
             applies, the annotation has no effect on a new run either.",
        ),
        Override::Mode(mode) => (format!("in coschedule mode {mode}"), ""),
        Override::Placement(_) | Override::Reserves(_) => {
            (format!("with {}: {}", setting.key(), pinned.word()), "")
        }
    };
    let annotation = setting.annotation();
    let message = format!(
        "The run was created {cause}. This cannot change, so the run's annotation {annotation} with value {chosen:?} has no \
         effect. Possible causes: (1) The annotation was set on the run, or on the run's Pipeline, only after the run was \
         created. (2) A resolver fetched the Pipeline, and a value in its annotations is not allowed for this run, or came too \
         late, or tekton-coscheduler had no valid configuration then. In this case, all coscheduler.dev annotations of the \
         Pipeline are ignored.{more} To use the annotation, create a new run with it, or set it on the Namespace or on the run's \
         Pipeline in this namespace before you create one. If its value is not allowed, ask your operator to allow it."
    );
    Reason::new(ReasonCode::OverrideIgnored, message)
}

/// The annotations pinned on the run cannot be read, or do not match the run's workspaces.
pub fn pipeline_run_invalid(violations: &[Violation]) -> Reason {
    let violations = violation::numbered(violations);
    let message = format!(
        "The annotations that tekton-coscheduler wrote on the run cannot be read, or do not match the run's workspaces. Create \
         the run again. Faults: {violations}."
    );
    Reason::new(ReasonCode::PipelineRunInvalid, message)
}
