//! Why something was decided, for people and for programs that match on it.

/// One step of the decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reason {
    /// Which.
    pub code: ReasonCode,
    /// In words, with the values at hand.
    pub message: String,
}

/// The steps a decision can take. The list is closed, so that clients can match on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ReasonCode {
    /// Nothing is pinned on the run (M5).
    NotPinned,
    /// The run has not started (P9).
    PipelineRunPending,
    /// The run is done (P6).
    PipelineRunDone,
    /// The run is being deleted (P6).
    PipelineRunDeleted,
    /// The run is a part of another one and has that one's placeholders.
    PartOfPipelineRun,
    /// One placeholder for the whole run (M3).
    CoschedulePipelineRun,
    /// The same, and no other placeholder on its node (M4).
    IsolatePipelineRun,
    /// A placeholder for one claim (M1).
    CoscheduleWorkspace,
    /// No workspace of the run has a claim, so nothing has to be coscheduled (M1).
    NoClaims,
    /// A mode was chosen that is not the run's: too late, or where it does not count (B1).
    OverrideIgnored,
    /// A claim excludes every pod but one, so it is not mounted on the placeholder (V8).
    ClaimNotMounted,
    /// A claim's name has a variable, so it is only known while the run goes on (V9).
    ClaimNameVariable,
    /// A claim has no name.
    ClaimNameEmpty,
    /// A workspace has a `volumeClaimTemplate` although the run is pinned: admission did not see
    /// it, Tekton makes the claim.
    ClaimTemplateNotReplaced,
    /// A part of the run's `securityContext` is not allowed on a placeholder (P3).
    SecurityContextReduced,
    /// The run cannot be planned for: what was pinned on it and its workspaces do not fit together.
    PipelineRunInvalid,
    /// No node can reach the volumes of all claims of a placeholder (V7).
    VolumeNodeAffinityConflict,
    /// The name of a placeholder belongs to somebody else's object (P7).
    PlaceholderNameTaken,
    /// A ResourceQuota does not let a placeholder or a claim of it be created (N3).
    QuotaExceeded,
    /// A LimitRange does not let a placeholder or a claim of it be created (N3).
    LimitRangeViolated,
    /// Pod Security does not let a placeholder be created (N3).
    PodSecurityViolated,
    /// A policy or an admission webhook has denied a placeholder or a claim of it (N3).
    AdmissionDenied,
    /// An admission webhook that has to be asked about a placeholder or a claim of it cannot be called (N3).
    AdmissionWebhookFailed,
    /// A placeholder refers to something that does not exist: a service account, a PriorityClass, a RuntimeClass, a claim
    /// (N3).
    ReferenceMissing,
    /// A claim of a placeholder gets no volume, as when its StorageClass does not exist (N3).
    ClaimNotProvisioned,
    /// No node takes a placeholder (N3).
    PlaceholderUnschedulable,
    /// A placeholder or a claim of it was refused for another reason than these (N3).
    PlaceholderRefused,
    /// A pod has left a node that turns pods away (N1).
    PodEvacuated,
    /// The nodes that reach a placeholder's claims turn it away (N1).
    ClaimsNotMovable,
    /// The node of a placeholder has room for a pod that waits: the scheduler is about to see it (N2).
    RoomOnNode,
    /// The run's own pods hold the room that another one waits for, or run where the placeholder has to stay for them (N2).
    RunHoldsRoom,
    /// Nothing is moved while a node is about to be added (N4).
    ScaleUpInFlight,
    /// A pod waits for a placeholder that is on its way to another node (N1).
    PlaceholderLeaves,
    /// A placeholder was moved to a node that has room for a pod that waited (N2).
    PlaceholderMoved,
    /// A pod that fits no node the rest of its run fits runs elsewhere (N2).
    PodLetGo,
    /// A pod fits no node, or none beside its placeholder, even if that is empty (N2).
    PodFitsNoNode,
    /// The nodes that a pod and its placeholder fit are full with pods of others (N2).
    NodesFull,
    /// The scheduler does not take the nodes that a pod would fit (N2).
    PodUnschedulable,
    /// A placeholder was moved as often as one may be, and a pod still waits (N2).
    MovesExhausted,
}

/// How an author is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// As it should be, and good to know.
    Normal,
    /// Not what the author asked for, or in the run's way.
    Warning,
}

