//! Violations: the faults of an input, each with its field. Every parser of this crate returns all violations at once, so that
//! nobody has to correct an input one fault at a time.

use serde::{Deserialize, Serialize};

/// A field that breaks a rule.
///
/// Each violation becomes one `google.rpc.BadRequest.FieldViolation`.
#[derive(
    Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, thiserror::Error,
)]
#[error("{field}: {description}")]
pub struct Violation {
    /// A path such as `spec.workspaces[1].volumeClaimTemplate`, or the key of a ConfigMap.
    pub field: String,
    /// The value found, and the values allowed.
    pub description: String,
}

/// The greatest number of characters in a description. A value in an input may have megabytes, but a description must fit into
/// the metadata of a gRPC error.
const LONGEST: usize = 500;
/// The number of characters that a longer description keeps of its beginning. The rest of its [`LONGEST`] characters come from
/// its end, which contains the allowed values.
const BEGINNING: usize = 200;

impl Violation {
    /// A violation of `field`. A description of more than 500 characters loses its middle.
    pub fn new(field: impl Into<String>, description: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            description: shortened(description.into()),
        }
    }
}

/// The violations in one text. If there are several, each begins with its number, because a description may contain semicolons.
pub(crate) fn numbered(violations: &[Violation]) -> String {
    if let [only] = violations {
        return only.to_string();
    }
    let numbered = violations.iter().enumerate();
    let numbered = numbered.map(|(index, it)| format!("({}) {it}", index + 1));
    numbered.collect::<Vec<_>>().join(". ")
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
    fn several_violations_have_numbers() {
        let all = ["a", "b"].map(|field| Violation::new(field, "\"x\" is no mode; allowed: y"));
        assert_eq!(numbered(&all[..1]), "a: \"x\" is no mode; allowed: y");
        assert_eq!(
            numbered(&all),
            "(1) a: \"x\" is no mode; allowed: y. (2) b: \"x\" is no mode; allowed: y"
        );
    }

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
