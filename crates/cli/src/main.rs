//! `kubectl coschedule`: shows the decisions of tekton-coscheduler. The program runs the same pure functions of `core` as the
//! services, so its answers are theirs. It changes no object.
//!
//! One file for each subcommand makes an answer; module `output` writes the answer in the chosen format.

// This program writes to the terminal.
#![allow(clippy::print_stdout, clippy::print_stderr)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod args;
mod failure;
mod output;
mod plan;

use std::process::ExitCode;

use clap::Parser as _;

use args::{Args, Command};

fn main() -> ExitCode {
    let Args { command } = Args::parse();
    let result = match command {
        Command::Plan(args) => plan::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {failure:#}");
            failure.exit_code()
        }
    }
}
