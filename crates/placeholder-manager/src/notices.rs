//! Tells the authors of runs what `core` says they are to be told: Events, and the annotation that says why a run waits.
//!
//! What keeps a placeholder from its pod or its node is told once it has for a moment (N3): much of it passes by itself, as
//! volumes are made and caches catch up. What a call to us was refused is told by the replica that was called, at once; it
//! stays until the placeholder is there.
//!
//! What was said is remembered, so that an unchanged run costs nothing; whoever comes after, another replica or this one
//! after a restart, says it by the same Event, which the API server keeps once.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;
use tracing::{info, warn};

use coscheduler_core::annotations::BLOCKED;
use coscheduler_core::evacuate::{Role, stranded};
use coscheduler_core::notices::{blocked_annotation, notices};
use coscheduler_core::pipeline_run::{PipelineRun, RunState};
use coscheduler_core::plan::{PlaceholderSpec, Reason};
use coscheduler_core::refusals::{
    REFUSALS, SeenPlaceholder, said_on, still_refused, waits as waits_of,
};
use coscheduler_kubernetes::complaints::About;
use coscheduler_kubernetes::{events, moves, pods};
use coscheduler_proto::convert::Identity;
use coscheduler_runtime::queue::Outcome;

use crate::SERVICE;
use crate::cache::{Cache, Kind as _, Run, RunKey};
use crate::error::Error;
use crate::evacuate::belongs;
use crate::objects::Objects;
use crate::rescue::Causes;

/// What authors are told.
pub(crate) struct Notices {
    cache: Arc<Cache>,
    objects: Objects,
    /// Why runs wait for room.
    causes: Causes,
    /// The names of the Events that this process has written, by the run's uid.
    said: Mutex<HashMap<String, HashSet<String>>>,
    /// The names of those that it will write unless things change, and since when it would, by the run's uid.
    impending: Mutex<HashMap<String, (String, Instant)>>,
}

/// How long a placeholder waits before that is told.
const MOMENT: Duration = Duration::from_secs(2);

impl Notices {
    /// Tells of what `cache` knows, through `objects`.
    pub(crate) fn new(cache: Arc<Cache>, objects: Objects, causes: Causes) -> Self {
        Self {
            cache,
            objects,
            causes,
            said: Mutex::default(),
            impending: Mutex::default(),
        }
    }

    /// Tells a run's author what there is to tell now, as work from the queue.
    pub(crate) async fn work(&self, key: RunKey) -> Outcome {
        let known = self.cache.get(&key);
        let Some((run, known)) = known.and_then(|known| Some((known.itself()?, known))) else {
            self.impending().remove(&key.uid);
            return Outcome::Done;
        };
        match self.tell(&run, &known).await {
            Ok(outcome) => outcome,
            Err(error) => {
                let retry = error.is_transient();
                warn!(
                    namespace = run.namespace,
                    pipeline_run = run.name,
                    retry,
                    error = format!("{:#}", anyhow::Error::from(error)),
                    "failed to tell a run's author"
                );
                if retry { Outcome::Retry } else { Outcome::Done }
            }
        }
    }

    async fn tell(&self, run: &PipelineRun, known: &Run) -> Result<Outcome, Error> {
        if run.deletion {
            return Ok(Outcome::Done);
        }
        let mut notices = notices(run, |claim| self.cache.claim(&run.namespace, claim).seen());
        let mut waits = None;
        if notices.blocked.is_none() && run.state == RunState::Active {
            notices.blocked = self.stranded(run, known).or_else(|| self.without_room(run));
            if notices.blocked.is_none() {
                waits = Some(waits_of(run, |spec| self.seen(run, known, spec)));
            }
            notices.events.extend(notices.blocked.clone());
        }
        if run.state == RunState::Done {
            notices.events.extend(self.refused(run, known));
        }
        for reason in &notices.events {
            self.say(run, reason).await?;
        }
        let reason = waits.as_ref().and_then(|waits| waits.reason.as_ref());
        let left = self.until_told(run, reason);
        if !left.is_zero() {
            // Until then the annotation stays as it is.
            return Ok(Outcome::Later(left));
        }
        if let Some(reason) = reason {
            self.say(run, reason).await?;
        }
        if !waits
            .as_ref()
            .is_some_and(|waits| still_refused(run, waits))
        {
            let blocked = notices.blocked.as_ref().or(reason);
            self.annotate(run, blocked).await?;
        }
        Ok(Outcome::Done)
    }

    /// Writes why the run waits, or that it does not, where it does not say so already.
    async fn annotate(&self, run: &PipelineRun, blocked: Option<&Reason>) -> Result<(), Error> {
        let Some(value) = blocked_annotation(run, blocked) else {
            return Ok(());
        };
        let annotated = self.objects.annotate(run, BLOCKED, value.clone()).await?;
        if let Some(version) = annotated {
            self.cache.annotated(run, BLOCKED, value, version);
        }
        Ok(())
    }

