//! The text about a ConfigMap that is not valid (M7). The ConfigMap belongs to no run, so its code is not in
//! [`ReasonCode`](super::ReasonCode).

use crate::violation::Violation;

/// `reason` of the Event.
pub const CONFIGURATION_INVALID: &str = "ConfigurationInvalid";

/// The ConfigMap has `violations`. `in_force` is true if an earlier, valid configuration is in force.
pub fn configuration_invalid(violations: &[Violation], in_force: bool) -> String {
    let violations: Vec<_> = violations.iter().map(ToString::to_string).collect();
    let violations = violations.join("; ");
    let consequence = if in_force {
        "The last valid configuration stays in force"
    } else {
        "Coscheduling is off"
    };
    format!(
        "The ConfigMap is not valid. {consequence} until you correct these values: {violations}."
    )
}
