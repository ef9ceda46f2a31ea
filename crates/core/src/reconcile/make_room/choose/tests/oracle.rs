//! The decision once more, by trying: pods are put onto nodes one after the other as the scheduler would, in every combination,
//! and what works is read off. It shares types with what it judges, and no code.

use super::super::{Contention, MOVES, ScaleUp};
use crate::mode::IsolationScope;
use crate::observed::Pod;
use crate::plan::Separation;
use crate::reconcile::requests::Amounts;
use crate::reconcile::room::{Needs, Room};
use crate::volumes::{NodeRequirement, NodeTerm, Operator, SeenClaim};

/// What trying has shown.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Tried {
    /// The placeholder is on its way.
    Leaves,
    /// The pod has room.
    Fits,
    /// A scale-up is in flight.
    ScaleUp,
    /// It would have room, or the placeholder may leave, once the run's pods have ended.
    Held,
    /// These nodes take both.
    Move(Vec<String>),
    /// A node takes the pod alone, and it may go.
    LetGo,
    /// Nothing works.
    Nothing,
}

pub(super) fn tried(
    contention: &Contention<'_>,
    pod: &Pod,
    scale_up: ScaleUp,
    moves: u32,
) -> Tried {
    let Contention {
        own: placeholder,
        node,
        separation,
        residents,
        ..
    } = contention;
    let rooms = &contention.observed.nodes;
    let Some(here) = rooms.get(*node) else {
        return Tried::Leaves;
    };
    if turned_away(&placeholder.needs, here) {
        return Tried::Leaves;
    }
    if takes(here, &[], &pod.needs) {
        return Tried::Fits;
    }
    for ago in [scale_up.triggered, scale_up.node_added]
        .into_iter()
        .flatten()
    {
        if ago < scale_up.hold {
            return Tried::ScaleUp;
        }
    }
    // Every set of own pods ends.
    for ended in 0..1_u32 << residents.len() {
        let chosen = residents.iter().enumerate();
        let chosen: Vec<_> = chosen
            .filter(|(index, _)| ended & (1 << index) != 0)
            .map(|(_, resident)| resident)
            .collect();
        if chosen.iter().any(|resident| !resident.own) {
            continue;
        }
        let mut left = Room::clone(here);
        left.pods -= chosen.len() as i128;
        for resident in chosen {
            let asked = &resident.requests;
            left.requested.milli_cpu -= asked.milli_cpu;
            left.requested.memory -= asked.memory;
            left.requested.ephemeral_storage -= asked.ephemeral_storage;
            for (name, amount) in &asked.others {
                *left.requested.others.get_mut(name).unwrap() -= amount;
            }
        }
        if takes(&left, &[], &pod.needs) {
            return Tried::Held;
        }
    }
    if residents.iter().any(|resident| resident.keeps) {
        return Tried::Held;
    }
    let mut nodes = Vec::new();
    for room in rooms.values() {
        let there = room.node.name != *node
            && takes(room, &[], &placeholder.needs)
            && takes(room, &[&placeholder.needs.requests], &pod.needs)
            && bears(contention, room);
        if there {
            nodes.push(room.node.name.clone());
        }
    }
    if !nodes.is_empty() && moves < MOVES {
        nodes.sort();
        return Tried::Move(nodes);
    }
    let isolated = *separation != Separation::Spread;
    let shared = pod.needs.claims.iter().any(|claim| {
        let held = &placeholder.needs.claims;
        held.iter().any(|other| other.name == claim.name)
    });
    if !isolated && !shared && rooms.values().any(|room| takes(room, &[], &pod.needs)) {
        return Tried::LetGo;
    }
    Tried::Nothing
}

/// Whether some node takes the pod, if all others were gone.
pub(super) fn fits_an_empty_node(pod: &Pod, rooms: &[Room]) -> bool {
    rooms.iter().any(|room| {
        let empty = Room {
            requested: Amounts::default(),
            pods: 0,
            ..room.clone()
        };
        let needs = Needs {
            refused: [].into(),
            ..pod.needs.clone()
        };
        takes(&empty, &[], &needs)
    })
}

