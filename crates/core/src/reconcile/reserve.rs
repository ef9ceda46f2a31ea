//! Lets placeholders ask the scheduler for the room that their runs need (B3, N7).
//!
//! The pod of a placeholder that reserves room is created with a scheduling gate and with the placeholder's own requests only. The
//! manager sets the requests and removes the gate. Normally, the pod first asks for the most that the run's pods can request
//! at the same time. If the scheduler finds no node, the pod asks for what the largest single pod needs, and waits. An autoscaler
//! sees this pending pod and can add a node for it. Once the pod is bound, it gives the room up. A bound pod never grows, because
//! that would bypass the scheduler.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::evacuate::misplaced;
use super::requests::Amounts;
use super::{Decision, Step};
use crate::config::Reserves;
use crate::mode::Mode;
use crate::observed::{Observed, Placeholder, Pod, Sight};
use crate::pinned::Pinned;
use crate::plan::{PlaceholderSpec, Reason};
use crate::reasons;
use crate::sizes::{Demand, Progress, Sizes};

/// The scheduling gate of a placeholder's pod whose requests are not set yet.
pub const GATE: &str = "coscheduler.dev/reservation";
/// Normally the leader removes the gate. Another replica does so after this time.
const GATED: Duration = Duration::from_secs(2);

/// Sets the requests of the pods of the run's placeholders.
pub(super) fn reserve(observed: &Observed, decision: &mut Decision) {
    for spec in observed.planned() {
        let own = observed.placeholders.get(spec.name.as_str());
        let pod = own.and_then(|own| Some((own, observed.pod_of(own)?)));
        let Some((own, pod)) = pod.filter(|(_, pod)| !pod.object.deleting) else {
            continue;
        };
        let Some(placeholder) = &pod.placeholder else {
            continue;
        };
        if placeholder.gated {
            let gated = Sight::Gated(pod.object.uid.clone());
            if observed.leads || decision.lasts(observed, gated, GATED) {
                let (step, reason) = open(observed, own, spec, pod);
                decision.steps.push(step);
                decision.events.extend(reason);
            }
        } else if spec.reserves == Reserves::Placement && observed.leads {
            decision.steps.extend(shrink(observed, own, spec, pod));
        }
    }
}

/// Sets the first requests of a pod, and removes its gate. The reason says why it reserves nothing.
fn open(
    observed: &Observed,
    own: &Placeholder,
    spec: &PlaceholderSpec,
    pod: &Pod,
) -> (Step, Option<Reason>) {
    let home = home(observed, own);
    let mut reason = None;
    let beside = match (&home, spec.reserves) {
        (None, Reserves::Placement) if observed.has_quota => {
            reason = Some(reasons::reservation_under_quota(spec.name.as_str()));
            None
        }
        (None, Reserves::Placement) => {
            let demand = demand(observed, spec);
            // The target nodes of a move have room for the waiting pod, but perhaps not for all.
            let demanded = if own.moving.is_some() {
                demand.need
            } else {
                demand.peak
            };
            Some(demanded).filter(|demanded| demanded.resources().next().is_some())
        }
        // It returns to pods that run already.
        (Some(_), _) | (None, Reserves::Nothing) => None,
    };
    let step = Step::Open {
        placeholder: own.object.name.clone(),
        pod: pod.object.clone(),
        size: beside.map(|beside| with_own(&own.needs.requests, &beside)),
        node: home,
    };
    (step, reason)
}

/// Asks for less: for the largest pod, if the scheduler finds no node for all of them, and for nothing beside its own requests
/// once the pod is bound.
fn shrink(
    observed: &Observed,
    own: &Placeholder,
    spec: &PlaceholderSpec,
    pod: &Pod,
) -> Option<Step> {
    let asks = &pod.placeholder.as_ref()?.asks;
    let own = &own.needs.requests;
    let (size, reason) = if pod.node.is_some() {
        (own.clone(), None)
    } else if pod
        .unscheduled
        .as_ref()
        .is_some_and(|it| it.no_node && it.is_newest)
    {
        let need = with_own(own, &demand(observed, spec).need);
        let reason = reasons::reservation_reduced(spec.name.as_str(), asks, &need);
        (at_most(&need, asks), Some(reason))
    } else {
        return None;
    };
    let grants = size.milli_cpu < asks.milli_cpu || size.memory < asks.memory;
    grants.then(|| Step::Shrink {
        pod: pod.object.clone(),
        size,
        reason,
    })
}

