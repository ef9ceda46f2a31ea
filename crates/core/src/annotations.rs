//! The annotation keys on PipelineRuns, TaskRuns and CustomRuns. Their values are read and written
//! in [`pinned`](crate::pinned) only.

/// The mode that was in force when the run was created (M8). A run without it is left alone (M5).
pub const MODE: &str = "coscheduler.dev/mode";

/// The run's group: the ten hex digits all names of the run derive from.
pub const GROUP: &str = "coscheduler.dev/group";

/// The placeholder defaults that were in force when the run was created, as JSON (M8).
pub const PLACEHOLDER: &str = "coscheduler.dev/placeholder";

/// The `volumeClaimTemplate`s that admission replaced by claims, as a JSON object keyed by
/// workspace name (V2).
pub const VOLUME_CLAIM_TEMPLATES: &str = "coscheduler.dev/volume-claim-templates";

/// The trace that the run's admission was part of, as W3C Trace Context writes it (`traceparent`), so that what is done
/// for the run later joins it. It is there only where the admission was traced, and nothing is decided by it.
pub const TRACEPARENT: &str = "coscheduler.dev/traceparent";

/// Tekton's own annotation. Its pod builder adds a required pod affinity to the placeholder of this
/// name, whatever its `coschedule` flag says (Tekton v1.12.0, `pkg/pod/pod.go`), and it copies the
/// annotation to every child of the run.
pub const TEKTON_AFFINITY_ASSISTANT: &str = "pipeline.tekton.dev/affinity-assistant";

/// Every annotation that admission alone may write: an author's own value is stripped.
pub const PINNED: [&str; 6] = [
    MODE,
    GROUP,
    PLACEHOLDER,
    VOLUME_CLAIM_TEMPLATES,
    TEKTON_AFFINITY_ASSISTANT,
    TRACEPARENT,
];

/// The field path of an annotation, as violations name it.
pub(crate) fn field(key: &str) -> String {
    format!("metadata.annotations[{key}]")
}
