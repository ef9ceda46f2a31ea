//! The sweep queues every run that has not ended, has objects to delete, or still has annotation `coscheduler.dev/blocked`. The
//! sweep runs when this replica begins to lead, and then once a minute. So the manager finds leftovers of ended runs even if it
//! missed a change (N6). The sweep itself reads only the cache.
//!
//! If the sweep found leftovers of an ended run, the manager logs the deleted objects when the clean-up is complete. There is one
//! line for each kind of object.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use coscheduler_core::observed::Observed;
use coscheduler_core::observed::RunPresence;
use coscheduler_runtime::queue::Queue;
use tokio::time::MissedTickBehavior;
use tracing::info;

use crate::cache::{Cache, RunKey};
use crate::memory::Memory;

const PERIOD: Duration = Duration::from_secs(60);

/// Queues the runs that [`Cache::runs_to_sweep`] returns: now, and then once a minute.
pub(crate) async fn sweep(cache: &Cache, queue: &Queue<RunKey>, findings: &Findings) {
    let mut rounds = tokio::time::interval(PERIOD);
    rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        rounds.tick().await;
        for run in cache.runs_to_sweep() {
            let observed = cache.observe(&run);
            if is_left_over(&observed) {
                findings.found(&run, cache, &observed);
            }
            queue.push(run);
        }
    }
}

/// Once a minute, removes from `memory` the data of runs that the cache does not contain. Every replica does this, not only the
/// leader.
pub(crate) async fn forget(cache: &Cache, memory: &Memory) {
    let mut rounds = tokio::time::interval(PERIOD);
    loop {
        rounds.tick().await;
        memory.retain(|run| cache.run(&run.uid).is_some());
    }
}

/// True if, according to the cache, the run has ended or is gone, and none of its placeholders and claims is being deleted.
fn is_left_over(observed: &Observed) -> bool {
    let mut placeholders = observed.placeholders.values();
    let mut claims = observed.claims.iter();
    observed.presence != RunPresence::Active
        && placeholders.all(|own| !own.object.deleting)
        && claims.all(|claim| !claim.object.deleting)
}

/// The runs with leftovers that the sweep has found and that are not cleaned up yet.
#[derive(Debug, Default)]
pub(crate) struct Findings(Mutex<HashMap<RunKey, Swept>>);

/// The objects of a run that the manager has deleted since the sweep found the run.
#[derive(Debug)]
struct Swept {
    /// The run's name, or empty if it is unknown.
    pipeline_run: String,
    /// The objects' names, by kind.
    deleted: BTreeMap<&'static str, Vec<String>>,
}

impl Findings {
    fn found(&self, key: &RunKey, cache: &Cache, observed: &Observed) {
        let known = observed.run.as_ref().map(|(run, _)| run.name.clone());
        let name = known.or_else(|| cache.name_of_owner(key));
        let swept = Swept {
            pipeline_run: name.unwrap_or_default(),
            deleted: BTreeMap::new(),
        };
        self.lock().entry(key.clone()).or_insert(swept);
    }

    /// Notes that an object of a run was deleted, if the sweep had found leftovers of this run.
    pub(crate) fn deleted(&self, key: &RunKey, kind: &'static str, name: &str) {
        if let Some(swept) = self.lock().get_mut(key) {
            swept.deleted.entry(kind).or_default().push(name.to_owned());
        }
    }

    /// Logs the deleted objects of a run that the sweep has found. Called when the run's clean-up is complete, or when the run
    /// turns out to be active.
    pub(crate) fn settle(&self, key: &RunKey) {
        let Some(swept) = self.lock().remove(key) else {
            return;
        };
        let Swept {
            pipeline_run,
            deleted,
        } = swept;
        for (kind, names) in deleted {
            info!(
                namespace = key.namespace,
                pipeline_run,
                uid = key.uid,
                kind,
                names = names.join(", "),
                count = names.len(),
                "deleted leftovers of an ended run"
            );
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<RunKey, Swept>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
