//! The placeholder-manager's process.

use std::process::ExitCode;

fn main() -> ExitCode {
    coscheduler_runtime::run(placeholder_manager::SERVICE, placeholder_manager::start)
}
