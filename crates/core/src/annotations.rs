//! The keys of annotations on PipelineRuns, TaskRuns and CustomRuns. Only [`pinned`](crate::pinned) and
//! [`admit`](crate::admit) read and write the annotations that admission sets.

/// The beginning of our keys.
pub const PREFIX: &str = "coscheduler.dev/";

/// The author's choice of a mode (B1), on a PipelineRun, on the Pipeline that it refers to, or on its Namespace. People write no
/// other key of ours.
pub const OVERRIDE: &str = "coscheduler.dev/coschedule";

/// The version of the other pinned annotations (M8). A run without it was pinned before there were versions.
pub const SCHEMA_VERSION: &str = "coscheduler.dev/schema-version";

/// The mode in force when the run was created (M8). A run without it is left alone (M5).
pub const MODE: &str = "coscheduler.dev/mode";

/// The scope of isolation, if the run is isolated (M4, M8).
pub const ISOLATION_SCOPE: &str = "coscheduler.dev/isolation-scope";

/// The run's group: ten hex digits from which all names of the run derive.
pub const GROUP: &str = "coscheduler.dev/group";

/// The placeholder defaults in force when the run was created, as JSON (M8).
pub const PLACEHOLDER: &str = "coscheduler.dev/placeholder";

/// The `volumeClaimTemplate`s that admission replaced by claims, as a JSON object by workspace (V2).
pub const VOLUME_CLAIM_TEMPLATES: &str = "coscheduler.dev/volume-claim-templates";

/// The claims of the run's other workspaces, variables resolved, as a JSON object by workspace (V9). TaskRuns get placeholders
/// of these claims only, so that no TaskRun waits for a placeholder that nobody makes.
pub const CLAIMS: &str = "coscheduler.dev/claims";

/// The requests of each task's pods and the order of the tasks, as JSON of [`Sizes`](crate::sizes::Sizes) (B3).
pub const SIZES: &str = "coscheduler.dev/sizes";

/// The name of the parent PipelineRun. The run uses its parent's placeholders and has none of its own.
pub const PART_OF: &str = "coscheduler.dev/part-of";

/// The trace of the run's admission, in the format of W3C Trace Context (`traceparent`), so that later work joins it. It is
/// there only if the admission was traced. No decision depends on it.
pub const TRACEPARENT: &str = "coscheduler.dev/traceparent";

/// Tekton's own annotation: the name of a placeholder. Tekton's pod builder adds a required pod affinity to this placeholder,
/// even if Tekton's flag `coschedule` is off (Tekton v1.12.0, `pkg/internal/affinityassistant/transformer.go`). Tekton copies the
/// annotation to every child of the run.
///
/// An empty value adds no affinity. It prevents that Tekton copies a Task's own annotation of this key.
pub const TEKTON_AFFINITY_ASSISTANT: &str = "pipeline.tekton.dev/affinity-assistant";

/// Tekton's own annotation on a PipelineRun: `"true"` asks to delete the claims made from its `volumeClaimTemplate`s when
/// the run is done (V4; Tekton v1.12.0, `pkg/reconciler/pipelinerun/affinity_assistant.go`).
pub const TEKTON_AUTO_CLEANUP_PVC: &str = "tekton.dev/auto-cleanup-pvc";

/// Annotations that admission writes when an object is created. An author's own values are removed.
pub const PINNED: [&str; 11] = [
    SCHEMA_VERSION,
    MODE,
    ISOLATION_SCOPE,
    GROUP,
    PLACEHOLDER,
    VOLUME_CLAIM_TEMPLATES,
    CLAIMS,
    SIZES,
    PART_OF,
    TEKTON_AFFINITY_ASSISTANT,
    TRACEPARENT,
];

/// The obstacle that a run waits for (V7, N1, N3): a JSON object with `reason`, a
/// [`ReasonCode`](crate::reasons::ReasonCode), and `message`. The manager removes the annotation when the obstacle is gone.
///
/// The manager also reads the annotation. It reports a cause without delay if the annotation already names this cause. A
/// refusal stays in the annotation while the placeholder is missing.
pub const BLOCKED: &str = "coscheduler.dev/blocked";

/// On a placeholder: what was done with it and when, as JSON of [`Record`](crate::observed::Record).
pub const RECORD: &str = "coscheduler.dev/record";

/// On a placeholder that is being moved: the nodes that may take it, as JSON of [`Move`](crate::observed::Move).
pub const MOVE: &str = "coscheduler.dev/move";

/// On a TaskRun whose pod runs without its placeholder (N2): the name of that placeholder. It is for people: no decision depends
/// on it.
pub const LET_GO: &str = "coscheduler.dev/let-go";

/// On a TaskRun with [`LET_GO`]: how often its pod was let go. Tekton may restore the placeholder's annotation each time.
pub const LET_GO_TIMES: &str = "coscheduler.dev/let-go-times";

/// Annotations that an author may not give a new object: [`PINNED`], and those that are written later.
pub(crate) const RESERVED: [&str; 14] = {
    let mut reserved = [BLOCKED; 14];
    let mut index = 0;
    while index < PINNED.len() {
        reserved[index] = PINNED[index];
        index += 1;
    }
    reserved[12] = LET_GO;
    reserved[13] = LET_GO_TIMES;
    reserved
};

/// The annotations that the children of a PipelineRun inherit, beside [`TEKTON_AFFINITY_ASSISTANT`].
pub(crate) const HANDED_ON: [&str; 4] = [SCHEMA_VERSION, MODE, GROUP, CLAIMS];

/// The path of an annotation's field in violations.
pub(crate) fn field(key: &str) -> String {
    format!("metadata.annotations[{key}]")
}
