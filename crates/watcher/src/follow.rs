//! Follows PipelineRuns. The leader keeps the last state of each run until the run is done and its end is reported. The other
//! replicas keep the state until the run is done. If a change may change the plan of a run, the leader also puts the run's key
//! into a queue.
//!
//! Runs that were done before this process saw them are not reported: the placeholder-manager finds their leftovers by itself. So
//! neither a start of the process nor a change of the leader causes reports about old runs.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kube::runtime::watcher;
use kube::{Api, Client};
use tokio::time::MissedTickBehavior;

use coscheduler_kubernetes::kept::Kept;
use coscheduler_kubernetes::pipeline_run::{PipelineRun, has_same_plan, is_done};
use coscheduler_runtime::Condition;
use coscheduler_runtime::kubernetes::watch::{self, Change, ObjectKey};
use coscheduler_runtime::lease::Leadership;
use coscheduler_runtime::queue::Queue;

/// The time after which an unfinished run is reported again although it has not changed. The manager must repair changes by other
/// programs within a minute (N6), so the report is repeated every half minute.
const REPEAT: Duration = Duration::from_secs(30);

/// The last state of each PipelineRun that is not done. On the leader, also of each one that is done but not yet reported.
/// Clones share the same map.
#[derive(Clone, Debug, Default)]
pub(crate) struct Runs(Arc<Mutex<HashMap<ObjectKey, Arc<PipelineRun>>>>);

impl Runs {
    pub(crate) fn lock(&self) -> MutexGuard<'_, HashMap<ObjectKey, Arc<PipelineRun>>> {
        // If another thread panicked while it held the lock, the map is still usable: no change leaves it half-written.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores the state of a run. Returns false if there is nothing to report. There are three possible causes: the run was
    /// done before this process saw it, this process has removed the run after its end, or the run's plan has not changed.
    fn keep(&self, key: &ObjectKey, run: PipelineRun) -> bool {
        let mut runs = self.lock();
        let before = runs.get(key);
        let changed = match before {
            Some(before) => !has_same_plan(before, &run),
            None => !is_done(&run),
        };
        // A later change of a done run must not replace the state in its report, because `forget` removes only this state.
        if changed || !is_done(&run) {
            runs.insert(key.clone(), Arc::new(run));
        }
        changed
    }

    /// True if the stored state of a run is still `run`.
    pub(crate) fn has(&self, key: &ObjectKey, run: &Arc<PipelineRun>) -> bool {
        let runs = self.lock();
        runs.get(key).is_some_and(|known| Arc::ptr_eq(known, run))
    }

    /// Removes a run if its stored state is still `run`. A newer state stays.
    pub(crate) fn forget(&self, key: &ObjectKey, run: &Arc<PipelineRun>) {
        let mut runs = self.lock();
        if runs.get(key).is_some_and(|known| Arc::ptr_eq(known, run)) {
            runs.remove(key);
        }
    }

    /// Removes the run if it is done.
    fn forget_done(&self, key: &ObjectKey) {
        let mut runs = self.lock();
        if runs.get(key).is_some_and(|known| is_done(known)) {
            runs.remove(key);
        }
    }

    /// The keys of the runs that are not done.
    fn unfinished(&self) -> Vec<ObjectKey> {
        let runs = self.lock();
        let unfinished = runs.iter().filter(|(_, run)| !is_done(run));
        unfinished.map(|(key, _)| key.clone()).collect()
    }
}

/// Writes every change into `runs` for the life of the process. Changes go into `queue` only while this replica is the leader,
/// because on other replicas no worker empties the queue.
pub(crate) async fn follow(
    client: Client,
    runs: Runs,
    queue: Queue<ObjectKey>,
    leadership: Leadership,
    synced: Condition,
) -> anyhow::Result<()> {
    let api = Api::<Kept<PipelineRun>>::all(client);
    let config = watcher::Config::default();
    watch::follow("PipelineRun", api, config, synced, |change| match change {
        Change::Applied(run) => {
            let key = watch::key(&run);
            if !runs.keep(&key, run.part) {
                return;
            }
            // A replica that becomes the leader queues all unfinished runs in `runs`. The manager finds the leftovers of done
            // runs by itself.
            if leadership.is_held() {
                queue.push(key);
            } else {
                runs.forget_done(&key);
            }
        }
        // A deleted run needs no report: the placeholder-manager and the garbage collector delete its objects.
        Change::Deleted(run) => drop(runs.lock().remove(&watch::key(&run))),
        Change::Listed(keys) => runs.lock().retain(|key, _| keys.contains(key)),
    })
    .await
}

/// Queues every unfinished run: now, because the previous leader may have missed a run's last change, and then after each
/// [`REPEAT`].
pub(crate) async fn repeat(runs: &Runs, queue: &Queue<ObjectKey>) {
    let mut rounds = tokio::time::interval(REPEAT);
    rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        rounds.tick().await;
        let unfinished = runs.unfinished().into_iter();
        unfinished.for_each(|key| queue.push(key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn n8_a_run_that_is_done_is_kept_until_its_end_is_reported() {
        let runs = Runs::default();
        let key = |name: &str| ("ci".to_owned(), name.to_owned());
        let state = |status: &str| -> PipelineRun {
            let conditions = json!([{"type": "Succeeded", "status": status}]);
            let run = json!({"metadata": {}, "status": {"conditions": conditions}});
            serde_json::from_value(run).unwrap()
        };
        // This run was done before this process saw it.
        assert!(!runs.keep(&key("old"), state("True")));
        assert!(runs.keep(&key("new"), state("Unknown")));
        // This state has the same plan, so it is not reported.
        assert!(!runs.keep(&key("new"), state("Unknown")));
        assert_eq!(runs.unfinished(), [key("new")]);
        runs.forget_done(&key("new"));
        let active = runs.lock()[&key("new")].clone();
        assert!(runs.keep(&key("new"), state("False")));
        assert!(runs.unfinished().is_empty());
        // The report of the run's earlier state ends late.
        runs.forget(&key("new"), &active);
        let done = runs.lock()[&key("new")].clone();
        // The run changes once more while its end is reported.
        assert!(!runs.keep(&key("new"), state("False")));
        runs.forget(&key("new"), &done);
        assert!(runs.lock().is_empty());
        // A replica that does not lead does not report the end of a run.
        assert!(runs.keep(&key("other"), state("Unknown")));
        assert!(runs.keep(&key("other"), state("True")));
        runs.forget_done(&key("other"));
        assert!(runs.lock().is_empty());
    }
}
