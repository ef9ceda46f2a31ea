//! Runs a service from its command line to its exit code: parses the flags, starts logging and the service, and stops it at a
//! signal. Exit code 0 means a clean stop, 1 a failure or a second signal, and 2 a usage error.

use std::process::ExitCode;

use anyhow::Context;
use clap::error::ErrorKind;
use clap::{Args, FromArgMatches};
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

use crate::{Process, ProcessArgs, Service, Supervisor, args, telemetry};

/// Runs `service` with the command line of this process until SIGTERM, SIGINT or a failure, and returns its exit code.
///
/// `start` starts all tasks and servers of the service, and then returns. A signal interrupts it. After `start` has returned, the
/// process becomes ready when all conditions of its health are met.
pub fn run<A, F>(service: Service, start: F) -> ExitCode
where
    A: Args,
    F: AsyncFnOnce(A, Process) -> anyhow::Result<()>,
{
    let (own, process) = match parse::<A>(service) {
        Ok(parsed) => parsed,
        Err(usage) => {
            // Printing fails only if the terminal is gone.
            let _ = usage.print();
            return ExitCode::from(if usage.use_stderr() { 2 } else { 0 });
        }
    };
    // There is no log yet, so clap prints this error in the same way as a usage error.
    let failed = |what: &str, error: anyhow::Error| {
        let message = format!("failed to {what}: {error:#}\n");
        let _ = clap::Error::raw(ErrorKind::Io, message).print();
        ExitCode::FAILURE
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_name(service.name)
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return failed("start the tokio runtime", error.into()),
    };
    let inside = runtime.enter();
    let telemetry = match telemetry::init(service, &process) {
        Ok(telemetry) => telemetry,
        Err(error) => return failed("set up logging", error),
    };
    drop(inside);
    let ended = run_to_end(service, &process, own, start, &runtime);
    if ended.is_ok() {
        telemetry.end();
    }
    // Tasks that did not end in time must not delay the end of the process.
    runtime.shutdown_background();
    match ended {
        Ok(Ok(())) => ExitCode::SUCCESS,
        // The supervisor has logged the error.
        Ok(Err(_)) => ExitCode::FAILURE,
        Err(error) => {
            let error = format!("{error:#}");
            error!(error, "{} cannot go on", service.name);
            ExitCode::FAILURE
        }
    }
}

fn parse<A: Args>(service: Service) -> Result<(A, ProcessArgs), clap::Error> {
    let matches = args::command::<A>(service).try_get_matches()?;
    Ok((
        A::from_arg_matches(&matches)?,
        ProcessArgs::from_arg_matches(&matches)?,
    ))
}

/// Runs the service until it has stopped in order. The outer error means that the process could not be set up, or did not stop in
/// order. The inner error is the failure of the service.
///
/// # Errors
/// The process could not be set up, or a second signal ended it before it had stopped in order.
fn run_to_end<A, F>(
    service: Service,
    args: &ProcessArgs,
    own: A,
    start: F,
    runtime: &Runtime,
) -> anyhow::Result<anyhow::Result<()>>
where
    F: AsyncFnOnce(A, Process) -> anyhow::Result<()>,
{
    runtime.block_on(async {
        let listen = |kind| signal(kind).context("failed to listen for signals");
        let mut terminate = listen(SignalKind::terminate())?;
        let mut interrupt = listen(SignalKind::interrupt())?;
        let mut next_signal = async || {
            tokio::select! {
                _ = terminate.recv() => "SIGTERM",
                _ = interrupt.recv() => "SIGINT",
            }
        };
        let supervisor = Supervisor::bind(service, args).await?;
        let process = supervisor.process();
        let stop = CancellationToken::new();
        let second_signal = async {
            info!(signal = next_signal().await, "received a signal");
            stop.cancel();
            next_signal().await
        };
        tokio::select! {
            outcome = supervisor.run(stop.cancelled(), start(own, process)) => Ok(outcome),
            signal = second_signal => Err(anyhow::anyhow!("a second signal ({signal}) cut the orderly stop short")),
        }
    })
}