fn takes(room: &Room, before: &[&Amounts], needs: &Needs) -> bool {
    let node = &room.node;
    let mut fits = room.pods + (before.len() as i128) < room.pods_allowed;
    for resource in [
        "cpu",
        "memory",
        "ephemeral-storage",
        "example.dev/gpu",
        "example.dev/tpu",
    ] {
        let asked = amount(&needs.requests, resource);
        let mut free = amount(&room.allocatable, resource) - amount(&room.requested, resource);
        for other in before {
            free -= amount(other, resource);
        }
        if asked > 0 && free < asked {
            fits = false;
        }
    }
    let selected = needs
        .selector
        .iter()
        .all(|(key, value)| node.labels.get(key).is_some_and(|has| has == value));
    let required = match &needs.terms {
        Some(terms) => some_term(terms, room),
        None => true,
    };
    let reached = needs
        .claims
        .iter()
        .all(|SeenClaim { volume, .. }| match volume {
            Some(volume) if !volume.terms.is_empty() => some_term(&volume.terms, room),
            Some(_) | None => true,
        });
    fits && selected
        && required
        && reached
        && !turned_away(needs, room)
        && !needs.refused.contains(&node.name)
}

fn amount(amounts: &Amounts, resource: &str) -> i128 {
    match resource {
        "cpu" => amounts.milli_cpu,
        "memory" => amounts.memory,
        "ephemeral-storage" => amounts.ephemeral_storage,
        other => *amounts.others.get(other).unwrap_or(&0),
    }
}

fn turned_away(needs: &Needs, room: &Room) -> bool {
    let cordon = "node.kubernetes.io/unschedulable";
    let borne = |key: &str, value: &str, effect: &str| {
        needs.tolerations.iter().any(|toleration| {
            let key_matches = toleration.key == key || toleration.key.is_empty();
            let value_matches = toleration.exists || toleration.value == value;
            let effect_matches = toleration.effect == effect || toleration.effect.is_empty();
            let wild = !toleration.key.is_empty() || toleration.exists;
            key_matches && value_matches && effect_matches && wild && !toleration.for_a_while
        })
    };
    if room.node.unschedulable && !borne(cordon, "", "NoSchedule") {
        return true;
    }
    room.node.taints.iter().any(|taint| {
        taint.effect != "PreferNoSchedule" && !borne(&taint.key, &taint.value, &taint.effect)
    })
}

fn some_term(terms: &[NodeTerm], room: &Room) -> bool {
    terms.iter().any(|term| {
        let labels = term
            .expressions
            .iter()
            .all(|requirement| met(requirement, room.node.labels.get(&requirement.key)));
        let fields = term
            .fields
            .iter()
            .all(|requirement| met(requirement, Some(&room.node.name)));
        let empty = term.expressions.is_empty() && term.fields.is_empty();
        labels && fields && !empty
    })
}

fn met(requirement: &NodeRequirement, value: Option<&String>) -> bool {
    let number = |text: &String| text.parse::<i64>().ok();
    let bound = requirement.values.first().and_then(number);
    match (requirement.operator, value) {
        (Operator::In, Some(value)) => requirement.values.contains(value),
        (Operator::NotIn, Some(value)) => !requirement.values.contains(value),
        (Operator::Exists, value) => value.is_some(),
        (Operator::DoesNotExist, value) => value.is_none(),
        (Operator::Gt, Some(value)) => number(value) > bound && number(value).is_some(),
        (Operator::Lt, Some(value)) => number(value) < bound && number(value).is_some(),
        (Operator::NotIn, None) => true,
        (Operator::In | Operator::Gt | Operator::Lt, None) => false,
    }
}

fn bears(contention: &Contention<'_>, room: &Room) -> bool {
    let own = &contention.own;
    room.placeholders.iter().all(|other| {
        let apart = [contention.separation, other.separation];
        let cluster = Separation::Isolate(IsolationScope::Cluster);
        let namespace = Separation::Isolate(IsolationScope::Namespace);
        let near = other.namespace == own.namespace;
        let kept = apart.contains(&cluster) || (near && apart.contains(&namespace));
        !kept
    })
}
