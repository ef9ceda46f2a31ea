//! Reconciles a run in rounds: observe, decide, act, announce. Function `look` starts another round at once if the steps of the
//! last round succeeded and their result is already known, or if the API server has answered a question. The queue gives each
//! run to only one task at a time, and many tasks work at once on different runs.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use coscheduler_core::annotations;
use coscheduler_core::observed::Observed;
use coscheduler_core::observed::RunPresence;
use coscheduler_core::pipeline_run::RunState;
use coscheduler_core::reconcile::{Again, Decision, Purpose, Released, Step, reconcile};
use coscheduler_runtime::lease::Leadership;
use coscheduler_runtime::queue::{Outcome, Queue};
use coscheduler_runtime::trace;
use tokio::sync::oneshot;
use tracing::{Instrument as _, Span, info_span, warn};

use crate::act::Failed;
use crate::cache::{Cache, RunKey};
use crate::error::Error;
use crate::memory::Memory;
use crate::metrics::Published;
use crate::requests::Requests;

/// The largest number of rounds that follow each other without a pause. Most clean-ups need fewer.
const ROUNDS: usize = 16;

/// Reconciles runs.
pub(crate) struct Reconciler {
    pub(crate) cache: Arc<Cache>,
    pub(crate) requests: Requests,
    pub(crate) leadership: Leadership,
    pub(crate) memory: Memory,
    pub(crate) published: Published,
    queue: Queue<RunKey>,
    /// See [`Observed::peak_wait`].
    peak_wait: Duration,
    /// `None` once the process stops.
    callers: Mutex<Option<Callers>>,
}

/// The calls that wait, by run.
type Callers = HashMap<RunKey, Vec<Caller>>;

/// A call that waits for the outcome of the next reconcile of a run.
struct Caller {
    /// The purpose of the call. Errors of steps with another purpose do not fail the call.
    purpose: Purpose,
    span: Span,
    answer: oneshot::Sender<Result<Looked, Arc<Error>>>,
}

/// The outcome of the reconcile of a run.
#[derive(Clone, Debug)]
pub(crate) struct Looked {
    /// True if a placeholder was created.
    pub created: bool,
    /// The progress of the clean-up.
    pub released: Option<Released>,
    /// The errors of the rounds, by the purpose of their steps.
    failed: Failed,
    /// The observation of the last round.
    pub observed: Arc<Observed>,
}

impl Reconciler {
    /// Reads from `cache` and writes through `requests`. [`Self::work`] must serve `queue`.
    pub(crate) fn new(
        cache: Arc<Cache>,
        requests: Requests,
        leadership: Leadership,
        queue: Queue<RunKey>,
        peak_wait: Duration,
    ) -> Self {
        Self {
            cache,
            requests,
            leadership,
            peak_wait,
            memory: Memory::default(),
            published: Published::default(),
            queue,
            callers: Mutex::new(Some(Callers::new())),
        }
    }

    /// Queues a run for a call with this purpose, and waits for the outcome of the run's next reconcile.
    pub(crate) async fn call(&self, run: &RunKey, purpose: Purpose) -> Result<Looked, Arc<Error>> {
        let (answer, outcome) = oneshot::channel();
        let caller = Caller {
            purpose,
            span: Span::current(),
            answer,
        };
        match self.callers().as_mut() {
            Some(callers) => callers.entry(run.clone()).or_default().push(caller),
            None => drop(caller),
        }
        self.queue.push(run.clone());
        // The sender is dropped only when the process stops.
        outcome.await.unwrap_or_else(|_| {
            let missing = "the process is stopping".to_owned();
            Err(Arc::new(Error::NotReady { missing }))
        })
    }

    /// Reconciles a run from the queue, and answers the calls that wait for this run.
    pub(crate) async fn work(&self, run: RunKey) -> Outcome {
        // Take the calls that wait now. A later call pushes the run again, so it gets the outcome of the next reconcile.
        let callers = self.callers().as_mut().and_then(|all| all.remove(&run));
        let callers = callers.unwrap_or_default();
        let span = self.span(&run, callers.first());
        let mut purposes = callers.iter().map(|caller| caller.purpose);
        let ensures = purposes.any(|purpose| purpose == Purpose::Ensure);
        let (looked, outcome) = match self.look(&run, ensures).instrument(span).await {
            Ok((looked, outcome)) => (Ok(looked), outcome),
            Err(error) => {
                warn_of(&run, &error);
                (Err(Arc::new(error)), Outcome::Retry)
            }
        };
        for caller in callers {
            // The send fails only if the caller is gone.
            drop(caller.answer.send(looked.clone().and_then(|looked| {
                let failed = looked.failed.get(&caller.purpose).cloned();
                failed.map_or(Ok(looked), Err)
            })));
        }
        outcome
    }

