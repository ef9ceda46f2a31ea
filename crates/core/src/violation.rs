//! What is wrong with an input, field by field. Whatever parses input in this crate returns every
//! violation at once, so that nobody has to mend a file one error at a time.

use serde::{Deserialize, Serialize};

/// One field that breaks a rule.
///
/// Maps one to one onto `google.rpc.BadRequest.FieldViolation`.
#[derive(
    Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, thiserror::Error,
)]
#[error("{field}: {description}")]
pub struct Violation {
    /// Where it is: a path such as `spec.workspaces[1].volumeClaimTemplate`, or the key of a
    /// ConfigMap.
    pub field: String,
    /// The value found and what is allowed instead.
    pub description: String,
}

impl Violation {
    /// A violation of `field`.
    pub fn new(field: impl Into<String>, description: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            description: description.into(),
        }
    }
}
