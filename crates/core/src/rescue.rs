//! What becomes of a pod that waits although its placeholder is on a node (N2): the pod has to share that node, and the
//! scheduler finds no room for it there. It waits, the placeholder moves, the pod is let go, or its author is told why nothing
//! helps.
//!
//! This is a guess at what the scheduler will do, made of what is counted in [`room`] and [`requests`]. The scheduler has the
//! last word: a node that it did not take goes into [`Needs::refused`] and is not tried again, and a run's placeholders are
//! moved [`MOVES`] times at most.

mod report;
pub mod requests;
pub mod room;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::plan::{Reason, Separation};
use crate::reasons;

use requests::Amounts;
use room::{Needs, Obstacle, Room};

/// How often the placeholders of a run are moved to make room for its pods.
pub const MOVES: u32 = 5;

/// Of how many nodes a moved placeholder may take one: the best ones.
const NODES: usize = 10;

/// Nodes by name.
pub type Rooms = BTreeMap<String, Arc<Room>>;

/// A pod that the scheduler finds no node for, while the placeholder that it follows is bound to one.
#[derive(Debug, Clone, Copy)]
pub struct Contention<'a> {
    /// The pod.
    pub pod: &'a Waiting,
    /// The placeholder that it follows.
    pub placeholder: &'a Placeholder,
    /// What the other pods need that wait for the same placeholder.
    pub also_waiting: &'a [Needs],
    /// The pods on the placeholder's node that matter, the placeholder itself aside.
    pub residents: &'a [Resident],
    /// Every node, by name.
    pub rooms: &'a Rooms,
    /// Whether a node is about to be added.
    pub scale_up: ScaleUp,
    /// How often placeholders of the run were moved.
    pub moves: u32,
}

/// A pod that waits.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Waiting {
    /// Its name.
    pub name: String,
    /// What it needs.
    pub needs: Needs,
}

/// The placeholder that a pod follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placeholder {
    /// The name of its StatefulSet.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// The node that it is bound to.
    pub node: String,
    /// What it needs; its claims are all that it stands for, mounted or not.
    pub needs: Needs,
    /// How it keeps away from other placeholders.
    pub separation: Separation,
}

/// A pod on the placeholder's node that has not ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Resident {
    /// What it asks for.
    pub requests: Amounts,
    /// Whether it is of the same run, so that its end can be waited for.
    pub own: bool,
    /// Whether the placeholder cannot leave it: it follows the placeholder, or uses a claim that the placeholder holds.
    pub keeps: bool,
}

/// What is known of nodes that are about to be added (N4).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ScaleUp {
    /// How long ago an Event `TriggeredScaleUp` about the pod was seen.
    pub triggered: Option<Duration>,
    /// How long ago a node was added.
    pub node_added: Option<Duration>,
    /// For how long either holds moves back.
    pub hold: Duration,
}

/// What is to be done about a pod that waits, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// What is to be done.
    pub action: Action,
    /// Why, for the run's author.
    pub reason: Reason,
}

/// What is to be done about a pod that waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Nothing now: it goes on by itself, or is decided again once something has changed.
    Wait,
    /// The placeholder goes to one of these nodes, the best first; at least one, at most ten.
    Move(Vec<String>),
    /// The pod goes without its placeholder.
    LetGo,
    /// Nothing can be done: the author is told.
    Report,
}

/// Decides about a pod that waits.
///
/// - The node has room, by what is counted: **wait** for the scheduler.
/// - A scale-up is in flight: **wait** (N4).
/// - The run's own pods hold the room, or cannot be left: **wait** for their end.
/// - Another node takes placeholder and pod, and every claim they use reaches it: **move**, [`MOVES`] times a run.
/// - The pod uses no claim of the placeholder, the run is not isolated, and a node takes the pod alone: **let go**.
/// - Otherwise: **report** what is in the way.
pub fn rescue(contention: &Contention<'_>) -> Decision {
    let Contention {
        pod,
        placeholder,
        rooms,
        ..
    } = *contention;
    let here = rooms.get(&placeholder.node);
    let Some(here) = here.filter(|room| stays(placeholder, room)) else {
        return wait(reasons::placeholder_leaves(
            &pod.name,
            &placeholder.name,
            &placeholder.node,
        ));
    };
    if pod.needs.obstacle(here).is_none() {
        return wait(reasons::room_on_node(
            &pod.name,
            &placeholder.name,
            &placeholder.node,
        ));
    }
    scaling(contention)
        .or_else(|| held(contention, here))
        .or_else(|| moved(contention))
        .or_else(|| let_go(contention))
        .unwrap_or_else(|| report::report(contention))
}

/// Whether the node is one that the placeholder may stay on. What is asked for and the scheduler's refusals do not matter for a
/// placeholder that is there.
fn stays(placeholder: &Placeholder, room: &Room) -> bool {
    match placeholder.needs.counted_obstacle(&room.emptied()) {
        Some(Obstacle::Misplaced(_)) => false,
        Some(
            Obstacle::NotSelected
            | Obstacle::OutOfReach(_)
            | Obstacle::Isolated
            | Obstacle::Refused
            | Obstacle::Lacks(_),
        )
        | None => true,
    }
}

