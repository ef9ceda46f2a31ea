//! The one task runner of tekton-coscheduler; see `cargo xtask --help`. Developers and continuous integration run the same
//! subcommands.

// This program writes to the terminal.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod args;
mod bed;
mod bench;
mod binaries;
mod ci;
mod demo;
mod foreground;
mod interrupt;
mod pictures;
mod progress;
mod release;
mod services;
mod source;
mod test;
mod test_table;
mod tidy;
mod tools;
mod workspace;

use std::process::ExitCode;

use args::{Args, Command, TestbedCommand};
use clap::Parser as _;
use interrupt::Interrupt;
use workspace::Workspace;

fn main() -> ExitCode {
    let args = Args::parse();
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: failed to start the async runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    let result = runtime.block_on(run(args));
    // Do not wait for blocking threads: after an interrupt, a build may still run there.
    runtime.shutdown_background();
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(args: Args) -> anyhow::Result<()> {
    let workspace = Workspace::locate()?;
    let mut interrupt = Interrupt::listen()?;
    match args.command {
        Command::Demo(args) => demo::run(&workspace, args, &mut interrupt).await,
        Command::Services(args) => services::run(&workspace, args, &mut interrupt).await,
        Command::Test(args) => interrupt.or(test::run(&workspace, &args)).await,
        Command::Bench(args) => bench::run(&workspace, args, &mut interrupt).await,
        Command::Ci => interrupt.or(ci::run(&workspace)).await,
        Command::Pictures => pictures::run(&workspace, &mut interrupt).await,
        Command::Release(args) => interrupt.or(release::run(&workspace, args)).await,
        Command::TestTable => test_table::write(&workspace).await,
        Command::Tidy => {
            // The reason of each skipped check is already on stderr.
            let skipped = interrupt.or(tidy::run(&workspace)).await?;
            match skipped.len() {
                0 => println!("tidy: every rule holds"),
                count => println!("tidy: SKIPPED {count} checks; every other rule holds"),
            }
            Ok(())
        }
        Command::Testbed { command } => match command {
            TestbedCommand::Up(args) => bed::up(args, &mut interrupt).await,
            TestbedCommand::Down(args) => bed::down(&args).await,
            TestbedCommand::Kubelets { kubeconfig } => testbed::kubelets(&kubeconfig).await,
        },
    }
}
