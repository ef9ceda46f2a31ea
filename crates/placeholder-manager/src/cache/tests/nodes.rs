//! Nodes, and what is on them (N1, N2).

use super::*;
use coscheduler_core::reconcile::evacuate::Node;
use coscheduler_core::reconcile::requests::Amounts;
use coscheduler_core::reconcile::room::Room;

fn node(node: &str, unschedulable: bool) -> Room {
    Room {
        node: Node {
            name: node.to_owned(),
            unschedulable,
            ..Node::default()
        },
        pods_allowed: 10,
        ..Room::default()
    }
}

fn cpu(milli_cpu: i128) -> Amounts {
    Amounts {
        milli_cpu,
        ..Amounts::default()
    }
}

fn on(cache: &Cache, pod: &str, node: &str, milli_cpu: i128) {
    cache.on_node(name(pod), Some((node.to_owned(), cpu(milli_cpu))));
}

/// CPU that is asked for on a node, and pods.
fn taken(cache: &Cache, node: &str) -> (i128, i128) {
    let observed = cache.observe(&key());
    let room = &observed.nodes[node];
    (room.requested.milli_cpu, room.pods)
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
    // More room is none: runs that wait for it look again by themselves.
    let larger = Room {
        allocatable: cpu(9),
        ..node("node-1", true)
    };
    assert!(cache.apply_node(larger).is_empty());
    assert!(cache.retain_nodes(&listed).is_empty());
    assert_eq!(cache.retain_nodes(&HashSet::new()), one);
    assert_eq!(cordoned(), None);
    cache.apply_node(node("node-1", true));
    assert_eq!(cache.delete_node("node-1"), one);
    // One that has moved on hears nothing of it.
    let mut pod = task_pod("one", "one");
    pod["spec"]["nodeName"] = "node-2".into();
    pod["metadata"]["resourceVersion"] = "9".into();
    cache.apply_pod(read_pod(pod));
    assert!(cache.apply_node(node("node-1", false)).is_empty());
}

#[test]
fn n2_what_is_taken_of_a_node_is_the_sum_of_the_pods_on_it_whatever_was_missed() {
    let cache = Cache::default();
    // Pods may be known before their node is.
    on(&cache, "a", "node-1", 100);
    for name in ["node-1", "node-2"] {
        cache.apply_node(node(name, false));
    }
    on(&cache, "b", "node-1", 20);
    // Resized, and made anew on another node.
    on(&cache, "a", "node-1", 300);
    assert_eq!(taken(&cache, "node-1"), (320, 2));
    on(&cache, "b", "node-2", 20);
    assert_eq!(taken(&cache, "node-1"), (300, 1));
    assert_eq!(taken(&cache, "node-2"), (20, 1));
    cache.apply_node(node("node-2", true));
    assert_eq!(taken(&cache, "node-2"), (20, 1));
    cache.retain_on_nodes(&HashSet::from([name("b")]));
    assert_eq!(taken(&cache, "node-1"), (0, 0));
    cache.on_node(name("b"), None);
    cache.on_node(name("b"), None);
    assert_eq!(taken(&cache, "node-2"), (0, 0));
}

#[test]
fn p4_m4_a_node_says_which_placeholders_are_on_it() {
    let cache = Cache::default();
    cache.apply_node(node("node-1", false));
    let run = run(&[]);
    let there = || cache.observe(&key()).nodes["node-1"].placeholders.len();
    cache.apply_pod(placeholder_pod(&run, None, json!({"phase": "Pending"})));
    assert_eq!(there(), 0);
    cache.apply_pod(placeholder_pod(&run, Some("node-1"), running()));
    cache.apply_pod(placeholder_pod(&run, Some("node-1"), running()));
    assert_eq!(there(), 1);
    cache.retain_pods(&HashSet::new());
    assert_eq!(there(), 0);
    assert!(cache.read().pods_by_node.is_empty());
}
