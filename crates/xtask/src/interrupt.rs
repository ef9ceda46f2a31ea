//! Handles Ctrl-C, SIGTERM and a closed terminal (SIGHUP): on each of them, this program cleans up and ends.

use std::future::Future;

use anyhow::Context as _;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// From its creation on, catches the three signals, so that none of them ends this program before the program has cleaned up.
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

    /// Waits for the next signal and returns its name.
    pub(crate) async fn received(&mut self) -> &'static str {
        tokio::select! {
            _ = self.interrupt.recv() => "Ctrl-C",
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.hang_up.recv() => "SIGHUP",
        }
    }

    /// Runs `work` until a signal arrives. Then `work` is dropped. The drop must end all processes that `work` started.
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
