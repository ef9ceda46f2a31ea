//! Carries out the clean-up of a run, one step at a time: looks at what is left, asks `core` for the next step, takes
//! it. Every step is safe to repeat, and every one is taken again from what is there, so it may stop anywhere.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use tokio::sync::OwnedMutexGuard;
use tracing::{Instrument as _, Span, info, info_span, warn};

use coscheduler_core::annotations;
use coscheduler_core::pipeline_run::RunState;
use coscheduler_core::teardown::{
    Claim, Leftovers, ObjectRef, PodPhase, RunPresence, Step, next_step, unprotectable,
};
use coscheduler_kubernetes::{claims, pods};
use coscheduler_runtime::queue::Outcome;
use coscheduler_runtime::trace;

use crate::cache::{Cache, Kind as _, Run, RunKey};
use crate::error::Error;
use crate::objects::Objects;
use crate::sweep::Findings;

/// How far a clean-up is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Released {
    /// Nothing is left.
    Done,
    /// Under way; the objects' own changes bring the next step.
    InProgress,
    /// Some of the run's pods are pending or running.
    WaitingForPods,
    /// A claim is still used by a pod that is not the run's. No change of a known object will tell when that ends.
    ClaimInUse,
    /// The run needs its objects.
    RunActive,
}

/// The clean-up of runs. A run is cleaned up by one caller at a time, so that no request is sent twice.
pub(crate) struct CleanUp {
    cache: Arc<Cache>,
    objects: Objects,
    busy: Locks,
    findings: Findings,
}

impl CleanUp {
    /// Cleans up what `cache` knows, through `objects`.
    pub(crate) fn new(cache: Arc<Cache>, objects: Objects) -> Self {
        Self {
            cache,
            objects,
            busy: Mutex::default(),
            findings: Findings::default(),
        }
    }

    /// What the sweep has found, to be told once it is gone.
    pub(crate) fn findings(&self) -> &Findings {
        &self.findings
    }

    /// Takes the next steps after a run, as work from the queue: what fails is logged and tried again. Once the run is
    /// done, that is part of the trace it was admitted in.
    pub(crate) async fn work(&self, key: RunKey) -> Outcome {
        let span = self.span(&key);
        self.take_steps(key).instrument(span).await
    }

    fn span(&self, key: &RunKey) -> Span {
        let known = self.cache.pipeline_run(&key.uid);
        let Some(run) = known.filter(|run| run.state == RunState::Done) else {
            return Span::none();
        };
        let span = info_span!(
            "clean up",
            namespace = key.namespace,
            pipeline_run = run.name
        );
        if let Some(traceparent) = run.annotations.get(annotations::TRACEPARENT) {
            trace::join(&span, traceparent);
        }
        span
    }

    async fn take_steps(&self, key: RunKey) -> Outcome {
        match self.release(&key).await {
            Ok(Released::ClaimInUse) => Outcome::Retry,
            Ok(
                Released::Done
                | Released::InProgress
                | Released::WaitingForPods
                | Released::RunActive,
            ) => Outcome::Done,
            Err(error) => {
                warn!(
                    namespace = key.namespace,
                    uid = key.uid,
                    error = format!("{:#}", anyhow::Error::from(error)),
                    "failed to clean up after a run, will try again"
                );
                Outcome::Retry
            }
        }
    }

    /// Takes the next steps after a run, and says how far it is.
    ///
    /// # Errors
    ///
    /// Where the API server refuses.
    pub(crate) async fn release(&self, key: &RunKey) -> Result<Released, Error> {
        let _turn = Turn::take(&self.busy, key).await;
        let released = self.every_step(key).await?;
        match released {
            Released::Done | Released::RunActive => self.findings.settle(key),
            Released::InProgress | Released::WaitingForPods | Released::ClaimInUse => {}
        }
        Ok(released)
    }

    /// Takes every step that can be taken now.
    async fn every_step(&self, key: &RunKey) -> Result<Released, Error> {
        loop {
            let Some(run) = self.cache.get(key) else {
                return Ok(Released::Done);
            };
            let leftovers = leftovers(&self.objects, key, &run).await?;
            match next_step(&leftovers) {
                Step::Keep => return Ok(Released::RunActive),
                Step::WaitForPods { .. } => return Ok(Released::WaitingForPods),
                Step::WaitForPlaceholder | Step::WaitForClaims => return Ok(Released::InProgress),
                Step::Done => return Ok(Released::Done),
                Step::DeleteStatefulSet(set) => {
                    self.delete_stateful_set(key, &run, &set).await?;
                }
                Step::DeleteOrphans(orphans) => {
                    for pod in &orphans {
                        self.delete_orphan(key, &run, pod).await?;
                    }
                }
                Step::ClearClaims { delete, unprotect } if delete.is_empty() => {
                    let freed = self.unprotect_claims(key, &run, &unprotect).await?;
                    return Ok(if freed == unprotect.len() {
                        Released::InProgress
                    } else {
                        Released::ClaimInUse
                    });
                }
                Step::ClearClaims { delete, .. } => {
                    for claim in &delete {
                        self.delete_claim(key, &run, claim).await?;
                    }
                }
            }
        }
    }

    async fn delete_stateful_set(
        &self,
        key: &RunKey,
        run: &Run,
        set: &ObjectRef,
    ) -> Result<(), Error> {
        self.objects
            .delete_stateful_set(&key.namespace, set)
            .await?;
        info!(
            namespace = key.namespace,
            placeholder = set.name,
            "deleted placeholder"
        );
        self.findings.deleted(key, "StatefulSet", &set.name);
        // Until the watch says so too, nobody should send the request again.
        if let Some(deleted) = run.stateful_sets.get(&set.name) {
            self.cache.delete(&**deleted);
        }
        Ok(())
    }

