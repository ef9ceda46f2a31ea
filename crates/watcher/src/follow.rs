//! Follows PipelineRuns: keeps the last state of each, and queues its key while this replica leads.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kube::runtime::watcher;
use kube::{Api, Client};
use tokio::time::{Instant, MissedTickBehavior};

use coscheduler_core::pipeline_run::RunState;
use coscheduler_kubernetes::pipeline_run::{self, PipelineRun};
use coscheduler_runtime::Condition;
use coscheduler_runtime::kubernetes::watch::{self, Change, ObjectKey};
use coscheduler_runtime::lease::Leadership;
use coscheduler_runtime::queue::Queue;

/// How often a run that is not done is reported without a change. The manager mends foreign changes within a minute
/// (N6), of which the report may take half.
const REPEAT: Duration = Duration::from_secs(30);

/// The last state of each PipelineRun. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Runs(Arc<Mutex<HashMap<ObjectKey, Arc<PipelineRun>>>>);

impl Runs {
    pub(crate) fn lock(&self) -> MutexGuard<'_, HashMap<ObjectKey, Arc<PipelineRun>>> {
        // No panic can leave the map half-changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Feeds `runs` for the life of the process, and `queue` while this replica leads: on other replicas no worker empties
/// it.
pub(crate) async fn follow(
    client: Client,
    runs: Runs,
    queue: Queue<ObjectKey>,
    leadership: Leadership,
    synced: Condition,
) -> anyhow::Result<()> {
    let (api, config) = (Api::all(client), watcher::Config::default());
    watch::follow("PipelineRun", api, config, synced, |change| match change {
        Change::Applied(mut run) => {
            pipeline_run::trim(&mut run);
            let key = watch::key(&run);
            runs.lock().insert(key.clone(), Arc::new(run));
            // A replica that begins to lead after this line finds the change in `runs`.
            if leadership.is_held() {
                queue.push(key);
            }
        }
        // The garbage collector deletes what the run owned.
        Change::Deleted(run) => drop(runs.lock().remove(&watch::key(&run))),
        Change::Listed(keys) => runs.lock().retain(|key, _| keys.contains(key)),
    })
    .await
}

/// Queues every run once, since the previous leader may have missed its last change, and then every unfinished run
/// every [`REPEAT`].
pub(crate) async fn repeat(runs: &Runs, queue: &Queue<ObjectKey>) {
    let every = runs.lock().clone();
    every.into_keys().for_each(|key| queue.push(key));
    let mut rounds = tokio::time::interval_at(Instant::now() + REPEAT, REPEAT);
    rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        rounds.tick().await;
        let every = runs.lock().clone();
        for (key, run) in every {
            if pipeline_run::view(&run).is_ok_and(|view| view.state != RunState::Done) {
                queue.push(key);
            }
        }
    }
}
