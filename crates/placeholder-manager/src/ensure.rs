//! Carries out `Ensure`: plans for the manager's own view of the run, then creates what is missing.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::apps::v1::StatefulSet;
use tracing::info;

use coscheduler_core::notices::out_of_reach;
use coscheduler_core::pipeline_run::{PipelineRun, RunState};
use coscheduler_core::plan::{Action, PlaceholderSpec, plan};
use coscheduler_kubernetes::stateful_set::{self, Owner};
use coscheduler_proto::convert::Identity;

use crate::cache::{Cache, Kind as _, Run, RunKey, is_newer};
use crate::error::Error;
use crate::identity::known;
use crate::objects::Objects;
use crate::volumes;

/// How long a call waits for the watch to deliver the version of the run that the caller has seen already.
const CATCH_UP: Duration = Duration::from_secs(2);

/// What was done about an `Ensure`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Ensured {
    /// At least one placeholder was created.
    Created,
    /// Everything was there already.
    Unchanged,
    /// A newer version of the run is known.
    Superseded,
    /// The run is done.
    RunDone,
    /// The run needs no placeholder of its own, or not yet.
    NotNeeded,
}

/// Creates the placeholders of a run where they do not exist yet.
///
/// # Errors
///
/// Where the call disagrees with the run, the run was not seen yet, a name is taken, or the API server refuses: the first
/// of what went wrong, once every placeholder was tried.
pub(crate) async fn ensure(
    cache: &Cache,
    objects: &Objects,
    identity: &Identity,
) -> Result<Ensured, Error> {
    let (run, objects_of_run) = seen(cache, identity).await?;
    if run.deletion || run.state == RunState::Done {
        return Ok(Ensured::RunDone);
    }
    if is_newer(&run.resource_version, &identity.resource_version) {
        return Ok(Ensured::Superseded);
    }
    let placeholders = planned(&run)?;
    if placeholders.is_empty() {
        return Ok(Ensured::NotNeeded);
    }
    let mut outcome = Ensured::Unchanged;
    let mut failed = None;
    for spec in &placeholders {
        let created = match objects_of_run.stateful_sets.get(spec.name.as_str()) {
            Some(set) => check_owner(set, &run).map(|()| false),
            None => create(cache, objects, &run, spec).await,
        };
        match created {
            Ok(true) => outcome = Ensured::Created,
            Ok(false) => {}
            // It keeps no other one waiting.
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    failed.map_or(Ok(outcome), Err)
}

/// The run as of `identity.resource_version` or later, once the watch has delivered it. What disagrees with a run that
/// is known is refused at once.
async fn seen(cache: &Cache, identity: &Identity) -> Result<(Arc<PipelineRun>, Run), Error> {
    let key = RunKey {
        namespace: identity.namespace.clone(),
        uid: identity.uid.clone(),
    };
    let not_seen = || Error::NotSeen {
        run: format!("{}/{}", identity.namespace, identity.name),
        resource_version: identity.resource_version.clone(),
    };
    let mut version = cache.version();
    let wait = async {
        loop {
            version.mark_unchanged();
            if known(cache, identity)?.is_some()
                && let Some(objects) = cache.get(&key)
                && let Some(run) = objects.itself()
                && !is_newer(&identity.resource_version, &run.resource_version)
            {
                return Ok((run, objects));
            }
            version.changed().await.map_err(|_| not_seen())?;
        }
    };
    tokio::time::timeout(CATCH_UP, wait)
        .await
        .unwrap_or_else(|_| Err(not_seen()))
}

/// The placeholders that the run's own pinned annotations call for.
fn planned(run: &PipelineRun) -> Result<Vec<PlaceholderSpec>, Error> {
    let plan = plan(run).map_err(|violations| Error::Invalid {
        run: format!("{}/{}", run.namespace, run.name),
        detail: violations
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join("; "),
    })?;
    Ok(match plan.action {
        Action::Ensure(placeholders) => placeholders,
        Action::Nothing | Action::Release { .. } => Vec::new(),
    })
}

/// Creates one placeholder. False where somebody else was quicker.
async fn create(
    cache: &Cache,
    objects: &Objects,
    run: &PipelineRun,
    spec: &PlaceholderSpec,
) -> Result<bool, Error> {
    let owner = Owner {
        namespace: &run.namespace,
        name: &run.name,
        uid: &run.uid,
    };
    let volumes = volumes::seen(cache, objects, run, spec).await?;
    if let Some(reason) = out_of_reach(spec, &volumes) {
        return Err(Error::OutOfReach { reason });
    }
    // First, so that a placeholder that exists has all its claims (V8).
    for claim in stateful_set::single_pod_claims(owner, spec) {
        objects.create_claim(&run.namespace, &claim).await?;
    }
    let set = stateful_set::build(owner, spec, &volumes);
    let (set, created) = match objects.create(&run.namespace, &set).await? {
        Some(set) => (set, true),
        None => match objects
            .stateful_set(&run.namespace, spec.name.as_str())
            .await?
        {
            Some(set) => (set, false),
            None => {
                return Err(Error::Terminating {
                    name: format!("{}/{}", run.namespace, spec.name),
                });
            }
        },
    };
    check_owner(&set, run)?;
    if created {
        info!(namespace = run.namespace, pipeline_run = run.name, placeholder = %spec.name, "created placeholder");
    }
    Ok(created)
}

/// An object with the right name and another owner is never adopted (P7).
fn check_owner(set: &StatefulSet, run: &PipelineRun) -> Result<(), Error> {
    let name = || format!("{}/{}", run.namespace, set.name());
    let controller = set
        .metadata
        .owner_references
        .iter()
        .flatten()
        .find(|owner| owner.controller == Some(true));
    match controller {
        Some(owner) if owner.uid == run.uid => {}
        Some(owner) => {
            return Err(Error::NameTaken {
                name: name(),
                owner: format!("{} {} ({})", owner.kind, owner.name, owner.uid),
            });
        }
        None => {
            return Err(Error::NameTaken {
                name: name(),
                owner: "nobody".to_owned(),
            });
        }
    }
    if set.metadata.deletion_timestamp.is_some() {
        return Err(Error::Terminating { name: name() });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
