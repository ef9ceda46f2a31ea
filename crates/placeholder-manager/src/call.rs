//! The calls `Ensure` and `Release`. A call contains only the namespace, name, uid and version of a run. The manager reads the
//! run from its own cache. The manager refuses a call whose fields contradict each other: the run with this uid has another
//! namespace or name, or the version belongs to another run.

use std::sync::Arc;
use std::time::Duration;

use coscheduler_core::observed::RunPresence;
use coscheduler_core::pipeline_run::{PipelineRun, RunState};
use coscheduler_core::reconcile::{Purpose, Released};
use coscheduler_proto::convert::Identity;
use coscheduler_runtime::kubernetes::version::is_newer;

use crate::cache::{Cache, RunKey};
use crate::error::Error;
use crate::reconciler::Reconciler;

/// How long an `Ensure` waits until the watch delivers the run at the version in the call.
const CATCH_UP: Duration = Duration::from_secs(2);

/// The outcome of an `Ensure`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Ensured {
    /// At least one placeholder was created.
    Created,
    /// No placeholder was created, and none is being deleted.
    Unchanged,
    /// The cache has a newer version of the run than the call names. The call created nothing.
    Superseded,
    /// The run has ended or is being deleted.
    RunDone,
    /// The run needs no placeholder.
    NotNeeded,
}

/// Creates the missing placeholders of a run.
///
/// # Errors
///
/// - The fields of the call contradict each other, or the watch has not delivered this version of the run yet.
/// - The run cannot be planned.
/// - An object of another owner has the placeholder's name, or the placeholder is being deleted.
/// - No node reaches the volumes of the placeholder's claims.
/// - The API server refuses a request, or the process is stopping.
pub(crate) async fn ensure(
    reconciler: &Reconciler,
    identity: &Identity,
) -> Result<Ensured, Arc<Error>> {
    let run = seen(&reconciler.cache, identity).await?;
    if run.deletion || run.state == RunState::Done {
        return Ok(Ensured::RunDone);
    }
    if is_newer(&run.resource_version, &identity.resource_version) {
        return Ok(Ensured::Superseded);
    }
    let looked = reconciler.call(&RunKey::of(&run), Purpose::Ensure).await?;
    let observed = looked.observed;
    if observed.presence != RunPresence::Active {
        return Ok(Ensured::RunDone);
    }
    match observed.run.as_ref().map(|(_, planned)| planned.as_ref()) {
        Some(Err(violations)) => {
            let violations: Vec<_> = violations.iter().map(ToString::to_string).collect();
            return Err(Arc::new(Error::Invalid {
                run: format!("{}/{}", run.namespace, run.name),
                detail: violations.join("; "),
            }));
        }
        Some(Ok(_)) | None if observed.planned().is_empty() => return Ok(Ensured::NotNeeded),
        Some(Ok(_)) | None => {}
    }
    let mut planned = observed.planned().iter();
    let deleting = planned.find_map(|spec| {
        let own = observed.placeholders.get(spec.name.as_str())?;
        own.object
            .deleting
            .then(|| format!("{}/{}", own.namespace, own.object.name))
    });
    match deleting {
        Some(name) => Err(Arc::new(Error::Terminating { name })),
        None if looked.created => Ok(Ensured::Created),
        None => Ok(Ensured::Unchanged),
    }
}

/// Takes the steps of a run's clean-up that are possible now, and returns the progress.
///
/// # Errors
///
/// The fields of the call contradict each other, the API server refuses a request, or the process is stopping.
pub(crate) async fn release(
    reconciler: &Reconciler,
    identity: &Identity,
) -> Result<Released, Arc<Error>> {
    let key = known_or_gone(&reconciler.cache, identity)?;
    let looked = reconciler.call(&key, Purpose::Release).await?;
    Ok(looked.released.unwrap_or(Released::InProgress))
}

/// Waits until the watch has delivered the run at version `identity.resource_version` or later, and returns the run. If the
/// fields of the call contradict each other, fails at once.
async fn seen(cache: &Cache, identity: &Identity) -> Result<Arc<PipelineRun>, Error> {
    let not_seen = || Error::NotSeen {
        run: format!("{}/{}", identity.namespace, identity.name),
        resource_version: identity.resource_version.clone(),
    };
    let mut version = cache.version();
    let wait = async {
        loop {
            version.mark_unchanged();
            if let Some(run) = known(cache, identity)?
                && !is_newer(&identity.resource_version, &run.resource_version)
            {
                return Ok(run);
            }
            version.changed().await.map_err(|_| not_seen())?;
        }
    };
    tokio::time::timeout(CATCH_UP, wait)
        .await
        .unwrap_or_else(|_| Err(not_seen()))
}

/// The run that a call names. `None` if the cache has no run with this uid. Fails if the fields of the call contradict each
/// other.
fn known(cache: &Cache, identity: &Identity) -> Result<Option<Arc<PipelineRun>>, Error> {
    if let Some(other) = cache.run_at(&identity.resource_version)
        && other.uid != identity.uid
    {
        let detail = "it is a version of another run".to_owned();
        return Err(mismatch(
            identity,
            "resource_version",
            &identity.name,
            detail,
        ));
    }
    let Some(run) = cache.run(&identity.uid) else {
        return Ok(None);
    };
    let expected = [
        ("namespace", &identity.namespace, &run.namespace),
        ("name", &identity.name, &run.name),
    ];
    match expected.iter().find(|(_, asked, is)| asked != is) {
        None => Ok(Some(run)),
        Some((field, asked, is)) => {
            let detail = format!("the call says {asked}, but the run with this uid has {is}");
            Err(mismatch(identity, field, &run.name, detail))
        }
    }
}

/// Does the checks of [`known`], and returns the key of the run. If the run is gone, compares the name in the call with the owner
/// references of the run's objects.
fn known_or_gone(cache: &Cache, identity: &Identity) -> Result<RunKey, Error> {
    let key = RunKey::new(&identity.namespace, &identity.uid);
    if known(cache, identity)?.is_none()
        && let Some(name) = cache.name_of_owner(&key)
        && name != identity.name
    {
        let detail = format!("the call says {}", identity.name);
        return Err(mismatch(identity, "name", &name, detail));
    }
    Ok(key)
}

fn mismatch(identity: &Identity, field: &str, name: &str, detail: String) -> Error {
    Error::Mismatch {
        field: format!("pipeline_run.{field}"),
        run: format!("{}/{name}", identity.namespace),
        detail,
    }
}

#[cfg(test)]
mod tests;
