//! Decides about a pod that waits although its placeholder is bound (N2): the pod must share the placeholder's node, and the
//! scheduler finds no room for it there. The pod waits, the placeholder moves, the pod is freed from it, or an Event tells the
//! author why nothing helps.
//!
//! [`room`] and [`requests`] predict the scheduler's decision. The scheduler has the last word: a node that it did not choose goes
//! into [`Needs::refused`], and the manager moves a run's placeholders [`MOVES`] times at most.

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

/// How often the manager moves placeholders of a run to make room for its pods.
pub const MOVES: u32 = 5;

/// The greatest number of target nodes of a move.
const NODES: usize = 10;

/// Nodes by name.
pub type Rooms = BTreeMap<String, Arc<Room>>;

/// An unschedulable pod, and the bound placeholder that it follows.
#[derive(Debug, Clone, Copy)]
pub struct Contention<'a> {
    /// The pod.
    pub pod: &'a Waiting,
    /// The placeholder that it follows.
    pub placeholder: &'a Placeholder,
    /// The needs of the other pods that wait for the same placeholder.
    pub also_waiting: &'a [Needs],
    /// The pods on the placeholder's node that decide whether it may leave, without its own pod.
    pub residents: &'a [Resident],
    /// Every node, by name.
    pub rooms: &'a Rooms,
    /// Recent scale-ups of the cluster.
    pub scale_up: ScaleUp,
    /// The number of moves of the run's placeholders.
    pub moves: u32,
}

/// A pod that waits.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Waiting {
    /// Its name.
    pub name: String,
    /// Its requirements on a node.
    pub needs: Needs,
}

/// The placeholder that a pod follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placeholder {
    /// Its name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// The node that it is bound to.
    pub node: String,
    /// Its requirements on a node. The claims are all that it stands for, mounted or not.
    pub needs: Needs,
    /// How it stays away from other placeholders.
    pub separation: Separation,
}

/// A pod on the placeholder's node that has not ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Resident {
    /// Its requests.
    pub requests: Amounts,
    /// True if it belongs to the same run: then waiting for its end is worthwhile.
    pub own: bool,
    /// True if the placeholder must stay with it: it follows the placeholder, or uses a claim that the placeholder stands for.
    pub keeps: bool,
}

/// Recent scale-ups of the cluster (N4).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ScaleUp {
    /// The age of the first Event `TriggeredScaleUp` about the pod.
    pub triggered: Option<Duration>,
    /// The age of the first node that was added since the pod was created.
    pub node_added: Option<Duration>,
    /// How long either delays moves.
    pub hold: Duration,
}

/// An action for a pod that waits, and the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// The action.
    pub action: Action,
    /// The reason, for the run's author.
    pub reason: Reason,
}

/// An action for a pod that waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Do nothing until the state changes.
    Wait,
    /// Move the placeholder to one of these nodes, the best first: one to ten names.
    Move(Vec<String>),
    /// Free the pod from its placeholder.
    LetGo,
    /// Tell the author the obstacle, because no step helps.
    Report,
}

/// Decides about a pod that waits. The first rule that applies wins:
///
/// - The placeholder itself must leave its node: **wait** for that (N1).
/// - The node seems to have room: **wait** for the scheduler.
/// - A scale-up is in progress: **wait** (N4).
/// - The run's own pods use the room, or the placeholder must stay with a pod there: **wait** for their end.
/// - Another node takes placeholder and pod, and reaches every claim they use: **move**, [`MOVES`] times a run.
/// - The pod uses no claim of the placeholder, the run is not isolated, and a node takes the pod alone: **let go**.
/// - Otherwise: **report** the obstacle.
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

/// True if the placeholder tolerates its node's taints. The other obstacles do not concern a bound placeholder.
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

/// The rank of a node as the target of a move: the least is the best.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank<'a> {
    /// The number of other waiting pods that also find room.
    also_taken: Reverse<usize>,
    /// The number of placeholders on the node, because placeholders spread (P4).
    placeholders: usize,
    /// The use of the scarcest resource with placeholder and pod, in thousandths.
    used: i128,
    /// The name, for ties.
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
    // The placeholder's own node is not among them: it does not take even the pod alone.
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

/// Why a node does not take placeholder and pod together.
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
        Separation::Spread | Separation::Pack | Separation::None => {}
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
