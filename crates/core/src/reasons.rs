//! The reasons for decisions: code, severity and text of each. Most texts of Events are here. Other places add words:
//!
//! - `volumes.rs`, `Conflict`: the nodes that reach each claim; `reconcile/make_room/requests.rs`: amounts of resources;
//! - `reconcile/tell/refusals.rs`: the causes that Kubernetes reports;
//! - `reconcile/make_room/report.rs` and `reconcile/make_room/room.rs`: the problems of nodes that have no room for a pod;
//! - `reconcile/evacuate.rs`, `Misplaced`: the problem of a node that pods must leave;
//! - `admit/warnings.rs` and `admit/denials.rs`: the warnings and denials of admission.
//!
//! Programs match on the code. The text is for people: it gives the cause and, if possible, the remedy. One Event is published
//! for each text. So a text must not change while its cause stays the same.

/// Declares functions that make a reason from values: `name(parameters): code = text`.
macro_rules! texts {
    ($($(#[$doc:meta])* $name:ident($($value:ident: $type:ty),*): $code:ident = $text:literal;)*) => {$(
        #[doc = concat!("The text of reason [`", stringify!($code), "`](crate::reasons::ReasonCode::", stringify!($code), ").")]
        $(#[$doc])*
        pub fn $name($($value: $type),*) -> $crate::reasons::Reason {
            let code = $crate::reasons::ReasonCode::$code;
            $crate::reasons::Reason::new(code, format!($text))
        }
    )*};
}

mod admission;
mod claims;
mod configuration;
mod placement;
mod plan;
mod refusal;

pub use admission::*;
pub use claims::*;
pub use configuration::*;
pub use placement::*;
pub use plan::*;
pub use refusal::*;

/// Why something was decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reason {
    /// The code, for programs.
    pub code: ReasonCode,
    /// The text, for people.
    pub message: String,
}

impl Reason {
    /// A reason with a given text. Call this only if no function of this module has a text that fits.
    pub fn new(code: ReasonCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }
}

/// `type` of the Event that reports a reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// Good to know.
    Normal,
    /// The run is blocked, or differs from the author's request.
    Warning,
}

use Severity::{Normal, Warning};

