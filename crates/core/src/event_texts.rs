//! The reasons for decisions, each with code, severity and text. This module contains the codes. Its folder contains the texts of
//! Events, in one file for each topic:
//!
//! - `plan.rs`: the placeholders that a run gets, ignored choices, and runs that cannot be coscheduled;
//! - `placement.rs`: the node of a placeholder and of the pods that follow it; reservations;
//! - `claims.rs`: claims and their volumes;
//! - `waiting.rs`: runs that wait although tekton-coscheduler did its part;
//! - `refusal.rs`: errors of Kubernetes that concern a placeholder;
//! - `admission.rs`: TaskRuns that fail, and TaskRuns of an account that is not Tekton's;
//! - `configuration.rs`: a ConfigMap that is not valid.
//!
//! Other modules fill in some parts of these texts:
//!
//! - `plan.rs` of this crate: the pods that share a placeholder; `volumes.rs`, `Conflict`: the nodes that reach each volume;
//! - `requests.rs`: amounts of resources;
//! - `reconcile/make_room.rs`: a waiting pod with its requests; `reconcile/reserve.rs`: the nodes that a placeholder is limited
//!   to;
//! - `reconcile/tell/refusals.rs`, and the placeholder-manager: the action that failed, the cause that Kubernetes reports, and
//!   an object with its owner;
//! - `node.rs`, `misplaced`, and `reconcile/tell.rs`: the problem of a node that pods cannot be on;
//! - every module that makes a `Violation`: the fault of an annotation or of a configuration.
//!
//! Warnings and denials of admission are not Events: most of their texts are in `admit/warnings.rs` and `admit/denials.rs`,
//! whose headers name the files with the remaining texts.
//!
//! Programs compare the code. The text is for people: it gives the cause and, if possible, the remedy. Two different texts become
//! two Events. So the same cause must always give the same text.

/// Declares functions that make a [`Reason`] from values: `name(parameters): code = text`. If a part of the text is computed from
/// the parameters, `, part = expression` follows the text.
macro_rules! texts {
    ($(
        $(#[$doc:meta])*
        $name:ident($($value:ident: $type:ty),*): $code:ident = $text:literal $(, $part:ident = $computed:expr)*;
    )*) => {$(
        #[doc = concat!("The text of reason [`", stringify!($code), "`](crate::event_texts::ReasonCode::", stringify!($code), ").")]
        $(#[$doc])*
        pub fn $name($($value: $type),*) -> $crate::event_texts::Reason {
            let code = $crate::event_texts::ReasonCode::$code;
            $crate::event_texts::Reason::new(code, format!($text $(, $part = $computed)*))
        }
    )*};
}

mod admission;
mod claims;
mod configuration;
mod placement;
mod plan;
mod refusal;
mod waiting;

pub use admission::*;
pub use claims::*;
pub use configuration::*;
pub use placement::*;
pub use plan::*;
pub use refusal::*;
pub use waiting::*;

/// The greatest number of bytes of an Event's note (Kubernetes, `pkg/apis/core/validation/events.go`, `NoteLengthLimit`).
pub const NOTE_LENGTH: usize = 1024;

/// The reason for a decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reason {
    /// The code, for programs.
    pub code: ReasonCode,
    /// The text, for people.
    pub message: String,
}

impl Reason {
    /// Makes a reason with any text. Call this only if no function of this module has a suitable text.
    pub fn new(code: ReasonCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }
}

/// The `type` of the Event that reports a reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// Information: nobody has to act.
    Normal,
    /// The run waits and somebody may have to act, or something differs from the author's request.
    Warning,
}

use Severity::{Normal, Warning};

/// Declares the codes, each with the severity of its Event. The variant's name is also the string of the code.
macro_rules! reason_codes {
    ($($(#[$doc:meta])* $code:ident: $told:expr,)*) => {
        /// The code of a reason. Our Events on PipelineRuns have no other codes.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum ReasonCode {
            $($(#[$doc])* $code,)*
        }

        impl ReasonCode {
            /// Every code.
            pub const ALL: &[Self] = &[$(Self::$code,)*];

            /// The code as a word, for clients, Events and logs.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$code => stringify!($code),)*
                }
            }

            /// The code that [`as_str`](Self::as_str) turns into `word`. `None` if there is none.
            pub fn read(word: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|code| code.as_str() == word)
            }

            /// The severity of the Event with this code. `None` if reasons with this code never become Events.
            pub const fn told(self) -> Option<Severity> {
                match self {
                    $(Self::$code => $told,)*
                }
            }
        }
    };
}

