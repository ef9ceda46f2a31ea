//! Every node as far as it may turn pods away. Nodes report their state all the time; what is here changes seldom.

use std::collections::HashSet;

use coscheduler_core::evacuate::Node;
use coscheduler_core::rescue::requests::Amounts;
use coscheduler_kubernetes::pods;

use super::{Cache, Index, RunKey};

impl Cache {
    /// Takes in a node that was created or changed, and what it has for pods: amounts, and how many. Answers the runs that have
    /// pods bound to it, where something is new about whom it turns away.
    pub(crate) fn apply_node(&self, node: Node, allocatable: (Amounts, i128)) -> Vec<RunKey> {
        let mut index = self.write();
        let name = node.name.clone();
        index.rooms.has(&name, allocatable);
        if index.nodes.get(&name) == Some(&node) {
            return Vec::new();
        }
        index.nodes.insert(name.clone(), node);
        index.bound_to(&name)
    }

    /// Forgets a node. Answers the runs that have pods bound to it.
    pub(crate) fn delete_node(&self, name: &str) -> Vec<RunKey> {
        let mut index = self.write();
        index.nodes.remove(name);
        index.rooms.forget(name);
        index.bound_to(name)
    }

    /// Forgets every node that a fresh list did not have. Answers the runs that have pods bound to them.
    pub(crate) fn retain_nodes(&self, listed: &HashSet<String>) -> Vec<RunKey> {
        let mut index = self.write();
        index.rooms.have_listed();
        let gone = index.nodes.keys().filter(|name| !listed.contains(*name));
        let gone: Vec<String> = gone.cloned().collect();
        gone.iter()
            .flat_map(|name| {
                index.nodes.remove(name);
                index.rooms.forget(name);
                index.bound_to(name)
            })
            .collect()
    }

    /// The node of this name.
    pub(crate) fn node(&self, name: &str) -> Option<Node> {
        self.read().nodes.get(name).cloned()
    }

    /// Every node, by name.
    pub(crate) fn nodes(&self) -> Vec<Node> {
        let mut nodes: Vec<_> = self.read().nodes.values().cloned().collect();
        nodes.sort_by(|one, other| one.name.cmp(&other.name));
        nodes
    }
}

impl Index {
    fn bound_to(&self, node: &str) -> Vec<RunKey> {
        let runs = self.runs.iter().filter(|(_, run)| {
            let mut pods = run.pods.values();
            pods.any(|pod| pods::node(pod) == Some(node))
        });
        runs.map(|(key, _)| self.parts.whole(key)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::json;

    fn pod(uid: &str, node: &str) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"namespace": "ci", "name": format!("pod-of-{uid}"), "labels": {"tekton.dev/pipelineRunUID": uid}},
            "spec": {"nodeName": node, "containers": []},
        }))
        .unwrap()
    }

    #[test]
    fn n1_a_change_of_a_node_is_news_for_the_runs_on_it_and_a_heartbeat_is_none() {
        let cache = Cache::default();
        cache.apply(pod("one", "node-1"));
        cache.apply(pod("two", "node-2"));
        let node = |unschedulable| Node {
            name: "node-1".to_owned(),
            unschedulable,
            ..Node::default()
        };
        let one = [RunKey {
            namespace: "ci".to_owned(),
            uid: "one".to_owned(),
        }];
        assert_eq!(cache.apply_node(node(false), (Amounts::default(), 0)), one);
        assert!(
            cache
                .apply_node(node(false), (Amounts::default(), 0))
                .is_empty()
        );
        assert_eq!(cache.apply_node(node(true), (Amounts::default(), 0)), one);
        assert_eq!(cache.node("node-1"), Some(node(true)));
        assert!(
            cache
                .retain_nodes(&HashSet::from(["node-1".to_owned()]))
                .is_empty()
        );
        assert_eq!(cache.retain_nodes(&HashSet::new()), one);
        assert_eq!(cache.node("node-1"), None);
        cache.apply_node(node(true), (Amounts::default(), 0));
        assert_eq!(cache.delete_node("node-1"), one);
    }
}