impl ReasonCode {
    /// How the run's author is told, by an Event; `None` for what goes as it should.
    pub const fn told(self) -> Option<Severity> {
        match self {
            Self::NotPinned
            | Self::PipelineRunPending
            | Self::PipelineRunDone
            | Self::PipelineRunDeleted
            | Self::PartOfPipelineRun
            | Self::CoschedulePipelineRun
            | Self::IsolatePipelineRun
            | Self::CoscheduleWorkspace
            | Self::NoClaims
            | Self::RoomOnNode
            | Self::RunHoldsRoom
            | Self::ScaleUpInFlight
            | Self::PlaceholderLeaves => None,
            Self::ClaimNotMounted | Self::PodEvacuated | Self::PlaceholderMoved => {
                Some(Severity::Normal)
            }
            Self::OverrideIgnored
            | Self::ClaimNameVariable
            | Self::ClaimNameEmpty
            | Self::ClaimTemplateNotReplaced
            | Self::SecurityContextReduced
            | Self::PipelineRunInvalid
            | Self::VolumeNodeAffinityConflict
            | Self::PlaceholderNameTaken
            | Self::QuotaExceeded
            | Self::LimitRangeViolated
            | Self::PodSecurityViolated
            | Self::AdmissionDenied
            | Self::AdmissionWebhookFailed
            | Self::ReferenceMissing
            | Self::ClaimNotProvisioned
            | Self::PlaceholderUnschedulable
            | Self::PlaceholderRefused
            | Self::ClaimsNotMovable
            | Self::PodLetGo
            | Self::PodFitsNoNode
            | Self::NodesFull
            | Self::PodUnschedulable
            | Self::MovesExhausted => Some(Severity::Warning),
        }
    }

    /// The code as clients and logs show it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotPinned => "NotPinned",
            Self::PipelineRunPending => "PipelineRunPending",
            Self::PipelineRunDone => "PipelineRunDone",
            Self::PipelineRunDeleted => "PipelineRunDeleted",
            Self::PartOfPipelineRun => "PartOfPipelineRun",
            Self::CoschedulePipelineRun => "CoschedulePipelineRun",
            Self::IsolatePipelineRun => "IsolatePipelineRun",
            Self::CoscheduleWorkspace => "CoscheduleWorkspace",
            Self::NoClaims => "NoClaims",
            Self::OverrideIgnored => "OverrideIgnored",
            Self::ClaimNotMounted => "ClaimNotMounted",
            Self::ClaimNameVariable => "ClaimNameVariable",
            Self::ClaimNameEmpty => "ClaimNameEmpty",
            Self::ClaimTemplateNotReplaced => "ClaimTemplateNotReplaced",
            Self::SecurityContextReduced => "SecurityContextReduced",
            Self::PipelineRunInvalid => "PipelineRunInvalid",
            Self::VolumeNodeAffinityConflict => "VolumeNodeAffinityConflict",
            Self::PlaceholderNameTaken => "PlaceholderNameTaken",
            Self::QuotaExceeded => "QuotaExceeded",
            Self::LimitRangeViolated => "LimitRangeViolated",
            Self::PodSecurityViolated => "PodSecurityViolated",
            Self::AdmissionDenied => "AdmissionDenied",
            Self::AdmissionWebhookFailed => "AdmissionWebhookFailed",
            Self::ReferenceMissing => "ReferenceMissing",
            Self::ClaimNotProvisioned => "ClaimNotProvisioned",
            Self::PlaceholderUnschedulable => "PlaceholderUnschedulable",
            Self::PlaceholderRefused => "PlaceholderRefused",
            Self::PodEvacuated => "PodEvacuated",
            Self::ClaimsNotMovable => "ClaimsNotMovable",
            Self::RoomOnNode => "RoomOnNode",
            Self::RunHoldsRoom => "RunHoldsRoom",
            Self::ScaleUpInFlight => "ScaleUpInFlight",
            Self::PlaceholderLeaves => "PlaceholderLeaves",
            Self::PlaceholderMoved => "PlaceholderMoved",
            Self::PodLetGo => "PodLetGo",
            Self::PodFitsNoNode => "PodFitsNoNode",
            Self::NodesFull => "NodesFull",
            Self::PodUnschedulable => "PodUnschedulable",
            Self::MovesExhausted => "MovesExhausted",
        }
    }
}

impl Reason {
    /// A step, in words.
    pub fn new(code: ReasonCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }
}
