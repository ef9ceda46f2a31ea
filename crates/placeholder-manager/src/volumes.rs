//! What is behind a placeholder's claims when it is made (V7, V8): from the caches, and, for a claim that somebody brought
//! and that the caches do not know, from one look at the API server, as its author may have made it a moment before the run.

use std::sync::Arc;

use coscheduler_core::pinned::Pinned;
use coscheduler_core::pipeline_run::PipelineRun;
use coscheduler_core::plan::PlaceholderSpec;
use coscheduler_core::run_claims::brought;
use coscheduler_core::volumes::{Volumes, volumes};
use coscheduler_kubernetes::volumes::volume_name;

use crate::cache::{Cache, KnownClaim};
use crate::error::Error;
use crate::objects::Objects;

/// What the volumes of the claims of `spec`, which is planned for `run`, mean for it.
///
/// # Errors
///
/// Where what is not known cannot be looked up.
pub(crate) async fn seen(
    cache: &Cache,
    objects: &Objects,
    run: &PipelineRun,
    spec: &PlaceholderSpec,
) -> Result<Volumes, Error> {
    let pinned = Pinned::read(&run.annotations).map_err(Error::BadRequest)?;
    let claims = pinned.map(|pinned| pinned.claims).unwrap_or_default();
    let brought = brought(&claims);
    let mut seen = Vec::new();
    for name in spec.claims() {
        let mut known = cache.claim(&run.namespace, &name);
        // Only those: what is made for the run may be made later.
        if brought.contains(name.as_str()) {
            look_up(cache, objects, &run.namespace, &name, &mut known).await?;
        }
        seen.extend(known.seen());
    }
    Ok(volumes(spec, &seen))
}

async fn look_up(
    cache: &Cache,
    objects: &Objects,
    namespace: &str,
    name: &str,
    known: &mut KnownClaim,
) -> Result<(), Error> {
    if known.claim.is_none() {
        known.claim = objects.claim(namespace, name).await?.map(Arc::new);
    }
    let volume = known.claim.as_deref().and_then(volume_name);
    if let Some(volume) = volume
        && known.volume.is_none()
    {
        known.volume = match cache.volume(volume) {
            Some(volume) => Some(volume),
            None => objects.volume(volume).await?.map(Arc::new),
        };
    }
    Ok(())
}
