//! How much of each node is taken: what every node has, and what the pods on it ask for, whosever they are. Of a pod of others
//! nothing is kept but its node and exact amounts.

use std::collections::{BTreeMap, HashMap, HashSet};

use coscheduler_core::mode::Mode;
use coscheduler_core::pinned::Pinned;
use coscheduler_core::plan::Separation;
use coscheduler_core::rescue::Resident;
use coscheduler_core::rescue::requests::Amounts;
use coscheduler_core::rescue::room::{Keeping, Room};
use coscheduler_kubernetes::pods;
use k8s_openapi::api::core::v1::Pod;
use tokio::time::Instant;

use super::{Cache, Index, ObjectKey, Run, RunKey};

/// A pod that is bound to a node and has not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OnNode {
    /// Its namespace and name.
    pub key: ObjectKey,
    /// The node.
    pub node: String,
    /// What it asks for.
    pub requests: Amounts,
}

/// What is taken of every node.
#[derive(Debug, Default)]
pub(super) struct Rooms {
    pods: HashMap<ObjectKey, (String, Amounts)>,
    taken: HashMap<String, (Amounts, i128)>,
    allocatable: HashMap<String, (Amounts, i128)>,
    /// Since the first list of nodes.
    listed: bool,
    added: Option<Instant>,
}

impl Rooms {
    fn put(&mut self, pod: OnNode) {
        self.take_away(&pod.key);
        let (requested, pods) = self.taken.entry(pod.node.clone()).or_default();
        requested.add(&pod.requests);
        *pods += 1;
        self.pods.insert(pod.key, (pod.node, pod.requests));
    }

    fn take_away(&mut self, key: &ObjectKey) {
        let Some((node, requests)) = self.pods.remove(key) else {
            return;
        };
        let Some((requested, pods)) = self.taken.get_mut(&node) else {
            return;
        };
        requested.subtract(&requests);
        *pods -= 1;
        if *pods == 0 {
            self.taken.remove(&node);
        }
    }

    pub(super) fn has(&mut self, node: &str, allocatable: (Amounts, i128)) {
        let known = self.allocatable.insert(node.to_owned(), allocatable);
        if known.is_none() && self.listed {
            self.added = Some(Instant::now());
        }
    }

    pub(super) fn forget(&mut self, node: &str) {
        self.allocatable.remove(node);
    }

    pub(super) fn have_listed(&mut self) {
        self.listed = true;
    }
}

/// What is taken of the nodes.
impl Cache {
    /// Takes in a pod that is bound to a node.
    pub(crate) fn put_on_node(&self, pod: OnNode) {
        self.write().rooms.put(pod);
    }

    /// Forgets a pod that has ended or is gone.
    pub(crate) fn take_from_node(&self, key: &ObjectKey) {
        self.write().rooms.take_away(key);
    }

    /// Forgets every pod that a fresh list did not have.
    pub(crate) fn retain_on_nodes(&self, listed: &HashSet<ObjectKey>) {
        let mut index = self.write();
        let gone = index.rooms.pods.keys().filter(|key| !listed.contains(*key));
        let gone: Vec<_> = gone.cloned().collect();
        for key in gone {
            index.rooms.take_away(&key);
        }
    }

    /// The pod of this name, if it is counted on this node.
    pub(crate) fn counted_on(&self, key: &ObjectKey, node: &str) -> Option<Amounts> {
        let index = self.read();
        let (on, requests) = index.rooms.pods.get(key)?;
        (on == node).then(|| requests.clone())
    }

