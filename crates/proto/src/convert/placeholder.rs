//! Reads the reference to a PipelineRun in a request.

use coscheduler_core::violation::Violation;

use super::{checked, required};
use crate::placeholder as wire;

/// One version of one PipelineRun. No field is empty.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Identity {
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.resourceVersion`.
    pub resource_version: String,
}

/// A reference from the wire.
///
/// # Errors
///
/// A violation for each field that is empty, and for a `resource_version` that is not a number (Kubernetes 1.35, "Resource
/// versions").
pub fn identity(message: Option<wire::PipelineRunRef>) -> Result<Identity, Vec<Violation>> {
    let wire::PipelineRunRef {
        namespace,
        name,
        uid,
        resource_version,
    } = message.unwrap_or_default();
    let mut violations = Vec::new();
    for (field, text) in [
        ("namespace", &namespace),
        ("name", &name),
        ("uid", &uid),
        ("resource_version", &resource_version),
    ] {
        required(&format!("pipeline_run.{field}"), text, &mut violations);
    }
    let digits = resource_version.bytes().all(|byte| byte.is_ascii_digit());
    let is_number = digits && resource_version.parse::<u128>().is_ok();
    if !resource_version.is_empty() && !is_number {
        let description =
            format!("is {resource_version:?}; allowed: the digits of `metadata.resourceVersion`");
        violations.push(Violation::new("pipeline_run.resource_version", description));
    }
    let identity = Identity {
        namespace,
        name,
        uid,
        resource_version,
    };
    checked(Some(identity), violations)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_field_is_a_violation() {
        assert_eq!(identity(None).unwrap_err().len(), 4);
    }

    #[test]
    fn a_version_that_is_no_number_is_refused() {
        let of_version = |version: &str| {
            identity(Some(wire::PipelineRunRef {
                namespace: "ci".to_owned(),
                name: "mine".to_owned(),
                uid: "u-mine".to_owned(),
                resource_version: version.to_owned(),
            }))
        };
        assert_eq!(of_version("4711").unwrap().resource_version, "4711");
        for version in ["newest", "-1", "+4711", "4711 ", "0x1f"] {
            let violations = of_version(version).unwrap_err();
            assert_eq!(violations.len(), 1);
            assert_eq!(violations[0].field, "pipeline_run.resource_version");
            assert!(
                violations[0].description.contains(version),
                "{violations:?}"
            );
        }
    }
}
