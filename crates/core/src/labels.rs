//! The label keys of placeholders and claims, and which of a PipelineRun's own labels go with them.

use std::collections::BTreeMap;

/// Says what an object is; [`AFFINITY_ASSISTANT`] on placeholders and their claims.
pub const COMPONENT: &str = "app.kubernetes.io/component";

/// Says which one it is: the name of the placeholder.
pub const INSTANCE: &str = "app.kubernetes.io/instance";

/// The PipelineRun an object belongs to, as [`names::label_value`](crate::names::label_value)
/// writes it.
pub const PIPELINE_RUN: &str = "tekton.dev/pipelineRun";

/// The workspace a claim belongs to, as [`names::label_value`](crate::names::label_value) writes
/// it.
pub const WORKSPACE: &str = "tekton.dev/workspace";

/// The value of [`COMPONENT`] (TEP-0135, "Placeholder pod + inter-pod affinity").
pub const AFFINITY_ASSISTANT: &str = "affinity-assistant";

/// Kueue queues whatever carries its labels, and would hold the placeholder back: they are never
/// copied (P1).
pub const KUEUE_PREFIX: &str = "kueue.x-k8s.io/";

/// The labels of a run that its placeholder carries too (P1).
pub(crate) fn inherited(run: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    run.iter()
        .filter(|(key, _)| !key.starts_with(KUEUE_PREFIX))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}
