//! How errors look on the wire: `BadRequest` field violations for bad input, `ErrorInfo` with a stable reason for
//! everything else. Each service turns its typed errors into a `tonic::Status` in one function, with these.

use std::collections::HashMap;

use coscheduler_core::violation::Violation;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, FieldViolation, StatusExt as _};

use crate::reason::ErrorReason;

/// The `ErrorInfo.domain` of every reason.
pub const DOMAIN: &str = "coscheduler.dev";

/// `INVALID_ARGUMENT` with every violation at once, each field prefixed by the request's field it was found in.
pub fn bad_request(prefix: &str, violations: &[Violation]) -> Status {
    let fields: Vec<FieldViolation> = violations
        .iter()
        .map(|violation| {
            FieldViolation::new(
                join(prefix, &violation.field),
                violation.description.clone(),
            )
        })
        .collect();
    let message = fields
        .iter()
        .map(|field| format!("{}: {}", field.field, field.description))
        .collect::<Vec<_>>()
        .join("; ");
    Status::with_error_details(
        Code::InvalidArgument,
        message,
        ErrorDetails::with_bad_request(fields),
    )
}

/// A status with `reason` as its `ErrorInfo.reason`, and with the code that belongs to the reason.
pub fn with_reason(reason: ErrorReason, message: impl Into<String>) -> Status {
    let name = reason.as_str_name();
    let name = name.strip_prefix("ERROR_REASON_").unwrap_or(name);
    Status::with_error_details(
        code(reason),
        message,
        ErrorDetails::with_error_info(name, DOMAIN, HashMap::new()),
    )
}

/// Clients send a call again after `UNAVAILABLE`, so only what passes by itself is that.
fn code(reason: ErrorReason) -> Code {
    match reason {
        ErrorReason::Unspecified => Code::Unknown,
        ErrorReason::ConfigNotRead
        | ErrorReason::NotReady
        | ErrorReason::PipelineRunNotSeen
        | ErrorReason::PlaceholderTerminating
        | ErrorReason::KubernetesUnavailable => Code::Unavailable,
        ErrorReason::PipelineRunMismatch
        | ErrorReason::PipelineRunInvalid
        | ErrorReason::PlaceholderNameTaken
        | ErrorReason::VolumeNodeAffinityConflict
        | ErrorReason::KubernetesRefused => Code::FailedPrecondition,
        ErrorReason::PlaceholderNotFound => Code::NotFound,
        ErrorReason::WatchTooSlow => Code::ResourceExhausted,
    }
}

/// The field violations of an `INVALID_ARGUMENT`, empty for any other status.
pub fn violations(status: &Status) -> Vec<Violation> {
    status
        .get_details_bad_request()
        .map(|bad| {
            bad.field_violations
                .into_iter()
                .map(|field| Violation {
                    field: field.field,
                    description: field.description,
                })
                .collect()
        })
        .unwrap_or_default()
}

/// The `ErrorInfo.reason` of a status.
pub fn reason(status: &Status) -> Option<String> {
    status.get_details_error_info().map(|info| info.reason)
}

fn join(prefix: &str, field: &str) -> String {
    match (prefix, field) {
        ("", field) => field.to_owned(),
        (prefix, "") => prefix.to_owned(),
        (prefix, field) => format!("{prefix}.{field}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn violations_survive_the_wire_with_their_prefix() {
        let status = bad_request(
            "pipeline_run",
            &[Violation {
                field: "spec.workspaces[0].name".to_owned(),
                description: "is empty".to_owned(),
            }],
        );
        assert_eq!(status.code(), Code::InvalidArgument);
        let read = violations(&status);
        assert_eq!(read.len(), 1);
        assert_eq!(read[0].field, "pipeline_run.spec.workspaces[0].name");
        assert!(status.message().contains("is empty"));
    }

    #[test]
    fn a_reason_survives_the_wire() {
        let status = with_reason(ErrorReason::ConfigNotRead, "no configuration was read yet");
        assert_eq!(status.code(), Code::Unavailable);
        assert_eq!(reason(&status).as_deref(), Some("CONFIG_NOT_READ"));
        assert!(violations(&status).is_empty());
    }
}