    /// The pods on a node that matter for whether a placeholder of a run may leave it: the run's own, and those of others that use
    /// a claim it holds.
    pub(crate) fn residents(
        &self,
        (of, run): (&RunKey, &Run),
        placeholder: &str,
        node: &str,
        held: &[String],
    ) -> Vec<Resident> {
        let index = self.read();
        let uses = |pod: &Pod| pods::claims(pod).iter().any(|claim| held.contains(claim));
        let counted = |name: &String| {
            let key = (of.namespace.clone(), name.clone());
            let (on, requests) = index.rooms.pods.get(&key)?;
            (on == node).then(|| requests.clone())
        };
        let own = run
            .pods
            .iter()
            .filter(|(_, pod)| !pods::is_placeholder(pod));
        let own = own.filter_map(|(name, pod)| {
            Some(Resident {
                requests: counted(name)?,
                own: true,
                keeps: pods::follows(pod).contains(&placeholder) || uses(pod),
            })
        });
        let others = index
            .runs
            .iter()
            .filter(|(key, _)| key.namespace == of.namespace && *key != of)
            .flat_map(|(_, run)| &run.pods)
            .filter(|(name, pod)| !run.pods.contains_key(*name) && uses(pod));
        let others = others.filter_map(|(name, _)| {
            Some(Resident {
                requests: counted(name)?,
                own: false,
                keeps: true,
            })
        });
        own.chain(others).collect()
    }

    /// When a node was added last, since this process began to follow them.
    pub(crate) fn node_added(&self) -> Option<Instant> {
        self.read().rooms.added
    }

    /// Every node with what is taken of it, by name. A placeholder's own room does not count it among the placeholders there.
    pub(crate) fn rooms(&self, placeholder: &ObjectKey) -> Vec<Room> {
        let index = self.read();
        let mut placeholders = index.placeholders_by_node(placeholder);
        let mut rooms: Vec<_> = index
            .nodes
            .values()
            .map(|node| {
                let name = &node.name;
                let taken = index.rooms.taken.get(name).cloned();
                let (requested, pods) = taken.unwrap_or_default();
                let has = index.rooms.allocatable.get(name).cloned();
                let (allocatable, pods_allowed) = has.unwrap_or_default();
                Room {
                    node: node.clone(),
                    allocatable,
                    pods_allowed,
                    requested,
                    pods,
                    placeholders: placeholders.remove(name.as_str()).unwrap_or_default(),
                }
            })
            .collect();
        rooms.sort_by(|one, other| one.node.name.cmp(&other.node.name));
        rooms
    }
}

impl Index {
    fn placeholders_by_node(&self, except: &ObjectKey) -> BTreeMap<String, Vec<Keeping>> {
        let mut by_node = BTreeMap::<_, Vec<_>>::new();
        for (key, run) in &self.runs {
            let mut separation = None;
            for (name, pod) in &run.pods {
                let Some(node) = pods::node(pod).filter(|_| pods::is_placeholder(pod)) else {
                    continue;
                };
                if (&key.namespace, name) == (&except.0, &except.1) {
                    continue;
                }
                let keeping = Keeping {
                    namespace: key.namespace.clone(),
                    separation: *separation.get_or_insert_with(|| run.separation()),
                };
                by_node.entry(node.to_owned()).or_default().push(keeping);
            }
        }
        by_node
    }
}

