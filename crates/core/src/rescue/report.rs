//! Describes the obstacle for a pod that no step can help. The text stays the same while the cause does, because the manager
//! publishes one Event for each text. So it neither names nor counts nodes.

use std::collections::{BTreeMap, BTreeSet};

use super::room::{Lack, Obstacle, Room};
use super::{Action, Contention, Decision, MOVES, isolated, ranked};
use crate::evacuate::Node;
use crate::plan::Reason;
use crate::reasons;

/// The greatest number of obstacles in a message.
const OBSTACLES: usize = 3;

/// Describes the obstacle. Obstacles that even empty nodes have come first.
pub(super) fn report(contention: &Contention<'_>) -> Decision {
    let reason = no_node(contention)
        .or_else(|| not_together(contention))
        .or_else(|| exhausted(contention))
        .or_else(|| refused(contention))
        .unwrap_or_else(|| full(contention));
    Decision {
        action: Action::Report,
        reason,
    }
}

/// No node takes the pod, even if it is empty.
fn no_node(contention: &Contention<'_>) -> Option<Reason> {
    let alone = |room: &Room| contention.pod.needs.counted_obstacle(&room.emptied());
    let obstacles = every_node(contention.rooms.values().map(AsRef::as_ref), alone)?;
    Some(reasons::pod_fits_no_node(&pod(contention), &obstacles))
}

/// No node that takes the pod takes its placeholder as well, even if it is empty.
fn not_together(contention: &Contention<'_>) -> Option<Reason> {
    let alone = |room: &&Room| {
        let obstacle = contention.pod.needs.counted_obstacle(&room.emptied());
        obstacle.is_none()
    };
    let rooms = contention.rooms.values().map(AsRef::as_ref);
    let large: Vec<&Room> = rooms.filter(alone).collect();
    let together = |room: &Room| counted(contention, &room.emptied());
    let obstacles = every_node(large.iter().copied(), together)?;
    let by_claims = |room: &Room| matches!(together(room), Some(Obstacle::OutOfReach(_)));
    let reason = if large.into_iter().any(by_claims) {
        reasons::claims_tie_to_other_nodes
    } else {
        reasons::pod_fits_no_node_beside
    };
    let placeholder = &contention.placeholder.name;
    Some(reason(&pod(contention), placeholder, &obstacles))
}

fn exhausted(contention: &Contention<'_>) -> Option<Reason> {
    let exhausted = contention.moves >= MOVES && !ranked(contention).is_empty();
    exhausted.then(|| {
        let node = &contention.placeholder.node;
        reasons::moves_exhausted(&pod(contention), node, contention.moves)
    })
}

/// A node seems to have room, but the scheduler did not choose it.
fn refused(contention: &Contention<'_>) -> Option<Reason> {
    let placeholder = contention.placeholder;
    let mut rooms = contention.rooms.values();
    let refused = rooms.any(|room| {
        if room.node.name == placeholder.node {
            contention.pod.needs.counted_obstacle(room).is_none()
        } else {
            isolated(placeholder, room).is_none() && counted(contention, room).is_none()
        }
    });
    refused.then(|| reasons::pod_unschedulable(&pod(contention), &placeholder.name))
}

fn full(contention: &Contention<'_>) -> Reason {
    reasons::nodes_full(&pod(contention), &contention.placeholder.name)
}

/// Why a node does not take placeholder and pod together, apart from the scheduler's refusals.
fn counted(contention: &Contention<'_>, room: &Room) -> Option<Obstacle> {
    let needs = &contention.placeholder.needs;
    let own = needs.counted_obstacle(room);
    let beside = room.with(&needs.requests);
    own.or_else(|| contention.pod.needs.counted_obstacle(&beside))
}

fn pod(contention: &Contention<'_>) -> String {
    let name = &contention.pod.name;
    match contention.pod.needs.requests.to_string() {
        nothing if nothing.is_empty() => format!("pod {name}"),
        asked => format!("pod {name} ({asked})"),
    }
}

/// A sentence with the obstacles of all nodes, the smallest first; `None` if a node has no obstacle.
fn every_node<'a>(
    rooms: impl Iterator<Item = &'a Room>,
    obstacle: impl Fn(&Room) -> Option<Obstacle>,
) -> Option<String> {
    let foremost = |room: &Room| match obstacle(room)? {
        // An obstacle behind the taint says more.
        Obstacle::Misplaced(cause) => {
            let hidden = obstacle(&untainted(room));
            hidden.or(Some(Obstacle::Misplaced(cause)))
        }
        obstacle => Some(obstacle),
    };
    let obstacles: Option<Vec<_>> = rooms.map(foremost).collect();
    let obstacles = obstacles?;
    if obstacles.is_empty() {
        return Some("The cluster has no node".to_owned());
    }
    let mut texts = BTreeSet::new();
    // For each resource, the node that has the most.
    let mut lacks: BTreeMap<String, Lack> = BTreeMap::new();
    for obstacle in obstacles {
        match obstacle {
            Obstacle::Lacks(lack) => {
                let most = lacks
                    .entry(lack.resource.clone())
                    .or_insert_with(|| lack.clone());
                most.allocatable = most.allocatable.max(lack.allocatable);
            }
            obstacle => {
                texts.insert((distance(&obstacle), obstacle.to_string()));
            }
        }
    }
    for lack in lacks.into_values().map(Obstacle::Lacks) {
        texts.insert((distance(&lack), lack.to_string()));
    }
    let texts = texts.into_iter().map(|(_, text)| text).take(OBSTACLES);
    let texts: Vec<_> = texts.collect();
    Some(format!(
        "Each node has a problem: it {}",
        texts.join("; or it ")
    ))
}

/// The size of an obstacle: how far the node is from taking the pod.
fn distance(obstacle: &Obstacle) -> u8 {
    match obstacle {
        Obstacle::Refused | Obstacle::Isolated | Obstacle::Misplaced(_) => 0,
        Obstacle::Lacks(_) => 1,
        Obstacle::OutOfReach(_) => 2,
        Obstacle::NotSelected => 3,
    }
}

/// The node without its taints and cordon.
fn untainted(room: &Room) -> Room {
    Room {
        node: Node {
            unschedulable: false,
            taints: Vec::new(),
            ..room.node.clone()
        },
        ..room.clone()
    }
}
