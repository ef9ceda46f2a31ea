//! Decides the messages to the run's author. Each decision that the author may not expect has one Event. While the run waits, it
//! has annotation `coscheduler.dev/blocked`.

pub mod refusals;

use std::collections::BTreeSet;
use std::time::Duration;

use serde::Deserialize;
use serde_json::json;

use super::Decision;
use super::evacuate::{Node, Toleration, misplaced};
use crate::annotations::BLOCKED;
use crate::names::hash;
use crate::observed::{Observed, Planned, Sight};
use crate::pinned::Pinned;
use crate::pipeline_run::{PipelineRun, RunState};
use crate::plan::{PlaceholderSpec, Reason, ReasonCode};
use crate::reasons;
use crate::run_claims::brought;
use crate::volumes::{SeenClaim, Volumes, reaches, volumes};
use refusals::{lacks_room, said_on, unschedulable};

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
    let (events, mut blocked) = of_plan(planned, |claim| observed.volumes.get(claim).cloned());
    decision.events.extend(events);
    if blocked.is_none() && run.state == RunState::Active {
        blocked = no_node_reaches(observed).or(cause);
        decision.events.extend(blocked.clone());
        if blocked.is_none() {
            let specs = observed.planned();
            blocked = specs.iter().find_map(|spec| waits_for(observed, spec));
            if let Some(reason) = &blocked {
                let sight = Sight::Waits(reason.event_name(run));
                let annotated = run.annotations.get(BLOCKED) == Some(&reason.to_annotation());
                if !annotated && !decision.lasts(observed, sight, MOMENT) {
                    return;
                }
                decision.events.push(reason.clone());
            }
            // While a placeholder is missing, the annotation says why the API server refused it.
            let exists = |spec: &PlaceholderSpec| {
                let known = &observed.placeholders;
                known.contains_key(spec.name.as_str())
            };
            if !specs.iter().all(exists) && said_on(run).is_some() {
                return;
            }
        }
    }
    decision.blocked = Some(blocked);
}

/// The Events that follow from a run's plan and its claims, and why the run waits. `claim` returns the claim with that name in
/// the run's namespace. A run without a valid plan waits.
fn of_plan(
    planned: &Planned,
    claim: impl Fn(&str) -> Option<SeenClaim>,
) -> (Vec<Reason>, Option<Reason>) {
    let (mut events, mut blocked) = (Vec::new(), None);
    match planned {
        Ok(plan) => {
            let published = plan.reasons.iter().filter(|reason| reason.is_told());
            events.extend(published.cloned());
            for spec in plan.action.placeholders() {
                let seen: Vec<_> = spec.claims().filter_map(|name| claim(&name)).collect();
                let volumes = volumes(spec, &seen);
                events.extend(of_volumes(spec, &volumes));
                blocked = blocked.or_else(|| out_of_reach(spec, &volumes));
            }
        }
        Err(violations) => blocked = Some(reasons::pipeline_run_invalid(violations)),
    }
    events.extend(blocked.clone());
    (events, blocked)
}

/// The existing claims that only one pod may use (V8). A plan knows their names only.
fn of_volumes(spec: &PlaceholderSpec, volumes: &Volumes) -> Vec<Reason> {
    let named: BTreeSet<&String> = spec.claim_names.iter().collect();
    let unmounted = volumes.unmounted.iter().filter(|name| named.contains(name));
    unmounted
        .map(|name| reasons::claim_not_mounted(name, None))
        .collect()
}

/// Why a placeholder cannot be placed, if no node reaches all its volumes (V7).
pub fn out_of_reach(spec: &PlaceholderSpec, volumes: &Volumes) -> Option<Reason> {
    let conflict = volumes.conflict.as_ref()?;
    Some(reasons::volume_node_affinity_conflict(conflict, &spec.name))
}

