//! Where admission denies (refuses) a request: a list of all denials, and the texts of those of function `admit`. Function
//! `admit` denies a new PipelineRun by two rules:
//!
//! - `admit/overrides.rs`: an annotation chooses a mode, placement or reservation that does not exist, or that is not allowed
//!   (B1).
//! - `admit.rs`: the run names a claim of another run, and the claim's template is not known (V2a). This rule is only for runs
//!   that admission would coschedule, and for runs with mode `disabled`.
//!
//! Admission does not deny a TaskRun that uses more than one claim (M2), but changes the TaskRun so that Tekton fails it. So
//! Tekton runs `finally`, as after any failed task. The text for the TaskRun is in `event_texts/admission.rs`.
//!
//! All other denials:
//!
//! - The planner denies a PipelineRun that it cannot parse (`pipeline_run.rs` of this crate), and a TaskRun or CustomRun if its
//!   fields are malformed or its PipelineRun cannot be parsed (`convert/planner.rs` of crate `proto`).
//! - The webhook denies an invalid ConfigMap (`config_map.rs` of crate `admission-webhook`), and a PipelineRun that is nested
//!   too deeply (`askable` in `review.rs` of the same crate).
//! - The webhook denies a TaskRun or CustomRun for now (`webhook.rs` of the same crate) if the settings of the PipelineRun, or
//!   the name of a claim of the TaskRun or CustomRun, depend on a Pipeline that Tekton has not stored yet (`awaits_pipeline` in
//!   `admit_child.rs`). The webhook denies a child PipelineRun for now if the settings of the parent depend on such a Pipeline,
//!   or if the mode of the parent has changed since Tekton copied the parent's annotations (`has_early_parent` in
//!   `stored_runs.rs` of the same crate). Tekton then creates the object later.
//!
//! `review.rs` of crate `admission-webhook` puts each denial into the answer to the API server (`refused`, `not_yet`).
//!
//! If there is no decision, for instance because the planner does not answer, the webhook answers with an HTTP error. Then the
//! `failurePolicy` of the webhook's registration decides.

use std::collections::BTreeSet;

use crate::annotations::ALLOWED_OVERRIDES as NAMESPACE_LIMIT;
use crate::config::ALLOWED_OVERRIDES;
use crate::overrides::{Override, listed};
use crate::pipeline_run::{PipelineRun, WorkspaceBinding};
use crate::violation::Violation;
use crate::words::UnknownWord;

use super::copied::claim_of_another_run;
use super::overrides::Choice;

/// The author chose a value that does not exist.
pub(super) fn unknown_value(choice: &Choice<'_>, error: &UnknownWord) -> Violation {
    choice.violation(&error.to_string())
}

/// The author chose a value that is not allowed. `by_namespace` is `true` if the operator permits the Namespace to allow this
/// value.
pub(super) fn not_allowed(
    choice: &Choice<'_>,
    value: Override,
    allowed: &BTreeSet<Override>,
    by_namespace: bool,
) -> Violation {
    let word = value.word();
    let of_setting = allowed.iter().filter(|it| it.setting() == value.setting());
    let allowed = listed(of_setting.map(|it| it.word()));
    let remedy = if by_namespace {
        let namespace = choice.namespace;
        format!("Annotation {NAMESPACE_LIMIT} of Namespace {namespace:?} can allow it.")
    } else {
        format!(
            "Your operator can allow more values with key {ALLOWED_OVERRIDES} of ConfigMap coscheduler-config."
        )
    };
    choice.violation(&format!(
        "{word:?} is not allowed; allowed: {allowed}. {remedy}"
    ))
}

/// One violation for each workspace of a run that is bound to a claim of another run.
pub(super) fn claims_of_others(run: &PipelineRun) -> Vec<Violation> {
    let bindings = run.workspaces.iter().enumerate();
    bindings
        .filter_map(|(index, binding)| claim_of_another(index, binding))
        .collect()
}

/// A workspace is bound to a claim of another run, and the claim's template is not known.
pub(super) fn claim_of_another(index: usize, binding: &WorkspaceBinding) -> Option<Violation> {
    let claim_name = claim_of_another_run(binding)?;
    let workspace = &binding.name;
    Some(Violation::new(
        format!("spec.workspaces[{index}].persistentVolumeClaim.claimName"),
        format!(
            "claim {claim_name:?} was made for another run, which does not exist in this namespace any more; allowed for workspace \
             {workspace:?}: a volumeClaimTemplate, or a claim that you created"
        ),
    ))
}