    /// A placeholder, as far as it is seen waiting (N3); `None` where it has no StatefulSet.
    fn seen(
        &self,
        run: &PipelineRun,
        known: &Run,
        spec: &PlaceholderSpec,
    ) -> Option<SeenPlaceholder> {
        let name = spec.name.as_str();
        let stateful_set = known.stateful_sets.get(name)?;
        let set = &stateful_set.metadata;
        let Some(pod) = known.placeholder_pod(name) else {
            let (namespace, uid) = (&run.namespace, set.uid.as_ref());
            return Some(SeenPlaceholder {
                refused: self
                    .cache
                    .complaint(About::StatefulSet, namespace, name, uid),
                ..SeenPlaceholder::default()
            });
        };
        if pods::node(pod).is_some() {
            return Some(SeenPlaceholder::default());
        }
        let existing = spec.claims().filter_map(|name| {
            let claim = self.cache.claim(&run.namespace, &name).claim?;
            Some((name, claim.metadata.uid.clone()))
        });
        let existing: Vec<_> = existing.collect();
        let of_claim = |(name, uid): &(String, Option<String>)| {
            self.cache
                .complaint(About::Claim, &run.namespace, name, uid.as_ref())
        };
        Some(SeenPlaceholder {
            refused: None,
            not_provisioned: existing.iter().filter_map(of_claim).collect(),
            claims: existing.into_iter().map(|(name, _)| name).collect(),
            // Where one that is sent elsewhere finds no node, it is sent back (N2).
            unschedulable: pods::unschedulable(pod)
                .filter(|_| moves::under_way(stateful_set).is_none())
                .map(str::to_owned),
        })
    }

    /// What keeps a placeholder of a run that is over from its pod: Tekton may have failed the run for the same, before that had
    /// lasted for a moment.
    fn refused(&self, run: &PipelineRun, known: &Run) -> Option<Reason> {
        let mut sets = known.stateful_sets.iter();
        sets.find_map(|(name, set)| {
            let uid = set.metadata.uid.as_ref();
            self.cache
                .complaint(About::StatefulSet, &run.namespace, name, uid)
        })
    }

    /// How long it is until the author is to be told of `reason`, by now for as long as nothing else is seen.
    fn until_told(&self, run: &PipelineRun, reason: Option<&Reason>) -> Duration {
        let mut impending = self.impending();
        let Some(name) = reason.map(|reason| reason.event_name(run)) else {
            impending.remove(&run.uid);
            return Duration::ZERO;
        };
        if self.has_said(run, &name) {
            impending.remove(&run.uid);
            return Duration::ZERO;
        }
        let (since_name, since) = impending
            .entry(run.uid.clone())
            .or_insert_with(|| (name.clone(), Instant::now()));
        if *since_name != name {
            *since_name = name;
            *since = Instant::now();
        }
        MOMENT.saturating_sub(since.elapsed())
    }

    /// Why a pod of the run waits, although its placeholder is on a node (N2).
    fn without_room(&self, run: &PipelineRun) -> Option<Reason> {
        let causes = self.causes.lock().unwrap_or_else(PoisonError::into_inner);
        causes.get(&run.run_key()?).cloned()
    }

    /// Why a placeholder of the run that has lost its node gets no other one (N1).
    fn stranded(&self, run: &PipelineRun, known: &Run) -> Option<Reason> {
        let pods = known.pods.values();
        let mut unbound = pods.filter(|pod| {
            pods::is_placeholder(pod)
                && pods::node(pod).is_none()
                && belongs(known, pod, Role::Placeholder)
        });
        unbound.find_map(|pod| {
            let claims = pods::claims(pod);
            let seen: Vec<_> = claims
                .iter()
                .filter_map(|name| self.cache.claim(&run.namespace, name).seen())
                .collect();
            stranded(&pods::tolerations(pod), &seen, &self.cache.nodes())
        })
    }

    /// Tells the author of the run with this identity why a call about it failed, where that is for the author to know.
    /// It is told beside the answer to the call: what goes wrong is logged.
    pub(crate) async fn tell_of(&self, identity: &Identity, error: &Error) {
        let Some(reason) = error.to_reason() else {
            return;
        };
        let Some(run) = self.cache.pipeline_run(&identity.uid) else {
            return;
        };
        let told = async {
            self.say(&run, &reason).await?;
            // A change of the run brings the next call: one cause in changing words must not make it hurry.
            if REFUSALS.contains(&reason.code) && said_on(&run) != Some(reason.code) {
                self.annotate(&run, Some(&reason)).await?;
            }
            Ok::<_, Error>(())
        };
        if let Err(error) = told.await {
            warn!(
                namespace = run.namespace,
                pipeline_run = run.name,
                error = format!("{:#}", anyhow::Error::from(error)),
                "failed to tell a run's author"
            );
        }
    }

    /// Writes one Event, once.
    async fn say(&self, run: &PipelineRun, reason: &Reason) -> Result<(), Error> {
        let name = reason.event_name(run);
        if self.has_said(run, &name) {
            return Ok(());
        }
        if let Some(event) = events::of_run(run, reason, SERVICE.name, Timestamp::now()) {
            self.objects.create_event(&run.namespace, &event).await?;
            info!(
                namespace = run.namespace,
                pipeline_run = run.name,
                reason = reason.code.as_str(),
                message = reason.message,
                "told a run's author"
            );
        }
        let mut said = self.said();
        // Runs that are gone are forgotten here, as there is nothing to forget before something is said.
        said.retain(|uid, _| self.cache.pipeline_run(uid).is_some());
        said.entry(run.uid.clone()).or_default().insert(name);
        Ok(())
    }

    fn has_said(&self, run: &PipelineRun, event: &str) -> bool {
        let said = self.said();
        said.get(&run.uid).is_some_and(|said| said.contains(event))
    }

    fn impending(&self) -> MutexGuard<'_, HashMap<String, (String, Instant)>> {
        self.impending
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn said(&self) -> MutexGuard<'_, HashMap<String, HashSet<String>>> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
