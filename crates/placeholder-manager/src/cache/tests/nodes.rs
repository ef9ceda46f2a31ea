//! Nodes (N1).

use super::*;
use coscheduler_core::node::Node;

fn node(name: &str, unschedulable: bool) -> Node {
    Node {
        name: name.to_owned(),
        unschedulable,
        ..Node::default()
    }
}

#[test]
fn n1_a_change_of_a_node_is_news_for_the_runs_on_it_and_a_heartbeat_is_none() {
    let cache = Cache::default();
    for (uid, bound) in [("one", "node-1"), ("two", "node-2")] {
        let mut pod = task_pod(uid, uid);
        pod["spec"]["nodeName"] = bound.into();
        cache.apply_pod(read_pod(pod));
    }
    let one = [RunKey::new("ci", "one")];
    let listed = HashSet::from([(String::new(), "node-1".to_owned())]);
    let cordoned = || {
        cache
            .observe(&key())
            .node("node-1")
            .map(|node| node.unschedulable)
    };
    assert_eq!(cache.apply_node(node("node-1", false)), one);
    assert!(cache.apply_node(node("node-1", false)).is_empty());
    assert_eq!(cache.apply_node(node("node-1", true)), one);
    assert_eq!(cordoned(), Some(true));
    assert!(cache.retain_nodes(&listed).is_empty());
    assert_eq!(cache.retain_nodes(&HashSet::new()), one);
    assert_eq!(cordoned(), None);
    cache.apply_node(node("node-1", true));
    assert_eq!(cache.delete_node("node-1"), one);
    // The run's pod is now on another node, so a change of node-1 does not concern the run.
    let mut pod = task_pod("one", "one");
    pod["spec"]["nodeName"] = "node-2".into();
    pod["metadata"]["resourceVersion"] = "9".into();
    cache.apply_pod(read_pod(pod));
    assert!(cache.apply_node(node("node-1", false)).is_empty());
}
