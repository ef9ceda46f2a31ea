//! Conversions between the wire and `core`. A conversion of a request or a configuration to `core` checks the input, and names
//! each field that is not valid. A conversion to the wire cannot fail.

mod config;
mod placeholder;
mod planner;

pub use config::{
    answer_to_wire, configuration, configuration_to_wire, mode_to_wire, violations_to_wire,
};
pub use placeholder::{Identity, identity};
pub use planner::{
    access_modes, access_modes_to_wire, admission, admission_to_wire, catalog, child_admission,
    child_admission_to_wire, child_run, child_run_to_wire, pipeline_run, plan_to_wire,
    preview_to_wire, reason_to_wire,
};

use coscheduler_core::violation::Violation;

/// Returns `value` if there are no violations. Otherwise returns all violations.
fn checked<T>(value: Option<T>, violations: Vec<Violation>) -> Result<T, Vec<Violation>> {
    match value {
        Some(value) if violations.is_empty() => Ok(value),
        Some(_) | None => Err(violations),
    }
}

/// Adds a violation if a required string is empty.
pub fn required(field: &str, text: &str, violations: &mut Vec<Violation>) {
    if text.is_empty() {
        violations.push(Violation::new(field, "is empty; it is required"));
    }
}

/// Puts `field.` before the field of each violation. `field` is the request's field that contains the checked message.
pub fn within(field: &str, mut violations: Vec<Violation>) -> Vec<Violation> {
    for violation in &mut violations {
        violation.field = format!("{field}.{}", violation.field);
    }
    violations
}
