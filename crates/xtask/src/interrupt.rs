//! Ctrl-C, SIGTERM and a closed terminal: all mean "take everything down and end".

use std::future::Future;

use anyhow::Context as _;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Listens from its creation on, so that no signal ends this program before it has tidied up.
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

    /// Waits for the next one; its name.
    pub(crate) async fn received(&mut self) -> &'static str {
        tokio::select! {
            _ = self.interrupt.recv() => "Ctrl-C",
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.hang_up.recv() => "SIGHUP",
        }
    }

    /// `work`, unless a signal comes first; then `work` is dropped, which must end what it has begun.
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