    async fn delete_orphan(&self, key: &RunKey, run: &Run, pod: &ObjectRef) -> Result<(), Error> {
        let left = self.objects.delete_pod(&key.namespace, pod).await?;
        info!(
            namespace = key.namespace,
            pod = pod.name,
            "deleted a placeholder's pod that its StatefulSet had left behind"
        );
        self.findings.deleted(key, "Pod", &pod.name);
        match left {
            Some(mut left) => {
                pods::trim(&mut left);
                self.cache.refresh(left);
            }
            None => {
                if let Some(deleted) = run.pods.get(&pod.name) {
                    self.cache.delete(&**deleted);
                }
            }
        }
        Ok(())
    }

    async fn delete_claim(&self, key: &RunKey, run: &Run, claim: &ObjectRef) -> Result<(), Error> {
        let left = self.objects.delete_claim(&key.namespace, claim).await?;
        info!(
            namespace = key.namespace,
            claim = claim.name,
            "deleted claim"
        );
        self.findings
            .deleted(key, "PersistentVolumeClaim", &claim.name);
        match left {
            Some(left) => self.cache.refresh_claim(left),
            None => {
                if let Some(deleted) = run.claims.get(&claim.name) {
                    self.cache.delete_claim(deleted);
                }
            }
        }
        Ok(())
    }

    /// Removes the protection of those claims whose every pod has ended (V4). Answers how many.
    async fn unprotect_claims(
        &self,
        key: &RunKey,
        run: &Run,
        candidates: &[Claim],
    ) -> Result<usize, Error> {
        let pods = self.objects.live_pods(&key.namespace).await?;
        let free = unprotectable(candidates, &pods);
        for version in &free {
            if let Some(claim) = run.claims.get(&version.name) {
                let claim: &PersistentVolumeClaim = claim;
                match self
                    .objects
                    .unprotect(&key.namespace, claim, version)
                    .await?
                {
                    Some(left) => self.cache.refresh_claim(left),
                    None => drop(self.cache.delete_claim(claim)),
                }
            }
        }
        Ok(free.len())
    }
}

/// The locks of the runs that are being cleaned up.
type Locks = Mutex<HashMap<RunKey, Arc<tokio::sync::Mutex<()>>>>;

/// The turn of one caller to clean up after a run; it ends when this is dropped.
struct Turn<'a> {
    locks: &'a Locks,
    key: RunKey,
    lock: Arc<tokio::sync::Mutex<()>>,
    held: Option<OwnedMutexGuard<()>>,
}

impl<'a> Turn<'a> {
    /// Waits until nobody else cleans up after the run.
    async fn take(locks: &'a Locks, key: &RunKey) -> Self {
        let lock = {
            let mut locks = locks.lock().unwrap_or_else(PoisonError::into_inner);
            locks.entry(key.clone()).or_default().clone()
        };
        let mut turn = Self {
            locks,
            key: key.clone(),
            lock: lock.clone(),
            held: None,
        };
        turn.held = Some(lock.lock_owned().await);
        turn
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        drop(self.held.take());
        let mut locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
        // Two are the map's and this one: nobody else waits.
        if Arc::strong_count(&self.lock) == 2 {
            locks.remove(&self.key);
        }
    }
}

/// What is left of the run, as `core` wants to know it.
async fn leftovers(objects: &Objects, key: &RunKey, run: &Run) -> Result<Leftovers, Error> {
    let (placeholders, task_pods): (Vec<_>, Vec<_>) =
        run.pods.values().partition(|pod| pods::is_placeholder(pod));
    let active_pods = task_pods
        .iter()
        .filter(|pod| match pods::phase(pod) {
            PodPhase::Pending | PodPhase::Running | PodPhase::Unknown => true,
            PodPhase::Succeeded | PodPhase::Failed => false,
        })
        .count();
    Ok(Leftovers {
        run: presence(objects, key, run).await?,
        active_pods,
        stateful_sets: run
            .stateful_sets
            .values()
            .map(|set| ObjectRef {
                name: set.name().to_owned(),
                uid: set.metadata.uid.clone().unwrap_or_default(),
                resource_version: set.metadata.resource_version.clone().unwrap_or_default(),
                deleting: set.metadata.deletion_timestamp.is_some(),
            })
            .collect(),
        placeholder_pods: placeholders
            .iter()
            .map(|pod| pods::placeholder(pod))
            .collect(),
        claims: run
            .claims
            .values()
            .map(|claim| claims::view(claim))
            .collect(),
    })
}

/// Whether the run still needs its objects. One that the cache does not know, although objects of it are left, is looked up:
/// the watch may only be late, or nothing is pinned on the run (any more), or it cannot be read.
async fn presence(objects: &Objects, key: &RunKey, run: &Run) -> Result<RunPresence, Error> {
    if let Some(known) = run.itself() {
        return Ok(match known.state {
            _ if known.deletion => RunPresence::Gone,
            RunState::Done => RunPresence::Done,
            RunState::Pending | RunState::Active => RunPresence::Active,
        });
    }
    for owner in run.owners(&key.uid) {
        let found = objects.run_presence(&key.namespace, &owner.name, &key.uid);
        match found.await? {
            RunPresence::Gone => {}
            there => return Ok(there),
        }
    }
    Ok(RunPresence::Gone)
}

#[cfg(test)]
mod tests;
