//! The cache of Kubernetes objects: coscheduled PipelineRuns, placeholders, pods of PipelineRuns and placeholders, claims,
//! volumes, nodes, ResourceQuotas, and Events about failures of placeholders and claims. The watches keep the cache up to date.
//! The cache does no I/O.

mod children;
mod claims;
mod complaints;
mod nodes;
mod pods;
mod quotas;
mod runs;
mod snapshot;
mod store;
mod view;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use coscheduler_core::names::pod_name;
use coscheduler_core::node::Node;
use coscheduler_core::observed::{KnownClaim, Placeholder, Planned, Pod};
use coscheduler_core::pipeline_run::PipelineRun;
use coscheduler_core::reconcile::claims_to_delete::goes_with;
use coscheduler_core::volumes::{SeenClaim, SeenVolume};
use coscheduler_kubernetes::complaints::About;
use coscheduler_runtime::kubernetes::watch::ObjectKey;
use coscheduler_runtime::queue::Namespaced;
use tokio::sync::{broadcast, watch};

use children::Children;
use complaints::Complaints;
use store::{Object as _, Store};
pub(crate) use view::{Change, Listed, Phase};

/// The number of changes that are kept for a slow reader of [`Cache::subscribe`]. A reader that falls further behind misses
/// changes.
const BUFFERED_CHANGES: usize = 1024;

