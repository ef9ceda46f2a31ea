//! What is in the way of a pod that nothing can be done for, in words that stay the same while the cause does: an Event is
//! written once for each text.

use super::room::{Obstacle, Room};
use super::{Action, Contention, Decision, MOVES, isolated, ranked};
use crate::plan::{Reason, ReasonCode};

/// Nodes that a message names.
const NAMED: usize = 3;

/// Says what is in the way: first what would be even if every node were empty.
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
    let obstacles = every_node(contention.rooms, alone)?;
    let message = format!("no node takes {}: {obstacles}", pod(contention));
    Some(Reason::new(ReasonCode::PodFitsNoNode, message))
}

/// No node that takes the pod takes its placeholder as well, even if it is empty.
fn not_together(contention: &Contention<'_>) -> Option<Reason> {
    let alone = |room: &&Room| {
        let obstacle = contention.pod.needs.counted_obstacle(&room.emptied());
        obstacle.is_none()
    };
    let large: Vec<_> = contention.rooms.iter().filter(alone).cloned().collect();
    let together = |room: &Room| counted(contention, &room.emptied());
    let obstacles = every_node(&large, together)?;
    let by_claims = |room: &Room| matches!(together(room), Some(Obstacle::OutOfReach(_)));
    let code = if large.iter().any(by_claims) {
        ReasonCode::ClaimsNotMovable
    } else {
        ReasonCode::PodFitsNoNode
    };
    let message = format!(
        "no node that takes {} takes placeholder {}, which it has to run beside: {obstacles}",
        pod(contention),
        contention.placeholder.name
    );
    Some(Reason::new(code, message))
}

fn exhausted(contention: &Contention<'_>) -> Option<Reason> {
    let exhausted = contention.moves >= MOVES && !ranked(contention).is_empty();
    exhausted.then(|| {
        let message = format!(
            "node {} has no room for {}, and the placeholders of the run were moved {} times already",
            contention.placeholder.node,
            pod(contention),
            contention.moves
        );
        Reason::new(ReasonCode::MovesExhausted, message)
    })
}

/// By what is counted there is room, here or elsewhere.
fn refused(contention: &Contention<'_>) -> Option<Reason> {
    let placeholder = contention.placeholder;
    let mut rooms = contention.rooms.iter();
    let refused = rooms.any(|room| {
        if room.node.name == placeholder.node {
            contention.pod.needs.counted_obstacle(room).is_none()
        } else {
            isolated(placeholder, room).is_none() && counted(contention, room).is_none()
        }
    });
    refused.then(|| {
        let message = format!(
            "the scheduler takes neither node {} for {} nor another one for it and placeholder {}, for reasons of its own: see \
             the conditions of both pods",
            placeholder.node,
            pod(contention),
            placeholder.name
        );
        Reason::new(ReasonCode::PodUnschedulable, message)
    })
}

fn full(contention: &Contention<'_>) -> Reason {
    let together = |room: &&Room| counted(contention, &room.emptied()).is_none();
    let fitting = contention.rooms.iter().filter(together);
    let mut fitting: Vec<_> = fitting.map(|room| room.node.name.clone()).collect();
    fitting.sort();
    let message = format!(
        "the nodes that take {} and placeholder {} are full, or kept by isolated runs: {}; the run goes on once one has room",
        pod(contention),
        contention.placeholder.name,
        listed(&fitting)
    );
    Reason::new(ReasonCode::NodesFull, message)
}

/// Why a node does not take the placeholder and, beside it, the pod, whatever the scheduler has said.
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

/// The obstacles of the nodes, the first few by name, those first that are the least in the way; `None` where one has none.
fn every_node(rooms: &[Room], obstacle: impl Fn(&Room) -> Option<Obstacle>) -> Option<String> {
    let obstacles = rooms.iter();
    let obstacles: Option<Vec<_>> = obstacles
        .map(|room| {
            let obstacle = obstacle(room)?;
            let text = format!("{}: {obstacle}", room.node.name);
            Some((distance(&obstacle), text))
        })
        .collect();
    let mut obstacles = obstacles?;
    obstacles.sort();
    if obstacles.is_empty() {
        return Some("there is no node".to_owned());
    }
    let texts: Vec<_> = obstacles.into_iter().map(|(_, text)| text).collect();
    Some(listed(&texts))
}

/// How far a node is from taking a pod.
fn distance(obstacle: &Obstacle) -> u8 {
    match obstacle {
        Obstacle::Refused | Obstacle::Isolated => 0,
        Obstacle::Lacks(_) => 1,
        Obstacle::OutOfReach(_) => 2,
        Obstacle::Misplaced(_) => 3,
        Obstacle::NotSelected => 4,
    }
}

fn listed(items: &[String]) -> String {
    let named = &items[..items.len().min(NAMED)];
    let named = named.join("; ");
    match items.len().saturating_sub(NAMED) {
        0 => named,
        more => format!("{named}; and {more} more"),
    }
}
