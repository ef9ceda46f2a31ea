//! Chooses the action for a pod that waits although its placeholder is bound (N2). The pod must share the placeholder's node, but
//! the scheduler finds no room for the pod there. There are four actions: the pod waits, the placeholder moves, the pod may run
//! without the placeholder, or an Event tells the author the obstacle.
//!
//! [`room`](super::room) and [`requests`](super::requests) predict the scheduler's decision. If the scheduler did not choose a
//! predicted node, this node goes into [`Needs::refused`]. The manager moves a run's placeholders [`MOVES`] times at most.

use std::cmp::Reverse;
use std::time::Duration;

use super::Contention;
use super::report::report;
use super::room::{Obstacle, Room};
use crate::observed::Pod;
use crate::plan::{Reason, Separation};
use crate::reasons;

/// How often the manager moves placeholders of a run to make room for its pods.
pub(super) const MOVES: u32 = 5;

/// The greatest number of target nodes of a move.
const NODES: usize = 10;

/// Recent scale-ups of the cluster (N4).
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ScaleUp {
    /// The age of the first Event `TriggeredScaleUp` about the pod.
    pub triggered: Option<Duration>,
    /// The age of the first node that was added since the pod was created.
    pub node_added: Option<Duration>,
    /// How long either delays moves.
    pub hold: Duration,
}

/// An action for a pod that waits, and the reason for the run's author.
pub(super) type Choice = (Action, Reason);

/// An action for a pod that waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Action {
    /// Do nothing until the state changes.
    Wait,
    /// Move the placeholder to one of these nodes, the best first: one to ten names.
    Move(Vec<String>),
    /// Free the pod from its placeholder.
    LetGo,
    /// Tell the author the obstacle, because no step helps.
    Report,
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

impl Contention<'_> {
    /// Chooses the action for a pod that waits. The first rule that applies decides:
    ///
    /// 1. The placeholder itself must leave its node: **wait** until it has left (N1).
    /// 2. The node seems to have room: **wait** for the scheduler.
    /// 3. A scale-up is in progress: **wait** (N4).
    /// 4. The run's own pods use the room, or the placeholder must stay because of pods on its node: **wait** until these pods end.
    /// 5. Another node can run placeholder and pod, and reaches all their claims: **move**, at most [`MOVES`] times a run.
    /// 6. The pod uses no claim of the placeholder, the run is not isolated, and a node can run the pod alone: **let go**.
    /// 7. No other rule applies: **report** the obstacle.
    pub(super) fn choose(&self, pod: &Pod, scale_up: ScaleUp) -> Choice {
        let here = self.observed.nodes.get(self.node);
        let Some(here) = here.filter(|room| self.stays(room)) else {
            return self.wait(pod, reasons::placeholder_leaves);
        };
        if pod.needs.obstacle(here).is_none() {
            return self.wait(pod, reasons::room_on_node);
        }
        scaling(pod, scale_up)
            .or_else(|| self.held(pod, here))
            .or_else(|| self.to_move(pod))
            .or_else(|| self.to_let_go(pod))
            .unwrap_or_else(|| (Action::Report, report(self, pod)))
    }

    /// True if the placeholder tolerates its node's taints. The other obstacles do not concern a bound placeholder.
    fn stays(&self, room: &Room) -> bool {
        match self.own.needs.counted_obstacle(&room.emptied()) {
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

    fn held(&self, pod: &Pod, here: &Room) -> Option<Choice> {
        let own = self.residents.iter().filter(|resident| resident.own);
        let own = own.map(|resident| &resident.requests);
        if pod.needs.obstacle(&here.without(own)).is_none() {
            Some(self.wait(pod, reasons::run_holds_room))
        } else if self.residents.iter().any(|resident| resident.keeps) {
            Some(self.wait(pod, reasons::placeholder_stays))
        } else {
            None
        }
    }

    fn wait(&self, pod: &Pod, reason: impl Fn(&str, &str, &str) -> Reason) -> Choice {
        let (pod, own) = (&pod.object.name, &self.own.object.name);
        (Action::Wait, reason(pod, own, self.node))
    }

    fn to_move(&self, pod: &Pod) -> Option<Choice> {
        if self.moves() >= MOVES {
            return None;
        }
        let nodes = self.ranked(pod);
        let (name, own) = (&pod.object.name, &self.own.object.name);
        (!nodes.is_empty()).then(|| {
            let reason = reasons::placeholder_moved(name, own, self.node);
            (Action::Move(nodes), reason)
        })
    }

    /// The nodes that take placeholder and pod, the best first.
    pub(super) fn ranked(&self, pod: &Pod) -> Vec<String> {
        // The placeholder's own node is not among them: it does not take even the pod alone.
        let rooms = self.observed.nodes.values();
        let taking = rooms.filter(|room| self.takes_both(pod, room));
        let others = self.waiting.iter();
        let others = others.filter(|other| other.object.name != pod.object.name);
        let others: Vec<_> = others.map(|other| &other.needs).collect();
        let mut ranks: Vec<_> = taking
            .map(|room| {
                let mut then = room
                    .with(&self.own.needs.requests)
                    .with(&pod.needs.requests);
                let used = then.used_of_the_scarcest();
                let mut also_taken = 0;
                for needs in &others {
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

    /// True if a node takes placeholder and pod together.
    fn takes_both(&self, pod: &Pod, room: &Room) -> bool {
        let own = &self.own.needs;
        own.obstacle(room).is_none()
            && self.lets_in(room)
            && pod.needs.obstacle(&room.with(&own.requests)).is_none()
    }

    /// True if the placeholder may share the node with the placeholders there.
    pub(super) fn lets_in(&self, room: &Room) -> bool {
        room.lets_in(&self.own.namespace, self.separation)
    }

    fn to_let_go(&self, pod: &Pod) -> Option<Choice> {
        match self.separation {
            Separation::Isolate(_) => return None,
            Separation::Spread | Separation::Pack | Separation::None => {}
        }
        let held = &self.own.needs.claims;
        let mut claims = pod.needs.claims.iter();
        let shares = claims.any(|claim| held.iter().any(|it| it.name == claim.name));
        let mut rooms = self.observed.nodes.values();
        if shares || rooms.all(|room| pod.needs.obstacle(room).is_some()) {
            return None;
        }
        let reason = reasons::pod_let_go(&pod.object.name, &self.own.object.name);
        Some((Action::LetGo, reason))
    }
}

fn scaling(pod: &Pod, scale_up: ScaleUp) -> Option<Choice> {
    let recent = |ago: Option<Duration>| ago.is_some_and(|ago| ago < scale_up.hold);
    let reason = if recent(scale_up.triggered) {
        reasons::scale_up_triggered
    } else if recent(scale_up.node_added) {
        reasons::node_added
    } else {
        return None;
    };
    Some((Action::Wait, reason(&pod.object.name)))
}

#[cfg(test)]
mod tests;
