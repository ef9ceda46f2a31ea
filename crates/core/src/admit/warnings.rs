//! The texts of admission warnings about PipelineRuns and TaskRuns. kubectl shows each warning, after the word `Warning:`, to
//! the user who creates or updates an object. There are two more warnings: about keys of the ConfigMap (`config.rs`), and about
//! a Pipeline that does not exist (file `surroundings.rs` of the webhook).

use std::collections::BTreeSet;

use crate::annotations::{ALLOWED_OVERRIDES, PREFIX};
use crate::config::NAMESPACE_MAY_ALLOW;
use crate::event_texts::multiple_claims;
use crate::overrides::{Override, Setting, listed};
use crate::violation::Violation;

use super::TaskAnnotation;

/// No configuration has been valid yet, so the run is not coscheduled (M7).
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

/// An update asks for the adoption of a run that is not adopted (B7).
pub(crate) fn not_adopted(why: &str) -> String {
    format!("tekton-coscheduler does not adopt this run, because {why}.")
}

/// The metadata of a new PipelineRun has reserved annotations.
pub(super) fn reserved(keys: &[String]) -> String {
    format!(
        "These annotations are ignored, because only tekton-coscheduler may write them: {}. Remove them.",
        keys.join(", ")
    )
}

/// An item of `spec.taskRunSpecs` has a reserved annotation.
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
        "These annotations are ignored, because only objects that Tekton creates for a coscheduled PipelineRun may have them: \
         {}. Remove them.",
        keys.join(", ")
    )
}

/// A PipelineRun has an unknown annotation with our prefix.
pub(super) fn unknown_annotation(key: &str) -> String {
    let known = listed(Setting::ALL.map(Setting::annotation));
    format!(
        "Annotation {key} has no effect. The only annotations with prefix {PREFIX} that you can set on a PipelineRun are {known}."
    )
}

/// The Namespace's list of allowed values contains words that are no values, or values that the operator does not permit the
/// Namespace to allow (B1). `permitted` has all permitted values.
pub(super) fn not_permitted(
    namespace: &str,
    words: &[&str],
    permitted: &BTreeSet<Override>,
) -> String {
    let words = listed(words.iter().map(|word| format!("{word:?}")));
    let permitted = listed(permitted);
    format!(
        "Annotation {ALLOWED_OVERRIDES} of Namespace {namespace:?} contains values that have no effect: {words}. Allowed \
         values: {permitted}. Your operator can permit more values with key {NAMESPACE_MAY_ALLOW} of ConfigMap \
         coscheduler-config."
    )
}

/// A workspace of a copy of another run gets the template of the other run's claim (V2a).
pub(super) fn fresh_claim(workspace: &str, claim_name: &str) -> String {
    format!(
        "Workspace {workspace:?} was bound to claim {claim_name:?} of another run. This run gets a new claim from the same \
         volumeClaimTemplate."
    )
}

/// A workspace of a copy of another run is bound to a claim of the other run. Admission denies such a copy if the copy would be
/// coscheduled, or if its mode is `disabled` (V2a). In three other cases, admission only gives this warning: Tekton's own flag
/// is on; there is no valid configuration; `spec.managedBy` names another controller.
pub(super) fn claim_of_another_run(workspace: &str, claim_name: &str) -> String {
    format!(
        "Workspace {workspace:?} is bound to claim {claim_name:?} of another run. The claim is deleted when that run \
         ends. Bind the workspace to a volumeClaimTemplate instead."
    )
}

/// A task of an embedded Pipeline uses `claims` different claims (M2). `used` has a text about each workspace and its claim.
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
        "Your change of workspace {workspace:?} has no effect. The workspace stays bound to claim {claim_name:?}, which \
         replaced its volumeClaimTemplate when the run was created."
    )
}

/// An update chose value `chosen` for a setting of an existing run, but the run was created with value `pinned` (B1).
pub(crate) fn override_too_late(chosen: &str, pinned: Override) -> String {
    let setting = pinned.setting();
    let (annotation, name, word) = (setting.annotation(), setting.name(), pinned.word());
    format!(
        "Your change of annotation {annotation} has no effect, because this run was created with {name} {word} and keeps it. To \
         use {chosen:?}, create a new run with the annotation."
    )
}
