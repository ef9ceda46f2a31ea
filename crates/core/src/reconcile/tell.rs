//! Decides the messages to the run's author: Events, and annotation `coscheduler.dev/blocked`.

use std::time::Duration;

use super::Decision;
use super::evacuate::{Node, Toleration, misplaced};
use crate::notices::notices;
use crate::observed::{Observed, Sight};
use crate::pipeline_run::{PipelineRun, RunState};
use crate::plan::{PlaceholderSpec, Reason};
use crate::reasons;
use crate::refusals::{SeenPlaceholder, still_refused, waits};
use crate::volumes::{SeenClaim, reaches};

/// How long a placeholder waits before the author gets an Event. Most causes pass sooner: volumes are provisioned, caches sync.
const MOMENT: Duration = Duration::from_secs(2);

/// Adds the Events and the annotation to `decision`. `cause` is why a pod waits although its placeholder is bound.
pub(super) fn tell(observed: &Observed, cause: Option<Reason>, decision: &mut Decision) {
    let Some((run, planned)) = &observed.run else {
        return;
    };
    if run.deletion {
        return;
    }
    if run.state == RunState::Done {
        // Tekton may have failed the run for the same cause before it lasted for `MOMENT`.
        let refused = observed.refused.values().next().cloned();
        decision.events.extend(refused);
        decision.blocked = Some(None);
        return;
    }
    let mut notices = notices(planned, |claim| observed.volumes.get(claim).cloned());
    let mut seen = None;
    if notices.blocked.is_none() && run.state == RunState::Active {
        notices.blocked = no_node_reaches(observed).or(cause);
        if notices.blocked.is_none() {
            seen = Some(waits(planned, |spec| placeholder(observed, spec)));
        }
        notices.events.extend(notices.blocked.clone());
    }
    decision.events.extend(notices.events);
    let reason = seen.as_ref().and_then(|seen| seen.reason.as_ref());
    if let Some(reason) = reason {
        let sight = Sight::Waits(reason.event_name(run));
        if !is_annotated(run, reason) && !decision.lasts(observed, sight, MOMENT) {
            return;
        }
        decision.events.push(reason.clone());
    }
    if !seen.as_ref().is_some_and(|seen| still_refused(run, seen)) {
        decision.blocked = Some(notices.blocked.or_else(|| reason.cloned()));
    }
}

fn is_annotated(run: &PipelineRun, reason: &Reason) -> bool {
    let blocked = run.annotations.get(crate::annotations::BLOCKED);
    blocked == Some(&reason.to_annotation())
}

/// Why a placeholder that lost its node cannot be bound to another one (N1).
fn no_node_reaches(observed: &Observed) -> Option<Reason> {
    let pods = observed.pods.values();
    let mut unbound =
        pods.filter(|pod| pod.node.is_none() && pod.placeholder.is_some() && observed.owns(pod));
    unbound.find_map(|pod| {
        let claims = pod.claims.iter();
        let seen: Vec<SeenClaim> = claims
            .filter_map(|name| observed.volumes.get(name).cloned())
            .collect();
        let nodes: Vec<&Node> = observed.nodes.values().map(|room| &room.node).collect();
        stranded(pod.tolerations(), &seen, &nodes)
    })
}

/// Why a placeholder finds no node, if its claims are the cause: it does not tolerate the taints of any of `nodes` that reaches
/// the volumes of its claims, `seen`.
fn stranded(tolerations: &[Toleration], seen: &[SeenClaim], nodes: &[&Node]) -> Option<Reason> {
    let held = |claim: &&SeenClaim| claim.volume.as_ref().is_some_and(|on| !on.terms.is_empty());
    let claims: Vec<_> = seen
        .iter()
        .filter(held)
        .map(|it| it.name.as_str())
        .collect();
    if claims.is_empty() {
        return None;
    }
    let reaching = nodes
        .iter()
        .filter(|node| reaches(&node.name, &node.labels, seen));
    let causes: Option<Vec<_>> = reaching
        .map(|node| {
            Some(format!(
                "{}: {}",
                node.name,
                misplaced(tolerations, Some(node))?
            ))
        })
        .collect();
    let causes = causes?;
    Some(match causes.split_first() {
        None => reasons::claims_out_of_reach(&claims),
        Some((first, others)) => reasons::claims_not_movable(&claims, first, others.len()),
    })
}

/// Why a placeholder waits (N3); `None` if it does not exist.
fn placeholder(observed: &Observed, spec: &PlaceholderSpec) -> Option<SeenPlaceholder> {
    let name = spec.name.as_str();
    let own = observed.placeholders.get(name)?;
    let Some(pod) = observed.pod_named_for(name) else {
        return Some(SeenPlaceholder {
            refused: observed.refused.get(name).cloned(),
            ..SeenPlaceholder::default()
        });
    };
    if pod.node.is_some() {
        return Some(SeenPlaceholder::default());
    }
    let existing = spec
        .claims()
        .filter(|name| observed.volumes.contains_key(name));
    let existing: Vec<String> = existing.collect();
    let not_provisioned = existing
        .iter()
        .filter_map(|name| observed.not_provisioned.get(name));
    Some(SeenPlaceholder {
        refused: None,
        not_provisioned: not_provisioned.cloned().collect(),
        // If no target node takes a moving placeholder, the move ends (N2).
        unschedulable: pod
            .unscheduled
            .as_ref()
            .filter(|_| own.moving.is_none())
            .and_then(|unscheduled| unscheduled.message.clone()),
        claims: existing.into_iter().collect(),
    })
}

#[cfg(test)]
mod tests;
