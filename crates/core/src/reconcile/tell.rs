//! Decides the messages to the run's author: Events, and annotation `coscheduler.dev/blocked`, which gives the cause while the
//! run waits.

pub mod refusals;
pub mod waiting;

use std::collections::BTreeSet;
use std::time::Duration;

use serde::Deserialize;
use serde_json::json;

use super::Decision;
use super::apart::{Fit, fit};
use super::reserve::{self, Placed};
use crate::annotations::BLOCKED;
use crate::event_texts;
use crate::names::hash;
use crate::node::{Node, Toleration, misplaced};
use crate::observed::{Observed, Planned, Sight};
use crate::pinned::Pinned;
use crate::pipeline_run::{OwnerReference, PipelineRun, RunState};
use crate::plan::{PlaceholderSpec, Reason, ReasonCode};
use crate::run_claims::brought;
use crate::volumes::{self, Conflict, SeenClaim, Volumes, reaches, volumes};
use refusals::{lacks_room, meets_other_placeholders, said_on, unschedulable};
use waiting::Wait;

/// An error of Kubernetes about a placeholder is reported when the error has lasted for this time. Most errors pass sooner,
/// because volumes are provisioned or caches sync.
const MOMENT: Duration = Duration::from_secs(2);

/// The greatest number of TaskRuns that get an Event about one reason why the run waits.
const MOST_TASK_RUNS: usize = 10;

/// Adds the Events and the annotation to `decision`. `cause` is the reason why a pod waits although its placeholder is bound, if
/// no step of `make_room` can help the pod.
pub(super) fn tell(observed: &Observed, cause: Option<Reason>, decision: &mut Decision) {
    let Some((run, planned)) = &observed.run else {
        return;
    };
    if run.deletion {
        return;
    }
    if run.state == RunState::Done {
        // A refusal is reported without waiting for `MOMENT`, because Tekton may have failed the run for the same cause.
        let refused = observed.refused.values().next().cloned();
        decision.events.extend(refused);
        decision.blocked = Some(None);
        return;
    }
    let claim = |name: &str| observed.volumes.get(name).cloned();
    let mounts = |spec: &PlaceholderSpec, claim: &str| {
        let placeholder = observed.placeholders.get(spec.name.as_str());
        placeholder.is_some_and(|it| it.claims.iter().any(|mounted| mounted == claim))
    };
    let (events, mut blocked) = of_plan(planned, claim, mounts);
    decision.events.extend(events);
    let Some(apart) = out_of_reach(observed, run, decision) else {
        return;
    };
    blocked = blocked.or(apart);
    if blocked.is_none() && run.state == RunState::Active {
        blocked = no_node_reaches(observed).or(cause);
        decision.events.extend(blocked.clone());
        if blocked.is_none() {
            let specs = observed.planned();
            let mut waits = specs.iter();
            blocked = no_allowed_node_reaches(observed)
                .or_else(|| waits.find_map(|spec| waits_for(observed, spec)));
            if let Some(reason) = &blocked {
                if !decision.is_settled(observed, run, reason) {
                    return;
                }
                decision.events.push(reason.clone());
            }
            // While a placeholder is missing, the annotation stays if it gives a reason why a placeholder was not created.
            let exists = |spec: &PlaceholderSpec| {
                let known = &observed.placeholders;
                known.contains_key(spec.name.as_str())
            };
            if !specs.iter().all(exists) && said_on(run).is_some() {
                let said = run.annotations.get(BLOCKED);
                let said = said.and_then(|value| blocked_reason(value));
                decision.tell_task_runs(observed, said.as_ref());
                return;
            }
            if blocked.is_none() {
                decision.tell_of_waiting_pods(observed, run);
            }
        }
    }
    decision.tell_task_runs(observed, blocked.as_ref());
    decision.blocked = Some(blocked);
}

