//! Waits for a state of the bed: polls a condition until it holds, the timeout passes, or a component ends.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::ListParams;
use kube::{Api, Client};

use crate::process::ProcessGroup;

/// The shortest and the longest time between two polls. Within these limits, the time is four times as long as the last poll
/// took, because the parts of a bed boot more slowly if polls keep the API server busy.
const PERIOD: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(500));

/// How long the API server may take to serve new kinds.
const KINDS_TIMEOUT: Duration = Duration::from_secs(90);

/// Waits until the API server serves the kinds of all CustomResourceDefinitions.
pub(crate) async fn served(processes: &ProcessGroup, client: &Client) -> Result<()> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    until(
        processes,
        "all kinds to be served",
        KINDS_TIMEOUT,
        async || {
            let kinds = api.list(&ListParams::default()).await?;
            Ok(kinds.items.iter().all(is_established))
        },
    )
    .await
}

fn is_established(kind: &CustomResourceDefinition) -> bool {
    let conditions = kind
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    conditions.is_some_and(|conditions| {
        conditions
            .iter()
            .any(|condition| condition.type_ == "Established" && condition.status == "True")
    })
}

/// Waits until `condition` returns true. An error of the condition counts as false. If the last try before the timeout
/// was an error, the returned error contains it. Fails at once if one of `processes` has ended.
pub(crate) async fn until(
    processes: &ProcessGroup,
    what: &str,
    timeout: Duration,
    mut condition: impl AsyncFnMut() -> Result<bool>,
) -> Result<()> {
    let end = Instant::now() + timeout;
    loop {
        processes.check()?;
        let began = Instant::now();
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
        tokio::time::sleep((4 * began.elapsed()).clamp(PERIOD.0, PERIOD.1)).await;
    }
}
