//! The data that one replica keeps about each run between reconciles. The data has four parts: how long each condition
//! ([`Sight`]) has lasted since this replica first observed it; the API server's answers about waiting pods; the placeholders
//! that the replica created and has not observed yet; and the names of the Events that the replica published.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use coscheduler_core::observed::{Answer, Observed, Sight};
use coscheduler_core::reconcile::Released;
use tokio::time::Instant;

use crate::cache::RunKey;

/// How long a created placeholder counts as existing although this replica has not observed it. The time is limited, because
/// somebody may have deleted the placeholder at once.
const UNOBSERVED: Duration = Duration::from_secs(2);

/// The memory of all runs.
#[derive(Debug, Default)]
pub(crate) struct Memory(Mutex<HashMap<RunKey, OfRun>>);

#[derive(Debug, Default)]
struct OfRun {
    since: BTreeMap<Sight, Instant>,
    answers: BTreeMap<String, Answer>,
    /// The placeholders that this replica created, by name, and when.
    created: BTreeMap<String, Instant>,
    /// The names of the Events that this replica published.
    said: HashSet<String>,
}

impl OfRun {
    fn forget_old(&mut self) {
        self.created.retain(|_, at| at.elapsed() < UNOBSERVED);
    }

    fn is_empty(&self) -> bool {
        self.since.is_empty()
            && self.answers.is_empty()
            && self.created.is_empty()
            && self.said.is_empty()
    }
}

impl Memory {
    /// Adds the memory of this run to `observed`.
    pub(crate) fn recall(&self, run: &RunKey, observed: &mut Observed) {
        let runs = self.lock();
        let Some(of_run) = runs.get(run) else { return };
        let since = of_run.since.iter();
        observed.since = since
            .map(|(sight, at)| (sight.clone(), at.elapsed()))
            .collect();
        observed.answers.clone_from(&of_run.answers);
        let created = of_run.created.iter();
        let recent = created.filter(|(_, at)| at.elapsed() < UNOBSERVED);
        observed.created = recent.map(|(name, _)| name.clone()).collect();
    }

    /// Remembers the conditions (`sights`) of this reconcile, and forgets conditions that have passed. Also forgets answers about
    /// pods that are gone or no longer wait, and created placeholders that are observed now. If the clean-up of the run is
    /// complete, forgets the run.
    pub(crate) fn keep(
        &self,
        run: &RunKey,
        observed: &Observed,
        sights: BTreeSet<Sight>,
        released: Option<Released>,
    ) {
        let mut runs = self.lock();
        let of_run = runs.entry(run.clone()).or_default();
        let now = Instant::now();
        let mut before = std::mem::take(&mut of_run.since);
        let since = sights.into_iter().map(|sight| {
            let at = before.remove(&sight).unwrap_or(now);
            (sight, at)
        });
        of_run.since = since.collect();
        let pods = observed.pods.values();
        let waiting: HashMap<_, _> = pods
            .map(|pod| (&pod.object.uid, pod.unscheduled.is_some()))
            .collect();
        // The answer that a pod belongs to another run stays valid as long as the pod exists, even if the pod no longer waits.
        of_run.answers.retain(|uid, answer| {
            let waits = waiting.get(uid);
            waits.is_some_and(|waits| *waits || !answer.own)
        });
        let placeholders = &observed.placeholders;
        of_run
            .created
            .retain(|name, _| !placeholders.contains_key(name));
        of_run.forget_old();
        if of_run.is_empty() || released == Some(Released::Done) {
            runs.remove(run);
        }
    }

    /// Remembers an answer of the API server about the pod with this uid.
    pub(crate) fn answered(&self, run: &RunKey, pod: &str, answer: Answer) {
        let mut runs = self.lock();
        let answers = &mut runs.entry(run.clone()).or_default().answers;
        answers.insert(pod.to_owned(), answer);
    }

    /// Remembers that this replica created a placeholder.
    pub(crate) fn created(&self, run: &RunKey, placeholder: String) {
        let mut runs = self.lock();
        let created = &mut runs.entry(run.clone()).or_default().created;
        created.insert(placeholder, Instant::now());
    }

    /// True if this replica has published this Event of the run.
    pub(crate) fn has_said(&self, run: &RunKey, event: &str) -> bool {
        let runs = self.lock();
        runs.get(run)
            .is_some_and(|of_run| of_run.said.contains(event))
    }

    /// Remembers that this Event of the run was published.
    pub(crate) fn said(&self, run: &RunKey, event: String) {
        self.lock()
            .entry(run.clone())
            .or_default()
            .said
            .insert(event);
    }

    /// Forgets the runs for which `is_known` is false, and those about which nothing is left to remember.
    pub(crate) fn retain(&self, is_known: impl Fn(&RunKey) -> bool) {
        self.lock().retain(|run, of_run| {
            of_run.forget_old();
            is_known(run) && !of_run.is_empty()
        });
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<RunKey, OfRun>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_run_of_which_only_a_created_placeholder_is_known_is_forgotten_after_a_while() {
        let (memory, run) = (Memory::default(), RunKey::new("ci", "u"));
        memory.created(&run, "placeholder".to_owned());
        memory.retain(|_| true);
        assert!(memory.lock().contains_key(&run));
        tokio::time::advance(UNOBSERVED).await;
        memory.retain(|_| true);
        assert!(memory.lock().is_empty());
    }
}
