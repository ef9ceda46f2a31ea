//! The sweep queues every run that has not ended, has objects to delete, or still has annotation `coscheduler.dev/blocked`. The
//! sweep runs when this replica begins to lead, and then once a minute. So the manager finds leftovers of ended runs even if it
//! missed a change (N6). The sweep itself reads only the cache.

use std::time::Duration;

use coscheduler_runtime::queue::Queue;
use tokio::time::MissedTickBehavior;

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
