//! Predicts if a node can run a pod. The prediction uses requests, the number of pods, taints, node selector, required node
//! affinity, and the node affinity of volumes. It does not use ports, the author's inter-pod affinity and limits of attached
//! volumes: only the scheduler checks these.
//!
//! Source: Kubernetes 1.35, `pkg/scheduler/framework/plugins/noderesources/fit.go`, `fitsRequest`, and `nodeaffinity`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;

use super::requests::{Amounts, in_words};
use crate::plan::Separation;
use crate::reconcile::evacuate::{Misplaced, Node, Toleration, misplaced};
use crate::volumes::{NodeTerm, SeenClaim, meets, reaches};

/// Nodes by name.
pub type Rooms = BTreeMap<String, Arc<Room>>;

/// A node, and the requests of the pods on it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Room {
    /// The node.
    pub node: Node,
    /// When it was created.
    pub created: Option<Timestamp>,
    /// `status.allocatable` without `pods`.
    pub allocatable: Amounts,
    /// `pods` of `status.allocatable`.
    pub pods_allowed: i128,
    /// The requests of all pods on it, those of others included.
    pub requested: Amounts,
    /// The number of pods on it that have not ended.
    pub pods: i128,
    /// The placeholders on it.
    pub placeholders: Vec<Keeping>,
}

/// The namespace of a placeholder, and its anti-affinity to other placeholders.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keeping {
    /// Its namespace.
    pub namespace: String,
    /// Its anti-affinity to other placeholders, preferred or required.
    pub separation: Separation,
}

/// A pod's requirements on a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Needs {
    /// Its requests.
    pub requests: Amounts,
    /// `spec.nodeSelector`.
    pub selector: BTreeMap<String, String>,
    /// The terms of its required node affinity; the node must meet one of them. `None` if it has no such affinity.
    pub terms: Option<Vec<NodeTerm>>,
    /// `spec.tolerations`.
    pub tolerations: Vec<Toleration>,
    /// The claims that it uses or, for a placeholder, stands for.
    pub claims: Vec<SeenClaim>,
    /// Nodes that seemed to have room, but that the scheduler did not choose.
    pub refused: BTreeSet<String>,
}

/// Why a node does not take a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Obstacle {
    /// The pod does not tolerate its taints.
    Misplaced(Misplaced),
    /// The pod's node selector or required node affinity does not match it.
    NotSelected,
    /// It does not reach the volumes of these claims.
    OutOfReach(Vec<String>),
    /// A placeholder on it must not share its node with this one.
    Isolated,
    /// The scheduler did not choose it.
    Refused,
    /// A resource is insufficient.
    Lacks(Lack),
}

/// A resource that is insufficient on a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lack {
    /// The resource; `pods` stands for the number of pods.
    pub resource: String,
    /// The pod's request.
    pub asked: i128,
    /// The allocatable amount of the node.
    pub allocatable: i128,
}

/// Words that follow "a node". They contain no amounts that change all the time, so that the same cause always has the same
/// text.
impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Misplaced(cause) => cause.fmt(f),
            Self::NotSelected => f.write_str("does not match the nodeSelector or node affinity"),
            Self::OutOfReach(claims) => {
                write!(f, "does not reach claims {}", claims.join(", "))
            }
            Self::Isolated => f.write_str("is reserved for an isolated run"),
            Self::Refused => f.write_str("was rejected by the scheduler"),
            Self::Lacks(lack) => {
                let Lack {
                    resource,
                    asked,
                    allocatable,
                } = lack;
                let (asked, has) = (in_words(resource, *asked), in_words(resource, *allocatable));
                write!(
                    f,
                    "has {resource} {has} in total, but no room for a request of {asked}"
                )
            }
        }
    }
}

impl Needs {
    /// Why the node does not take the pod; `None` if it seems to.
    pub fn obstacle(&self, room: &Room) -> Option<Obstacle> {
        if self.refused.contains(&room.node.name) {
            return Some(Obstacle::Refused);
        }
        self.counted_obstacle(room)
    }

    /// As [`Needs::obstacle`], apart from the scheduler's refusals.
    pub fn counted_obstacle(&self, room: &Room) -> Option<Obstacle> {
        let node = &room.node;
        if let Some(cause) = misplaced(&self.tolerations, Some(node)) {
            return Some(Obstacle::Misplaced(cause));
        }
        if !self.selects(node) {
            return Some(Obstacle::NotSelected);
        }
        if !reaches(&node.name, &node.labels, &self.claims) {
            return Some(Obstacle::OutOfReach(self.claims_that_bind()));
        }
        room.lack(&self.requests).map(Obstacle::Lacks)
    }

    /// The claims with volumes that only some nodes reach.
    pub fn claims_that_bind(&self) -> Vec<String> {
        let held =
            |claim: &&SeenClaim| claim.volume.as_ref().is_some_and(|on| !on.terms.is_empty());
        let claims = self.claims.iter().filter(held);
        claims.map(|claim| claim.name.clone()).collect()
    }

    fn selects(&self, node: &Node) -> bool {
        let selected = |(key, value): (&String, &String)| node.labels.get(key) == Some(value);
        self.selector.iter().all(selected)
            && self
                .terms
                .as_ref()
                .is_none_or(|terms| meets(&node.name, &node.labels, terms))
    }
}

impl Room {
    /// The node without pods that have these requests.
    pub fn without<'a>(&self, gone: impl IntoIterator<Item = &'a Amounts>) -> Self {
        let mut room = self.clone();
        for requests in gone {
            room.requested.subtract(requests);
            room.pods -= 1;
        }
        room
    }

    /// The node without pods.
    pub fn emptied(&self) -> Self {
        Self {
            requested: Amounts::default(),
            pods: 0,
            placeholders: Vec::new(),
            ..self.clone()
        }
    }

    /// The node with one more pod that has these requests.
    pub fn with(&self, requests: &Amounts) -> Self {
        let mut room = self.clone();
        room.requested.add(requests);
        room.pods += 1;
        room
    }

    /// True if a placeholder of this namespace and separation may share the node with the placeholders there.
    pub fn lets_in(&self, namespace: &str, separation: Separation) -> bool {
        self.placeholders.iter().all(|other| {
            separation.shares_a_node_with(other.separation, other.namespace == namespace)
        })
    }

    /// The use of the scarcest resource, in thousandths of its allocatable amount.
    pub fn used_of_the_scarcest(&self) -> i128 {
        let amounts = self
            .allocatable
            .resources()
            .map(|(name, allocatable)| (self.requested.of(name), allocatable));
        let all = amounts.chain([(self.pods, self.pods_allowed)]);
        all.filter(|(_, allocatable)| *allocatable > 0)
            .map(|(used, allocatable)| used * 1000 / allocatable)
            .max()
            .unwrap_or(0)
    }

    /// The resource that is insufficient for one more pod. Resources that the pod does not request do not count.
    fn lack(&self, requests: &Amounts) -> Option<Lack> {
        let too_many = (self.pods + 1 > self.pods_allowed).then(|| Lack {
            resource: "pods".to_owned(),
            asked: 1,
            allocatable: self.pods_allowed,
        });
        let short = |(name, asked): &(&str, i128)| {
            *asked > self.allocatable.of(name) - self.requested.of(name)
        };
        too_many.or_else(|| {
            requests.resources().find(short).map(|(name, asked)| Lack {
                resource: name.to_owned(),
                asked,
                allocatable: self.allocatable.of(name),
            })
        })
    }
}