/// The Events that follow from a run's plan and its claims. If the run has no valid plan, also the reason why it waits. `claim`
/// returns the claim with a given name in the run's namespace. `mounts` is true if a placeholder exists and mounts this claim.
fn of_plan(
    planned: &Planned,
    claim: impl Fn(&str) -> Option<SeenClaim>,
    mounts: impl Fn(&PlaceholderSpec, &str) -> bool,
) -> (Vec<Reason>, Option<Reason>) {
    let (mut events, mut blocked) = (Vec::new(), None);
    match planned {
        Ok(plan) => {
            let published = plan.reasons.iter().filter(|reason| reason.is_told());
            events.extend(published.cloned());
            let mut is_mounted = false;
            for spec in plan.action.placeholders() {
                let seen: Vec<_> = spec.claims().filter_map(|name| claim(&name)).collect();
                let volumes = volumes(spec, &seen);
                events.extend(of_volumes(spec, &volumes));
                let mut single_pod = seen.iter().filter(|claim| claim.single_pod);
                is_mounted |= single_pod.any(|claim| mounts(spec, &claim.name));
            }
            // A placeholder mounts a claim for one pod if Tekton created it, or if it is older than the claim. Then no task can
            // use the claim, and the Event would say that the user need not act.
            if is_mounted {
                events.retain(|reason| reason.code != ReasonCode::ClaimNotMounted);
            }
        }
        Err(violations) => blocked = Some(event_texts::pipeline_run_invalid(violations)),
    }
    events.extend(blocked.clone());
    (events, blocked)
}

/// One reason for each existing claim that the placeholder does not mount, because only one pod at a time may use the claim (V8).
/// The plan has no such reason, because it knows only the names of existing claims.
fn of_volumes(spec: &PlaceholderSpec, volumes: &Volumes) -> Vec<Reason> {
    let named: BTreeSet<&String> = spec.claim_names.iter().collect();
    let unmounted = volumes.unmounted.iter().filter(|name| named.contains(name));
    unmounted
        .map(|name| event_texts::claim_not_mounted(name, None))
        .collect()
}

/// Looks for a placeholder that no node can run, because no node can reach the volumes of all its claims, and the placeholder
/// cannot leave out some of the claims (V7). Returns the reason if there is such a placeholder, and `Some(None)` if there is
/// none. Returns `None` if this is not known yet.
fn out_of_reach(
    observed: &Observed,
    run: &PipelineRun,
    decision: &mut Decision,
) -> Option<Option<Reason>> {
    let mut found = None;
    for spec in observed.planned() {
        let reason =
            |conflict: &Conflict| event_texts::volume_node_affinity_conflict(conflict, &spec.name);
        let reason = match fit(observed, spec) {
            Fit::Together => continue,
            Fit::Apart { conflict, left_out } => {
                let left_out = left_out.into_iter().collect::<Vec<_>>().join(", ");
                let reason = event_texts::claims_apart(&conflict, &spec.name, &left_out);
                decision.events.push(reason);
                continue;
            }
            Fit::Undecided(conflict) => {
                let reason = reason(&conflict);
                if !decision.is_settled(observed, run, &reason) {
                    return None;
                }
                reason
            }
            Fit::Never(conflict) => reason(&conflict),
        };
        decision.events.push(reason.clone());
        found = found.or(Some(reason));
    }
    Some(found)
}

impl Decision {
    /// Adds the Event about the cause for which pods of the run wait. A cause that normally passes within seconds gets no
    /// Event. This function never changes the annotation, because each change of a run makes Tekton reconcile the run.
    fn tell_of_waiting_pods(&mut self, observed: &Observed, run: &PipelineRun) {
        let Some(Wait {
            pod,
            reason,
            recheck,
        }) = observed.first_wait()
        else {
            return;
        };
        if !recheck.is_zero() {
            self.look_in(recheck);
        }
        if reason.is_told()
            && self.is_settled(observed, run, &reason)
            && (pod.placeholder.is_some() || self.confirms(observed, pod, None))
        {
            let task_run = pod.task_run().cloned();
            let of_task_run = task_run.map(|task_run| (task_run, reason.clone()));
            self.of_task_runs.extend(of_task_run);
            self.events.push(reason);
        }
    }