fn scaling(contention: &Contention<'_>) -> Option<Decision> {
    let ScaleUp {
        triggered,
        node_added,
        hold,
    } = contention.scale_up;
    let recent = |ago: Option<Duration>| ago.is_some_and(|ago| ago < hold);
    let pod = &contention.pod.name;
    if recent(triggered) {
        Some(wait(reasons::scale_up_triggered(pod)))
    } else if recent(node_added) {
        Some(wait(reasons::node_added(pod)))
    } else {
        None
    }
}

fn held(contention: &Contention<'_>, here: &Room) -> Option<Decision> {
    let Contention {
        pod,
        placeholder,
        residents,
        ..
    } = *contention;
    let own = residents.iter().filter(|resident| resident.own);
    let own = own.map(|resident| &resident.requests);
    let reason = if pod.needs.obstacle(&here.without(own)).is_none() {
        reasons::run_holds_room
    } else if residents.iter().any(|resident| resident.keeps) {
        reasons::placeholder_stays
    } else {
        return None;
    };
    Some(wait(reason(
        &pod.name,
        &placeholder.name,
        &placeholder.node,
    )))
}

/// What a node is worth for a move: the least is the best.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank<'a> {
    /// Of the other pods that wait, as many as possible find room as well.
    also_taken: Reverse<usize>,
    /// Placeholders spread (P4).
    placeholders: usize,
    /// What is used of the scarcest resource by then, in thousandths.
    used: i128,
    /// Ties are broken by name.
    node: &'a str,
}

fn moved(contention: &Contention<'_>) -> Option<Decision> {
    if contention.moves >= MOVES {
        return None;
    }
    let nodes = ranked(contention);
    if nodes.is_empty() {
        return None;
    }
    let Contention {
        pod, placeholder, ..
    } = *contention;
    Some(Decision {
        action: Action::Move(nodes),
        reason: reasons::placeholder_moved(&pod.name, &placeholder.name, &placeholder.node),
    })
}

/// The nodes that take placeholder and pod, the best first.
fn ranked(contention: &Contention<'_>) -> Vec<String> {
    let Contention {
        pod,
        placeholder,
        rooms,
        ..
    } = *contention;
    // Its own node is none of them: it does not even take the pod alone.
    let taking = rooms
        .values()
        .filter(|room| obstacle_to_both(contention, room).is_none());
    let mut ranks: Vec<_> = taking
        .map(|room| {
            let mut then = room
                .with(&placeholder.needs.requests)
                .with(&pod.needs.requests);
            let used = then.used_of_the_scarcest();
            let mut also_taken = 0;
            for needs in contention.also_waiting {
                if needs.obstacle(&then).is_none() {
                    then = then.with(&needs.requests);
                    also_taken += 1;
                }
            }
            Rank {
                also_taken: Reverse(also_taken),
                placeholders: room.placeholders.len(),
                used,
                node: &room.node.name,
            }
        })
        .collect();
    ranks.sort();
    let best = ranks.into_iter().take(NODES);
    best.map(|rank| rank.node.to_owned()).collect()
}

/// Why a node does not take the placeholder and, beside it, the pod.
fn obstacle_to_both(contention: &Contention<'_>, room: &Room) -> Option<Obstacle> {
    let Contention {
        pod, placeholder, ..
    } = contention;
    let with_placeholder = room.with(&placeholder.needs.requests);
    placeholder
        .needs
        .obstacle(room)
        .or_else(|| isolated(placeholder, room))
        .or_else(|| pod.needs.obstacle(&with_placeholder))
}

fn isolated(placeholder: &Placeholder, room: &Room) -> Option<Obstacle> {
    let lets_in = room.lets_in(&placeholder.namespace, placeholder.separation);
    (!lets_in).then_some(Obstacle::Isolated)
}

fn let_go(contention: &Contention<'_>) -> Option<Decision> {
    let Contention {
        pod,
        placeholder,
        rooms,
        ..
    } = *contention;
    match placeholder.separation {
        Separation::Isolate(_) => return None,
        Separation::Spread => {}
    }
    let mut free = rooms.values().map(|room| pod.needs.obstacle(room));
    if shares_a_claim(contention) || !free.any(|obstacle| obstacle.is_none()) {
        return None;
    }
    Some(Decision {
        action: Action::LetGo,
        reason: reasons::pod_let_go(&pod.name, &placeholder.name),
    })
}

fn shares_a_claim(contention: &Contention<'_>) -> bool {
    let names = |needs: &Needs| {
        let claims = needs.claims.iter();
        claims
            .map(|claim| claim.name.clone())
            .collect::<BTreeSet<_>>()
    };
    !names(&contention.pod.needs).is_disjoint(&names(&contention.placeholder.needs))
}

fn wait(reason: Reason) -> Decision {
    Decision {
        action: Action::Wait,
        reason,
    }
}

#[cfg(test)]
mod tests;
