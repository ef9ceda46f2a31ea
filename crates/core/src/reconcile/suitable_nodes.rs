//! Finds nodes that suit both a placeholder and the pods that follow it.

use super::reserve::Placed;
use crate::node::{Node, misplaced};
use crate::observed::{Needs, Pod};
use crate::requests::Amounts;
use crate::volumes::reaches;

/// The greatest number of nodes that a placeholder prefers by name.
const NODES: usize = 50;

impl<'a> Placed<'a> {
    /// The node that the placeholder must return to: pods that follow the placeholder are bound to this node, and the node has no
    /// cordon or taint that keeps the placeholder away. The scheduler may have bound such a pod while the placeholder left. Pods
    /// without a TaskRun do not count, because nobody can confirm that they belong to the run.
    pub(super) fn home(&self) -> Option<String> {
        let pods = self.followers().filter(|pod| !pod.object.deleting);
        let pods = pods.filter(|pod| pod.task_run().is_some());
        let mut nodes = pods.filter_map(|pod| pod.node.clone());
        let own = &self.own.needs.tolerations;
        nodes.find(|node| misplaced(own, self.observed.node(node)).is_none())
    }

    /// True if several nodes may take the placeholder. False while the volume of a claim is not known: perhaps only one node
    /// reaches this volume, and the scheduler looks only at the node for which the volume is being created.
    pub(super) fn has_choice(&self) -> bool {
        let claims = self.observed.claims_of(self.spec, self.pod);
        let has_volume = |claim| {
            let seen = self.observed.volumes.get(claim);
            seen.is_some_and(|seen| seen.volume.is_some())
        };
        claims.iter().all(has_volume) && self.good_nodes(&self.own.needs).nth(1).is_some()
    }

    /// Up to [`NODES`] nodes that are large enough for the placeholder and this pod, without the node that the placeholder
    /// left. Empty if no node is too small, because then no preference is needed. The placeholder prefers the returned nodes,
    /// because the placeholder's requests do not always show the pod's whole size: Kubernetes resizes only CPU and memory, and
    /// a quota may refuse the resize.
    pub(super) fn large_enough(&self, pod: &'a Pod) -> Vec<String> {
        let both = Amounts {
            others: pod.needs.requests.others.clone(),
            ..self.with_own(&pod.needs.requests)
        };
        let (large, small): (Vec<_>, Vec<_>) = self.good_nodes(&pod.needs).partition(|node| {
            let mut both = both.resources();
            both.all(|(name, amount)| node.allocatable.of(name) >= amount)
        });
        let large = large.iter().map(|node| node.name.clone());
        let others = large.filter(|node| Some(node) != self.own.record.left.as_ref());
        let most = if small.is_empty() { 0 } else { NODES };
        others.take(most).collect()
    }

    /// A resource that the pod requests, if none of the `good_nodes` has enough of it (`node` itself does not count). CPU and
    /// memory are not checked: the placeholder can ask for them, and an autoscaler may add a node with more of them.
    pub(super) fn lacking_elsewhere(&self, pod: &'a Pod, node: &str) -> Option<&'a str> {
        let mut others = pod.needs.requests.others.iter();
        let lacking = others.find(|(name, amount)| {
            let mut elsewhere = self.good_nodes(&pod.needs).filter(|it| it.name != node);
            !elsewhere.any(|it| it.allocatable.of(name) >= **amount)
        });
        lacking.map(|(name, _)| name.as_str())
    }

    /// The nodes that may take the placeholder when it asks for a node with these requirements. These nodes meet the node selector
    /// and node affinity, reach the volumes of the placeholder's claims, and have no cordon or taint that keeps the placeholder
    /// away.
    fn good_nodes(&self, needs: &'a Needs) -> impl Iterator<Item = &'a Node> {
        let claims = self.observed.claims_of(self.spec, self.pod);
        let seen = self.observed.seen(&claims);
        let tolerations = [&*self.own.needs.tolerations, &*needs.tolerations].concat();
        let nodes = self.observed.nodes.values().map(AsRef::as_ref);
        nodes.filter(move |node: &&Node| {
            let met = needs.are_met_by(&node.name, &node.labels);
            met && misplaced(&tolerations, Some(node)).is_none()
                && reaches(&node.name, &node.labels, &seen)
        })
    }
}
