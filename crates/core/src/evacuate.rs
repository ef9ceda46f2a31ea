//! Which pods do not belong on the node they are bound to, and have to go (N1). A rule about state, not about events: held
//! against it at every change of a node and at every bind, a placeholder may be bound anywhere at any time and ends up right.
//!
//! Kubernetes, "Taints and Tolerations": a taint is tolerated by a toleration that matches its effect, its key and, unless it
//! says `Exists`, its value.

use std::collections::BTreeMap;
use std::fmt;

use crate::plan::Reason;
use crate::reasons;
use crate::volumes::{SeenClaim, reaches};

/// A node, as far as it may turn pods away.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// `spec.unschedulable`: it is cordoned.
    pub unschedulable: bool,
    /// `spec.taints`.
    pub taints: Vec<Taint>,
    /// `metadata.labels`: by these it reaches a volume or does not.
    pub labels: BTreeMap<String, String>,
}

/// A taint of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Taint {
    /// `key`.
    pub key: String,
    /// `value`; empty where there is none.
    pub value: String,
    /// `effect`: `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
    pub effect: String,
}

/// A toleration of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Toleration {
    /// `key`; empty matches every key, with `Exists`.
    pub key: String,
    /// Whether `operator` is `Exists` rather than `Equal`.
    pub exists: bool,
    /// `value`.
    pub value: String,
    /// `effect`; empty matches every effect.
    pub effect: String,
    /// Whether `tolerationSeconds` is set. A taint that is tolerated for a while only is a reason to leave: Kubernetes adds
    /// such tolerations of NotReady and unreachable nodes to every pod.
    pub for_a_while: bool,
}

/// What a bound pod is to its run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// A placeholder: it holds a place and nothing else.
    Placeholder,
    /// A TaskRun's pod of which no container has ever started.
    NeverStarted,
    /// A TaskRun's pod that runs, or has run.
    Started,
}

/// Why a pod does not belong on its node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Misplaced {
    /// There is no such node (any more).
    Gone,
    /// It has a taint that keeps pods away, or is cordoned, which is the taint `node.kubernetes.io/unschedulable`.
    Tainted(Taint),
}

/// How a pod is to be deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Eviction {
    /// Why.
    pub cause: Misplaced,
    /// Whether the pod object is dropped at once. Nobody on a node that is gone or does not answer confirms the end of a pod,
    /// and a StatefulSet makes no other one before.
    pub at_once: bool,
}

/// Taint that a cordoned node has, or will have in a moment.
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";
/// Taints of a node whose kubelet confirms nothing.
const SILENT: [&str; 3] = [
    "node.kubernetes.io/not-ready",
    "node.kubernetes.io/unreachable",
    "node.kubernetes.io/out-of-service",
];
const NO_SCHEDULE: &str = "NoSchedule";
const NO_EXECUTE: &str = "NoExecute";

impl fmt::Display for Misplaced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gone => f.write_str("the node is gone"),
            Self::Tainted(taint) if taint.key == UNSCHEDULABLE => {
                f.write_str("the node is cordoned")
            }
            Self::Tainted(Taint { key, value, effect }) => {
                let separator = if value.is_empty() { "" } else { "=" };
                write!(f, "the node has taint {key}{separator}{value}:{effect}")
            }
        }
    }
}

/// Whether a pod has to leave the node it is bound to, and how. `node` is `None` where there is no node of that name.
///
/// A pod that has started is left to finish. One that never has is only dropped at once: a kubelet that is told to end it
/// reports it as failed, and its TaskRun with it; one that vanishes is made again by Tekton (Tekton v1.12.0,
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

/// Why a placeholder without a node gets none, where that is because its claims cannot follow it: every one of `nodes` that
/// reaches the volumes of `seen`, its claims, turns it away.
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
                "{}: {}",
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

/// Why a pod with these tolerations does not belong on a node; `None` where it does. `node` is `None` where there is no node of
/// that name.
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
        .find(|taint| !tolerations.iter().any(|toleration| toleration.bears(taint)))
        .map(|taint| Misplaced::Tainted(taint.clone()))
}

fn is_silent(node: Option<&Node>) -> bool {
    node.is_none_or(|node| {
        let mut taints = node.taints.iter();
        taints.any(|taint| SILENT.contains(&taint.key.as_str()))
    })
}

impl Toleration {
    /// Whether a pod with this toleration may stay for good where the taint is.
    fn bears(&self, taint: &Taint) -> bool {
        let effect = self.effect.is_empty() || self.effect == taint.effect;
        let key = (self.key.is_empty() && self.exists) || self.key == taint.key;
        let value = self.exists || self.value == taint.value;
        effect && key && value && !self.for_a_while
    }
}

#[cfg(test)]
mod tests;