    /// Adds Events about TaskRuns whose pods wait for a placeholder of the run. `blocked` is the reason why the run waits.
    fn tell_task_runs(&mut self, observed: &Observed, blocked: Option<&Reason>) {
        let Some(reason) = blocked.filter(|reason| reason.is_told()) else {
            return;
        };
        let planned = observed.planned().iter();
        let names: BTreeSet<_> = planned.map(|spec| spec.name.to_string()).collect();
        let waiting = observed.pods.values().filter(|pod| {
            let refused = pod.is_refused();
            refused && pod.follows.iter().any(|it| names.contains(it))
        });
        let task_runs = waiting.filter_map(|pod| pod.task_run());
        let told = task_runs.map(|task_run| (task_run.clone(), reason.clone()));
        self.of_task_runs.extend(told.take(MOST_TASK_RUNS));
    }

    /// True if the run has waited because of this reason for [`MOMENT`], or if the run's annotation already has this reason.
    fn is_settled(&mut self, observed: &Observed, run: &PipelineRun, reason: &Reason) -> bool {
        let sight = Sight::Waits(reason.event_name(&OwnerReference::to_pipeline_run(run)));
        let annotated = run.annotations.get(BLOCKED) == Some(&reason.to_annotation());
        annotated || self.lasts(observed, sight, MOMENT)
    }
}

impl Observed {
    /// True if the claim exists. A claim that is made for the run is perhaps not in the cache yet, so it counts as existing.
    fn claim_exists(&self, claim: &str) -> bool {
        let is_made = || {
            let (run, _) = self.run.as_ref()?;
            let pinned = Pinned::of(run).ok().flatten()?;
            let mut planned = self.planned().iter().flat_map(PlaceholderSpec::claims);
            Some(planned.any(|it| it == claim) && !brought(&pinned.claims).contains(claim))
        };
        self.volumes.contains_key(claim) || is_made().unwrap_or_default()
    }
}

/// The reason why no node can run a placeholder's unbound pod (N1). `None` if the claims are not the cause.
fn no_node_reaches(observed: &Observed) -> Option<Reason> {
    let pods = observed.pods.values();
    let mut unbound =
        pods.filter(|pod| pod.node.is_none() && pod.placeholder.is_some() && observed.owns(pod));
    unbound.find_map(|pod| {
        let seen = observed.seen(&pod.claims);
        let nodes: Vec<&Node> = observed.nodes.values().map(AsRef::as_ref).collect();
        stranded(&pod.needs.tolerations, &seen, &nodes)
    })
}

/// The reason why the scheduler found no node for a placeholder: the nodes that its podTemplate allows do not reach the volumes
/// of its claims (N3). `None` if this is not the reason.
fn no_allowed_node_reaches(observed: &Observed) -> Option<Reason> {
    reserve::placed(observed).find_map(|Placed { own, pod, .. }| {
        pod.unscheduled.as_ref().filter(|it| it.no_node)?;
        let seen = observed.seen(&pod.claims);
        let nodes = observed.nodes.values().map(AsRef::as_ref);
        let mut allowed =
            nodes.filter(|node: &&Node| own.needs.are_met_by(&node.name, &node.labels));
        // If an allowed node reaches the volumes, it has another problem. For example, it is cordoned.
        let conflict = volumes::out_of_reach(&seen, allowed.clone())?;
        // Nodes with a taint that the placeholder does not tolerate are not enough. A new node has a taint until its labels are
        // complete.
        allowed.find(|node| misplaced(&own.needs.tolerations, Some(node)).is_none())?;
        Some(event_texts::volume_out_of_reach(&conflict))
    })
}