reason_codes! {
    /// Admission did not coschedule the run, so the run has no annotation `coscheduler.dev/mode` (M5).
    NotPinned: None,
    /// This version cannot read the run's annotations, because another version of tekton-coscheduler wrote them (M8).
    SchemaVersionUnknown: Some(Warning),
    /// The run has not started (P9).
    PipelineRunPending: None,
    /// Tekton has not stored the run's Pipeline in the run yet. This Pipeline may choose settings of the run (B1), or the name
    /// of a claim depends on one of the Pipeline's parameters (V9).
    PipelineNotKnown: None,
    /// The run is adopted, and Tekton has not created its first child (TaskRun, CustomRun or PipelineRun) yet (B7).
    TektonBegins: None,
    /// The run is done (P6).
    PipelineRunDone: None,
    /// The run is being deleted (P6).
    PipelineRunDeleted: None,
    /// The run is a child of another run, and uses the placeholders of its topmost parent run.
    PartOfPipelineRun: None,
    /// One placeholder serves all pods of the run, or of some of its tasks (M3, B1).
    CoschedulePipelineRun: None,
    /// As [`CoschedulePipelineRun`](Self::CoschedulePipelineRun). Also, no other placeholder of the isolation scope may be on the
    /// placeholder's node (M4).
    IsolatePipelineRun: None,
    /// One placeholder serves the pods that use one of the run's claims (M1).
    CoscheduleWorkspace: None,
    /// In mode `workspaces`, no workspace of the run has a claim with a known name, so the run needs no placeholder (M1).
    NoClaims: None,
    /// Annotation `coscheduler.dev/coschedule`, `coscheduler.dev/placement` or `coscheduler.dev/placeholder-reserves` has no
    /// effect on the run. It was set after the run was created, its value is not allowed for the run, or admission did not
    /// coschedule the run (B1).
    OverrideIgnored: Some(Warning),
    /// The placeholder does not mount a claim that only one pod at a time may use (V8).
    ClaimNotMounted: Some(Normal),
    /// In mode `workspaces`, a claim has no placeholder, because several nodes can mount it at once, and key `coschedule-claims`
    /// is `node-bound` (V8).
    ClaimShared: None,
    /// A claim's name has a variable without a known value, or with a value that differs between tasks (V9).
    ClaimNameVariable: Some(Warning),
    /// A workspace is bound to a claim without a name.
    ClaimNameEmpty: Some(Warning),
    /// A coscheduled run has a `volumeClaimTemplate` that admission did not see. Tekton creates the claim, and no placeholder
    /// mounts it.
    ClaimTemplateNotReplaced: Some(Warning),
    /// The placeholder does not get a part of the run's `securityContext` (P3).
    SecurityContextReduced: Some(Warning),
    /// The annotations that admission wrote on the run cannot be read, or do not match the run's workspaces.
    PipelineRunInvalid: Some(Warning),
    /// A TaskRun uses more claims than the run's mode allows, so the TaskRun does not run (M2).
    TaskRunRefused: Some(Warning),
    /// Another account than that of Tekton's controller created a TaskRun or CustomRun of a coscheduled run. So its pod may run
    /// on another node than the run's placeholder. A possible cause is a wrong account name in flag
    /// `--tekton-controller-username` of the planner.
    TektonAccountUnknown: Some(Warning),
    /// No node can reach the volumes of all claims of a placeholder (V7). The run waits, or the placeholder does not mount some
    /// of the claims.
    VolumeNodeAffinityConflict: Some(Warning),
    /// An object with the placeholder's name exists and belongs to another owner (P7).
    PlaceholderNameTaken: Some(Warning),
    /// A ResourceQuota does not allow a placeholder or its claim (N3).
    QuotaExceeded: Some(Warning),
    /// A LimitRange does not allow a placeholder or its claim (N3).
    LimitRangeViolated: Some(Warning),
    /// Pod Security does not allow a placeholder (N3).
    PodSecurityViolated: Some(Warning),
    /// A policy or an admission webhook denied a placeholder or its claim (N3).
    AdmissionDenied: Some(Warning),
    /// The API server cannot call an admission webhook, so it refuses a placeholder or its claim (N3).
    AdmissionWebhookFailed: Some(Warning),
    /// A placeholder names a service account, PriorityClass, RuntimeClass or claim that does not exist (N3).
    ReferenceMissing: Some(Warning),
    /// A claim of a placeholder gets no volume, for example because its StorageClass does not exist (N3).
    ClaimNotProvisioned: Some(Warning),
    /// The scheduler finds no node for a placeholder (N3).
    PlaceholderUnschedulable: Some(Warning),
    /// Kubernetes refused a placeholder or its claim for a reason that no other code names (N3).
    PlaceholderRefused: Some(Warning),
    /// A pod was deleted, because its node is cordoned, has a taint that the pod does not tolerate, or is gone (N1). This is the
    /// pod of a placeholder, or a TaskRun's pod in which no container has started.
    PodEvacuated: Some(Normal),
    /// A placeholder or a pod waits because of the volumes of the placeholder's claims:
    ///
    /// - no node reaches all these volumes (N1);
    /// - each node that reaches them is cordoned, or has a taint that the placeholder does not tolerate (N1);
    /// - only one node reaches them, and it has no room for the placeholder or for a pod of the run, or a pod on it keeps the
    ///   placeholder away (N2);
    /// - only one node reaches them, and a pod's node selector or node affinity does not allow this node (N2).
    ClaimsNotMovable: Some(Warning),
    /// A placeholder's pod is created again, so that the placeholder gets another node, or the node of the run's pods (N2).
    /// There are four cases. The placeholder's node could not take a waiting pod. Or the placeholder had no node, and the
    /// restriction of its pod to certain nodes is out of date. Or the placeholder had no node, and its new pod may run only on
    /// the node of the run's pods. Or the scheduler could not bind the placeholder of an isolated run, and may be binding pods
    /// of the run to the node that it had chosen.
    PlaceholderMoved: Some(Normal),
    /// A placeholder reserves less room for the pods of its run (B3):
    ///
    /// - The scheduler found no node with room for all pods that can run at the same time, so the placeholder reserves room for
    ///   the largest pod.
    /// - No node that reaches the volumes of the placeholder's claims has room for the largest pod, so the placeholder reserves
    ///   room for the largest pod that uses one of these claims or already waits for the placeholder.
    /// - The only node that reaches these volumes has no room for the largest pod, so the placeholder reserves nothing.
    /// - A ResourceQuota of the namespace limits CPU or memory, so the placeholder reserves nothing at first.
    ReservationReduced: Some(Normal),
    /// The API server refused the requests of a placeholder that reserves room, so the placeholder requests less (B3). Or the
    /// requests of a bound placeholder were not reduced within ten seconds, so its pod is created again.
    ReservationRefused: Some(Warning),
    /// A pod is now allowed to run on another node than its placeholder. Either no node that reaches the volumes of the
    /// placeholder's claims has room for the placeholder and the pod (N2). Or no node can reach both the volume of a claim that
    /// the pod uses and the volumes of the placeholder's claims (V7).
    PodLetGo: Some(Warning),
    /// A pod waits for a resource that Kubernetes cannot resize, such as a GPU (N2). The pod's placeholder stays on its node,
    /// because no other node has enough of this resource.
    ResourceMissing: Some(Warning),
    /// The run's placeholders have left their nodes as often as allowed, and a pod still waits for room (N2).
    MovesExhausted: Some(Warning),
    /// No node can run a placeholder in `isolate-pipelinerun`. Other placeholders are on some or all of the nodes (N3).
    NoIsolatedNode: Some(Warning),
    /// No node that a placeholder may use can reach the volumes of all its claims (N3).
    VolumeOutOfReach: Some(Warning),
    /// A pod has a scheduling gate of another program.
    SchedulingGated: Some(Normal),
    /// An autoscaler adds a node for a pod.
    NodeBeingAdded: None,
    /// Tekton has not created the pod of a TaskRun.
    TaskRunHasNoPod: None,
    /// A claim of a TaskRun's pod has no volume.
    ClaimNotBound: None,
    /// A claim of a TaskRun's pod does not exist.
    ClaimMissing: Some(Warning),
    /// Another pod uses a `ReadWriteOncePod` claim of a TaskRun's pod.
    ClaimInUse: Some(Normal),
    /// A TaskRun's pod waits for a placeholder that has no pod.
    PlaceholderMissing: None,
    /// The scheduler has not bound a pod's placeholder yet. Or it has bound the placeholder, but has not tried the pod again
    /// since then. Or it removes other pods to make room for the pod.
    WaitsForScheduler: None,
    /// The placeholder's node has no room for a TaskRun's pod until other pods of the run have ended.
    WaitsForOwnPods: Some(Normal),
    /// A TaskRun's pod cannot run on the node of its placeholder.
    PodCannotFollow: None,
    /// A TaskRun's pod follows no placeholder, and no node can run this pod.
    PodUnschedulable: Some(Warning),
    /// A container waits, for example because its image cannot be pulled.
    ContainerCannotStart: None,
    /// The kubelet cannot create the sandbox of a pod.
    SandboxNotCreated: None,
    /// The kubelet cannot mount a volume of a pod.
    VolumeNotMounted: None,
}
