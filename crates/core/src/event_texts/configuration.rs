//! The text of the Event about a ConfigMap that is not valid (M7). The Event is about the ConfigMap and not about a run, so its
//! code is not in [`ReasonCode`](super::ReasonCode).

use crate::violation::{self, Violation};

/// The `reason` of the Event.
pub const CONFIGURATION_INVALID: &str = "ConfigurationInvalid";

/// The text about a ConfigMap with these `violations`. `in_force` is true if the config-service has read a valid configuration
/// since it started. If it has not, a planner that started earlier may still have one.
pub fn configuration_invalid(violations: &[Violation], in_force: bool) -> String {
    let violations = violation::numbered(violations);
    let consequence = if in_force {
        "The last valid configuration stays in force"
    } else {
        "If the affinity-planner has received a valid configuration since it started, that configuration stays in force. \
         Otherwise new runs are not coscheduled"
    };
    format!("The ConfigMap is not valid. {consequence}. Correct these values: {violations}.")
}
