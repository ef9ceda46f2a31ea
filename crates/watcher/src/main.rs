//! The watcher's process.

use std::process::ExitCode;

fn main() -> ExitCode {
    coscheduler_runtime::run(watcher::SERVICE, watcher::start)
}
