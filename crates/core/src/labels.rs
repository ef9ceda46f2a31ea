//! The label keys of placeholders and claims, and the labels that a placeholder inherits from its PipelineRun.
//! `plan/placeholder.rs` puts together the labels of a placeholder. Folder `placeholder` of crate `kubernetes` adds the run's uid and
//! the tool, and writes the labels on placeholders and claims.

use std::collections::BTreeMap;

/// The kind of component: [`AFFINITY_ASSISTANT`] on placeholders and their claims.
pub const COMPONENT: &str = "app.kubernetes.io/component";

/// The name of the placeholder.
pub const INSTANCE: &str = "app.kubernetes.io/instance";

/// The name of the PipelineRun, shortened by [`names::label_value`](crate::names::label_value).
pub const PIPELINE_RUN: &str = "tekton.dev/pipelineRun";

/// The name of a claim's workspace, shortened by [`names::label_value`](crate::names::label_value).
pub const WORKSPACE: &str = "tekton.dev/workspace";

/// The run's uid. Tekton sets this label on TaskRuns and their pods (Tekton v1.12.0, `pkg/apis/pipeline/register.go`). This
/// product sets the label on the objects that it creates.
pub const PIPELINE_RUN_UID: &str = "tekton.dev/pipelineRunUID";

/// The tool that creates and deletes an object.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";

/// The value of [`MANAGED_BY`] on everything that this product creates. Tekton's own assistants lack it.
pub const TEKTON_COSCHEDULER: &str = "tekton-coscheduler";

/// The value of [`COMPONENT`] (TEP-0135, "Placeholder pod + inter-pod affinity").
pub const AFFINITY_ASSISTANT: &str = "affinity-assistant";

/// The prefix of Kueue's labels. Kueue holds back every pod that has such a label, so placeholders never get one (P1).
pub const KUEUE_PREFIX: &str = "kueue.x-k8s.io/";

/// The labels that a placeholder inherits from its run (P1).
pub(crate) fn inherited(run: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    run.iter()
        .filter(|(key, _)| !key.starts_with(KUEUE_PREFIX))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}
