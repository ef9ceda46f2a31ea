//! Carries out `Ensure`: holds the call against the manager's own view of the run, then creates what is missing.
//!
//! Nothing here decides what a placeholder looks like. The view of the run is planned afresh by `core`, and a call that
//! asks for anything else is refused, whoever sends it.

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
use crate::identity::{known, mismatch};
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
    placeholders: &[PlaceholderSpec],
) -> Result<Ensured, Error> {
    let (run, objects_of_run) = seen(cache, identity).await?;
    if run.deletion || run.state == RunState::Done {
        return Ok(Ensured::RunDone);
    }
    if is_newer(&run.resource_version, &identity.resource_version) {
        return Ok(Ensured::Superseded);
    }
    verify(&run, placeholders)?;
    let mut outcome = Ensured::Unchanged;
    let mut failed = None;
    for spec in placeholders {
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

/// Refuses placeholders other than those that the run's own pinned annotations call for.
fn verify(run: &PipelineRun, placeholders: &[PlaceholderSpec]) -> Result<(), Error> {
    let plan = plan(run).map_err(Error::BadRequest)?;
    let expected = match plan.action {
        Action::Ensure(expected) => expected,
        Action::Nothing | Action::Release { .. } => Vec::new(),
    };
    if placeholders.len() != expected.len() {
        return Err(mismatch(
            run,
            "placeholders",
            format!(
                "{} asked for, {} planned",
                placeholders.len(),
                expected.len()
            ),
        ));
    }
    for (index, (asked, planned)) in placeholders.iter().zip(&expected).enumerate() {
        if let Some((field, detail)) = difference(asked, planned) {
            return Err(mismatch(
                run,
                &format!("placeholders[{index}].{field}"),
                detail,
            ));
        }
    }
    Ok(())
}

/// The first field in which two placeholders differ. Destructured, so that a new field cannot be forgotten.
fn difference(
    asked: &PlaceholderSpec,
    planned: &PlaceholderSpec,
) -> Option<(&'static str, String)> {
    let PlaceholderSpec {
        name,
        labels,
        claim_templates,
        single_pod_claims,
        claim_names,
        unmounted_claim_names,
        separation,
        cpu,
        memory,
        image,
        pod_template,
        service_account_name,
    } = planned;
    if asked.name != *name {
        return Some(("name", format!("{} asked for, {name} planned", asked.name)));
    }
    if asked.labels != *labels {
        return Some(("labels", "they differ from the run's".to_owned()));
    }
    if asked.claim_templates != *claim_templates {
        return Some((
            "claim_templates",
            "they differ from the templates pinned on the run".to_owned(),
        ));
    }
    if asked.single_pod_claims != *single_pod_claims {
        return Some((
            "single_pod_claims",
            "they differ from the templates pinned on the run".to_owned(),
        ));
    }
    if asked.unmounted_claim_names != *unmounted_claim_names {
        return Some((
            "unmounted_claim_names",
            "they differ from the claims the run's workspaces are bound to".to_owned(),
        ));
    }
    if asked.separation != *separation {
        return Some(("separation", "it differs from the run's mode".to_owned()));
    }
    if asked.claim_names != *claim_names {
        return Some((
            "claim_names",
            "they differ from the claims the run's workspaces are bound to".to_owned(),
        ));
    }
    if asked.pod_template != *pod_template {
        return Some((
            "pod_template",
            "it differs from the run's podTemplate".to_owned(),
        ));
    }
    let texts = [
        (
            "service_account_name",
            &asked.service_account_name,
            service_account_name,
        ),
        ("cpu", &asked.cpu, cpu),
        ("memory", &asked.memory, memory),
        ("image", &asked.image, image),
    ];
    texts
        .into_iter()
        .find(|(_, asked, planned)| asked != planned)
        .map(|(field, asked, planned)| (field, format!("{asked:?} asked for, {planned:?} planned")))
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
