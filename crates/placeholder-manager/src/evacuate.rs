//! Carries out evacuations (N1): a placeholder whose node turns pods away is deleted, so that its StatefulSet makes it anew
//! and the scheduler finds another node; pods of the run that wait on that node without having started follow.
//!
//! The rule is `core`'s, and about state: a run is looked at again at every change of its pods and of the nodes they are bound
//! to. The first move is made at once; the next ones of the same placeholder wait longer and longer, so that nodes that come
//! and go do not make it dance.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use tokio::time::Instant;
use tracing::{info, warn};

use coscheduler_core::evacuate::{Eviction, Role, evict};
use coscheduler_core::pipeline_run::{PipelineRun, RunState};
use coscheduler_core::plan::{Reason, ReasonCode};
use coscheduler_kubernetes::{events, pods};
use coscheduler_runtime::queue::Outcome;

use crate::SERVICE;
use crate::cache::{Cache, Run, RunKey};
use crate::error::Error;
use crate::objects::Objects;

/// Between the first two moves of a placeholder; between any later two it is twice as long.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest time between two moves.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// The evacuation of nodes.
pub(crate) struct Evacuation {
    cache: Arc<Cache>,
    objects: Objects,
    /// Of runs that are under way.
    remembered: Mutex<HashMap<RunKey, Remembered>>,
}

/// What is remembered of a run.
#[derive(Debug, Default)]
struct Remembered {
    /// By the placeholder's name.
    moves: HashMap<String, Moves>,
    /// The uids of the pods whose leaving its author was told of.
    told: HashSet<String>,
}

/// How often a placeholder was moved, and when last.
#[derive(Clone, Copy, Debug)]
struct Moves {
    made: u32,
    last: Instant,
}

impl Evacuation {
    /// Evacuates what `cache` knows, through `objects`.
    pub(crate) fn new(cache: Arc<Cache>, objects: Objects) -> Self {
        Self {
            cache,
            objects,
            remembered: Mutex::default(),
        }
    }

    /// Looks where the pods of a run are, as work from the queue.
    pub(crate) async fn work(&self, key: RunKey) -> Outcome {
        let active = self.cache.get(&key).and_then(|run| {
            let itself = run.itself()?;
            let active = !itself.deletion && itself.state != RunState::Done;
            active.then_some((itself, run))
        });
        let Some((itself, run)) = active else {
            // Clean-up sees to its pods.
            self.forget(&key);
            return Outcome::Done;
        };
        match self.evacuate(&key, &itself, &run).await {
            Ok(outcome) => outcome,
            Err(error) => {
                warn!(
                    namespace = key.namespace,
                    pipeline_run = itself.name,
                    error = format!("{:#}", anyhow::Error::from(error)),
                    "failed to evacuate a run, will try again"
                );
                Outcome::Retry
            }
        }
    }

    async fn evacuate(
        &self,
        key: &RunKey,
        itself: &PipelineRun,
        run: &Run,
    ) -> Result<Outcome, Error> {
        let mut outcome = Outcome::Done;
        for pod in run.pods.values() {
            let Some((node, bound)) = pods::bound(pod) else {
                continue;
            };
            if !belongs(run, pod, bound.role) {
                continue;
            }
            let known = self.cache.node(node);
            let Some(eviction) = evict(&bound, known.as_ref()) else {
                continue;
            };
            let name = pod.name_any();
            // It ends: it was told so a moment ago, or by Kubernetes itself, which was faster.
            if pod.metadata.deletion_timestamp.is_some() && !eviction.at_once {
                self.tell(key, itself, pod, node, &eviction).await?;
                continue;
            }
            // The watch of nodes may be behind that of pods.
            if known.is_none() && self.objects.node_exists(node).await? {
                outcome = Outcome::Retry;
                continue;
            }
            if bound.role == Role::Placeholder && !self.may_move(key, &name) {
                outcome = Outcome::Retry;
                continue;
            }
            let evicted = self
                .objects
                .evict(&itself.namespace, pod, eviction.at_once)
                .await?;
            if evicted && bound.role == Role::Placeholder {
                self.moved(key, &name);
            }
            // If it has changed since, Kubernetes has deleted it, or it is evicted at the next look: it leaves all the same.
            self.tell(key, itself, pod, node, &eviction).await?;
        }
        Ok(outcome)
    }

    /// Tells the run's author that a pod leaves its node, once.
    async fn tell(
        &self,
        key: &RunKey,
        run: &PipelineRun,
        pod: &Pod,
        node: &str,
        eviction: &Eviction,
    ) -> Result<(), Error> {
        let uid = pod.uid().unwrap_or_default();
        let is_told = |known: &Remembered| known.told.contains(&uid);
        if self.remembered().get(key).is_some_and(is_told) {
            return Ok(());
        }
        let Eviction { cause, at_once } = eviction;
        let name = pod.name_any();
        info!(
            namespace = run.namespace,
            pipeline_run = run.name,
            pod = name,
            node,
            %cause,
            at_once,
            "a pod is evacuated"
        );
        let message = format!("pod {name} has left node {node}: {cause}");
        let reason = Reason::new(ReasonCode::PodEvacuated, message);
        if let Some(event) = events::of_run(run, &reason, SERVICE.name, Timestamp::now()) {
            self.objects.create_event(&run.namespace, &event).await?;
        }
        self.remembered()
            .entry(key.clone())
            .or_default()
            .told
            .insert(uid);
        Ok(())
    }

    /// Whether a placeholder may be moved now.
    fn may_move(&self, key: &RunKey, placeholder: &str) -> bool {
        let remembered = self.remembered();
        let before = remembered
            .get(key)
            .and_then(|of_run| of_run.moves.get(placeholder));
        before.is_none_or(|before| Instant::now() >= before.last + pause(before.made))
    }

    /// Counts a move.
    fn moved(&self, key: &RunKey, placeholder: &str) {
        let mut remembered = self.remembered();
        let of_run = &mut remembered.entry(key.clone()).or_default().moves;
        let made = of_run.get(placeholder).map_or(0, |before| before.made);
        let moves = Moves {
            made: made.saturating_add(1),
            last: Instant::now(),
        };
        of_run.insert(placeholder.to_owned(), moves);
    }

    fn forget(&self, key: &RunKey) {
        self.remembered().remove(key);
    }

    fn remembered(&self) -> MutexGuard<'_, HashMap<RunKey, Remembered>> {
        self.remembered
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// How long a placeholder stays after that many moves, at least.
pub(crate) fn pause(moves: u32) -> Duration {
    let doubled = 2_u32.saturating_pow(moves.saturating_sub(1));
    FIRST_PAUSE.saturating_mul(doubled).min(LONGEST_PAUSE)
}

/// Whether a pod with the run's label is the run's indeed, and this product's business: a label is anybody's to write.
pub(crate) fn belongs(run: &Run, pod: &Pod, role: Role) -> bool {
    let owners = pod.metadata.owner_references.iter().flatten();
    let mut controllers = owners.filter(|owner| owner.controller == Some(true));
    let sets = || run.stateful_sets.values();
    match role {
        Role::Placeholder => {
            controllers.any(|owner| sets().any(|set| set.metadata.uid.as_ref() == Some(&owner.uid)))
        }
        Role::NeverStarted | Role::Started => {
            let follows = pods::follows(pod);
            controllers.any(|owner| owner.kind == "TaskRun")
                && run
                    .stateful_sets
                    .keys()
                    .any(|set| follows.contains(&set.as_str()))
        }
    }
}

#[cfg(test)]
mod tests;
