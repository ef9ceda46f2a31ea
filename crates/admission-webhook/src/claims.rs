//! Reads the access modes of claims that a new PipelineRun names (V8). There is no cache of claims, because few reviews need
//! claims: only reviews of runs in mode `workspaces` that name existing claims, and only with `coschedule-claims: node-bound`.

use std::collections::BTreeSet;
use std::time::Duration;

use coscheduler_core::run_claims::AccessModes;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::{Api, Client};
use tokio::time::{Instant, timeout_at};
use tracing::warn;

/// The longest time for all claims of a run together.
const TIMEOUT: Duration = Duration::from_secs(2);

/// The access modes of these claims, read from the API server. The answer has every name. A claim that does not exist, or that
/// cannot be read in time, has no access modes, so the run is admitted in any case.
pub(crate) async fn access_modes(
    client: &Client,
    namespace: &str,
    names: BTreeSet<String>,
    timeout: Duration,
) -> AccessModes {
    let until = Instant::now() + timeout.min(TIMEOUT);
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), namespace);
    let mut known = AccessModes::new();
    for name in names {
        let modes = match timeout_at(until, read(&claims, &name)).await {
            Ok(modes) => modes.map_err(|error| error.to_string()),
            Err(late) => Err(late.to_string()),
        };
        let modes = modes.unwrap_or_else(|error| {
            warn!(
                namespace,
                name, error, "failed to read a claim; it counts as node-bound"
            );
            Vec::new()
        });
        known.insert(name, modes);
    }
    known
}

async fn read(claims: &Api<PersistentVolumeClaim>, name: &str) -> kube::Result<Vec<String>> {
    // The client writes the name into a URL. No claim has a name with other characters.
    let is_allowed = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.');
    if name.starts_with('.') || !name.bytes().all(is_allowed) {
        return Ok(Vec::new());
    }
    let claim = claims.get_opt(name).await?;
    let spec = claim.and_then(|claim| claim.spec);
    Ok(spec.and_then(|spec| spec.access_modes).unwrap_or_default())
}
