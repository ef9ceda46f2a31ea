//! Errors on the wire: `BadRequest` with field violations for invalid input, and `ErrorInfo` with a reason for other errors.
//! The functions of this module build a `tonic::Status` with these details.

use std::collections::HashMap;

use coscheduler_core::violation::Violation;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, FieldViolation, StatusExt as _};

use crate::reason::ErrorReason;

/// The `ErrorInfo.domain` of every reason.
pub const DOMAIN: &str = "coscheduler.dev";

/// A status with code `INVALID_ARGUMENT` and all violations.
pub fn bad_request(violations: &[Violation]) -> Status {
    let texts: Vec<_> = violations.iter().map(ToString::to_string).collect();
    let fields: Vec<_> = violations
        .iter()
        .map(|violation| FieldViolation::new(&violation.field, &violation.description))
        .collect();
    Status::with_error_details(
        Code::InvalidArgument,
        texts.join("; "),
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

/// The status code of a reason. Clients retry after `UNAVAILABLE`, so a reason gets this code only if its cause may pass
/// without a change by a person.
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
        ErrorReason::PlaceholderNotFound | ErrorReason::PipelineRunNotFound => Code::NotFound,
        ErrorReason::WatchTooSlow => Code::ResourceExhausted,
    }
}

/// The field violations of a status with code `INVALID_ARGUMENT`. Empty for any other status.
pub fn violations(status: &Status) -> Vec<Violation> {
    let details = status.get_details_bad_request();
    details
        .into_iter()
        .flat_map(|details| details.field_violations)
        .map(|violation| Violation {
            field: violation.field,
            description: violation.description,
        })
        .collect()
}

/// The `ErrorInfo.reason` of a status. `None` if the status has no `ErrorInfo`.
pub fn reason(status: &Status) -> Option<String> {
    status.get_details_error_info().map(|info| info.reason)
}

#[cfg(test)]
mod tests {
    use super::*;
    use coscheduler_core::plan::ReasonCode;
    use prost::Message as _;
    use prost_types::FileDescriptorProto;
    use std::collections::BTreeSet;
    use std::path::Path;

    #[test]
    fn violations_survive_the_wire() {
        let sent = [
            Violation::new("pipeline_run.spec.workspaces[0].name", "is empty"),
            Violation::new("request_uid", "is empty; it is required"),
        ];
        let status = bad_request(&sent);
        assert_eq!(status.code(), Code::InvalidArgument);
        assert_eq!(violations(&status), sent);
        assert!(status.message().contains("is empty; request_uid: is empty"));
    }

    #[test]
    fn a_reason_survives_the_wire() {
        let status = with_reason(ErrorReason::ConfigNotRead, "no configuration was read yet");
        assert_eq!(status.code(), Code::Unavailable);
        assert_eq!(reason(&status).as_deref(), Some("CONFIG_NOT_READ"));
        assert!(violations(&status).is_empty());
    }

    /// Every value of the enum `name` in reason.proto, with its comment, except the unspecified value.
    fn documented(name: &str) -> Vec<(String, String)> {
        let files = prost_types::FileDescriptorSet::decode(crate::FILE_DESCRIPTOR_SET).unwrap();
        let is_ours = |file: &&FileDescriptorProto| file.package() == "coscheduler.reason.v1";
        let file = files.file.iter().find(is_ours).unwrap();
        let index = file.enum_type.iter().position(|list| list.name() == name);
        let index = index.unwrap();
        let comments = &file.source_code_info.as_ref().unwrap().location;
        let values = file.enum_type[index].value.iter().enumerate().skip(1);
        values
            .map(|(value, descriptor)| {
                // The path of a value in a FileDescriptorProto: field 5 of a file is `enum_type`, and field 2 of an enum is
                // `value`.
                let path = [5, index as i32, 2, value as i32];
                let comment = comments.iter().find(|comment| comment.path == path);
                let comment = comment.unwrap().leading_comments();
                (descriptor.name().to_owned(), comment.trim().to_owned())
            })
            .collect()
    }

    fn camel_case(name: &str) -> String {
        let words = name.split('_').map(|word| {
            let (first, rest) = word.split_at(1);
            format!("{first}{}", rest.to_lowercase())
        });
        words.collect()
    }

    #[test]
    fn the_contract_lists_exactly_the_reason_codes_of_core() {
        let listed: BTreeSet<_> = documented("ReasonCode")
            .iter()
            .map(|(name, _)| camel_case(name.strip_prefix("REASON_CODE_").unwrap()))
            .collect();
        let of_core: BTreeSet<_> = ReasonCode::ALL
            .iter()
            .map(|code| code.as_str().to_owned())
            .collect();
        assert_eq!(listed, of_core);
    }

    #[test]
    fn each_error_reason_has_the_code_that_its_comment_names() {
        for (name, comment) in documented("ErrorReason") {
            let status = with_reason(ErrorReason::from_str_name(&name).unwrap(), "");
            let code = format!("{:?}", status.code());
            let (documented, _) = comment.split_once(':').unwrap();
            assert_eq!(camel_case(documented), code, "{name}");
        }
    }

    /// The compiler checks the other direction: `with_reason` takes an `ErrorReason`, so no service can send another reason.
    #[test]
    fn each_error_reason_is_sent_by_a_service() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut sources = String::new();
        let mut folders = vec![crates.canonicalize().unwrap()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.ends_with("crates/proto") || path.ends_with("target") {
                    continue;
                } else if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|extension| extension == "rs") {
                    sources.push_str(&std::fs::read_to_string(path).unwrap());
                }
            }
        }
        for (name, _) in documented("ErrorReason") {
            let reason = ErrorReason::from_str_name(&name).unwrap();
            assert!(
                sources.contains(&format!("ErrorReason::{reason:?}")),
                "{name}"
            );
        }
    }
}
