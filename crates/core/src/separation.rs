//! Which placeholders stay away from which (M4, P4). The rule is here once: as the anti-affinity term that the scheduler
//! reads, and as a predicate that follows from the same term.

use crate::mode::IsolationScope;

/// How a placeholder stays away from others.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Separation {
    /// It prefers a node without another placeholder, so that runs spread (P4).
    #[default]
    Spread,
    /// It shares its node with no other placeholder (M4).
    Isolate(IsolationScope),
}

/// The pod anti-affinity term of a placeholder. It selects other placeholders, by node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AntiAffinityTerm {
    /// Whether the scheduler must follow the term, or only prefers to.
    pub required: bool,
    /// Whether the term selects placeholders of every namespace, or only of the placeholder's own.
    pub every_namespace: bool,
}

impl Separation {
    /// The term of a placeholder with this separation.
    ///
    /// Isolation needs a term on the isolated side only: the scheduler also checks a new pod against the required
    /// anti-affinity of the pods that run on a node (Kubernetes 1.35,
    /// `pkg/scheduler/framework/plugins/interpodaffinity/filtering.go`, `satisfyExistingPodsAntiAffinity`).
    pub const fn anti_affinity(self) -> AntiAffinityTerm {
        match self {
            Self::Spread => AntiAffinityTerm {
                required: false,
                every_namespace: false,
            },
            Self::Isolate(scope) => AntiAffinityTerm {
                required: true,
                every_namespace: match scope {
                    IsolationScope::Cluster => true,
                    IsolationScope::Namespace => false,
                },
            },
        }
    }

    /// Whether two placeholders may share a node.
    pub fn shares_a_node_with(self, other: Self, same_namespace: bool) -> bool {
        [self, other].into_iter().all(|separation| {
            let term = separation.anti_affinity();
            !term.required || !(term.every_namespace || same_namespace)
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
