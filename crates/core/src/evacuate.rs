//! Finds the pods that must leave the node they are bound to (N1). The rule depends on the state of node and pod alone, so it
//! holds whenever a node changes and wherever a placeholder is bound.
//!
//! Kubernetes, "Taints and Tolerations": a toleration matches a taint by effect, key and, unless its operator is `Exists`, value.

use std::collections::BTreeMap;
use std::fmt;

use crate::plan::Reason;
use crate::reasons;
use crate::volumes::{SeenClaim, reaches};

/// The fields of a node that decide which pods may be on it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// `spec.unschedulable`: it is cordoned.
    pub unschedulable: bool,
    /// `spec.taints`.
    pub taints: Vec<Taint>,
    /// `metadata.labels`: node affinity of pods and volumes selects by them.
    pub labels: BTreeMap<String, String>,
}

/// A taint of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Taint {
    /// `key`.
    pub key: String,
    /// `value`; may be empty.
    pub value: String,
    /// `effect`: `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
    pub effect: String,
}

/// A toleration of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Toleration {
    /// `key`; if it is empty and `operator` is `Exists`, it matches every key.
    pub key: String,
    /// True if `operator` is `Exists` rather than `Equal`.
    pub exists: bool,
    /// `value`.
    pub value: String,
    /// `effect`; empty matches every effect.
    pub effect: String,
    /// True if `tolerationSeconds` is set. Such a toleration does not keep a pod on the node: Kubernetes adds one for NotReady and
    /// one for unreachable nodes to every pod.
    pub for_a_while: bool,
}

/// The role of a bound pod in its run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// A placeholder's pod.
    Placeholder,
    /// A TaskRun's pod without any container that has ever started.
    NeverStarted,
    /// A TaskRun's pod with a container that runs or has run.
    Started,
}

/// Why a pod does not belong on its node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Misplaced {
    /// The node does not exist (any more).
    Gone,
    /// The node has a taint that the pod does not tolerate. A cordon counts as taint `node.kubernetes.io/unschedulable`.
    Tainted(Taint),
}

/// The way to delete a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Eviction {
    /// The reason.
    pub cause: Misplaced,
    /// True to delete the pod without a grace period. If its node is gone or does not answer, no kubelet confirms the pod's end,
    /// and Kubernetes creates no other pod before that.
    pub at_once: bool,
}

/// The taint that Kubernetes adds to a cordoned node.
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";
/// Taints of a node with a kubelet that may not answer.
const SILENT: [&str; 3] = [
    "node.kubernetes.io/not-ready",
    "node.kubernetes.io/unreachable",
    "node.kubernetes.io/out-of-service",
];
const NO_SCHEDULE: &str = "NoSchedule";
const NO_EXECUTE: &str = "NoExecute";

/// Words that follow "the node".
impl fmt::Display for Misplaced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gone => f.write_str("is gone"),
            Self::Tainted(taint) if taint.key == UNSCHEDULABLE => f.write_str("is cordoned"),
            Self::Tainted(Taint { key, value, effect }) => {
                let separator = if value.is_empty() { "" } else { "=" };
                write!(f, "has taint {key}{separator}{value}:{effect}")
            }
        }
    }
}

/// How a pod leaves the node it is bound to; `None` if it may stay. `node` is `None` if the node does not exist.
///
/// A pod that has started may finish. One that never started is deleted without a grace period: otherwise, the kubelet would
/// report it as failed, and Tekton would fail its TaskRun. If the pod just disappears, Tekton creates it again (Tekton v1.12.0,
/// `pkg/reconciler/taskrun`).
pub fn evict(role: Role, tolerations: &[Toleration], node: Option<&Node>) -> Option<Eviction> {
    let cause = misplaced(tolerations, node)?;
    match role {
        Role::Placeholder => Some(Eviction {
            at_once: is_silent(node),
            cause,
        }),
        Role::NeverStarted => Some(Eviction {
            at_once: true,
            cause,
        }),
        Role::Started => None,
    }
}

/// Why a placeholder finds no node, if its claims are the cause: it does not tolerate the taints of any of `nodes` that reaches
/// the volumes of its claims, `seen`.
pub fn stranded(tolerations: &[Toleration], seen: &[SeenClaim], nodes: &[&Node]) -> Option<Reason> {
    let held = |claim: &&SeenClaim| claim.volume.as_ref().is_some_and(|on| !on.terms.is_empty());
    let claims: Vec<_> = seen
        .iter()
        .filter(held)
        .map(|it| it.name.as_str())
        .collect();
    if claims.is_empty() {
        return None;
    }
    let reaching = nodes
        .iter()
        .filter(|node| reaches(&node.name, &node.labels, seen));
    let causes: Option<Vec<_>> = reaching
        .map(|node| {
            Some(format!(
                "{} {}",
                node.name,
                misplaced(tolerations, Some(node))?
            ))
        })
        .collect();
    let causes = causes?;
    Some(match causes.split_first() {
        None => reasons::claims_out_of_reach(&claims),
        Some((first, others)) => reasons::claims_not_movable(&claims, first, others.len()),
    })
}

/// Why a pod with these tolerations must not be on a node; `None` if it may. `node` is `None` if the node does not exist.
pub fn misplaced(tolerations: &[Toleration], node: Option<&Node>) -> Option<Misplaced> {
    let Some(node) = node else {
        return Some(Misplaced::Gone);
    };
    let cordon = node.unschedulable.then(|| Taint {
        key: UNSCHEDULABLE.to_owned(),
        value: String::new(),
        effect: NO_SCHEDULE.to_owned(),
    });
    cordon
        .iter()
        .chain(&node.taints)
        .filter(|taint| matches!(taint.effect.as_str(), NO_SCHEDULE | NO_EXECUTE))
        .find(|taint| !tolerations.iter().any(|it| it.tolerates(taint)))
        .map(|taint| Misplaced::Tainted(taint.clone()))
}

fn is_silent(node: Option<&Node>) -> bool {
    node.is_none_or(|node| {
        let mut taints = node.taints.iter();
        taints.any(|taint| SILENT.contains(&taint.key.as_str()))
    })
}

impl Toleration {
    /// True if a pod with this toleration may stay on a node with the taint without a time limit.
    fn tolerates(&self, taint: &Taint) -> bool {
        let effect = self.effect.is_empty() || self.effect == taint.effect;
        let key = (self.key.is_empty() && self.exists) || self.key == taint.key;
        let value = self.exists || self.value == taint.value;
        effect && key && value && !self.for_a_while
    }
}

#[cfg(test)]
mod tests;