/// True until the room that a placeholder's pod reserved is free.
pub(super) fn holds_room(observed: &Observed, own: &Placeholder, pod: &Pod) -> bool {
    let spec = observed.planned_as(own);
    let reserves = spec.is_some_and(|spec| spec.reserves == Reserves::Placement);
    let own = &own.needs.requests;
    let holds = pod.placeholder.as_ref().is_some_and(|it| {
        it.resizing || it.asks.milli_cpu > own.milli_cpu || it.asks.memory > own.memory
    });
    reserves && holds
}

/// The node that the placeholder must return to: some of its run's pods have started there, and the node is good.
fn home(observed: &Observed, own: &Placeholder) -> Option<String> {
    let followers = observed.pods.values().filter(|pod| {
        pod.follows.contains(&own.object.name) && pod.started && pod.role().is_some()
    });
    let mut nodes = followers.filter_map(|pod| pod.node.clone());
    nodes.find(|node| misplaced(&own.needs.tolerations, observed.node(node)).is_none())
}

/// The requests of the pods that share the placeholder's node: as admission estimated them, corrected by the pods that exist.
fn demand(observed: &Observed, spec: &PlaceholderSpec) -> Demand {
    let Some((run, _)) = &observed.run else {
        return Demand::default();
    };
    let sizes = Sizes::read(&run.annotations).unwrap_or_default();
    let pinned = Pinned::read(&run.annotations).ok().flatten();
    let held: BTreeSet<String> = spec.claims().collect();
    let mut demand = sizes.demand(&progress(observed), |_, task| match &pinned {
        Some(pinned) if pinned.mode == Mode::Workspaces => {
            let mut claims = task.workspaces.iter().filter_map(|workspace| {
                let claim = pinned.claims.get(workspace)?;
                Some(claim.name(workspace, &run.uid))
            });
            claims.any(|claim| held.contains(&claim))
        }
        Some(_) | None => true,
    });
    let mut together = Amounts::default();
    for pod in observed.pods.values() {
        if pod.follows.iter().any(|it| it == spec.name.as_str()) && pod.role().is_some() {
            together.add(&pod.needs.requests);
            if pod.node.is_none() {
                demand.need = at_least(&demand.need, &pod.needs.requests);
            }
        }
    }
    demand.peak = at_least(&at_least(&demand.peak, &together), &demand.need);
    demand
}

/// The tasks that have started, and whether they have ended.
fn progress(observed: &Observed) -> BTreeMap<&str, Progress> {
    let Some((run, _)) = &observed.run else {
        return BTreeMap::new();
    };
    let pods = observed.pods.values();
    let alive: BTreeSet<&str> = pods
        .filter(|pod| pod.role().is_some())
        .filter_map(|pod| Some(pod.task_run()?.name.as_str()))
        .collect();
    let mut progress: BTreeMap<&str, Progress> = BTreeMap::new();
    for (task_run, task) in &run.task_runs {
        let task = progress.entry(task).or_insert(Progress::Ended);
        if alive.contains(task_run.as_str()) {
            *task = Progress::Running;
        }
    }
    for task in &run.skipped_tasks {
        progress.insert(task, Progress::Ended);
    }
    progress
}

/// CPU and memory of the placeholder's own and of the pods beside it.
fn with_own(own: &Amounts, beside: &Amounts) -> Amounts {
    combined(own, beside, |own, beside| own + beside)
}

fn at_least(one: &Amounts, other: &Amounts) -> Amounts {
    combined(one, other, i128::max)
}

fn at_most(one: &Amounts, other: &Amounts) -> Amounts {
    combined(one, other, i128::min)
}

/// CPU and memory only: no other resource of a pod can be changed.
fn combined(one: &Amounts, other: &Amounts, combine: fn(i128, i128) -> i128) -> Amounts {
    Amounts {
        milli_cpu: combine(one.milli_cpu, other.milli_cpu),
        memory: combine(one.memory, other.memory),
        ..Amounts::default()
    }
}
