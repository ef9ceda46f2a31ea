//! Tells the authors of runs what `core` says they are to be told: Events, and the annotation that says why a run waits.
//!
//! What was said is remembered, so that an unchanged run costs nothing; whoever comes after, another replica or this one
//! after a restart, says it by the same Event, which the API server keeps once.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use k8s_openapi::jiff::Timestamp;
use tracing::{info, warn};

use coscheduler_core::annotations::BLOCKED;
use coscheduler_core::evacuate::{Role, stranded};
use coscheduler_core::notices::{blocked_annotation, notices};
use coscheduler_core::pipeline_run::{PipelineRun, RunState};
use coscheduler_core::plan::Reason;
use coscheduler_kubernetes::{events, pods};
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
}

impl Notices {
    /// Tells of what `cache` knows, through `objects`.
    pub(crate) fn new(cache: Arc<Cache>, objects: Objects, causes: Causes) -> Self {
        Self {
            cache,
            objects,
            causes,
            said: Mutex::default(),
        }
    }

    /// Tells a run's author what there is to tell now, as work from the queue.
    pub(crate) async fn work(&self, key: RunKey) -> Outcome {
        let Some(known) = self.cache.get(&key) else {
            return Outcome::Done;
        };
        let Some(run) = known.itself() else {
            return Outcome::Done;
        };
        match self.tell(&run, &known).await {
            Ok(()) => Outcome::Done,
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

    async fn tell(&self, run: &PipelineRun, known: &Run) -> Result<(), Error> {
        if run.deletion {
            return Ok(());
        }
        let mut notices = notices(run, |claim| self.cache.claim(&run.namespace, claim).seen());
        if notices.blocked.is_none() && run.state == RunState::Active {
            notices.blocked = self.stranded(run, known).or_else(|| self.without_room(run));
            notices.events.extend(notices.blocked.clone());
        }
        for reason in &notices.events {
            self.say(run, reason).await?;
        }
        match blocked_annotation(run, notices.blocked.as_ref()) {
            Some(value) => {
                let annotated = self.objects.annotate(run, BLOCKED, value.clone()).await?;
                if let Some(version) = annotated {
                    self.cache.annotated(run, BLOCKED, value, version);
                }
                Ok(())
            }
            None => Ok(()),
        }
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
        if let Err(error) = self.say(&run, &reason).await {
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
        if self
            .said()
            .get(&run.uid)
            .is_some_and(|said| said.contains(&name))
        {
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

    fn said(&self) -> MutexGuard<'_, HashMap<String, HashSet<String>>> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
