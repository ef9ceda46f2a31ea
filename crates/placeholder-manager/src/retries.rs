//! Has placeholders tried again that could not be created (N3). The controller of StatefulSets waits longer and longer between
//! its tries, up to a quarter of an hour (Kubernetes 1.35, `pkg/controller/statefulset/stateful_set.go`, with client-go's
//! default rate limiter); a change of the StatefulSet makes it try at once.
//!
//! A rule about state, like evacuation: a placeholder whose StatefulSet has no pod is tried again, whether or not anybody has
//! complained. In an ordinary run the pod is there before the first try is due.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBackoff, ExponentialBuilder};
use k8s_openapi::api::apps::v1::StatefulSet;
use tokio::time::Instant;
use tracing::{debug, warn};

use coscheduler_core::plan::plan;
use coscheduler_runtime::queue::Outcome;

use crate::cache::{Cache, Run, RunKey};
use crate::error::Error;
use crate::objects::Objects;

/// Before the first try.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Between two tries at most, before jitter, which is up to as long again: nobody waits for more than 30 seconds.
const LONGEST_PAUSE: Duration = Duration::from_secs(15);

/// The further tries.
pub(crate) struct Retries {
    cache: Arc<Cache>,
    objects: Objects,
    /// When the StatefulSets without a pod of a run are due, by name.
    due: Mutex<HashMap<RunKey, HashMap<String, Tries>>>,
}

/// When a StatefulSet is tried again, and how it goes on from there.
struct Tries {
    at: Instant,
    pauses: ExponentialBackoff,
}

impl Tries {
    fn new() -> Self {
        let pauses = ExponentialBuilder::default()
            .with_min_delay(FIRST_PAUSE)
            .with_max_delay(LONGEST_PAUSE)
            .with_jitter()
            .without_max_times();
        let mut tries = Self {
            at: Instant::now(),
            pauses: pauses.build(),
        };
        tries.pause();
        tries
    }

    fn pause(&mut self) {
        self.at = Instant::now() + self.pauses.next().unwrap_or(LONGEST_PAUSE);
    }
}

impl Retries {
    /// Tries again what `cache` knows, through `objects`.
    pub(crate) fn new(cache: Arc<Cache>, objects: Objects) -> Self {
        Self {
            cache,
            objects,
            due: Mutex::default(),
        }
    }

    /// Looks which of a run's placeholders have no pod, as work from the queue.
    pub(crate) async fn work(&self, key: RunKey) -> Outcome {
        let refused = self.cache.get(&key).map(without_pod).unwrap_or_default();
        let (due, next) = self.schedule(&key, &refused);
        for set in due {
            match self.objects.nudge(&key.namespace, set).await {
                Ok(()) => debug!(
                    namespace = key.namespace,
                    placeholder = set.metadata.name,
                    "had a placeholder tried again"
                ),
                Err(error) => self.log(&key, error),
            }
        }
        next.map_or(Outcome::Done, |next| {
            Outcome::Later(next.saturating_duration_since(Instant::now()))
        })
    }

    /// Those that are due now, and when the next one is.
    fn schedule<'a>(
        &self,
        key: &RunKey,
        refused: &'a [Arc<StatefulSet>],
    ) -> (Vec<&'a StatefulSet>, Option<Instant>) {
        let mut of_runs = self.due();
        if refused.is_empty() {
            of_runs.remove(key);
            return (Vec::new(), None);
        }
        let of_run = of_runs.entry(key.clone()).or_default();
        let mut before = std::mem::take(of_run);
        let mut due = Vec::new();
        for set in refused {
            let name = set.metadata.name.clone().unwrap_or_default();
            let mut tries = before.remove(&name).unwrap_or_else(Tries::new);
            if tries.at <= Instant::now() {
                tries.pause();
                due.push(&**set);
            }
            of_run.insert(name, tries);
        }
        (due, of_run.values().map(|tries| tries.at).min())
    }

    fn log(&self, key: &RunKey, error: Error) {
        warn!(
            namespace = key.namespace,
            error = format!("{:#}", anyhow::Error::from(error)),
            "failed to have a placeholder tried again"
        );
    }

    fn due(&self) -> MutexGuard<'_, HashMap<RunKey, HashMap<String, Tries>>> {
        self.due.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The StatefulSets of an active run's placeholders that have no pod.
fn without_pod(run: Run) -> Vec<Arc<StatefulSet>> {
    let itself = run.itself().filter(|itself| !itself.deletion);
    let plan = itself.and_then(|itself| plan(&itself).ok());
    let specs = plan.iter().flat_map(|plan| plan.action.placeholders());
    specs
        .filter(|spec| run.placeholder_pod(spec.name.as_str()).is_none())
        .filter_map(|spec| run.stateful_sets.get(spec.name.as_str()).cloned())
        .filter(|set| set.metadata.deletion_timestamp.is_none())
        .collect()
}

#[cfg(test)]
mod tests;
