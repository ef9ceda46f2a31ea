//! Describes the obstacle for a pod that no step can help. The manager publishes one Event for each text. So the text must not
//! change while the cause stays the same: it has no number of nodes, and no amounts that change as pods come and go.

use std::collections::{BTreeMap, BTreeSet};

use super::Contention;
use super::choose::MOVES;
use super::room::{Lack, Obstacle, Room};
use crate::observed::Pod;
use crate::plan::Reason;
use crate::reasons;
use crate::reconcile::evacuate::Node;

/// The greatest number of obstacles in a message.
const OBSTACLES: usize = 3;

/// Describes the obstacle. It first looks for obstacles that empty nodes have too.
pub(super) fn report(contention: &Contention<'_>, pod: &Pod) -> Reason {
    let own = &contention.own.object.name;
    let said = match pod.needs.requests.to_string() {
        nothing if nothing.is_empty() => format!("pod {}", pod.object.name),
        asked => format!("pod {} ({asked})", pod.object.name),
    };
    let rooms = || contention.observed.nodes.values().map(AsRef::as_ref);
    // No node can run the pod, even if the node is empty.
    let alone = |room: &Room| pod.needs.counted_obstacle(&room.emptied());
    if let Some(obstacles) = every_node(rooms(), alone) {
        return reasons::pod_fits_no_node(&said, &obstacles);
    }
    // No node can run both the pod and its placeholder, even if the node is empty.
    let large: Vec<&Room> = rooms().filter(|room| alone(room).is_none()).collect();
    let together = |room: &Room| counted(contention, pod, &room.emptied());
    if let Some(obstacles) = every_node(large.iter().copied(), together) {
        let by_claims = |room: &Room| matches!(together(room), Some(Obstacle::OutOfReach(_)));
        return if large.into_iter().any(by_claims) {
            reasons::claims_tie_to_other_nodes(&said, own, &obstacles)
        } else {
            reasons::pod_fits_no_node_beside(&said, own, &obstacles)
        };
    }
    if contention.moves() >= MOVES && !contention.ranked(pod).is_empty() {
        return reasons::moves_exhausted(&said, contention.node, contention.moves());
    }
    // A node seems to have room, but the scheduler did not choose it.
    let refused = rooms().any(|room| {
        if room.node.name == contention.node {
            pod.needs.counted_obstacle(room).is_none()
        } else {
            contention.lets_in(room) && counted(contention, pod, room).is_none()
        }
    });
    if refused {
        reasons::pod_unschedulable(&said, own)
    } else {
        reasons::nodes_full(&said, own)
    }
}

/// The obstacle for placeholder and pod together on a node. The scheduler's refusals do not count.
fn counted(contention: &Contention<'_>, pod: &Pod, room: &Room) -> Option<Obstacle> {
    let needs = &contention.own.needs;
    let beside = room.with(&needs.requests);
    let own = needs.counted_obstacle(room);
    own.or_else(|| pod.needs.counted_obstacle(&beside))
}

/// A sentence with the obstacles of all nodes, the smallest first; `None` if a node has no obstacle.
fn every_node<'a>(
    rooms: impl Iterator<Item = &'a Room>,
    obstacle: impl Fn(&Room) -> Option<Obstacle>,
) -> Option<String> {
    let foremost = |room: &Room| match obstacle(room)? {
        // If the node has another obstacle too, that obstacle says more than the taint.
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
    Some(format!("Problems: a node {}", texts.join("; a node ")))
}

/// The size of an obstacle: a small obstacle is easier to remove.
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
