//! The sweep: every run that is active or has objects is looked at again, at the beginning and then once a minute. So the
//! leftovers of runs that are done or gone are found whoever missed what, whatever mode or version made them (N6). All of it is in
//! the cache: a sweep that finds nothing asks the API server for nothing.
//!
//! What it found is logged once it is gone, one line a run.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use coscheduler_core::observed::Observed;
use coscheduler_core::teardown::RunPresence;
use coscheduler_runtime::queue::Queue;
use tokio::time::MissedTickBehavior;
use tracing::info;

use crate::cache::{Cache, RunKey};

const PERIOD: Duration = Duration::from_secs(60);

/// Pushes every run that may need anything into the queue, again and again.
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

/// Whether a run is over, as far as the cache knows, and nobody has begun to clean up after it.
fn is_left_over(observed: &Observed) -> bool {
    let mut placeholders = observed.placeholders.values();
    let mut claims = observed.claims.iter();
    observed.presence != RunPresence::Active
        && placeholders.all(|own| !own.object.deleting)
        && claims.all(|claim| !claim.deleting)
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
    fn found(&self, key: &RunKey, cache: &Cache, observed: &Observed) {
        let known = observed.run.as_ref().map(|(run, _)| run.name.clone());
        let name = known.or_else(|| cache.name_of_owner(key));
        let swept = Swept {
            pipeline_run: name.unwrap_or_default(),
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
