//! Ctrl-C, SIGTERM and a closed terminal: each takes everything down and ends the program.

use std::future::Future;

use anyhow::Context as _;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Catches signals from its creation on, so that none ends this program before it has cleaned up.
#[derive(Debug)]
pub(crate) struct Interrupt {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
}

impl Interrupt {
    pub(crate) fn listen() -> anyhow::Result<Self> {
        let listen = |kind| signal(kind).context("failed to listen for signals");
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hang_up: listen(SignalKind::hangup())?,
        })
    }

    /// Waits for the next signal and answers its name.
    pub(crate) async fn received(&mut self) -> &'static str {
        tokio::select! {
            _ = self.interrupt.recv() => "Ctrl-C",
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.hang_up.recv() => "SIGHUP",
        }
    }

    /// Runs `work` until a signal comes. `work` is dropped then, and the drop must end all that it started.
    pub(crate) async fn or<T>(
        &mut self,
        work: impl Future<Output = anyhow::Result<T>>,
    ) -> anyhow::Result<T> {
        tokio::select! {
            result = work => result,
            signal = self.received() => anyhow::bail!("interrupted by {signal}"),
        }
    }
}
