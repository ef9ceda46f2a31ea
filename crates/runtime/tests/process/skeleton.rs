//! The smallest service: the skeleton of every service, with one task. A flag makes this task fail or hang. Only the tests of
//! exit codes run this program.

use std::process::ExitCode;

use anyhow::bail;
use clap::ValueEnum;
use coscheduler_runtime::{GrpcServices, Process, Service};

const SERVICE: Service = Service {
    name: "skeleton",
    version: env!("CARGO_PKG_VERSION"),
    about: "Shows the skeleton of a service",
    grpc_address: "127.0.0.1:9199",
    http_address: "127.0.0.1:9299",
};

#[derive(clap::Args)]
struct Args {
    /// Behaviour of the only task of this service.
    #[arg(long, env = "TASK", value_enum, default_value_t = Task::Goes)]
    task: Task,
}

#[derive(Clone, Copy, ValueEnum)]
enum Task {
    /// Runs until the process stops
    Goes,
    /// Fails at once
    Fails,
    /// Does not end when the process stops
    Hangs,
}

async fn start(Args { task }: Args, process: Process) -> anyhow::Result<()> {
    process.serve_grpc(GrpcServices::new()).await?;
    match task {
        Task::Goes => process.spawn("example task", std::future::pending()),
        Task::Fails => process.spawn("example task", async { bail!("--task is fails") }),
        Task::Hangs => process.spawn_graceful("example task", |_shutdown| std::future::pending()),
    }
    Ok(())
}

fn main() -> ExitCode {
    coscheduler_runtime::run(SERVICE, start)
}
