//! What the manager knows: every coscheduled PipelineRun with its placeholders, pods and claims, kept up to date by the watches
//! and indexed by what it is asked for. No I/O, no decisions.

mod children;
mod complaints;
mod nodes;
mod store;
mod view;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use coscheduler_core::observed::{KnownClaim, Observed, Placeholder, Planned, Pod};
use coscheduler_core::pipeline_run::{PipelineRun, RunState};
use coscheduler_core::plan::plan;
use coscheduler_core::rescue::requests::Amounts;
use coscheduler_core::rescue::room::Room;
use coscheduler_core::teardown::{RunPresence, auto_cleaned};
use coscheduler_core::version::is_newer;
use coscheduler_core::volumes::{SeenClaim, SeenVolume};
use coscheduler_kubernetes::complaints::{About, Complaint};
use coscheduler_runtime::kubernetes::watch::ObjectKey;
use tokio::sync::{broadcast, watch};

use children::Children;
use complaints::Complaints;
use nodes::Nodes;
use store::{Object as _, Store};
pub(crate) use view::{Change, Listed, Phase};

/// Changes that a slow reader of [`Cache::subscribe`] may be behind before it has to start over.
const BUFFERED_CHANGES: usize = 1024;

/// A PipelineRun, whatever its name was used for before.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(crate) struct RunKey {
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.uid`.
    pub uid: String,
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

/// A run, with its plan computed once.
#[derive(Clone, Debug)]
pub(crate) struct KnownRun {
    pub run: Arc<PipelineRun>,
    pub planned: Arc<Planned>,
}

/// The index. Cheap to share; every method takes and releases the lock, and answers the runs to look at again.
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
    nodes: Nodes,
    children: Children,
    complaints: Complaints,
    /// Uids of runs, by the version that is known of each.
    versions: HashMap<String, String>,
    /// Names of runs, by uid.
    names: HashMap<String, ObjectKey>,
    /// Active runs, by the claims that their placeholders stand for.
    users: HashMap<ObjectKey, HashSet<RunKey>>,
    /// Pods of runs, by the claims that they use.
    pods_by_claim: HashMap<ObjectKey, HashSet<ObjectKey>>,
    /// Pods of runs, by the nodes that they are bound to.
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

/// PipelineRuns.
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
        let controllers = index.placeholders.of(key).map(|own| own.controller.as_ref());
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
            .chain(index.claims.runs().filter(|run| !index.claims_of(run).is_empty()).cloned());
        active.chain(with_objects).map(|run| index.children.top(&run)).collect()
    }

    /// A number that grows with every change of a run.
    pub(crate) fn version(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }
}

/// Placeholders and pods.
impl Cache {
    pub(crate) fn apply_placeholder(&self, own: Placeholder) -> Vec<RunKey> {
        self.change(|index, before| {
            if index.placeholders.is_behind(&own) {
                return Vec::new();
            }
            let run = RunKey::new(&own.namespace, &own.run_uid);
            before.of(index, &run);
            index.placeholders.insert(own);
            vec![run]
        })
    }

    pub(crate) fn delete_placeholder(&self, key: &ObjectKey) -> Vec<RunKey> {
        self.change(|index, before| {
            let Some(run) = index.placeholders.get(key).and_then(|own| own.run()) else {
                return Vec::new();
            };
            before.of(index, &run);
            index.placeholders.remove(key);
            index.complaints.forget(About::Placeholder, key);
            vec![run]
        })
    }

    pub(crate) fn retain_placeholders(&self, listed: &HashSet<ObjectKey>) -> Vec<RunKey> {
        let stale = self.read().placeholders.stale(listed);
        let news = stale.iter().flat_map(|key| self.delete_placeholder(key));
        news.collect()
    }

    /// Takes in a pod. TaskRun pods that have ended are forgotten: nothing depends on them any more.
    pub(crate) fn apply_pod(&self, pod: Pod) -> Vec<RunKey> {
        if pod.placeholder.is_none() && pod.role().is_none() {
            return self.delete_pod(&pod.key());
        }
        self.change(|index, before| {
            if index.pods.is_behind(&pod) {
                return Vec::new();
            }
            let (key, run) = (pod.key(), RunKey::new(&pod.namespace, &pod.run_uid));
            before.of(index, &run);
            let mut news = index.forget_pod(&key);
            if let Some(node) = &pod.node {
                let there = index.pods_by_node.entry(node.clone()).or_default();
                there.insert(key.clone());
            }
            for claim in &pod.claims {
                let claim = (pod.namespace.clone(), claim.clone());
                let using = index.pods_by_claim.entry(claim).or_default();
                using.insert(key.clone());
            }
            index.nodes.placeholder(&pod, true);
            if let Some(labels) = &pod.placeholder {
                let own = (pod.namespace.clone(), labels.name.clone());
                index.complaints.forget(About::Placeholder, &own);
            }
            index.pods.insert(pod);
            news.retain(|other| *other != run);
            news.push(run);
            news
        })
    }

    pub(crate) fn delete_pod(&self, key: &ObjectKey) -> Vec<RunKey> {
        self.change(|index, before| {
            if let Some(run) = index.pods.get(key).and_then(|pod| pod.run()) {
                before.of(index, &run);
            }
            index.forget_pod(key)
        })
    }

    pub(crate) fn retain_pods(&self, listed: &HashSet<ObjectKey>) -> Vec<RunKey> {
        let stale = self.read().pods.stale(listed);
        stale.iter().flat_map(|key| self.delete_pod(key)).collect()
    }

    /// Takes in a pod that is bound to a node, or with `None` that one has ended or is gone. It triggers no look: runs that wait
    /// for room look again by themselves.
    pub(crate) fn on_node(&self, key: ObjectKey, bound: Option<(String, Amounts)>) {
        let nodes = &mut self.write().nodes;
        match bound {
            Some((node, requests)) => nodes.put(key, node, requests),
            None => nodes.take_away(&key),
        }
    }

    pub(crate) fn retain_on_nodes(&self, listed: &HashSet<ObjectKey>) {
        self.write().nodes.retain_pods(listed);
    }
}

/// Nodes.
impl Cache {
    pub(crate) fn apply_node(&self, node: Room) -> Vec<RunKey> {
        let mut index = self.write();
        let name = node.node.name.clone();
        let news = index.nodes.insert(node);
        if news { index.bound_to(&name) } else { Vec::new() }
    }

    pub(crate) fn delete_node(&self, name: &str) -> Vec<RunKey> {
        let mut index = self.write();
        index.nodes.remove(name);
        index.bound_to(name)
    }

    pub(crate) fn retain_nodes(&self, listed: &HashSet<ObjectKey>) -> Vec<RunKey> {
        let stale = self.read().nodes.stale(listed);
        stale.iter().flat_map(|name| self.delete_node(name)).collect()
    }
}

/// Claims, volumes and complaints about them.
impl Cache {
    pub(crate) fn apply_claim(&self, mut claim: KnownClaim) -> Vec<RunKey> {
        let mut index = self.write();
        let key = claim.key();
        if index.claims.is_behind(&claim) {
            return Vec::new();
        }
        // A claim that was made for a run stays that run's: deleting the run with `--cascade=orphan` takes its owner away.
        if let Some(known) = index.claims.get(&key)
            && claim.owner.is_none()
            && known.object.uid == claim.object.uid
        {
            claim.owner = known.owner.clone();
            (claim.by_us, claim.by_tekton) = (known.by_us, known.by_tekton);
        }
        if claim.volume.is_some() {
            index.complaints.forget(About::Claim, &key);
        }
        index.claims.insert(claim);
        index.concerned(&key)
    }

    pub(crate) fn delete_claim(&self, key: &ObjectKey) -> Vec<RunKey> {
        let mut index = self.write();
        let concerned = index.concerned(key);
        index.claims.remove(key);
        index.complaints.forget(About::Claim, key);
        concerned
    }

    pub(crate) fn retain_claims(&self, listed: &HashSet<ObjectKey>) -> Vec<RunKey> {
        let stale = self.read().claims.stale(listed);
        stale.iter().flat_map(|key| self.delete_claim(key)).collect()
    }

    pub(crate) fn apply_volume(
        &self,
        name: String,
        volume: (SeenVolume, Option<ObjectKey>),
    ) -> Vec<RunKey> {
        let mut index = self.write();
        let claim = volume.1.clone();
        index.volumes.insert(name, volume);
        claim.map(|claim| index.concerned(&claim)).unwrap_or_default()
    }

    pub(crate) fn delete_volume(&self, name: &str) -> Vec<RunKey> {
        let mut index = self.write();
        let claim = index.volumes.remove(name).and_then(|(_, claim)| claim);
        claim.map(|claim| index.concerned(&claim)).unwrap_or_default()
    }

    pub(crate) fn retain_volumes(&self, listed: &HashSet<ObjectKey>) -> Vec<RunKey> {
        let stale: Vec<String> = {
            let index = self.read();
            let names = index.volumes.keys();
            let stale = names.filter(|name| !listed.contains(&(String::new(), (*name).clone())));
            stale.cloned().collect()
        };
        stale.iter().flat_map(|name| self.delete_volume(name)).collect()
    }

    /// A claim, and whether its volume is known where it is bound to one.
    pub(crate) fn claim(&self, key: &ObjectKey) -> Option<(Arc<KnownClaim>, SeenClaim)> {
        let index = self.read();
        Some((index.claims.get(key)?.clone(), index.seen(key)?))
    }

    /// A volume.
    pub(crate) fn volume(&self, name: &str) -> Option<SeenVolume> {
        let index = self.read();
        index.volumes.get(name).map(|(volume, _)| volume.clone())
    }

    pub(crate) fn apply_complaint(&self, watch: &'static str, complaint: Complaint) -> Vec<RunKey> {
        let mut index = self.write();
        let (about, object) = (complaint.about, complaint.object.clone());
        // Events are written late.
        let settled = match about {
            About::Placeholder => index.pod_of_placeholder(&object).is_some(),
            About::Claim => index.claims.get(&object).is_some_and(|claim| claim.volume.is_some()),
        };
        if settled || !index.complaints.insert(watch, complaint) {
            return Vec::new();
        }
        index.complained(about, &object)
    }

    /// Forgets what the Events said that are not `listed`.
    pub(crate) fn retain_complaints(
        &self,
        watch: &'static str,
        listed: impl Fn(&ObjectKey) -> bool,
    ) -> Vec<RunKey> {
        let mut index = self.write();
        let stale = index.complaints.retain(watch, listed);
        let news = stale.iter().flat_map(|(about, object)| index.complained(*about, object));
        news.collect()
    }
}

impl Cache {
    /// A run and what belongs to it, as it is now. Whoever looks at it adds the rest.
    pub(crate) fn observe(&self, key: &RunKey) -> Observed {
        let index = self.read();
        let known = index.names.get(&key.uid).and_then(|name| index.runs.get(name));
        let known = known.filter(|known| known.run.namespace == key.namespace);
        let mut observed = Observed {
            presence: match known {
                Some(known) if known.run.deletion => RunPresence::Gone,
                Some(known) if known.run.state == RunState::Done => RunPresence::Done,
                Some(_) => RunPresence::Active,
                None => RunPresence::Gone,
            },
            run: known.map(|known| (known.run.clone(), known.planned.clone())),
            nodes: index.nodes.rooms(),
            ..Observed::default()
        };
        for own in index.placeholders.of(key) {
            let name = own.object.name.clone();
            let refused = index.complaints.about(About::Placeholder, &own.key(), &own.object.uid);
            observed.refused.extend(refused.map(|reason| (name.clone(), reason)));
            observed.placeholders.insert(name, own.clone());
        }
        for run in index.children.of(key).iter().chain([key]) {
            let pods = index.pods.of(run);
            let pods = pods.map(|pod| (pod.object.name.clone(), pod.clone()));
            observed.pods.extend(pods);
        }
        let claims = index.claims_of(key);
        observed.claims = claims.iter().map(|claim| claim.to_teardown()).collect();
        let planned = observed.planned().iter().flat_map(|spec| spec.claims());
        let used = observed.pods.values().flat_map(|pod| pod.claims.clone());
        let names: BTreeSet<String> = planned.chain(used).collect();
        for name in names {
            let claim = (key.namespace.clone(), name);
            let Some(seen) = index.seen(&claim) else { continue };
            let uid = index.claims.get(&claim).map(|it| it.object.uid.as_str());
            let reason = index.complaints.about(About::Claim, &claim, uid.unwrap_or_default());
            let pods = index.pods_by_claim.get(&claim).into_iter().flatten();
            let pods = pods.filter_map(|pod| index.pods.get(pod));
            let others = pods.filter(|pod| !observed.pods.contains_key(&pod.object.name));
            observed.sharing.extend(others.cloned());
            observed.not_provisioned.extend(reason.map(|reason| (claim.1.clone(), reason)));
            observed.volumes.insert(claim.1, seen);
        }
        observed
    }

    /// Carries out a change of the index, and publishes how the placeholders of the runs differ that it touches.
    fn change(&self, change: impl FnOnce(&mut Index, &mut Before) -> Vec<RunKey>) -> Vec<RunKey> {
        let mut index = self.write();
        let mut before = Before::default();
        let news = change(&mut index, &mut before);
        // Sent under the lock, so that changes leave in the order in which they happened.
        for (run, before) in before.0 {
            for change in view::changes(before, index.listed(&run)) {
                // A send fails only while nobody listens.
                drop(self.changes.send(change));
            }
        }
        let tops = news.iter().map(|run| index.children.top(run)).collect();
        for run in &news {
            if index.is_empty(run) {
                index.children.forget(run);
            }
        }
        tops
    }

    fn read(&self) -> RwLockReadGuard<'_, Index> {
        self.index.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Index> {
        self.index.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The placeholders of runs before a change.
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
        self.nodes.placeholder(&pod, false);
        pod.run().into_iter().collect()
    }

    fn pod_of_placeholder(&self, own: &ObjectKey) -> Option<&Arc<Pod>> {
        let pod = self.pods.get(&(own.0.clone(), format!("{}-0", own.1)))?;
        let labels = pod.placeholder.as_ref()?;
        (labels.name == own.1).then_some(pod)
    }

    /// The claims that go with a run: those made by this product, and those made by Tekton that the run's author wants gone
    /// with it (V4).
    fn claims_of(&self, run: &RunKey) -> Vec<&Arc<KnownClaim>> {
        let known = self.names.get(&run.uid).and_then(|name| self.runs.get(name));
        let given_up = known.map(|known| auto_cleaned(&known.run)).unwrap_or_default();
        let claims = self.claims.of(run).filter(|claim| {
            claim.by_us || (claim.by_tekton && given_up.contains(&claim.object.name))
        });
        let mut claims: Vec<_> = claims.collect();
        claims.sort_by(|one, other| one.object.name.cmp(&other.object.name));
        claims
    }

    fn seen(&self, key: &ObjectKey) -> Option<SeenClaim> {
        let claim = self.claims.get(key)?;
        let volume = claim.volume.as_ref().and_then(|name| self.volumes.get(name));
        Some(SeenClaim {
            name: claim.object.name.clone(),
            single_pod: claim.single_pod,
            volume: volume.map(|(volume, _)| volume.clone()),
        })
    }

    /// The runs that a claim matters to: those whose placeholders stand for it, and the one it was made for.
    fn concerned(&self, claim: &ObjectKey) -> Vec<RunKey> {
        let owner = self.claims.get(claim).and_then(|claim| claim.run());
        let users = self.users.get(claim).into_iter().flatten().cloned();
        let all: BTreeSet<_> = users.chain(owner).map(|run| self.children.top(&run)).collect();
        all.into_iter().collect()
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
        let runs = pods.filter_map(|pod| self.pods.get(pod)?.run());
        let runs: BTreeSet<_> = runs.map(|run| self.children.top(&run)).collect();
        runs.into_iter().collect()
    }
}

/// The claims that the placeholders of a run stand for.
fn used(known: &KnownRun) -> Vec<ObjectKey> {
    let Ok(plan) = known.planned.as_ref() else {
        return Vec::new();
    };
    let specs = plan.action.placeholders().iter();
    let names = specs.flat_map(|spec| spec.claims().collect::<Vec<_>>());
    names.map(|name| (known.run.namespace.clone(), name)).collect()
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
