//! The scale of the tests that create many runs and pods. CONTRIBUTING.md has the numbers of both scales.

/// The environment variable that `cargo xtask test --full-scale` sets.
const FULL_SCALE: &str = "COSCHEDULER_FULL_SCALE";

/// Returns `full` at full scale, and otherwise `normal`.
pub fn at_scale<T>(normal: T, full: T) -> T {
    match std::env::var_os(FULL_SCALE) {
        Some(_) => full,
        None => normal,
    }
}
