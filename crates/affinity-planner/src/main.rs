//! The affinity-planner's process.

use std::process::ExitCode;

fn main() -> ExitCode {
    coscheduler_runtime::run(affinity_planner::SERVICE, affinity_planner::start)
}
