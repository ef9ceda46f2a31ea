//! Whether a node takes a pod, by everything that is counted here: what is asked for, the number of pods, taints, node selector,
//! required node affinity, and which nodes reach a volume. What else the scheduler looks at (ports, the author's own rules
//! between pods, limits of attached volumes) is left to it.
//!
//! Source: Kubernetes 1.35, `pkg/scheduler/framework/plugins/noderesources/fit.go`, `fitsRequest`, and `nodeaffinity`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use jiff::Timestamp;

use super::requests::{Amounts, in_words};
use crate::evacuate::{Misplaced, Node, Toleration, misplaced};
use crate::plan::Separation;
use crate::volumes::{NodeTerm, SeenClaim, meets, reaches};

/// A node, and how much of it is taken.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Room {
    /// The node.
    pub node: Node,
    /// When it was created.
    pub created: Option<Timestamp>,
    /// `status.allocatable`, pods aside.
    pub allocatable: Amounts,
    /// `pods` of `status.allocatable`.
    pub pods_allowed: i128,
    /// What the pods on it ask for, whosever they are.
    pub requested: Amounts,
    /// How many pods are on it that have not ended.
    pub pods: i128,
    /// The placeholders on it.
    pub placeholders: Vec<Keeping>,
}

/// How a placeholder keeps away from others, and where it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keeping {
    /// Its namespace.
    pub namespace: String,
    /// How it keeps away.
    pub separation: Separation,
}

/// What a pod needs of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Needs {
    /// What it asks for.
    pub requests: Amounts,
    /// `spec.nodeSelector`.
    pub selector: BTreeMap<String, String>,
    /// The terms of its required node affinity, of which one has to be met; `None` where it has no such affinity.
    pub terms: Option<Vec<NodeTerm>>,
    /// `spec.tolerations`.
    pub tolerations: Vec<Toleration>,
    /// The claims that it uses, or stands for, as they are seen.
    pub claims: Vec<SeenClaim>,
    /// Nodes that the scheduler did not take for it although it was expected to.
    pub refused: BTreeSet<String>,
}

/// Why a node does not take a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Obstacle {
    /// It turns the pod away.
    Misplaced(Misplaced),
    /// It is not one that the pod selects.
    NotSelected,
    /// It does not reach the volumes of these claims.
    OutOfReach(Vec<String>),
    /// There is a placeholder that keeps others away, or that the pod keeps away from.
    Isolated,
    /// The scheduler did not take it.
    Refused,
    /// It has not enough of this.
    Lacks(Lack),
}

/// Something that a node has not enough of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lack {
    /// The resource; `pods` where it is their number.
    pub resource: String,
    /// How much the pod asks for.
    pub asked: i128,
    /// How much the node has when it is empty.
    pub allocatable: i128,
}

/// Without amounts that change from moment to moment: the same cause is told in the same words.
impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Misplaced(cause) => cause.fmt(f),
            Self::NotSelected => f.write_str("the pod does not select the node"),
            Self::OutOfReach(claims) => {
                write!(f, "the node does not reach claims {}", claims.join(", "))
            }
            Self::Isolated => f.write_str("a placeholder of another run keeps the node to itself"),
            Self::Refused => f.write_str("the scheduler did not take the node"),
            Self::Lacks(lack) => {
                let Lack {
                    resource,
                    asked,
                    allocatable,
                } = lack;
                let (asked, has) = (in_words(resource, *asked), in_words(resource, *allocatable));
                write!(f, "the node has {resource} {has}, and {asked} is asked for")
            }
        }
    }
}

impl Needs {
    /// Why the node does not take the pod, as far as is known; `None` where it does.
    pub fn obstacle(&self, room: &Room) -> Option<Obstacle> {
        if self.refused.contains(&room.node.name) {
            return Some(Obstacle::Refused);
        }
        self.counted_obstacle(room)
    }

    /// As [`Needs::obstacle`], whatever the scheduler has said.
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

    /// The claims that not every node reaches.
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
    /// The room once these pods are gone.
    pub fn without<'a>(&self, gone: impl IntoIterator<Item = &'a Amounts>) -> Self {
        let mut room = self.clone();
        for requests in gone {
            room.requested.subtract(requests);
            room.pods -= 1;
        }
        room
    }

    /// The room once every pod is gone.
    pub fn emptied(&self) -> Self {
        Self {
            requested: Amounts::default(),
            pods: 0,
            placeholders: Vec::new(),
            ..self.clone()
        }
    }

    /// The room once a pod has come.
    pub fn with(&self, requests: &Amounts) -> Self {
        let mut room = self.clone();
        room.requested.add(requests);
        room.pods += 1;
        room
    }

    /// Whether no placeholder keeps another one away that would come from this namespace.
    pub fn lets_in(&self, namespace: &str, separation: Separation) -> bool {
        self.placeholders.iter().all(|other| {
            separation.shares_a_node_with(other.separation, other.namespace == namespace)
        })
    }

    /// What is used of the scarcest resource, in thousandths of it.
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

    /// What there is not enough of for one more pod. A resource that the pod does not ask for may be short.
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