/// Why a placeholder's pod that has no node cannot be bound to any (N1).
fn no_node_reaches(observed: &Observed) -> Option<Reason> {
    let pods = observed.pods.values();
    let mut unbound =
        pods.filter(|pod| pod.node.is_none() && pod.placeholder.is_some() && observed.owns(pod));
    unbound.find_map(|pod| {
        let claims = pod.claims.iter();
        let seen: Vec<SeenClaim> = claims
            .filter_map(|name| observed.volumes.get(name).cloned())
            .collect();
        let nodes: Vec<&Node> = observed.nodes.values().map(AsRef::as_ref).collect();
        stranded(pod.tolerations(), &seen, &nodes)
    })
}

/// Why a placeholder finds no node, if its claims (`seen`) are the cause: none of `nodes` reaches the volumes of all its claims,
/// or each node that does has a taint that the placeholder does not tolerate.
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
                "{} {}",
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

/// The first cause that Kubernetes has reported why a placeholder waits (N3).
fn waits_for(observed: &Observed, spec: &PlaceholderSpec) -> Option<Reason> {
    let name = spec.name.as_str();
    observed.placeholders.get(name)?;
    let Some(pod) = observed.pod_named_for(name) else {
        return observed.refused.get(name).cloned();
    };
    if pod.node.is_some() {
        return None;
    }
    // A claim that is made for the run comes in a moment.
    let (run, _) = observed.run.as_ref()?;
    let pinned = Pinned::read(&run.annotations).ok().flatten()?;
    let brought = brought(&pinned.claims);
    let exists = |claim: &str| observed.volumes.contains_key(claim) || !brought.contains(claim);
    let mut claims = spec.claims().filter(|claim| exists(claim));
    let not_provisioned = claims.find_map(|claim| observed.not_provisioned.get(&claim).cloned());
    not_provisioned.or_else(|| {
        // The scheduling gate is no cause: this product removes it in a moment.
        let unscheduled = pod.unscheduled.as_ref().filter(|it| it.no_node)?;
        let asks = pod.placeholder.as_ref().map(|it| it.asks.clone());
        let asks = asks.unwrap_or_default();
        let message = unscheduled.message.as_deref()?;
        let tied = observed.tied(spec, pod);
        if !tied.is_empty() && lacks_room(message) {
            return Some(reasons::claims_hold_unbound(name, &asks, &tied));
        }
        unschedulable(&spec.name, &asks, message, exists)
    })
}

impl Reason {
    /// True if the manager publishes an Event with this reason.
    pub fn is_told(&self) -> bool {
        self.code.told().is_some()
    }

    /// The name of the Event with this reason about `run`. It depends on run and text alone, so that the API server stores the
    /// Event once, whichever replica creates it.
    pub fn event_name(&self, run: &PipelineRun) -> String {
        let code = self.code.as_str();
        let identity = format!("{}/{code}/{}", run.uid, self.message);
        format!("{}.{}", run.name, hash(&identity))
    }

    /// The value of annotation [`BLOCKED`].
    pub fn to_annotation(&self) -> String {
        json!({"reason": self.code.as_str(), "message": self.message}).to_string()
    }
}

/// The reason in the value of annotation [`BLOCKED`].
pub fn blocked_reason(value: &str) -> Option<Reason> {
    #[derive(Deserialize)]
    struct Blocked {
        reason: String,
        message: String,
    }
    let Blocked { reason, message } = serde_json::from_str(value).ok()?;
    Some(Reason::new(ReasonCode::read(&reason)?, message))
}

/// The new value of annotation [`BLOCKED`] of `run`, where the inner `None` removes it; the outer `None` if it is up to date.
pub fn blocked_annotation(run: &PipelineRun, blocked: Option<&Reason>) -> Option<Option<String>> {
    let wanted = blocked.map(Reason::to_annotation);
    (run.annotations.get(BLOCKED) != wanted.as_ref()).then_some(wanted)
}

#[cfg(test)]
mod tests;