/// Identifies a PipelineRun by its uid, because another run may have had the same name before.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(crate) struct RunKey {
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.uid`.
    pub uid: String,
}

impl Namespaced for RunKey {
    fn namespace(&self) -> &str {
        &self.namespace
    }
}

impl RunKey {
    pub(crate) fn new(namespace: &str, uid: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            uid: uid.to_owned(),
        }
    }

    pub(crate) fn of(run: &PipelineRun) -> Self {
        Self::new(&run.namespace, &run.uid)
    }
}

/// A run and its plan. The plan is computed when the watch delivers the run.
#[derive(Clone, Debug)]
pub(crate) struct KnownRun {
    pub run: Arc<PipelineRun>,
    pub planned: Arc<Planned>,
}

/// The cache. Each method for other modules releases the lock before it returns. The methods that a watch calls return the runs
/// that must be reconciled because of the change.
#[derive(Debug)]
pub(crate) struct Cache {
    index: RwLock<Index>,
    version: watch::Sender<u64>,
    changes: broadcast::Sender<Change>,
}

#[derive(Debug, Default)]
struct Index {
    runs: Store<KnownRun>,
    placeholders: Store<Placeholder>,
    pods: Store<Pod>,
    claims: Store<KnownClaim>,
    volumes: HashMap<String, (SeenVolume, Option<ObjectKey>)>,
    /// The nodes, by name. Observations share this map.
    nodes: Arc<BTreeMap<String, Arc<Node>>>,
    children: Children,
    complaints: Complaints,
    /// The ResourceQuotas that count CPU or memory.
    quotas: BTreeSet<ObjectKey>,
    /// Uids of runs, by `metadata.resourceVersion`.
    versions: HashMap<String, String>,
    /// Namespaces and names of runs, by uid.
    names: HashMap<String, ObjectKey>,
    /// Runs, by the claims of their planned placeholders.
    users: HashMap<ObjectKey, HashSet<RunKey>>,
    /// For each run that has not ended: the names of its TaskRuns whose pods have ended.
    ended: HashMap<RunKey, BTreeSet<String>>,
    /// Pods of runs and placeholders, by the claims that they use.
    pods_by_claim: HashMap<ObjectKey, HashSet<ObjectKey>>,
    /// Pods of placeholders, by run.
    placeholder_pods: HashMap<RunKey, HashSet<ObjectKey>>,
    /// Pods of placeholders for which the scheduler has found no node.
    refused: HashSet<ObjectKey>,
    /// Pods of runs and placeholders, by the nodes that they are bound to.
    pods_by_node: HashMap<String, HashSet<ObjectKey>>,
}

impl Default for Cache {
    fn default() -> Self {
        Self {
            index: RwLock::default(),
            version: watch::Sender::new(0),
            changes: broadcast::Sender::new(BUFFERED_CHANGES),
        }
    }
}

impl Cache {
    /// Changes the index, and sends the resulting changes of placeholders to the subscribers. Returns the affected runs. Each
    /// child run is replaced by its top run ([`Children::top`]).
    fn change(&self, change: impl FnOnce(&mut Index, &mut Before) -> Vec<RunKey>) -> Vec<RunKey> {
        let mut index = self.write();
        let mut before = Before::default();
        let news = change(&mut index, &mut before);
        // The lock keeps the changes in order.
        for (run, before) in before.0 {
            for change in view::changes(before, index.listed(&run)) {
                // The send fails only if there is no subscriber.
                drop(self.changes.send(change));
            }
        }
        let tops: BTreeSet<_> = news.iter().map(|run| index.children.top(run)).collect();
        for run in &news {
            if index.is_empty(run) {
                index.children.forget(run);
            }
        }
        tops.into_iter().collect()
    }

    fn read(&self) -> RwLockReadGuard<'_, Index> {
        self.index.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Index> {
        self.index.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The placeholders before a change, for each run that the change affects.
#[derive(Default)]
struct Before(Vec<(RunKey, Vec<Listed>)>);

impl Before {
    fn of(&mut self, index: &Index, run: &RunKey) {
        self.0.push((run.clone(), index.listed(run)));
    }
}

impl Index {
    fn is_empty(&self, run: &RunKey) -> bool {
        self.runs.is_empty(run)
            && self.placeholders.is_empty(run)
            && self.pods.is_empty(run)
            && self.claims.is_empty(run)
    }

    fn forget_run(&mut self, key: &ObjectKey) -> Vec<RunKey> {
        let Some(known) = self.runs.remove(key) else {
            return Vec::new();
        };
        let run = RunKey::of(&known.run);
        self.versions.remove(&known.run.resource_version);
        self.names.remove(&run.uid);
        for claim in used(&known) {
            forget(&mut self.users, &claim, &run);
        }
        vec![run]
    }

    fn forget_pod(&mut self, key: &ObjectKey) -> Vec<RunKey> {
        let Some(pod) = self.pods.remove(key) else {
            return Vec::new();
        };
        if let Some(node) = &pod.node {
            forget(&mut self.pods_by_node, node, key);
        }
        for claim in &pod.claims {
            let claim = (pod.namespace.clone(), claim.clone());
            forget(&mut self.pods_by_claim, &claim, key);
        }
        let run = RunKey::new(&pod.namespace, &pod.run_uid);
        forget(&mut self.placeholder_pods, &run, key);
        self.refused.remove(key);
        if let Some(made_up) = pod.to_placeholder() {
            let known = self.placeholders.get(&made_up.key());
            if known.is_some_and(|known| known.object.uid == made_up.object.uid) {
                self.placeholders.remove(&made_up.key());
            }
        }
        vec![run]
    }

    fn pod_of_placeholder(&self, own: &ObjectKey) -> Option<&Arc<Pod>> {
        let pod = self.pods.get(&(own.0.clone(), pod_name(&own.1)))?;
        let labels = pod.placeholder.as_ref()?;
        (labels.name == own.1).then_some(pod)
    }

    /// The claims that are deleted after a run, ordered by name.
    fn claims_of<'a>(&'a self, key: &'a RunKey) -> Vec<&'a Arc<KnownClaim>> {
        let known = self
            .names
            .get(&key.uid)
            .and_then(|name| self.runs.get(name));
        let run = known.map(|known| known.run.as_ref());
        let claims = self.claims.of(key).filter(|claim| goes_with(claim, run));
        let mut claims: Vec<_> = claims.collect();
        claims.sort_by(|one, other| one.object.name.cmp(&other.object.name));
        claims
    }

    fn seen(&self, key: &ObjectKey) -> Option<SeenClaim> {
        let claim = self.claims.get(key)?;
        let volume = claim
            .volume
            .as_ref()
            .and_then(|name| self.volumes.get(name));
        Some(SeenClaim {
            name: claim.object.name.clone(),
            single_pod: claim.single_pod,
            volume: volume.map(|(volume, _)| volume.clone()),
        })
    }

    /// The runs that a change of this claim affects: its owner, and the runs whose planned placeholders have this claim.
    fn concerned(&self, claim: &ObjectKey) -> Vec<RunKey> {
        let owner = self.claims.get(claim).and_then(|claim| claim.run());
        let users = self.users.get(claim).into_iter().flatten().cloned();
        users.chain(owner).collect()
    }

    fn complained(&self, about: About, object: &ObjectKey) -> Vec<RunKey> {
        match about {
            About::Placeholder => {
                let own = self.placeholders.get(object);
                own.and_then(|own| own.run()).into_iter().collect()
            }
            About::Claim => self.concerned(object),
        }
    }

    fn bound_to(&self, node: &str) -> Vec<RunKey> {
        let pods = self.pods_by_node.get(node).into_iter().flatten();
        pods.filter_map(|pod| self.pods.get(pod)?.run()).collect()
    }
}

/// The claims of the planned placeholders of a run.
fn used(known: &KnownRun) -> Vec<ObjectKey> {
    let Ok(plan) = known.planned.as_ref() else {
        return Vec::new();
    };
    let specs = plan.action.placeholders().iter();
    let names = specs.flat_map(|spec| spec.claims().collect::<Vec<_>>());
    names
        .map(|name| (known.run.namespace.clone(), name))
        .collect()
}

fn forget<K: std::hash::Hash + Eq, V: std::hash::Hash + Eq>(
    index: &mut HashMap<K, HashSet<V>>,
    key: &K,
    value: &V,
) {
    if let Some(values) = index.get_mut(key) {
        values.remove(value);
        if values.is_empty() {
            index.remove(key);
        }
    }
}

#[cfg(test)]
mod tests;
