//! Between the wire and `core`. Towards core every conversion checks, and names the field it refuses; away from core
//! nothing can fail.

mod config;
mod placeholder;
mod planner;

pub use config::{
    answer_to_wire, configuration, configuration_to_wire, isolation_scope, isolation_scope_to_wire,
    mode, mode_to_wire, violations_to_wire,
};
pub use placeholder::{Identity, identity, identity_to_wire};
pub use planner::{
    admission, admission_to_wire, child_admission, child_admission_to_wire, child_run,
    child_run_to_wire, pipeline_run, pipeline_run_at, plan_to_wire, preview_to_wire,
    reason_to_wire,
};

use coscheduler_core::violation::Violation;

/// `violations` is empty: `value`. Otherwise all of them.
fn checked<T>(value: Option<T>, violations: Vec<Violation>) -> Result<T, Vec<Violation>> {
    match value {
        Some(value) if violations.is_empty() => Ok(value),
        Some(_) | None => Err(violations),
    }
}

/// A required string; its absence goes into `violations`.
fn required(field: &str, text: &str, violations: &mut Vec<Violation>) {
    if text.is_empty() {
        violations.push(Violation::new(field, "is empty; it is required"));
    }
}
