//! The one way in which a run is worked on: observe it, decide, act, announce. The queue gives each run to one worker at a time,
//! so that nothing is sent twice and no run waits for another one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use coscheduler_core::annotations;
use coscheduler_core::observed::Observed;
use coscheduler_core::pipeline_run::RunState;
use coscheduler_core::reconcile::{Again, Decision, Released, reconcile};
use coscheduler_core::teardown::RunPresence;
use coscheduler_runtime::lease::Leadership;
use coscheduler_runtime::queue::{Outcome, Queue};
use coscheduler_runtime::trace;
use tokio::sync::oneshot;
use tracing::{Instrument as _, Span, info_span, warn};

use crate::cache::{Cache, RunKey};
use crate::error::Error;
use crate::memory::Memory;
use crate::requests::Requests;
use crate::sweep::Findings;

/// A clean-up takes this many steps that follow each other at once; more than it ever needs.
const ROUNDS: usize = 16;

/// Works on runs.
pub(crate) struct Reconciler {
    pub(crate) cache: Arc<Cache>,
    pub(crate) requests: Requests,
    pub(crate) leadership: Leadership,
    pub(crate) memory: Memory,
    pub(crate) findings: Findings,
    scale_up_hold: Duration,
    queue: Queue<RunKey>,
    callers: Mutex<HashMap<RunKey, Vec<Caller>>>,
}

/// A call that waits for the outcome of the next work on a run.
struct Caller {
    ensures: bool,
    span: Span,
    answer: oneshot::Sender<Result<Looked, Arc<Error>>>,
}

/// The outcome of the work on a run.
#[derive(Clone, Debug)]
pub(crate) struct Looked {
    /// Whether a placeholder was created.
    pub created: bool,
    /// How far the clean-up is.
    pub released: Option<Released>,
    /// The run as it was seen last.
    pub observed: Arc<Observed>,
}

impl Reconciler {
    /// Works on what `cache` knows, through `requests`. `queue` is the one that [`Self::work`] serves.
    pub(crate) fn new(
        cache: Arc<Cache>,
        requests: Requests,
        leadership: Leadership,
        queue: Queue<RunKey>,
        scale_up_hold: Duration,
    ) -> Self {
        Self {
            cache,
            requests,
            leadership,
            memory: Memory::default(),
            findings: Findings::default(),
            scale_up_hold,
            queue,
            callers: Mutex::default(),
        }
    }

    /// Works on a run for a call, which with `ensures` creates missing placeholders, and answers the outcome.
    pub(crate) async fn call(&self, run: &RunKey, ensures: bool) -> Result<Looked, Arc<Error>> {
        let (answer, outcome) = oneshot::channel();
        let caller = Caller {
            ensures,
            span: Span::current(),
            answer,
        };
        self.callers().entry(run.clone()).or_default().push(caller);
        self.queue.push(run.clone());
        // The sender goes unused only where the process stops.
        outcome.await.unwrap_or_else(|_| {
            let missing = "the process is stopping".to_owned();
            Err(Arc::new(Error::NotReady { missing }))
        })
    }

    /// Works on a run, as work from the queue.
    pub(crate) async fn work(&self, run: RunKey) -> Outcome {
        // Calls that come from now on find the run pushed once more.
        let callers = self.callers().remove(&run).unwrap_or_default();
        let span = self.span(&run, callers.first());
        let ensures = callers.iter().any(|caller| caller.ensures);
        let (looked, outcome) = match self.look(&run, ensures).instrument(span).await {
            Ok((looked, outcome)) => (Ok(looked), outcome),
            Err(error) => {
                warn!(
                    namespace = run.namespace,
                    uid = run.uid,
                    error = error.with_causes(),
                    "failed to work on a run, will try again"
                );
                (Err(Arc::new(error)), Outcome::Retry)
            }
        };
        for caller in callers {
            // A caller that has gone away needs no answer.
            drop(caller.answer.send(looked.clone()));
        }
        outcome
    }

    /// The work for a call is part of the call's trace, and a clean-up of the trace in which its run was admitted.
    fn span(&self, key: &RunKey, caller: Option<&Caller>) -> Span {
        if let Some(caller) = caller {
            return info_span!(parent: &caller.span, "reconcile", namespace = key.namespace);
        }
        let known = self.cache.run(&key.uid);
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

    /// Looks at a run until there is nothing to be done at once.
    async fn look(&self, key: &RunKey, ensures: bool) -> Result<(Looked, Outcome), Error> {
        let mut created = false;
        let mut failed = None;
        for _ in 0..ROUNDS {
            let observed = Arc::new(self.observe(key, ensures && !created).await?);
            let decision = reconcile(&observed);
            let acted = self.act(key, &observed, &decision.steps).await;
            let mut look_later = acted.look_later;
            if let Err(error) = self.announce(key, &observed, &decision, &acted).await {
                look_later |= error.is_transient();
                warn!(
                    namespace = key.namespace,
                    uid = key.uid,
                    error = error.with_causes(),
                    "failed to inform a run's author"
                );
            }
            created |= acted.created;
            failed = failed.or(acted.failed);
            let Decision {
                released,
                sights,
                again,
                ..
            } = decision;
            if released == Some(Released::Done) || released == Some(Released::RunActive) {
                self.findings.settle(key);
            }
            self.memory.keep(key, &observed, sights, released);
            if acted.look_again && failed.is_none() {
                continue;
            }
            let outcome = match again {
                Again::After(time) => Outcome::Later(time),
                Again::OnChange if !look_later => Outcome::Done,
                Again::OnChange | Again::Backoff => Outcome::Retry,
            };
            let looked = Looked {
                created,
                released,
                observed,
            };
            return failed.map_or(Ok((looked, outcome)), Err);
        }
        self.queue.push(key.clone());
        let looked = Looked {
            created,
            released: Some(Released::InProgress),
            observed: Arc::default(),
        };
        Ok((looked, Outcome::Done))
    }

    /// The run as it is now, with what this replica remembers.
    async fn observe(&self, key: &RunKey, called: bool) -> Result<Observed, Error> {
        let mut observed = self.cache.observe(key);
        if observed.run.is_none() {
            observed.presence = self.presence(key).await?;
        }
        observed.now = k8s_openapi::jiff::Timestamp::now();
        observed.leads = self.leadership.is_held();
        observed.called = called;
        observed.scale_up_hold = self.scale_up_hold;
        self.memory.recall(key, &mut observed);
        Ok(observed)
    }

    /// Whether a run that the cache does not know still needs its objects: the watch may only be late, or nothing is pinned on
    /// the run any more, or it cannot be read.
    async fn presence(&self, key: &RunKey) -> Result<RunPresence, Error> {
        match self.cache.name_of_owner(key) {
            Some(name) => {
                let found = self.requests.run_presence(&key.namespace, &name, &key.uid);
                found.await
            }
            None => Ok(RunPresence::Gone),
        }
    }

    fn callers(&self) -> std::sync::MutexGuard<'_, HashMap<RunKey, Vec<Caller>>> {
        self.callers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
