//! Waiting for a state of the bed, with an end: a condition is asked again and again until it holds, time is up, or a
//! component has ended, whichever comes first.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::process::ProcessGroup;

/// How long to wait before the condition is asked again.
const PAUSE: Duration = Duration::from_millis(50);

/// Waits until `condition` holds. An error of the condition counts as "not yet" and is named when time is up.
pub(crate) async fn until(
    processes: &ProcessGroup,
    what: &str,
    patience: Duration,
    mut condition: impl AsyncFnMut() -> Result<bool>,
) -> Result<()> {
    let end = Instant::now() + patience;
    loop {
        processes.check()?;
        let outcome = condition().await;
        if matches!(outcome, Ok(true)) {
            return Ok(());
        }
        if Instant::now() >= end {
            match outcome {
                Ok(_) => bail!("waited {patience:?} in vain for {what}"),
                Err(error) => bail!("waited {patience:?} in vain for {what}; at last: {error:#}"),
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}
