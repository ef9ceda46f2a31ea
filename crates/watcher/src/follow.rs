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

/// How often a run that is not done is reported without a change. The manager mends foreign changes within a minute (N6),
/// of which the report may take half.
const REPEAT: Duration = Duration::from_secs(30);

/// The last state of each PipelineRun. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Runs(Arc<Mutex<HashMap<ObjectKey, Arc<PipelineRun>>>>);

impl Runs {
    pub(crate) fn get(&self, key: &ObjectKey) -> Option<Arc<PipelineRun>> {
        self.lock().get(key).cloned()
    }

    fn all(&self) -> Vec<(ObjectKey, Arc<PipelineRun>)> {
        let runs = self.lock();
        runs.iter()
            .map(|(key, run)| (key.clone(), run.clone()))
            .collect()
    }

    /// Takes a change in, and returns the key of the run that it asks to report. A deleted run needs no report: the
    /// garbage collector deletes what it owned.
    fn take(&self, change: Change<PipelineRun>) -> Option<ObjectKey> {
        match change {
            Change::Applied(mut run) => {
                pipeline_run::trim(&mut run);
                let key = watch::key(&run);
                self.lock().insert(key.clone(), Arc::new(run));
                Some(key)
            }
            Change::Deleted(run) => {
                self.lock().remove(&watch::key(&run));
                None
            }
            Change::Listed(keys) => {
                self.lock().retain(|key, _| keys.contains(key));
                None
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ObjectKey, Arc<PipelineRun>>> {
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
    let api: Api<PipelineRun> = Api::all(client);
    let config = watcher::Config::default();
    watch::follow("PipelineRun", api, config, synced, |change| {
        // A replica that begins to lead after this line finds the change in `runs`.
        let changed = runs.take(change);
        if let Some(key) = changed
            && leadership.is_held()
        {
            queue.push(key);
        }
    })
    .await
}

/// Queues every run once, since the previous leader may have missed its last change, and then every unfinished run
/// every [`REPEAT`].
pub(crate) async fn repeat(runs: &Runs, queue: &Queue<ObjectKey>) {
    for (key, _) in runs.all() {
        queue.push(key);
    }
    let mut rounds = tokio::time::interval_at(Instant::now() + REPEAT, REPEAT);
    rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        rounds.tick().await;
        for (key, run) in runs.all() {
            if pipeline_run::view(&run).is_ok_and(|view| view.state != RunState::Done) {
                queue.push(key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn run(name: &str) -> PipelineRun {
        let mut run = PipelineRun::default();
        run.metadata.namespace = Some("ci".to_owned());
        run.metadata.name = Some(name.to_owned());
        run
    }

    fn key(name: &str) -> ObjectKey {
        ("ci".to_owned(), name.to_owned())
    }

    #[test]
    fn runs_are_kept_until_they_are_gone() {
        let runs = Runs::default();
        for name in ["a", "b", "c"] {
            assert_eq!(runs.take(Change::Applied(run(name))), Some(key(name)));
        }
        assert_eq!(runs.take(Change::Deleted(run("a"))), None);
        assert_eq!(runs.take(Change::Listed(HashSet::from([key("c")]))), None);
        let kept: Vec<_> = runs.all().into_iter().map(|(key, _)| key).collect();
        assert_eq!(kept, [key("c")]);
        assert!(runs.get(&key("b")).is_none() && runs.get(&key("c")).is_some());
    }
}