/// Declares the codes, each with the severity of its Event. The variant's name is also the string of the code.
macro_rules! reason_codes {
    ($($(#[$doc:meta])* $code:ident: $told:expr,)*) => {
        /// The code of a reason. The list is closed, so that clients can match on it.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum ReasonCode {
            $($(#[$doc])* $code,)*
        }

        impl ReasonCode {
            /// Every code.
            pub const ALL: &[Self] = &[$(Self::$code,)*];

            /// The code as clients, Events and logs show it.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$code => stringify!($code),)*
                }
            }

            /// The severity of the Event that reports this code to the run's author. `None` if no Event reports the code.
            pub const fn told(self) -> Option<Severity> {
                match self {
                    $(Self::$code => $told,)*
                }
            }
        }
    };
}

reason_codes! {
    /// Nothing is pinned on the run (M5).
    NotPinned: None,
    /// This version cannot read the run's annotations: another version of tekton-coscheduler wrote them (M8).
    SchemaVersionUnknown: Some(Warning),
    /// The run has not started (P9).
    PipelineRunPending: None,
    /// The run is done (P6).
    PipelineRunDone: None,
    /// The run is being deleted (P6).
    PipelineRunDeleted: None,
    /// The run is a child of another run and uses that run's placeholders.
    PartOfPipelineRun: None,
    /// One placeholder serves the whole run (M3).
    CoschedulePipelineRun: None,
    /// One placeholder serves the whole run, and no other placeholder of the isolation scope is on its node (M4).
    IsolatePipelineRun: None,
    /// A placeholder serves one claim (M1).
    CoscheduleWorkspace: None,
    /// No workspace of the run has a claim, so the run needs no placeholder (M1).
    NoClaims: None,
    /// Somebody chose another mode for a run that was created before, or in a place that admission does not read (B1).
    OverrideIgnored: Some(Warning),
    /// Only one pod at a time may use a claim, so the placeholder does not mount it (V8).
    ClaimNotMounted: Some(Normal),
    /// A claim's name has a variable that was not replaced when the run was created (V9).
    ClaimNameVariable: Some(Warning),
    /// A claim has no name.
    ClaimNameEmpty: Some(Warning),
    /// Admission did not see a `volumeClaimTemplate` of a pinned run, so Tekton makes the claim.
    ClaimTemplateNotReplaced: Some(Warning),
    /// The placeholder does not get a field of the run's `securityContext` (P3).
    SecurityContextReduced: Some(Warning),
    /// The annotations pinned on the run cannot be read, or do not match its workspaces.
    PipelineRunInvalid: Some(Warning),
    /// A TaskRun uses more claims than its mode allows, so it does not run (M2).
    TaskRunRefused: Some(Warning),
    /// No node can reach the volumes of all claims of a placeholder (V7).
    VolumeNodeAffinityConflict: Some(Warning),
    /// Another owner has an object with the placeholder's name (P7).
    PlaceholderNameTaken: Some(Warning),
    /// A ResourceQuota forbids a placeholder or its claim (N3).
    QuotaExceeded: Some(Warning),
    /// A LimitRange forbids a placeholder or its claim (N3).
    LimitRangeViolated: Some(Warning),
    /// Pod Security forbids a placeholder (N3).
    PodSecurityViolated: Some(Warning),
    /// A policy or an admission webhook denied a placeholder or its claim (N3).
    AdmissionDenied: Some(Warning),
    /// The API server cannot call an admission webhook for a placeholder or its claim (N3).
    AdmissionWebhookFailed: Some(Warning),
    /// A placeholder names a service account, PriorityClass, RuntimeClass or claim that does not exist (N3).
    ReferenceMissing: Some(Warning),
    /// A claim of a placeholder gets no volume, for example because its StorageClass does not exist (N3).
    ClaimNotProvisioned: Some(Warning),
    /// The scheduler finds no node for a placeholder (N3).
    PlaceholderUnschedulable: Some(Warning),
    /// Kubernetes refused a placeholder or its claim for a reason that no other code names (N3).
    PlaceholderRefused: Some(Warning),
    /// A pod left a node that is cordoned, tainted or gone (N1).
    PodEvacuated: Some(Normal),
    /// No node that reaches a placeholder's claims can run the placeholder (N1), or can run the placeholder and a waiting pod (N2).
    ClaimsNotMovable: Some(Warning),
    /// The placeholder's node has room for a waiting pod. The scheduler has not chosen the node yet (N2).
    RoomOnNode: None,
    /// Pods of the run use the room that a pod waits for. Or the placeholder must stay, because pods still use it or its
    /// claims. These pods may belong to any run (N2).
    RunHoldsRoom: None,
    /// A node is being added, so nothing moves (N4).
    ScaleUpInFlight: None,
    /// A pod waits for a placeholder that is leaving its node (N1).
    PlaceholderLeaves: None,
    /// A placeholder moved to a node that has room for a waiting pod (N2).
    PlaceholderMoved: Some(Normal),
    /// The scheduler found no node for all that a run can request at the same time, so its placeholder asks for less (B3).
    ReservationReduced: Some(Normal),
    /// The API server refused the room that a placeholder asked for, or a ResourceQuota would count it (B3).
    ReservationRefused: Some(Warning),
    /// A pod runs without its placeholder, because no node can run both (N2).
    PodLetGo: Some(Warning),
    /// Even an empty node cannot run a pod, or cannot run the pod together with its placeholder (N2).
    PodFitsNoNode: Some(Warning),
    /// The nodes that can run a pod and its placeholder are full, or isolated runs use them (N2).
    NodesFull: Some(Warning),
    /// The scheduler rejects the nodes that have room for a pod (N2).
    PodUnschedulable: Some(Warning),
    /// The run's placeholders have made all moves that a run may make, and a pod still waits (N2).
    MovesExhausted: Some(Warning),
}
