//! Errors of the affinity-planner, and their gRPC statuses.

use coscheduler_core::violation::Violation;
use coscheduler_proto::convert::within;
use coscheduler_proto::error::{bad_request, with_reason};
use coscheduler_proto::reason::ErrorReason;
use tonic::Status;

/// The reason why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request is malformed, or the run in the request cannot be read.
    #[error("the request is malformed")]
    BadRequest(Vec<Violation>),
    /// The config-service has not sent a message yet.
    #[error("no configuration was received from the config-service yet")]
    ConfigNotRead,
    /// The placeholder-manager answered with an error.
    #[error("the placeholder-manager answered {:?}: {}", .0.code(), .0.message())]
    Manager(Box<Status>),
}

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        match error {
            Error::BadRequest(violations) => bad_request(&violations),
            Error::ConfigNotRead => with_reason(ErrorReason::ConfigNotRead, error.to_string()),
            Error::Manager(status) => Status::with_details(
                status.code(),
                format!("placeholder-manager: {}", status.message()),
                status.details().to_vec().into(),
            ),
        }
    }
}

/// The error for violations of the run in the request.
pub(crate) fn of_run(violations: Vec<Violation>) -> Error {
    Error::BadRequest(within("pipeline_run", violations))
}
