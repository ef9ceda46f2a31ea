//! The admission-webhook's process.

use std::process::ExitCode;

fn main() -> ExitCode {
    coscheduler_runtime::run(admission_webhook::SERVICE, admission_webhook::start)
}
