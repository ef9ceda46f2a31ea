//! The errors of the work on a run. Only this module turns them into a gRPC status, or into a reason for the run's author.

use coscheduler_core::event_texts::{self, Reason};
use coscheduler_core::reconcile::tell::refusals::refused;
use coscheduler_core::violation::Violation;
use coscheduler_kubernetes::transient::is_webhook_down;
use coscheduler_proto::error::{bad_request, with_reason};
use coscheduler_proto::reason::ErrorReason;
use tonic::Status;

/// An error of the work on a run, or of a call.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request is malformed.
    #[error("the request is malformed")]
    BadRequest(Vec<Violation>),
    /// The PipelineRun cannot be planned: its annotations are unreadable or do not match its workspaces.
    #[error("failed to plan for PipelineRun {run}: {detail}")]
    Invalid {
        /// Namespace and name of the run.
        run: String,
        /// All violations in the run.
        detail: String,
    },
    /// A field of the request does not match the PipelineRun that has the request's uid.
    #[error("{field} does not match PipelineRun {run}: {detail}")]
    Mismatch {
        /// The request's field.
        field: String,
        /// Namespace and name of the run.
        run: String,
        /// The difference.
        detail: String,
    },
    /// The watch has not delivered this version of the run yet.
    #[error("PipelineRun {run} was not seen at resourceVersion {resource_version} yet")]
    NotSeen {
        /// Namespace and name of the run.
        run: String,
        /// The requested version.
        resource_version: String,
    },
    /// An object with the placeholder's name has another owner.
    #[error("the placeholder cannot be created: {object} belongs to {owner}")]
    NameTaken {
        /// Kind, namespace and name of the existing object.
        object: String,
        /// The owner of the existing object.
        owner: String,
    },
    /// A placeholder with this name is still being deleted.
    #[error("placeholder {name} is still being deleted")]
    Terminating {
        /// Namespace and name of the placeholder.
        name: String,
    },
    /// No node reaches all volumes of the placeholder.
    #[error("{}", reason.message)]
    OutOfReach {
        /// The reason, which names the claims (V7).
        reason: Reason,
    },
    /// The process is not ready yet, or is stopping.
    #[error("not ready: {missing}")]
    NotReady {
        /// The unmet conditions.
        missing: String,
    },
    /// The API server answered with an error.
    #[error("failed to {act}")]
    Kubernetes {
        /// The request in words, with the object's name.
        act: String,
        /// The answer.
        source: Box<kube::Error>,
        /// True if the same request may succeed later.
        transient: bool,
    },
}

impl Error {
    /// True if the same call may succeed a moment later.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::NotSeen { .. } | Self::Terminating { .. } | Self::NotReady { .. } => true,
            Self::Kubernetes { transient, .. } => *transient,
            Self::BadRequest(_)
            | Self::Invalid { .. }
            | Self::OutOfReach { .. }
            | Self::Mismatch { .. }
            | Self::NameTaken { .. } => false,
        }
    }

    /// True if the API server could not call an admission webhook.
    pub(crate) fn is_webhook_down(&self) -> bool {
        matches!(self, Self::Kubernetes { source, .. } if is_webhook_down(source))
    }

    /// The reason for the run's author. `None` for errors that pass by themselves, for errors that the author cannot correct, and
    /// for errors that `core` already reports in its decision.
    pub(crate) fn to_reason(&self) -> Option<Reason> {
        let reason = match self {
            Self::NameTaken { object, owner } => event_texts::placeholder_name_taken(object, owner),
            Self::Kubernetes {
                act,
                source,
                transient,
            } => {
                let kube::Error::Api(status) = source.as_ref() else {
                    return None;
                };
                if *transient && !is_webhook_down(source) {
                    return None;
                }
                refused(act, &status.message)
            }
            Self::BadRequest(_)
            | Self::Invalid { .. }
            | Self::Mismatch { .. }
            | Self::NotSeen { .. }
            | Self::Terminating { .. }
            | Self::OutOfReach { .. }
            | Self::NotReady { .. } => return None,
        };
        Some(reason)
    }

    /// The error with its causes, for the log.
    pub(crate) fn with_causes(&self) -> String {
        let causes = std::iter::successors(std::error::Error::source(self), |cause| cause.source());
        causes.fold(self.to_string(), |text, cause| format!("{text}: {cause}"))
    }

    /// The error, followed by the API server's message.
    fn message(&self) -> String {
        if let Self::Kubernetes { source, .. } = self
            && let kube::Error::Api(status) = source.as_ref()
        {
            return format!("{self}: {}", status.message);
        }
        self.to_string()
    }
}

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        Self::from(&error)
    }
}

impl From<&Error> for Status {
    fn from(error: &Error) -> Self {
        let reason = match error {
            Error::BadRequest(violations) => return bad_request(violations),
            Error::Invalid { .. } => ErrorReason::PipelineRunInvalid,
            Error::Mismatch { .. } => ErrorReason::PipelineRunMismatch,
            Error::NotSeen { .. } => ErrorReason::PipelineRunNotSeen,
            Error::NameTaken { .. } => ErrorReason::PlaceholderNameTaken,
            Error::Terminating { .. } => ErrorReason::PlaceholderTerminating,
            Error::OutOfReach { .. } => ErrorReason::VolumeNodeAffinityConflict,
            Error::NotReady { .. } => ErrorReason::NotReady,
            Error::Kubernetes {
                transient: true, ..
            } => ErrorReason::KubernetesUnavailable,
            Error::Kubernetes {
                transient: false, ..
            } => ErrorReason::KubernetesRefused,
        };
        with_reason(reason, error.message())
    }
}
