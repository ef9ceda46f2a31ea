use super::*;
use crate::node::{NO_EXECUTE, Taint};
use proptest::prelude::*;

fn taint(key: &str, value: &str, effect: &str) -> Taint {
    Taint {
        key: key.to_owned(),
        value: value.to_owned(),
        effect: effect.to_owned(),
    }
}

fn node(taints: &[Taint]) -> Node {
    Node {
        name: "node-1".to_owned(),
        unschedulable: false,
        taints: taints.to_vec(),
        ..Node::default()
    }
}

/// The tolerations that Kubernetes adds to every pod (admission plugin `DefaultTolerationSeconds`).
fn defaults() -> Vec<Toleration> {
    [
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
    ]
    .map(|key| Toleration {
        key: key.to_owned(),
        exists: true,
        effect: NO_EXECUTE.to_owned(),
        for_a_while: true,
        ..Toleration::default()
    })
    .to_vec()
}

/// Checks the cause for which a placeholder leaves this node, and whether it leaves at once. The text is empty if it stays.
#[track_caller]
fn check(node: Option<Node>, expect: &str) {
    let eviction = evict(Role::Placeholder, &defaults(), node.as_ref());
    let said = eviction.map(|(cause, at_once)| {
        let when = if at_once { ", at once" } else { "" };
        format!("{cause}{when}")
    });
    assert_eq!(said.unwrap_or_default(), expect);
}

#[test]
fn n1_a_placeholder_leaves_a_node_that_turns_pods_away() {
    let spot = |value, effect| Some(node(&[taint("spot", value, effect)]));
    let not_ready = taint("node.kubernetes.io/not-ready", "", "NoExecute");
    let mut cordoned = node(&[]);
    cordoned.unschedulable = true;
    check(Some(node(&[])), "");
    check(None, "is gone, at once");
    check(Some(cordoned), "is cordoned");
    check(spot("yes", "NoSchedule"), "has taint spot=yes:NoSchedule");
    check(spot("", "NoExecute"), "has taint spot:NoExecute");
    check(spot("", "PreferNoSchedule"), "");
    let expect = "has taint node.kubernetes.io/not-ready:NoExecute, at once";
    check(Some(node(&[not_ready])), expect);
}

#[test]
fn n1_a_pod_that_has_started_is_left_to_finish_and_one_that_never_has_is_dropped() {
    let bad = node(&[taint("spot", "", "NoExecute")]);
    assert_eq!(evict(Role::Started, &[], Some(&bad)), None);
    assert_eq!(evict(Role::Started, &[], None), None);
    assert!(evict(Role::NeverStarted, &[], Some(&bad)).unwrap().1);
    assert_eq!(evict(Role::NeverStarted, &[], Some(&node(&[]))), None);
}

fn any_taint() -> impl Strategy<Value = Taint> {
    let words = prop::sample::select(vec!["a", "b", "node.kubernetes.io/not-ready"]);
    let effects = prop::sample::select(vec!["NoSchedule", "PreferNoSchedule", "NoExecute"]);
    (words, prop::sample::select(vec!["", "x"]), effects)
        .prop_map(|(key, value, effect)| taint(key, value, effect))
}

proptest! {
    /// If a pod that tolerates every taint left nodes that exist, its placeholder would move again and again.
    #[test]
    fn n1_a_pod_that_tolerates_everything_only_leaves_a_node_that_is_gone(
        taints in prop::collection::vec(any_taint(), 0..4), unschedulable: bool,
    ) {
        let everything = Toleration { exists: true, ..Toleration::default() };
        let node = Node { unschedulable, ..node(&taints) };
        prop_assert_eq!(evict(Role::Placeholder, std::slice::from_ref(&everything), Some(&node)), None);
        prop_assert!(evict(Role::Placeholder, &[everything], None).is_some());
    }

    /// Compares the function with the rule of the requirement.
    #[test]
    fn n1_a_placeholder_without_tolerations_stays_exactly_where_nothing_keeps_pods_away(
        taints in prop::collection::vec(any_taint(), 0..4), unschedulable: bool,
    ) {
        let keeps_away = unschedulable || taints.iter().any(|taint| taint.effect != "PreferNoSchedule");
        let node = Node { unschedulable, ..node(&taints) };
        prop_assert_eq!(evict(Role::Placeholder, &[], Some(&node)).is_some(), keeps_away);
    }
}
