//! The annotation keys on PipelineRuns, TaskRuns and CustomRuns. What admission writes is written and read in
//! [`pinned`](crate::pinned) and [`admit`](crate::admit) only.

/// What our keys begin with.
pub const PREFIX: &str = "coscheduler.dev/";

/// The author's wish (B1), on a PipelineRun, the Pipeline it refers to, or its Namespace: a mode. The only key here that
/// people write.
pub const OVERRIDE: &str = "coscheduler.dev/coschedule";

/// The version of the other pinned annotations (M8). A run without it was pinned before there were versions.
pub const SCHEMA_VERSION: &str = "coscheduler.dev/schema-version";

/// The mode that was in force when the run was created (M8). A run without it is left alone (M5).
pub const MODE: &str = "coscheduler.dev/mode";

/// How far the run keeps other placeholders from its node, if it is isolated at all (M4, M8).
pub const ISOLATION_SCOPE: &str = "coscheduler.dev/isolation-scope";

/// The run's group: the ten hex digits all names of the run derive from.
pub const GROUP: &str = "coscheduler.dev/group";

/// The placeholder defaults that were in force when the run was created, as JSON (M8).
pub const PLACEHOLDER: &str = "coscheduler.dev/placeholder";

/// The `volumeClaimTemplate`s that admission replaced by claims, as a JSON object keyed by
/// workspace name (V2).
pub const VOLUME_CLAIM_TEMPLATES: &str = "coscheduler.dev/volume-claim-templates";

/// The claims of the run's other workspaces, variables resolved, as a JSON object keyed by workspace name (V9). The run's
/// TaskRuns are held against it: nothing waits for a placeholder of a claim that is not listed.
pub const CLAIMS: &str = "coscheduler.dev/claims";

/// The name of the PipelineRun that this one is a part of. It has its parent's placeholders and none of its own.
pub const PART_OF: &str = "coscheduler.dev/part-of";

/// The trace that the run's admission was part of, as W3C Trace Context writes it (`traceparent`), so that what is done
/// for the run later joins it. It is there only where the admission was traced, and nothing is decided by it.
pub const TRACEPARENT: &str = "coscheduler.dev/traceparent";

/// Tekton's own annotation. Its pod builder adds a required pod affinity to the placeholder of this
/// name, whatever its `coschedule` flag says (Tekton v1.12.0,
/// `pkg/internal/affinityassistant/transformer.go`), and it copies the annotation to every child of the run. Empty is as
/// good as absent for the pod builder, but keeps a Task's own annotation of that name from taking the place.
pub const TEKTON_AFFINITY_ASSISTANT: &str = "pipeline.tekton.dev/affinity-assistant";

/// Tekton's own annotation on a PipelineRun: `"true"` asks to delete the claims made from its `volumeClaimTemplate`s when
/// the run is done (V4; Tekton v1.12.0, `pkg/reconciler/pipelinerun/affinity_assistant.go`).
pub const TEKTON_AUTO_CLEANUP_PVC: &str = "tekton.dev/auto-cleanup-pvc";

/// Every annotation that admission alone may write: an author's own value is stripped.
pub const PINNED: [&str; 10] = [
    SCHEMA_VERSION,
    MODE,
    ISOLATION_SCOPE,
    GROUP,
    PLACEHOLDER,
    VOLUME_CLAIM_TEMPLATES,
    CLAIMS,
    PART_OF,
    TEKTON_AFFINITY_ASSISTANT,
    TRACEPARENT,
];

/// Why a run waits for something that somebody has to put right (V7, N1, N3), as a JSON object with `reason`, a
/// [`ReasonCode`](crate::plan::ReasonCode), and `message`. It is there while that is so, and written for people: nothing is
/// decided by it.
pub const BLOCKED: &str = "coscheduler.dev/blocked";

/// On a placeholder: what was done with it and when, as JSON of [`Record`](crate::observed::Record).
pub const RECORD: &str = "coscheduler.dev/record";

/// On a placeholder that is being moved: the nodes that may take it, as JSON of [`Move`](crate::observed::Move).
pub const MOVE: &str = "coscheduler.dev/move";

/// On a TaskRun whose pod was let go (N2): the placeholder that it would have followed. It is written for people: nothing is
/// decided by it.
pub const LET_GO: &str = "coscheduler.dev/let-go";

/// On such a TaskRun: how often that was done, as Tekton may make the pod with its affinity again.
pub const LET_GO_TIMES: &str = "coscheduler.dev/let-go-times";

/// Every annotation that an author may not give a new object: [`PINNED`], and those that are written later.
pub(crate) const RESERVED: [&str; 13] = [
    SCHEMA_VERSION,
    MODE,
    ISOLATION_SCOPE,
    GROUP,
    PLACEHOLDER,
    VOLUME_CLAIM_TEMPLATES,
    CLAIMS,
    PART_OF,
    TEKTON_AFFINITY_ASSISTANT,
    TRACEPARENT,
    BLOCKED,
    LET_GO,
    LET_GO_TIMES,
];

/// What a PipelineRun hands on to what Tekton makes of it, beside [`TEKTON_AFFINITY_ASSISTANT`].
pub(crate) const HANDED_ON: [&str; 4] = [SCHEMA_VERSION, MODE, GROUP, CLAIMS];

/// The field path of an annotation, as violations name it.
pub(crate) fn field(key: &str) -> String {
    format!("metadata.annotations[{key}]")
}
