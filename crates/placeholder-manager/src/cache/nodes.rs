//! Every node, with the requests of all pods on it. For a pod that belongs to no run, the cache stores only node and requests.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use coscheduler_core::observed::Pod;
use coscheduler_core::reconcile::requests::Amounts;
use coscheduler_core::reconcile::room::Rooms;
use coscheduler_core::reconcile::room::{Keeping, Room};
use coscheduler_runtime::kubernetes::watch::ObjectKey;

/// The nodes, and the pods on them.
#[derive(Debug, Default)]
pub(super) struct Nodes {
    /// Observations share this map.
    rooms: Arc<Rooms>,
    taken: HashMap<String, Taken>,
    pods: HashMap<ObjectKey, (String, Amounts)>,
}

#[derive(Debug, Default)]
struct Taken {
    requests: Amounts,
    pods: i128,
    placeholders: BTreeMap<ObjectKey, Keeping>,
}

impl Nodes {
    /// Every node, by name.
    pub(super) fn rooms(&self) -> Arc<Rooms> {
        self.rooms.clone()
    }

    /// Stores a node. Returns true if it is new, or if its labels, taints or cordon have changed: kubelets update their nodes all
    /// the time, but these fields change rarely.
    pub(super) fn insert(&mut self, node: Room) -> bool {
        let name = node.node.name.clone();
        let known = self.rooms.get(&name);
        if known.is_some_and(|known| {
            known.node == node.node
                && known.allocatable == node.allocatable
                && known.pods_allowed == node.pods_allowed
        }) {
            return false;
        }
        let news = known.is_none_or(|known| known.node != node.node);
        Arc::make_mut(&mut self.rooms).insert(name.clone(), Arc::new(node));
        self.recount(&name);
        news
    }

    pub(super) fn remove(&mut self, name: &str) {
        Arc::make_mut(&mut self.rooms).remove(name);
    }

    /// The names of the nodes that are missing in a fresh list.
    pub(super) fn stale(&self, listed: &HashSet<ObjectKey>) -> Vec<String> {
        let names = self.rooms.keys();
        let stale = names.filter(|name| !listed.contains(&(String::new(), (*name).clone())));
        stale.cloned().collect()
    }

    /// Adds a pod to its node.
    pub(super) fn put(&mut self, key: ObjectKey, node: String, requests: Amounts) {
        self.take_away(&key);
        let taken = self.taken.entry(node.clone()).or_default();
        taken.requests.add(&requests);
        taken.pods += 1;
        self.pods.insert(key, (node.clone(), requests));
        self.recount(&node);
    }

    /// Removes a pod from its node.
    pub(super) fn take_away(&mut self, key: &ObjectKey) {
        let Some((node, requests)) = self.pods.remove(key) else {
            return;
        };
        if let Some(taken) = self.taken.get_mut(&node) {
            taken.requests.subtract(&requests);
            taken.pods -= 1;
        }
        self.recount(&node);
    }

    /// Removes the pods that are missing in a fresh list.
    pub(super) fn retain_pods(&mut self, listed: &HashSet<ObjectKey>) {
        let keys = self.pods.keys();
        let gone: Vec<_> = keys.filter(|key| !listed.contains(*key)).cloned().collect();
        for key in gone {
            self.take_away(&key);
        }
    }

    /// Adds a placeholder's pod to its node, or removes it.
    pub(super) fn placeholder(&mut self, pod: &Pod, there: bool) {
        let Some(node) = pod.node.as_ref().filter(|_| pod.placeholder.is_some()) else {
            return;
        };
        let key = (pod.namespace.clone(), pod.object.name.clone());
        let keeping = Keeping {
            namespace: pod.namespace.clone(),
            separation: pod.separation,
        };
        let placeholders = &mut self.taken.entry(node.clone()).or_default().placeholders;
        if there {
            placeholders.insert(key, keeping);
        } else {
            placeholders.remove(&key);
        }
        self.recount(node);
    }

    fn recount(&mut self, node: &str) {
        if let Some(room) = Arc::make_mut(&mut self.rooms).get_mut(node) {
            let room = Arc::make_mut(room);
            let none = Taken::default();
            let taken = self.taken.get(node).unwrap_or(&none);
            room.requested = taken.requests.clone();
            room.pods = taken.pods;
            room.placeholders = taken.placeholders.values().cloned().collect();
        }
        let empty = |taken: &Taken| taken.pods == 0 && taken.placeholders.is_empty();
        if self.taken.get(node).is_some_and(empty) {
            self.taken.remove(node);
        }
    }
}
