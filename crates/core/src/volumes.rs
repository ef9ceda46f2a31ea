//! Decides which existing claims a placeholder must not mount, and which nodes reach the volumes of these claims (V8). Also finds
//! out if one node can reach the volumes of all claims of the placeholder (V7).
//!
//! A plan contains only the names of existing claims. The decisions of this module need the claims and volumes themselves.

mod topology;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use crate::node::Node;
use crate::plan::PlaceholderSpec;

pub use topology::{NodeRequirement, NodeTerm, Operator};

/// The parts of a PersistentVolumeClaim that decisions need.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SeenClaim {
    /// `metadata.name`.
    pub name: String,
    /// True if `spec.accessModes` contains `ReadWriteOncePod`.
    pub single_pod: bool,
    /// The volume that the claim is bound to. `None` if it is not bound.
    pub volume: Option<SeenVolume>,
}

impl SeenClaim {
    /// True if the claim's volume has a node affinity, so that not every node reaches it.
    pub(crate) fn limits_nodes(&self) -> bool {
        let volume = self.volume.as_ref();
        volume.is_some_and(|volume| !volume.terms.is_empty())
    }
}

/// The parts of a PersistentVolume that decisions need.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SeenVolume {
    /// `spec.nodeAffinity.required.nodeSelectorTerms`. A node that meets one of these terms reaches the volume. If there are no
    /// terms, every node reaches the volume.
    pub terms: Vec<NodeTerm>,
}

/// The decisions about a placeholder that follow from the volumes of its claims.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Volumes {
    /// Existing claims that the placeholder must not mount, because only one pod at a time may use each of them (V8).
    pub unmounted: BTreeSet<String>,
    /// For each `ReadWriteOncePod` claim whose volume has a node affinity: the terms of the volume. The placeholder's node must
    /// meet one term of **each** list. The placeholder gets these terms as node affinity, because the scheduler checks only
    /// volumes that a pod mounts.
    pub node_terms: Vec<Vec<NodeTerm>>,
}

/// The nodes of the cluster, by name.
pub type Nodes = BTreeMap<String, Arc<Node>>;

/// Claims whose volumes no node can reach together. For [`conflict`], new nodes count too. For `out_of_reach`, only the given
/// nodes count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// If [`conflict`] finds two claims whose volumes no node can reach together, these two claims. Otherwise, all claims whose
    /// volumes have a node affinity. Each item has the claim's name and a text about the nodes that reach its volume.
    pub claims: Vec<(String, String)>,
}

impl Conflict {
    fn of(claims: &[(&str, &[NodeTerm])]) -> Self {
        let claims = claims.iter();
        let claims = claims.map(|(name, terms)| ((*name).to_owned(), topology::describe(terms)));
        Self {
            claims: claims.collect(),
        }
    }
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (claim, topology)) in self.claims.iter().enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            write!(f, "{separator}{claim:?} ({topology})")?;
        }
        Ok(())
    }
}

/// Decides which claims the placeholder must not mount, and which nodes reach their volumes. `seen` has the existing claims of
/// the placeholder.
pub fn volumes(spec: &PlaceholderSpec, seen: &[SeenClaim]) -> Volumes {
    let mounted: BTreeSet<&str> = spec.claim_names.iter().map(String::as_str).collect();
    let single_pod = || seen.iter().filter(|claim| claim.single_pod);
    Volumes {
        unmounted: single_pod()
            .filter(|claim| mounted.contains(claim.name.as_str()))
            .map(|claim| claim.name.clone())
            .collect(),
        node_terms: single_pod()
            .filter_map(|claim| claim.volume.as_ref())
            .map(|volume| volume.terms.clone())
            .filter(|terms| !terms.is_empty())
            .collect(),
    }
}

/// The claims whose volumes no node can reach together. `None` if one of `nodes`, or a new node with a suitable name and suitable
/// labels, could reach all volumes.
pub fn conflict(seen: &[SeenClaim], nodes: &Nodes) -> Option<Conflict> {
    let bound = limiting(seen);
    if bound.is_empty() {
        return None;
    }
    let lists: Vec<_> = bound.iter().map(|(_, terms)| *terms).collect();
    if topology::can_meet(&lists, nodes) {
        return None;
    }
    let pair = bound.iter().enumerate().find_map(|(index, left)| {
        let right = bound[index + 1..]
            .iter()
            .find(|right| !topology::can_meet(&[left.1, right.1], nodes))?;
        Some(vec![*left, *right])
    });
    Some(Conflict::of(&pair.unwrap_or(bound)))
}

/// The claims whose volumes none of `nodes` can reach together. `None` if one of the nodes can, or if there is no node.
pub(crate) fn out_of_reach<'a>(
    seen: &[SeenClaim],
    nodes: impl Iterator<Item = &'a Node>,
) -> Option<Conflict> {
    let mut nodes = nodes.peekable();
    nodes.peek()?;
    let none = !nodes.any(|node| reaches(&node.name, &node.labels, seen));
    none.then(|| Conflict::of(&limiting(seen)))
}

/// The claims whose volumes not every node reaches, each with the terms of its volume.
fn limiting(seen: &[SeenClaim]) -> Vec<(&str, &[NodeTerm])> {
    let seen = seen.iter().filter(|claim| claim.limits_nodes());
    seen.filter_map(|claim| Some((claim.name.as_str(), claim.volume.as_ref()?.terms.as_slice())))
        .collect()
}

/// True if the node with this name and these labels meets one of the node selector's terms.
pub fn meets(node: &str, labels: &BTreeMap<String, String>, terms: &[NodeTerm]) -> bool {
    topology::node_meets(node, labels, &[terms])
}

/// True if the node with this name and these labels reaches the volumes of all these claims.
pub fn reaches(node: &str, labels: &BTreeMap<String, String>, seen: &[SeenClaim]) -> bool {
    let volumes = seen.iter().filter_map(|claim| claim.volume.as_ref());
    let lists: Vec<_> = volumes
        .map(|volume| volume.terms.as_slice())
        .filter(|terms| !terms.is_empty())
        .collect();
    topology::node_meets(node, labels, &lists)
}

#[cfg(test)]
mod tests;
