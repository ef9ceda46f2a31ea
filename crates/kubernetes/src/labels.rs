//! Labels that Kubernetes objects are found by, beside those of [`coscheduler_core::labels`].

/// The run's uid. Tekton puts it on TaskRuns and so on their pods (`pkg/apis/pipeline/register.go`); this product puts
/// it on what it creates.
pub const PIPELINE_RUN_UID: &str = "tekton.dev/pipelineRunUID";
/// Who creates and deletes an object.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// The value of [`MANAGED_BY`] on everything this product creates; Tekton's own assistants lack it.
pub const TEKTON_COSCHEDULER: &str = "tekton-coscheduler";