    /// The span of the reconcile. If calls wait, the span belongs to the trace of the first call. If no call waits and the run is
    /// done, the span belongs to the trace of the run's admission. All other reconciles have no span.
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

    /// Repeats the round while the steps of the last round succeeded and their result is already known, at most [`ROUNDS`] times.
    /// The API server's first answers to questions are used at once, even if steps with another purpose failed.
    async fn look(&self, key: &RunKey, ensures: bool) -> Result<(Looked, Outcome), Error> {
        let (mut created, mut asked) = (false, false);
        let mut last = Arc::default();
        let (mut failed, mut refused) = (Failed::new(), None);
        for _ in 0..ROUNDS {
            let observed = Arc::new(self.observe(key, ensures && !created).await?);
            last = observed.clone();
            let mut decision = reconcile(&observed);
            let may_succeed = |step: &Step| !failed.contains_key(&step.purpose());
            decision.steps.retain(may_succeed);
            let mut acted = self.act(key, &observed, &decision.steps).await;
            acted.refused = acted.refused.or(refused);
            let mut look_later = acted.look_later;
            if let Err(error) = self.announce(key, &observed, &decision, &acted).await {
                look_later |= error.is_transient();
                warn!(
                    namespace = key.namespace,
                    uid = key.uid,
                    error = error.with_causes(),
                    "failed to publish an Event or annotation of a run"
                );
            }
            created |= acted.created;
            // Answers about waiting pods expire. If an answer expired before its use, the rounds would ask again for ever. So
            // there is a pause after the second round that asks.
            let uses_answers = acted.asked && !asked;
            asked |= acted.asked;
            let Decision {
                released, again, ..
            } = decision;
            self.memory.keep(key, &observed, decision.sights, released);
            failed.append(&mut acted.failed);
            refused = acted.refused;
            // Another placeholder of the run may wait for the answers, so a failed step must not delay their use.
            if uses_answers || (acted.look_again && failed.is_empty()) {
                continue;
            }
            for error in failed.values() {
                warn_of(key, error);
            }
            let outcome = match again {
                _ if look_later || !failed.is_empty() => Outcome::Retry,
                Again::After(time) => Outcome::Later(time),
                Again::OnChange if !acted.asked => Outcome::Done,
                Again::OnChange | Again::Backoff => Outcome::Retry,
            };
            let looked = Looked {
                created,
                released,
                failed,
                observed,
            };
            return Ok((looked, outcome));
        }
        self.queue.push(key.clone());
        let looked = Looked {
            created,
            released: Some(Released::InProgress),
            failed: Failed::new(),
            observed: last,
        };
        Ok((looked, Outcome::Done))
    }

    /// The current observation of the run, with this replica's memory of the run.
    async fn observe(&self, key: &RunKey, called: bool) -> Result<Observed, Error> {
        let mut observed = self.cache.observe(key);
        if observed.run.is_none() {
            observed.presence = self.presence(key).await?;
        }
        observed.now = k8s_openapi::jiff::Timestamp::now();
        observed.leads = self.leadership.is_held();
        observed.called = called;
        observed.peak_wait = self.peak_wait;
        self.memory.recall(key, &mut observed);
        Ok(observed)
    }

    /// Asks the API server if a run that the cache does not contain still needs its objects. Such a run may exist: the watch
    /// may be late, somebody may have removed the run's annotations, or the run cannot be parsed. If no
    /// placeholder or claim in the cache names the run in an owner reference, the run counts as gone.
    async fn presence(&self, key: &RunKey) -> Result<RunPresence, Error> {
        match self.cache.name_of_owner(key) {
            Some(name) => {
                let found = self.requests.run_presence(&key.namespace, &name, &key.uid);
                found.await
            }
            None => Ok(RunPresence::Gone),
        }
    }

    /// Ends the waiting calls with an error, because no run is reconciled any more.
    pub(crate) fn stop(&self) {
        self.callers().take();
    }

    fn callers(&self) -> MutexGuard<'_, Option<Callers>> {
        self.callers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn warn_of(run: &RunKey, error: &Error) {
    warn!(
        namespace = run.namespace,
        uid = run.uid,
        error = error.with_causes(),
        "failed to reconcile a run, will retry"
    );
}

#[cfg(test)]
mod tests;
