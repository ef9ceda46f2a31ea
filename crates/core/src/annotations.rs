//! The keys of annotations on PipelineRuns, TaskRuns, CustomRuns and placeholders. The keys for an author's choices are read on
//! Pipelines and Namespaces too.
//!
//! An annotation is *pinned* if admission writes it on a new run, and users cannot change it later. Only admission itself may
//! write pinned annotations later, in three cases:
//!
//! - While the run is pending, [`CLAIMS`] may change.
//! - When a Pipeline that a resolver fetched chooses settings of the run, all pinned annotations may change (`admit/late.rs`).
//! - When an existing run is adopted, admission writes the annotations for the first time.

/// The prefix of all keys of this product.
pub const PREFIX: &str = "coscheduler.dev/";

/// The author's choice of a mode (B1), on a PipelineRun, on its Pipeline, or on its Namespace. People may write this key and the
/// next three keys in this file. An operator may also add [`ADOPTED`] to an existing run. People must not write any other key
/// with our prefix.
pub const OVERRIDE: &str = "coscheduler.dev/coschedule";

/// The author's choice of the nodes that placeholders prefer (B1, P4), on the same objects as [`OVERRIDE`].
pub const CHOSEN_PLACEMENT: &str = "coscheduler.dev/placement";

/// The author's choice of the resources that placeholders request in addition to their own (B1, B3), on the same objects as
/// [`OVERRIDE`].
pub const CHOSEN_RESERVES: &str = "coscheduler.dev/placeholder-reserves";

/// On a Namespace: the values that its runs and Pipelines may choose, in place of the operator's list (B1).
pub const ALLOWED_OVERRIDES: &str = "coscheduler.dev/allowed-overrides";

/// The version of the format of the pinned annotations (M8). A run with pinned annotations but without this key has version 1.
pub const SCHEMA_VERSION: &str = "coscheduler.dev/schema-version";

/// The run's mode (M8). A run without this annotation is not coscheduled (M5).
pub const MODE: &str = "coscheduler.dev/mode";

/// In words, where the mode comes from: an annotation of the run, its Pipeline or its Namespace, or the ConfigMap (B1). No
/// decision depends on it.
pub const MODE_SOURCE: &str = "coscheduler.dev/mode-source";

/// The scope of isolation (M4, M8). It has an effect in mode `isolate-pipelinerun` only.
pub const ISOLATION_SCOPE: &str = "coscheduler.dev/isolation-scope";

/// The run's group: ten hex digits from which the names of its placeholders derive. In modes `pipelineruns` and
/// `isolate-pipelinerun`, the names of claims from templates derive from the group too.
pub const GROUP: &str = "coscheduler.dev/group";

/// The settings of the run's placeholders, as JSON (M8): the placeholder defaults in force when the run was created, with the
/// chosen placement and reservation. A Pipeline that a resolver fetched can choose these two later (B1).
pub const PLACEHOLDER: &str = "coscheduler.dev/placeholder";

/// The `volumeClaimTemplate`s that admission replaced by claims: a JSON object with workspaces as keys (V2).
pub const VOLUME_CLAIM_TEMPLATES: &str = "coscheduler.dev/volume-claim-templates";

/// The run's claims that are not in [`VOLUME_CLAIM_TEMPLATES`], as a JSON object. A key is a workspace, or the place of a volume
/// that uses the claim ([`RunClaims`](crate::run_claims::RunClaims)). In the names of these claims, parameters are replaced by
/// their values (V9). Claims that tie no pod to a node have `shared: true` (V8).
///
/// In mode `workspaces`, a TaskRun gets a placeholder only for one of these claims, or for a claim whose name became known later,
/// when Tekton had fetched the Pipeline. So no TaskRun waits for a placeholder that never exists.
pub const CLAIMS: &str = "coscheduler.dev/claims";

/// The [`Sizes`](crate::sizes::Sizes) of the run's tasks as JSON (B3). For each task, they contain the requests of its pods and
/// the tasks that it waits for.
pub const SIZES: &str = "coscheduler.dev/sizes";

/// Only on a child of another PipelineRun: the name of this parent. The child uses its parent's placeholders.
pub const PART_OF: &str = "coscheduler.dev/part-of";

/// Only on an adopted run, whose placeholders Tekton's own assistant creates (B7): the name of the run, from which the names of
/// these placeholders derive. Empty if the run had no name yet. To ask for the adoption of an existing run, an operator sets this
/// annotation to any value.
pub const ADOPTED: &str = "coscheduler.dev/adopted";

/// The trace of the run's admission, in the format of W3C Trace Context (`traceparent`). Later spans about the run join this
/// trace. The annotation is set only if the admission was traced. No decision depends on it.
pub const TRACEPARENT: &str = "coscheduler.dev/traceparent";

/// The [`Subsets`](crate::subsets::Subsets) of the run's tasks as JSON (B1). Only on a run with tasks that need different nodes.
pub const SUBSETS: &str = "coscheduler.dev/subsets";

