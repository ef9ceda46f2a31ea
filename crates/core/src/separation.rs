//! Which placeholders stay away from which, or close to which (M4, P4). Module `affinity` of crate `kubernetes` builds the terms.

use serde::{Deserialize, Serialize};

use crate::config::Reserves;
use crate::mode::IsolationScope;
use crate::words::words;

words! {
    /// The nodes that placeholders outside mode `isolate-pipelinerun` prefer (P4).
    #[derive(Default, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Placement: "a placement" {
        /// Nodes without another placeholder.
        #[default]
        Spread = "spread",
        /// Nodes with another placeholder.
        Pack = "pack",
        /// No preference.
        None = "none",
    }
}

/// What a placeholder asks of its node about other placeholders.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Separation {
    /// It prefers a node without another placeholder of any namespace, so that runs spread (P4).
    #[default]
    Spread,
    /// It prefers a node with another placeholder of any namespace, so that runs fill few nodes (P4).
    Pack,
    /// It asks nothing (P4).
    None,
    /// It shares its node with no other placeholder (M4).
    Isolate(IsolationScope),
}

impl Separation {
    /// The separation of a placeholder outside isolation (P4, B3).
    ///
    /// One that reserves room does not spread: Karpenter treats a preferred anti-affinity as a required one, so each
    /// placeholder would get a node of its own.
    pub const fn shared(placement: Placement, reserves: Reserves) -> Self {
        match placement {
            Placement::Spread => match reserves {
                Reserves::Nothing => Self::Spread,
                Reserves::Placement => Self::None,
            },
            Placement::Pack => Self::Pack,
            Placement::None => Self::None,
        }
    }

    /// Whether two placeholders may share a node.
    ///
    /// It is enough that one of them is isolated: the scheduler also checks a new pod against the required anti-affinity of the
    /// pods that run on a node (Kubernetes 1.35, `pkg/scheduler/framework/plugins/interpodaffinity/filtering.go`,
    /// `satisfyExistingPodsAntiAffinity`).
    pub fn shares_a_node_with(self, other: Self, same_namespace: bool) -> bool {
        [self, other]
            .into_iter()
            .all(|separation| match separation {
                Self::Spread | Self::Pack | Self::None => true,
                Self::Isolate(IsolationScope::Namespace) => !same_namespace,
                Self::Isolate(IsolationScope::Cluster) => false,
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn m4_an_isolated_placeholder_shares_its_node_with_none_of_its_scope() {
        let spread = Separation::Spread;
        let cluster = Separation::Isolate(IsolationScope::Cluster);
        let namespace = Separation::Isolate(IsolationScope::Namespace);
        for (left, right, same_namespace, shares) in [
            (spread, spread, true, true),
            (spread, spread, false, true),
            (Separation::Pack, Separation::None, true, true),
            (Separation::Pack, namespace, true, false),
            (Separation::None, cluster, false, false),
            (spread, namespace, true, false),
            (spread, namespace, false, true),
            (spread, cluster, false, false),
            (namespace, namespace, false, true),
            (namespace, cluster, false, false),
        ] {
            let case = format!("{left:?} {right:?} {same_namespace}");
            assert_eq!(
                left.shares_a_node_with(right, same_namespace),
                shares,
                "{case}"
            );
            assert_eq!(
                right.shares_a_node_with(left, same_namespace),
                shares,
                "{case}"
            );
        }
    }
}
