//! From the command line to the exit code: parse, log, start, wait for a signal, stop. Exit code 0 is a clean stop, 1 a
//! failure at run time or a second signal, 2 a usage error.

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, FromArgMatches};
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

use crate::{Process, ProcessArgs, Service, StopReason, Supervisor, args, telemetry};

/// Runs `service` with the command line of this process until SIGTERM, SIGINT or a failure, and returns its exit code.
///
/// `start` builds the service: it may wait (a signal is heeded meanwhile), and returns once everything is spawned and
/// served. The process is not ready before it has returned.
pub fn run<A, F>(service: Service, start: F) -> ExitCode
where
    A: Args,
    F: AsyncFnOnce(A, Process) -> anyhow::Result<()>,
{
    let (own, process) = match parse::<A>(service, std::env::args_os()) {
        Ok(parsed) => parsed,
        Err(usage) => {
            // Nothing is left to tell it to if the terminal is gone.
            let _ = usage.print();
            return if usage.use_stderr() {
                ExitCode::from(2)
            } else {
                ExitCode::SUCCESS
            };
        }
    };
    // No log to write it to, so that it reads as a usage error does.
    let failed = |what: &str, error: anyhow::Error| {
        let message = format!("failed to {what}: {error:#}\n");
        let _ = clap::Error::raw(clap::error::ErrorKind::Io, message).print();
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
    let telemetry = {
        let _inside = runtime.enter();
        match telemetry::init(service, &process) {
            Ok(telemetry) => telemetry,
            Err(error) => return failed("set up logging", error),
        }
    };
    let ended = run_to_end(service, &process, own, start, &runtime);
    if ended.is_ok() {
        telemetry.end();
    }
    // Whatever did not end in its grace does not get to hold the process up.
    runtime.shutdown_background();
    match ended {
        Ok(Ok(())) => ExitCode::SUCCESS,
        // Logged when it happened.
        Ok(Err(_)) => ExitCode::FAILURE,
        Err(error) => {
            error!(
                error = format!("{error:#}"),
                "{} cannot go on", service.name
            );
            ExitCode::FAILURE
        }
    }
}

fn parse<A: Args>(
    service: Service,
    command_line: impl Iterator<Item = OsString>,
) -> Result<(A, ProcessArgs), clap::Error> {
    let matches = args::command::<A>(service).try_get_matches_from(command_line)?;
    Ok((
        A::from_arg_matches(&matches)?,
        ProcessArgs::from_arg_matches(&matches)?,
    ))
}

fn run_to_end<A, F>(
    service: Service,
    args: &ProcessArgs,
    own: A,
    start: F,
    runtime: &Runtime,
) -> anyhow::Result<Result<(), StopReason>>
where
    F: AsyncFnOnce(A, Process) -> anyhow::Result<()>,
{
    runtime.block_on(async {
        let mut signals = Signals::listen().context("failed to listen for signals")?;
        let supervisor = Supervisor::bind(service, args).await?;
        let process = supervisor.process();
        let stop = CancellationToken::new();
        let stop_at_once = async {
            info!(signal = signals.next().await, "received a signal");
            stop.cancel();
            signals.next().await
        };
        tokio::select! {
            outcome = supervisor.run(stop.cancelled(), start(own, process)) => Ok(outcome),
            signal = stop_at_once => Err(anyhow::anyhow!("a second signal ({signal}) cut the orderly stop short")),
        }
    })
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn listen() -> std::io::Result<Self> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
