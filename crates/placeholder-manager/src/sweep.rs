//! The sweep queues every run that has not ended, has objects to delete, or still has annotation `coscheduler.dev/blocked`. The
//! sweep runs when this replica begins to lead, and then once a minute. So the manager finds leftovers of ended runs even if it
//! missed a change (N6). The sweep itself reads only the cache.
//!
//! If the sweep finds leftovers of an ended run, it logs this. Then each deleted object gets a line with the run's uid too.

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
pub(crate) async fn sweep(cache: &Cache, queue: &Queue<RunKey>) {
    let mut rounds = tokio::time::interval(PERIOD);
    rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        rounds.tick().await;
        for run in cache.runs_to_sweep() {
            let observed = cache.observe(&run);
            if is_left_over(&observed) {
                let known = observed.run.as_ref().map(|(run, _)| run.name.clone());
                let pipeline_run = known.or_else(|| cache.name_of_owner(&run));
                info!(
                    namespace = run.namespace,
                    uid = run.uid,
                    pipeline_run,
                    placeholders = observed.placeholders.len(),
                    claims = observed.claims.len(),
                    "found objects of an ended run"
                );
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