/// `"true"` on a run whose Pipeline a resolver fetches, if this Pipeline may choose settings of the run (B1). The run has no
/// placeholder and no child before Tekton has stored the Pipeline in the run's status.
pub const AWAITS_PIPELINE: &str = "coscheduler.dev/awaits-pipeline";

/// Tekton's own annotation: the name of a placeholder. Tekton's pod builder adds a required pod affinity to this placeholder,
/// even if Tekton's flag `coschedule` is off (Tekton v1.12.0, `pkg/internal/affinityassistant/transformer.go`). Tekton copies the
/// annotation to every child of the run.
///
/// An empty value adds no affinity. It only prevents Tekton from copying a Task's own annotation with this key.
pub const TEKTON_AFFINITY_ASSISTANT: &str = "pipeline.tekton.dev/affinity-assistant";

/// Tekton's own annotation on a PipelineRun. When the run is done and the value is `"true"`, the manager deletes the claims
/// that Tekton created from the run's `volumeClaimTemplate`s. Tekton itself deletes such claims only for its own assistant (V4;
/// Tekton v1.12.0, `pkg/reconciler/pipelinerun/affinity_assistant.go`).
pub const TEKTON_AUTO_CLEANUP_PVC: &str = "tekton.dev/auto-cleanup-pvc";

/// The annotations that admission writes on a new PipelineRun. Admission removes an author's values of these keys.
pub const PINNED: [&str; 15] = [
    SCHEMA_VERSION,
    MODE,
    MODE_SOURCE,
    ISOLATION_SCOPE,
    GROUP,
    PLACEHOLDER,
    VOLUME_CLAIM_TEMPLATES,
    CLAIMS,
    SIZES,
    SUBSETS,
    PART_OF,
    ADOPTED,
    AWAITS_PIPELINE,
    TEKTON_AFFINITY_ASSISTANT,
    TRACEPARENT,
];

/// The reason why a run waits (V7, N1, N2, N3): a JSON object with two fields. `reason` is a
/// [`ReasonCode`](crate::event_texts::ReasonCode), and `message` is a text. The manager removes the annotation when the run no longer
/// waits for this reason.
///
/// The manager also reads the annotation. The manager reports an error of Kubernetes about a placeholder when the error has
/// lasted for two seconds. If the annotation already names this error, the manager reports it at once. While a placeholder does
/// not exist because of such an error, the annotation stays.
pub const BLOCKED: &str = "coscheduler.dev/blocked";

/// The reason why a TaskRun of the PipelineRun must not run (M2): JSON as in [`BLOCKED`]. The admission-webhook writes the
/// annotation when Tekton creates the TaskRun. If there are several such TaskRuns, the last one counts. No decision depends on
/// the annotation.
pub const REFUSED: &str = "coscheduler.dev/refused";

/// On a placeholder: the manager's earlier actions on it, with their times, as JSON of [`Record`](crate::observed::Record).
pub const RECORD: &str = "coscheduler.dev/record";

/// On a placeholder's pod that can run on fewer nodes than its template allows: the nodes on which it can run, in words.
pub const LIMITED_BY: &str = "coscheduler.dev/limited-by";

/// On a TaskRun whose pod may run without its placeholder (N2): the name of that placeholder. The annotation is for people: no
/// decision depends on it.
pub const LET_GO: &str = "coscheduler.dev/let-go";

/// On a TaskRun with [`LET_GO`]: the number of times that the manager removed the placeholder's name from the TaskRun. The
/// manager may have to do this several times, because Tekton may write the name again.
pub const LET_GO_TIMES: &str = "coscheduler.dev/let-go-times";

/// The annotations that an author must not set on a new object: [`PINNED`], and the annotations that our services write later.
pub(crate) const RESERVED: [&str; 19] = {
    let mut reserved = [BLOCKED; 19];
    let mut index = 0;
    while index < PINNED.len() {
        reserved[index] = PINNED[index];
        index += 1;
    }
    reserved[16] = LET_GO;
    reserved[17] = LET_GO_TIMES;
    reserved[18] = REFUSED;
    reserved
};

/// The annotations that a child PipelineRun keeps from its parent, in addition to [`TEKTON_AFFINITY_ASSISTANT`].
pub(crate) const HANDED_ON: [&str; 4] = [SCHEMA_VERSION, MODE, GROUP, CLAIMS];

/// True if this product may read the annotation on an existing PipelineRun. The caches leave other annotations out, because they
/// can be large: Tekton Chains writes signatures of tens of kilobytes.
pub fn is_read(key: &str) -> bool {
    key.starts_with(PREFIX) || [TEKTON_AFFINITY_ASSISTANT, TEKTON_AUTO_CLEANUP_PVC].contains(&key)
}

/// The path of an annotation, as violations name it.
pub(crate) fn field(key: &str) -> String {
    format!("metadata.annotations[{key}]")
}
