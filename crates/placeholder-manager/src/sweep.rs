//! The sweep: every run that placeholders or claims exist for is looked at again, at the beginning and then once a minute.
//! What belongs to runs that are done or gone is found whoever missed what (N6). All of it is in the cache, so that a sweep
//! that finds nothing asks the API server for nothing.

use std::time::Duration;

use tokio::time::MissedTickBehavior;

use crate::cache::Cache;
use crate::follow::Queues;

const PERIOD: Duration = Duration::from_secs(60);

/// Pushes every run that may have leftovers or pods on a bad node, and every run whose author may have to be told something, into the queues,
/// again and again.
pub(crate) async fn sweep(cache: &Cache, queues: &Queues) {
    let mut rounds = tokio::time::interval(PERIOD);
    rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        rounds.tick().await;
        for run in cache.with_objects() {
            queues.clean_up.push(run.clone());
            queues.evacuation.push(run.clone());
            queues.rescue.push(run);
        }
        for run in cache.runs() {
            queues.notices.push(run);
        }
    }
}
