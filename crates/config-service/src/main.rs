//! The config-service's process.

use std::process::ExitCode;

fn main() -> ExitCode {
    coscheduler_runtime::run(config_service::SERVICE, config_service::start)
}
