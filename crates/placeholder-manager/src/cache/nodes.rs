//! The nodes.

use std::collections::HashSet;
use std::sync::Arc;

use coscheduler_core::node::Node;
use coscheduler_runtime::kubernetes::watch::ObjectKey;

use super::{Cache, RunKey};

impl Cache {
    /// Stores a node. If a field changed that decisions need, returns the runs with pods on the node. (Kubelets update their
    /// nodes all the time, but these fields change rarely.)
    pub(crate) fn apply_node(&self, node: Node) -> Vec<RunKey> {
        self.change(|index, _| {
            let known = index.nodes.get(&node.name);
            if known.is_some_and(|known| **known == node) {
                return Vec::new();
            }
            let news = index.bound_to(&node.name);
            Arc::make_mut(&mut index.nodes).insert(node.name.clone(), Arc::new(node));
            news
        })
    }

    pub(crate) fn delete_node(&self, name: &str) -> Vec<RunKey> {
        self.change(|index, _| {
            Arc::make_mut(&mut index.nodes).remove(name);
            index.bound_to(name)
        })
    }

    pub(crate) fn retain_nodes(&self, listed: &HashSet<ObjectKey>) -> Vec<RunKey> {
        let mut stale: Vec<_> = self.read().nodes.keys().cloned().collect();
        stale.retain(|name| !listed.contains(&(String::new(), name.clone())));
        let delete = |name: &String| self.delete_node(name);
        stale.iter().flat_map(delete).collect()
    }
}