impl Run {
    /// How its placeholders keep away from others; as others' where it is not known (any more).
    pub(crate) fn separation(&self) -> Separation {
        let itself = self.itself();
        let pinned = itself.and_then(|run| Pinned::read(&run.annotations).ok().flatten());
        match pinned {
            Some(pinned) => match pinned.mode {
                Mode::IsolatePipelineRun => Separation::Isolate(pinned.isolation_scope),
                Mode::Workspaces | Mode::PipelineRuns | Mode::Disabled => Separation::Spread,
            },
            None => Separation::Spread,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coscheduler_core::evacuate::Node;
    use serde_json::json;

    fn on(name: &str, node: &str, milli_cpu: i128) -> OnNode {
        OnNode {
            key: ("ci".to_owned(), name.to_owned()),
            node: node.to_owned(),
            requests: Amounts {
                milli_cpu,
                ..Amounts::default()
            },
        }
    }

    fn taken(cache: &Cache, node: &str) -> (i128, i128) {
        let nobody = (String::new(), String::new());
        let rooms = cache.rooms(&nobody);
        let room = rooms.iter().find(|room| room.node.name == node).unwrap();
        (room.requested.milli_cpu, room.pods)
    }

    #[test]
    fn n2_what_is_taken_of_a_node_is_the_sum_of_the_pods_on_it_whatever_was_missed() {
        let cache = Cache::default();
        for name in ["node-1", "node-2"] {
            let node = Node {
                name: name.to_owned(),
                ..Node::default()
            };
            cache.apply_node(node, (Amounts::default(), 10));
        }
        cache.put_on_node(on("a", "node-1", 100));
        cache.put_on_node(on("b", "node-1", 20));
        // Resized, and made anew on another node.
        cache.put_on_node(on("a", "node-1", 300));
        assert_eq!(taken(&cache, "node-1"), (320, 2));
        cache.put_on_node(on("b", "node-2", 20));
        assert_eq!(taken(&cache, "node-1"), (300, 1));
        assert_eq!(taken(&cache, "node-2"), (20, 1));
        cache.retain_on_nodes(&HashSet::from([on("b", "", 0).key]));
        assert_eq!(taken(&cache, "node-1"), (0, 0));
        let key = on("b", "", 0).key;
        assert!(cache.counted_on(&key, "node-2").is_some());
        assert!(cache.counted_on(&key, "node-1").is_none());
        cache.take_from_node(&key);
        cache.take_from_node(&key);
        assert_eq!(taken(&cache, "node-2"), (0, 0));
    }

    #[test]
    fn n2_own_pods_are_waited_for_and_claims_in_use_are_not_left() {
        let cache = Cache::default();
        let pod = |uid: &str, name: &str, claim: &str, follows: &str| {
            let pod: Pod = serde_json::from_value(json!({
                "metadata": {"namespace": "ci", "name": name, "labels": {"tekton.dev/pipelineRunUID": uid}},
                "spec": {
                    "nodeName": "node-1", "containers": [],
                    "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}],
                    "affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{
                        "topologyKey": "kubernetes.io/hostname",
                        "labelSelector": {"matchLabels": {
                            "app.kubernetes.io/component": "affinity-assistant", "app.kubernetes.io/instance": follows}},
                    }]}},
                },
            }))
            .unwrap();
            cache.apply(pod);
        };
        pod("u", "follows", "own", "set");
        pod("u", "uses", "data", "other-set");
        pod("u", "neither", "own", "other-set");
        pod("u", "elsewhere", "data", "set");
        pod("v", "shares", "data", "");
        pod("v", "stranger", "own", "");
        for (cpu, name) in ["follows", "uses", "neither", "shares", "stranger"]
            .iter()
            .enumerate()
        {
            cache.put_on_node(on(name, "node-1", cpu as i128));
        }
        cache.put_on_node(on("elsewhere", "node-2", 9));
        let key = RunKey {
            namespace: "ci".to_owned(),
            uid: "u".to_owned(),
        };
        let run = cache.get(&key).unwrap();
        let held = ["data".to_owned()];
        let mut residents = cache.residents((&key, &run), "set", "node-1", &held);
        residents.sort_by_key(|resident| resident.requests.milli_cpu);
        let seen: Vec<_> = residents
            .iter()
            .map(|resident| (resident.requests.milli_cpu, resident.own, resident.keeps))
            .collect();
        assert_eq!(
            seen,
            [
                (0, true, true),
                (1, true, true),
                (2, true, false),
                (3, false, true)
            ]
        );
    }

    #[tokio::test]
    async fn n4_a_node_is_added_only_once_the_others_are_known() {
        let cache = Cache::default();
        let node = |name: &str| Node {
            name: name.to_owned(),
            ..Node::default()
        };
        cache.apply_node(node("node-1"), (Amounts::default(), 10));
        cache.retain_nodes(&HashSet::from(["node-1".to_owned()]));
        assert_eq!(cache.node_added(), None);
        cache.apply_node(node("node-1"), (Amounts::default(), 11));
        assert_eq!(cache.node_added(), None);
        cache.apply_node(node("node-2"), (Amounts::default(), 10));
        assert!(cache.node_added().is_some());
    }
}