/// The reason why none of `nodes` can run a placeholder with these tolerations and claims (`seen`). There are two cases: no
/// node reaches the volumes of all claims; or each node that reaches them is cordoned, or has a taint that the placeholder does
/// not tolerate. `None` in all other cases.
fn stranded(tolerations: &[Toleration], seen: &[SeenClaim], nodes: &[&Node]) -> Option<Reason> {
    let claims = seen.iter().filter(|claim| claim.limits_nodes());
    let claims: Vec<_> = claims.map(|it| it.name.as_str()).collect();
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
        None => event_texts::claims_out_of_reach(&claims),
        Some((first, others)) => event_texts::claims_not_movable(&claims, first, others.len()),
    })
}

/// The reason why a placeholder waits, from Kubernetes' Events and from the scheduler's message (N3). `None` if the placeholder
/// is bound, or if Kubernetes has reported no cause.
fn waits_for(observed: &Observed, spec: &PlaceholderSpec) -> Option<Reason> {
    let name = spec.name.as_str();
    observed.placeholders.get(name)?;
    let Some(pod) = observed.pod_named_for(name) else {
        return observed.refused.get(name).cloned();
    };
    if pod.node.is_some() {
        return None;
    }
    let exists = |claim: &str| observed.claim_exists(claim);
    let mut claims = spec.claims().filter(|claim| exists(claim));
    let not_provisioned = claims.find_map(|claim| observed.not_provisioned.get(&claim).cloned());
    not_provisioned.or_else(|| {
        // While the pod has our scheduling gate, `no_node` is false. The gate is no cause to report: the manager removes it soon.
        pod.unscheduled.as_ref().filter(|it| it.no_node)?;
        let asks = pod.placeholder.as_ref().map(|it| it.asks.clone());
        let asks = asks.unwrap_or_default();
        let message = pod.scheduler_said()?;
        let tied = observed.tied(spec, pod);
        let crowded = meets_other_placeholders(message);
        // The scheduler reports an anti-affinity only about nodes that reach the volumes and have room
        // (`pkg/scheduler/apis/config/v1/default_plugins.go`).
        if !tied.is_empty() && crowded {
            return Some(event_texts::claims_on_taken_node(name, &tied));
        }
        if !tied.is_empty() && lacks_room(message) {
            return Some(event_texts::claims_hold_unbound(name, &asks, &tied));
        }
        let crowded = crowded && spec.is_isolated();
        unschedulable(&spec.name, crowded, &asks, message, exists)
    })
}

impl Reason {
    /// True if a reason with this code becomes an Event.
    pub fn is_told(&self) -> bool {
        self.code.told().is_some()
    }

    /// The name of the Event with this reason about an object. It depends only on the object, the code and the text. So if
    /// several replicas create the same Event, the API server stores it once.
    pub fn event_name(&self, object: &OwnerReference) -> String {
        let code = self.code.as_str();
        let identity = format!("{}/{code}/{}", object.uid, self.message);
        format!("{}.{}", object.name, hash(&identity))
    }

    /// The value of annotation [`BLOCKED`].
    pub fn to_annotation(&self) -> String {
        json!({"reason": self.code.as_str(), "message": self.message}).to_string()
    }
}

/// The reason in a value of annotation [`BLOCKED`]. `None` if the value cannot be read.
pub fn blocked_reason(value: &str) -> Option<Reason> {
    #[derive(Deserialize)]
    struct Blocked {
        reason: String,
        message: String,
    }
    let Blocked { reason, message } = serde_json::from_str(value).ok()?;
    Some(Reason::new(ReasonCode::read(&reason)?, message))
}

/// The change of annotation [`BLOCKED`] of `run`: `Some(None)` removes the annotation, and `Some(Some(value))` sets it. `None` if
/// the annotation is up to date.
pub fn blocked_annotation(run: &PipelineRun, blocked: Option<&Reason>) -> Option<Option<String>> {
    let wanted = blocked.map(Reason::to_annotation);
    (run.annotations.get(BLOCKED) != wanted.as_ref()).then_some(wanted)
}

#[cfg(test)]
mod tests;
