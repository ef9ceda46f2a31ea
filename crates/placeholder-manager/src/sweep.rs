//! The sweep: every run that placeholders or claims exist for is looked at again, at the beginning and then once a minute.
//! What belongs to runs that are done or gone is found whoever missed what, whatever mode or version made it (N6). All of it is
//! in the cache, so that a sweep that finds nothing asks the API server for nothing.
//!
//! What it found is said once it is gone, one line a run.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use coscheduler_core::pipeline_run::RunState;
use tokio::time::MissedTickBehavior;
use tracing::info;

use crate::cache::{Cache, Run, RunKey};
use crate::follow::Queues;

const PERIOD: Duration = Duration::from_secs(60);

/// Pushes every run that may have leftovers or pods on a bad node, and every run whose author may have to be told something,
/// into the queues, again and again.
pub(crate) async fn sweep(cache: &Cache, queues: &Queues, findings: &Findings) {
    let mut rounds = tokio::time::interval(PERIOD);
    rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        rounds.tick().await;
        for run in cache.with_objects() {
            if let Some(known) = cache.get(&run).filter(is_left_over) {
                findings.found(&run, &known);
            }
            queues.clean_up.push(run.clone());
            queues.evacuation.push(run.clone());
            queues.rescue.push(run);
        }
        for run in cache.runs() {
            queues.notices.push(run);
        }
    }
}

/// Whether a run is over, as far as the cache knows, and nobody has begun to clean up after it.
fn is_left_over(run: &Run) -> bool {
    let over = run
        .itself()
        .is_none_or(|itself| itself.deletion || itself.state == RunState::Done);
    let sets = run.stateful_sets.values().map(|set| &set.metadata);
    let claims = run.claims.values().map(|claim| &claim.metadata);
    let mut objects = sets.chain(claims);
    over && objects.all(|metadata| metadata.deletion_timestamp.is_none())
}

/// What the sweep has found of runs that are over.
#[derive(Debug, Default)]
pub(crate) struct Findings(Mutex<HashMap<RunKey, Swept>>);

/// What has been deleted of what was found of a run.
#[derive(Debug)]
struct Swept {
    pipeline_run: String,
    /// Names by kind.
    deleted: BTreeMap<&'static str, Vec<String>>,
}

impl Findings {
    fn found(&self, key: &RunKey, run: &Run) {
        let itself = run.itself().map(|itself| itself.name.clone());
        let owner = || run.owners(&key.uid).next().map(|owner| owner.name.clone());
        let swept = Swept {
            pipeline_run: itself.or_else(owner).unwrap_or_default(),
            deleted: BTreeMap::new(),
        };
        self.lock().entry(key.clone()).or_insert(swept);
    }

    /// Takes in that an object of a run was deleted; no news unless the sweep has found it.
    pub(crate) fn deleted(&self, key: &RunKey, kind: &'static str, name: &str) {
        if let Some(swept) = self.lock().get_mut(key) {
            swept.deleted.entry(kind).or_default().push(name.to_owned());
        }
    }

    /// Takes in that there is nothing to be done any more about a run, and says what was.
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
                "swept what a run that is over had left"
            );
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<RunKey, Swept>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
