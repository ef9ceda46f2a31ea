//! `kubectl coschedule`: shows the decisions of tekton-coscheduler. The program runs the same pure functions of `core` as the
//! services, so it makes the same decisions. It changes no object. It reads a cluster with the user's own rights.
//!
//! One file for each subcommand makes an answer; module `output` writes the answer in the chosen format.

// This program writes to the terminal.
#![allow(clippy::print_stdout, clippy::print_stderr)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod args;
mod check;
mod cluster;
mod complete;
mod events;
mod explain;
mod failure;
mod nodes;
mod output;
mod plan;
mod run_objects;
mod run_status;
mod server;
mod status;
mod template;
mod ui;
mod watched;

use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser as _;
use tokio::runtime::{Builder, Runtime};

use args::{Args, Command};

fn main() -> ExitCode {
    let Args { command } = Args::parse();
    let result = match command {
        Command::Plan(args) => plan::run(&args),
        Command::Status(args) => status::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Events(args) => events::run(&args),
        Command::Nodes(args) => nodes::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Ui(args) => ui::run(&args),
        Command::Complete { words } => complete::run(&words),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {failure:#}");
            failure.exit_code()
        }
    }
}

/// An asynchronous runtime of one thread.
fn runtime() -> anyhow::Result<Runtime> {
    let mut runtime = Builder::new_current_thread();
    let runtime = runtime.enable_all().build();
    runtime.context("failed to start the asynchronous runtime")
}
