//! Waits for a state of the bed: polls a condition until it holds, the timeout passes, or a component ends.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::process::ProcessGroup;

/// The time between two polls.
const PERIOD: Duration = Duration::from_millis(50);

/// Waits until `condition` holds. An error of the condition counts as "not yet"; the last one is named at the timeout.
pub(crate) async fn until(
    processes: &ProcessGroup,
    what: &str,
    timeout: Duration,
    mut condition: impl AsyncFnMut() -> Result<bool>,
) -> Result<()> {
    let end = Instant::now() + timeout;
    loop {
        processes.check()?;
        let outcome = condition().await;
        if matches!(outcome, Ok(true)) {
            return Ok(());
        }
        if Instant::now() >= end {
            match outcome {
                Ok(_) => bail!("timed out after {timeout:?} waiting for {what}"),
                Err(error) => {
                    bail!("timed out after {timeout:?} waiting for {what}; last error: {error:#}")
                }
            }
        }
        tokio::time::sleep(PERIOD).await;
    }
}
