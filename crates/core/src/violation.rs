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

/// Characters of a description at most. What quotes a value of megabytes has to fit into an error's metadata all the same.
const LONGEST: usize = 500;
/// Characters kept of the beginning of one that is longer; its end says what is allowed.
const BEGINNING: usize = 200;

impl Violation {
    /// A violation of `field`. Of a description of more than 500 characters the middle is left out.
    pub fn new(field: impl Into<String>, description: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            description: shortened(description.into()),
        }
    }
}

fn shortened(text: String) -> String {
    let length = text.chars().count();
    if length <= LONGEST {
        return text;
    }
    let beginning = text.chars().take(BEGINNING);
    let end = text.chars().skip(length - (LONGEST - BEGINNING - 1));
    beginning.chain(['…']).chain(end).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_value_is_quoted_in_part_and_what_is_allowed_stays() {
        let describe = |value: &str| {
            Violation::new("key", format!("{value} is no mode; allowed: disabled")).description
        };
        assert_eq!(describe("x"), "x is no mode; allowed: disabled");
        let long = describe(&"ä".repeat(1 << 20));
        assert_eq!(long.chars().count(), LONGEST);
        assert!(long.starts_with("ää") && long.ends_with("ä is no mode; allowed: disabled"));
        assert!(long.contains("ä…ä"), "{long}");
    }
}
