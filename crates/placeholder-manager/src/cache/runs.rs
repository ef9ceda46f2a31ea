//! The part of the cache for PipelineRuns and their plans. Runs are indexed by uid, by version, and by the claims of their
//! placeholders.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use coscheduler_core::annotations::BLOCKED;
use coscheduler_core::pipeline_run::{PipelineRun, RunState};
use coscheduler_core::plan::plan;
use coscheduler_runtime::kubernetes::version::is_newer;
use coscheduler_runtime::kubernetes::watch::ObjectKey;
use tokio::sync::watch;

use super::store::Object as _;
use super::{Before, Cache, Index, KnownRun, RunKey, used};

impl Cache {
    /// Stores a run. Returns the runs to reconcile. If the run is done and cleaned up, it is among them only if it was not done
    /// in the cache before: there may be thousands of such runs.
    pub(crate) fn apply_run(&self, run: PipelineRun) -> Vec<RunKey> {
        let is_done = run.state == RunState::Done;
        let run = if is_done { run.reduced() } else { run };
        let planned = Arc::new(plan(&run));
        let run = Arc::new(run);
        let news = self.change(|index, before| {
            let known = KnownRun { run, planned };
            if index.runs.is_behind(&known) {
                return Vec::new();
            }
            let key = RunKey::of(&known.run);
            before.of(index, &key);
            let was_done = index.was_done(&known.run);
            let mut news = index.forget_run(&known.key());
            if is_done {
                index.ended.remove(&key);
            }
            index.children.learn(&known.run);
            let version = known.run.resource_version.clone();
            index.versions.insert(version, key.uid.clone());
            index.names.insert(key.uid.clone(), known.key());
            for claim in used(&known) {
                index.users.entry(claim).or_default().insert(key.clone());
            }
            let run = known.run.clone();
            index.runs.insert(known);
            news.retain(|other| *other != key);
            for replaced in &news {
                index.ended.remove(replaced);
            }
            if !(is_done && was_done && index.is_cleaned_up(&key, &run)) {
                news.push(key);
            }
            news
        });
        self.version.send_modify(|version| *version += 1);
        news
    }

    pub(crate) fn delete_run(&self, key: &ObjectKey) -> Vec<RunKey> {
        self.change(|index, before| {
            if let Some(known) = index.runs.get(key) {
                let run = RunKey::of(&known.run);
                before.of(index, &run);
                index.ended.remove(&run);
            }
            index.forget_run(key)
        })
    }

    pub(crate) fn retain_runs(&self, listed: &HashSet<ObjectKey>) -> Vec<RunKey> {
        let stale = self.read().runs.stale(listed);
        stale.iter().flat_map(|key| self.delete_run(key)).collect()
    }

    /// Stores an annotation that the manager has set or removed, and the run's new version.
    pub(crate) fn annotated(
        &self,
        run: &PipelineRun,
        key: &str,
        value: Option<String>,
        version: String,
    ) {
        self.change(|index, before| {
            index.annotate(run, key, value, version, before);
            Vec::new()
        });
    }

    /// The run with this uid, in any namespace.
    pub(crate) fn run(&self, uid: &str) -> Option<Arc<PipelineRun>> {
        let index = self.read();
        let known = index.runs.get(index.names.get(uid)?)?;
        Some(known.run.clone())
    }

    /// The run that has this `resourceVersion` in the cache. No two PipelineRuns have the same `resourceVersion`.
    pub(crate) fn run_at(&self, resource_version: &str) -> Option<Arc<PipelineRun>> {
        let uid = self.read().versions.get(resource_version).cloned();
        self.run(&uid?)
    }

    /// The name of a run, from the owner references of its placeholders and claims. These objects may still exist when the run is
    /// gone.
    pub(crate) fn name_of_owner(&self, key: &RunKey) -> Option<String> {
        let index = self.read();
        let controllers = index
            .placeholders
            .of(key)
            .map(|own| own.controller.as_ref());
        let owners = index.claims.of(key).map(|claim| claim.owner.as_ref());
        let mut owners = controllers.chain(owners).flatten();
        let owner = owners.find(|owner| owner.uid == key.uid);
        owner.map(|owner| owner.name.clone())
    }

    /// Every run that has not ended or still has annotation `coscheduler.dev/blocked`, and every run that has placeholders, pods
    /// of placeholders, or claims that are deleted after the run. Each child run is replaced by its top run (module
    /// `children`).
    pub(crate) fn runs_to_sweep(&self) -> BTreeSet<RunKey> {
        let index = self.read();
        let runs = index.runs.all().values();
        let unfinished = runs.filter(|known| {
            let run = &known.run;
            run.state != RunState::Done || run.annotations.contains_key(BLOCKED)
        });
        let unfinished = unfinished.map(|known| RunKey::of(&known.run));
        let claims = index.claims.runs();
        let claims = claims.filter(|run| !index.claims_of(run).is_empty());
        let pods = index.placeholder_pods.keys();
        let with_objects = index.placeholders.runs().chain(pods).chain(claims);
        unfinished
            .chain(with_objects.cloned())
            .map(|run| index.children.top(&run))
            .collect()
    }

    /// A number that grows each time the watch delivers a run.
    pub(crate) fn version(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }
}

impl Index {
    /// True if the index contains the run as done, or does not contain the run.
    fn was_done(&self, run: &PipelineRun) -> bool {
        let known = self.names.get(&run.uid);
        let known = known.and_then(|name| self.runs.get(name));
        known.is_none_or(|known| known.run.state == RunState::Done)
    }

    /// True if a run that is done has neither objects nor annotation `coscheduler.dev/blocked`.
    fn is_cleaned_up(&self, key: &RunKey, run: &PipelineRun) -> bool {
        self.placeholders.is_empty(key)
            && self.pods.is_empty(key)
            && self.claims_of(key).is_empty()
            && !run.annotations.contains_key(BLOCKED)
    }

    fn annotate(
        &mut self,
        run: &PipelineRun,
        key: &str,
        value: Option<String>,
        version: String,
        before: &mut Before,
    ) {
        let name = (run.namespace.clone(), run.name.clone());
        let Some(known) = self.runs.get(&name).filter(|known| {
            known.run.uid == run.uid && is_newer(&version, &known.run.resource_version)
        }) else {
            return;
        };
        let mut annotated = (*known.run).clone();
        let old = std::mem::replace(&mut annotated.resource_version, version.clone());
        match value {
            Some(value) => annotated.annotations.insert(key.to_owned(), value),
            None => annotated.annotations.remove(key),
        };
        let known = KnownRun {
            run: Arc::new(annotated),
            planned: known.planned.clone(),
        };
        before.of(self, &RunKey::of(run));
        self.versions.remove(&old);
        self.versions.insert(version, run.uid.clone());
        self.runs.insert(known);
    }
}
