//! PipelineRuns: each with its plan, by uid, by version and by the claims that its placeholders stand for.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use coscheduler_core::pipeline_run::{PipelineRun, RunState};
use coscheduler_core::plan::plan;
use coscheduler_core::version::is_newer;
use coscheduler_runtime::kubernetes::watch::ObjectKey;
use tokio::sync::watch;

use super::store::Object as _;
use super::{Cache, KnownRun, RunKey, used};

impl Cache {
    pub(crate) fn apply_run(&self, run: PipelineRun) -> Vec<RunKey> {
        let planned = Arc::new(plan(&run));
        let run = Arc::new(run);
        let news = self.change(|index, before| {
            let known = KnownRun { run, planned };
            if index.runs.is_behind(&known) {
                return Vec::new();
            }
            let key = RunKey::of(&known.run);
            before.of(index, &key);
            let mut news = index.forget_run(&known.key());
            index.children.learn(&known.run);
            let version = known.run.resource_version.clone();
            index.versions.insert(version, key.uid.clone());
            index.names.insert(key.uid.clone(), known.key());
            for claim in used(&known) {
                index.users.entry(claim).or_default().insert(key.clone());
            }
            index.runs.insert(known);
            news.retain(|other| *other != key);
            news.push(key);
            news
        });
        self.version.send_modify(|version| *version += 1);
        news
    }

    pub(crate) fn delete_run(&self, key: &ObjectKey) -> Vec<RunKey> {
        self.change(|index, before| {
            if let Some(known) = index.runs.get(key) {
                let key = RunKey::of(&known.run);
                before.of(index, &key);
            }
            index.forget_run(key)
        })
    }

    pub(crate) fn retain_runs(&self, listed: &HashSet<ObjectKey>) -> Vec<RunKey> {
        let stale = self.read().runs.stale(listed);
        stale.iter().flat_map(|key| self.delete_run(key)).collect()
    }

    /// Takes in that an annotation of a run was set or removed, which made this version of it.
    pub(crate) fn annotated(
        &self,
        run: &PipelineRun,
        key: &str,
        value: Option<String>,
        version: String,
    ) {
        let mut index = self.write();
        let name = (run.namespace.clone(), run.name.clone());
        let Some(known) = index.runs.get(&name).filter(|known| {
            known.run.uid == run.uid && is_newer(&version, &known.run.resource_version)
        }) else {
            return;
        };
        let mut annotated = (*known.run).clone();
        let before = std::mem::replace(&mut annotated.resource_version, version.clone());
        match value {
            Some(value) => annotated.annotations.insert(key.to_owned(), value),
            None => annotated.annotations.remove(key),
        };
        let known = KnownRun {
            run: Arc::new(annotated),
            planned: known.planned.clone(),
        };
        index.versions.remove(&before);
        index.versions.insert(version, run.uid.clone());
        index.runs.insert(known);
    }

    /// The run with this uid, in whatever namespace.
    pub(crate) fn run(&self, uid: &str) -> Option<Arc<PipelineRun>> {
        let index = self.read();
        let known = index.runs.get(index.names.get(uid)?)?;
        Some(known.run.clone())
    }

    /// The run whose newest known version this is. The API server gives no two versions of PipelineRuns one number.
    pub(crate) fn run_at(&self, resource_version: &str) -> Option<Arc<PipelineRun>> {
        let uid = self.read().versions.get(resource_version).cloned();
        self.run(&uid?)
    }

    /// The name of the run that is gone and left something, by its objects' owner references.
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

    /// Every run that is not done, and every one, done or not, that placeholders or claims exist for.
    pub(crate) fn runs_to_sweep(&self) -> BTreeSet<RunKey> {
        let index = self.read();
        let runs = index.runs.all().values();
        let active = runs.filter(|known| known.run.state != RunState::Done);
        let active = active.map(|known| RunKey::of(&known.run));
        let placeholders = index.pods.all().values();
        let placeholders = placeholders.filter(|pod| pod.placeholder.is_some());
        let with_objects = placeholders
            .filter_map(|pod| pod.run())
            .chain(index.placeholders.runs().cloned())
            .chain(
                index
                    .claims
                    .runs()
                    .filter(|run| !index.claims_of(run).is_empty())
                    .cloned(),
            );
        active
            .chain(with_objects)
            .map(|run| index.children.top(&run))
            .collect()
    }

    /// A number that grows with every change of a run.
    pub(crate) fn version(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }
}
