//! Sets the requests of placeholders, so that the scheduler chooses nodes with enough CPU and memory for their runs (B3, N7).
//! *Room* is the CPU and memory that a placeholder requests for pods of the run, in addition to its own requests.
//!
//! If a placeholder asks for room, its pod is created with a scheduling gate. Then the manager increases the pod's requests and
//! removes the gate. The first pod of a placeholder without a controller needs no gate: the manager creates this pod with the
//! increased requests. At first, the placeholder asks for the most that the run's pods can request at the same time. (Under a
//! quota, it asks for no room at first.) If the scheduler finds no node, the placeholder asks only for the requests of the
//! largest of these pods, and waits. A bound placeholder gives the room up: at once, or, with [`Reserves::Peak`], pod by pod.
//! The requests of a bound placeholder never grow, because that would bypass the scheduler.
//!
//! With [`Reserves::Nothing`], a placeholder asks for room only after it left a node that had no room for a pod of the run
//! (module `make_room`). Then it asks for the requests of the largest waiting pod.

mod failed_binding;
mod followers;

use std::sync::Arc;
use std::time::Duration;

use super::evacuate::moved;
use super::tell::refusals::{lacks_room, without_node};
use super::{Decision, MOVES, Step, ask_again, evict};
use crate::config::{Backend, Reserves};
use crate::event_texts;
use crate::observed::{Needs, Observed, Placeholder, PlaceholderLabels, Pod, Record, Sight};
use crate::plan::{PlaceholderSpec, Reason};
use crate::requests::Amounts;

use failed_binding::SETTLED;

/// The scheduling gate of a placeholder's pod whose requests are not set yet.
pub const GATE: &str = "coscheduler.dev/reservation";
/// Each of these normally happens within this time: the scheduler binds a waiting pod after another pod has ended; a watch reports
/// a change.
pub(super) const MOMENT: Duration = Duration::from_secs(2);
/// A kubelet normally acts on a resize within this time.
const RESIZED: Duration = Duration::from_secs(10);
/// The scheduler normally tries to bind a pod with new requests within this time.
const REFUSED: Duration = Duration::from_secs(5);

/// The nodes that may take a placeholder's pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The only node that may take the pod, if there is such a limit.
    pub only: Option<String>,
    /// The requirements of a waiting pod, if the placeholder asks for a node for this pod. The node must then also meet the node
    /// selector and the required node affinity of the waiting pod. The placeholder's pod also gets the tolerations of the waiting
    /// pod.
    pub with: Option<Needs>,
    /// The node to avoid if another node can take the pod.
    pub avoid: Option<String>,
    /// The nodes to prefer. If it is empty, no node is preferred.
    pub prefer: Vec<String>,
    /// The nodes to which the placeholder's pod is restricted, in words: "nodes that pod a can use", or "node n, where pods of
    /// the run were".
    pub limited_by: Option<String>,
}

/// A planned placeholder and its pod. Neither the placeholder nor the pod is being deleted.
pub(super) struct Placed<'a> {
    pub observed: &'a Observed,
    pub spec: &'a PlaceholderSpec,
    pub own: &'a Arc<Placeholder>,
    /// Its pod.
    pub pod: &'a Pod,
    /// The facts that only the pod of a placeholder has.
    pub labels: &'a PlaceholderLabels,
}

/// The run's placeholders that have pods.
pub(super) fn placed(observed: &Observed) -> impl Iterator<Item = Placed<'_>> {
    observed.planned().iter().filter_map(|spec| {
        let own = observed.placeholders.get(spec.name.as_str())?;
        let pod = observed.pod_of(own)?;
        let placed = Placed {
            observed,
            spec,
            own,
            pod,
            labels: pod.placeholder.as_ref()?,
        };
        (!own.object.deleting && !pod.object.deleting).then_some(placed)
    })
}

/// Sets the requests of the pods of the run's placeholders.
pub(super) fn reserve(observed: &Observed, decision: &mut Decision) {
    failed_binding::remember(observed, decision);
    for placed in placed(observed) {
        if placed.labels.gated {
            if placed.home().is_none() && placed.may_part(decision) {
                continue;
            }
            let gated = Sight::Gated(placed.pod.object.uid.clone());
            // Only the leader remembers a failed binding. After `SETTLED`, the pods that a failed binding concerns are normally
            // bound.
            if observed.leads || decision.lasts(observed, gated, SETTLED) {
                placed.open(decision);
            }
        } else if observed.leads {
            placed.reduce(decision);
        }
    }
}

impl<'a> Placed<'a> {
    /// Adds the step that sets the first requests of the pod, limits the pod to certain nodes, and removes its gate.
    fn open(&self, decision: &mut Decision) {
        let left = &self.own.record.left;
        let home = self.home();
        // `followers` leaves out a pod only if the API server has answered that the pod belongs to another run. Until the API
        // server answers, the pod may belong to another run too: any pod of the namespace can have the labels and the affinity
        // of the run's pods.
        let confirmed = |pod: &&Pod| self.observed.answers.contains_key(&pod.object.uid);
        let waiting = self.waiting().find(confirmed).filter(|_| home.is_none());
        let own = &self.own.needs;
        let special = waiting.filter(|pod| pod.needs.limit_nodes_more_than(own));
        let beside = match special {
            // The placeholder asks for no room in two cases: it returns to a node with pods of the run; or its earlier pod could
            // not give the room up.
            _ if home.is_some() || self.own.record.keeps_room => Vec::new(),
            // The waiting pod needs certain nodes. Other pods perhaps do not need them, so the requests of other pods do not
            // count.
            Some(special) => vec![special.needs.requests.clone()],
            None => {
                let is_first = left.is_none();
                self.observed.room(self.spec, is_first, decision)
            }
        };
        let mut sizes = with_room(&own.requests, &beside);
        if sizes.is_empty() {
            // Before a restart, the manager may have increased the requests. Now the pod asks for no room, so reduce them.
            sizes.extend(self.less(&own.requests));
        }
        // A placeholder without a controller has no record. Its first pod normally has no gate.
        let had_pod = self.own.record.moved.is_some()
            || moved(self.own, self.pod).is_some()
            || self.own.backend == Backend::Pod
            || decision.sights.contains(&self.failure());
        decision.steps.push(Step::Open {
            unless_followed: had_pod && home.is_none(),
            own: self.own.clone(),
            pod: self.pod.object.clone(),
            sizes,
            place: Place {
                with: waiting.map(|pod| pod.needs.clone()),
                avoid: left.clone().filter(|_| home.is_none()),
                prefer: waiting.map_or_else(Vec::new, |pod| self.large_enough(pod)),
                limited_by: home.as_deref().map(on_node).or(special.map(for_pod)),
                only: home,
            },
        });
    }

    /// Reduces the requests of the pod. If the scheduler finds no node with room for all the run's pods, the placeholder asks for
    /// the room of the largest of them. If no node has this room either, the next step depends on the volumes of the
    /// placeholder's claims:
    ///
    /// - If one of the volumes is reached by only one node, the placeholder asks for no room.
    /// - Otherwise, if some nodes do not reach all volumes, the placeholder asks for the room of the largest pod that uses one of
    ///   the claims. Other pods count only if they exist and wait.
    /// - If every node reaches the volumes, the requests stay as they are.
    ///
    /// A bound placeholder keeps no room. Exception: with [`Reserves::Peak`] and without a quota, it keeps the room for pods
    /// that do not exist yet.
    ///
    /// Deletes the pod in two cases. First: the scheduler has not bound the pod, and the pod's limit to certain nodes is
    /// missing or out of date. Second: the pod is bound, and the reduction of its requests takes too long.
    fn reduce(&self, decision: &mut Decision) {
        if let Some(node) = &self.pod.node {
            if self.is_giving_up() {
                self.come_back(node, decision);
            }
            let less = self.less(&self.kept());
            let step = less.map(|size| self.shrink(size, None));
            decision.steps.extend(step);
        } else if self.pod.unscheduled.as_ref().is_some_and(|it| it.failed) {
            self.return_to_pods(decision);
        } else if self.is_refused(decision) {
            if let Some(reason) = self.other_nodes() {
                // The scheduler binds several pods at the same time, so it may be binding this pod now.
                if self.refused_for(MOMENT, decision) {
                    decision.steps.push(evict(self, None, reason));
                }
                return;
            }
            let name = self.spec.name.as_str();
            let asked = &self.labels.asks;
            let need = self.observed.demand(self.spec, false).need;
            if let Some(size) = self.less(&self.with_own(&need)) {
                // During this time, an autoscaler may add a node with room for the peak.
                if self.refused_for(self.observed.peak_wait, decision) {
                    // If the run starts no more pods, for example because it was cancelled, there is no Event.
                    let starts = need != Amounts::default();
                    let reason =
                        starts.then(|| event_texts::reservation_reduced(name, asked, &size));
                    decision.steps.push(self.shrink(size, reason));
                }
                return;
            }
            let lacks_room = self.pod.scheduler_said().is_some_and(lacks_room);
            if !lacks_room || !self.is_bound_by_claims() {
                return;
            }
            let tied = self.observed.tied(self.spec, self.pod);
            let (size, reason) = if tied.is_empty() {
                // Pods that use none of the claims may run on other nodes.
                let size = self.with_own(&self.observed.demand(self.spec, true).need);
                let reason = event_texts::reservation_of_claims(name, asked, &size);
                (size, reason)
            } else {
                // No other node can take the placeholder. If it reserves no room, pods that need less can start on this node.
                let reason = event_texts::reservation_given_up(name, asked, &tied);
                (self.own.needs.requests.clone(), reason)
            };
            if let Some(size) = self.less(&size) {
                decision.steps.push(self.shrink(size, Some(reason)));
            }
        }
    }

    /// The Event about the next pod, if this pod's limit to certain nodes is missing or out of date.
    fn other_nodes(&self) -> Option<Reason> {
        let name = self.spec.name.as_str();
        // Only a pod that starts with the gate can be limited to one node.
        let home = self.home().filter(|_| self.own.gated);
        let Some(limit) = &self.labels.limited_by else {
            return home.map(|home| event_texts::placeholder_returns(name, &home));
        };
        let mut limits = self.waiting().map(for_pod);
        let holds =
            home.is_some_and(|home| on_node(&home) == *limit) || limits.any(|it| it == *limit);
        (!holds).then(|| event_texts::placeholder_asks_without(name, limit))
    }

    /// The step that reduces the requests of the pod.
    pub(super) fn shrink(&self, size: Amounts, reason: Option<Reason>) -> Step {
        let mut pod = self.pod.object.clone();
        if self.with_own(&Amounts::default()) == size {
            // No later decision asks for less, so this step may reduce a newer version of the pod than the observed one. For
            // example, the kubelet often writes the status at the same time.
            pod.resource_version.clear();
        }
        Step::Shrink { pod, size, reason }
    }

    /// Deletes the pod if the pod holds room for too long, because the API server or the kubelet does not act on a resize. The
    /// next pod asks for no room. Acts only while the placeholder's record has fewer than [`MOVES`] moves.
    fn come_back(&self, node: &str, decision: &mut Decision) {
        let moved = self.own.record.moved.as_ref();
        let may = moved.is_none_or(|done| done.times < MOVES);
        let asks = self.labels.asks.to_string();
        let resizing = Sight::Resizing(self.pod.object.uid.clone(), asks);
        if may && decision.lasts(self.observed, resizing, RESIZED) {
            let reason = event_texts::reservation_not_reduced(&self.own.object.name, node);
            let record = Record {
                keeps_room: true,
                ..self.own.record.clone()
            };
            decision.steps.push(ask_again(self, record, reason));
        }
    }

    /// True if the scheduler has found no node for the newest version of the pod. The scheduler updates the condition's
    /// `observedGeneration` only together with another field, so the condition may name an older version. Therefore, a condition
    /// that has lasted for [`REFUSED`] counts too. A pod that waits for one of its claims does not count.
    pub(super) fn is_refused(&self, decision: &mut Decision) -> bool {
        without_node(self.pod)
            .is_some_and(|refused| refused.is_newest || self.refused_for(REFUSED, decision))
    }

    /// True if the manager has seen for `time` that the scheduler finds no node for the pod with its present requests.
    fn refused_for(&self, time: Duration, decision: &mut Decision) -> bool {
        let asks = self.labels.asks.to_string();
        let sight = Sight::Refused(self.pod.object.uid.clone(), asks);
        decision.lasts(self.observed, sight, time)
    }

    /// The requests that a bound placeholder keeps.
    fn kept(&self) -> Amounts {
        match self.spec.reserves {
            // Under a quota, the run's own pods might not be created, because the quota also counts the room that the placeholder
            // keeps.
            Reserves::Peak if !self.observed.has_quota => {
                let peak = self.observed.demand(self.spec, false).peak;
                let taken = self.observed.together(self.spec);
                // The peak includes the pods that exist, so it is never less than `taken`.
                self.with_own(&combined(&peak, &taken, |peak, taken| peak - taken))
            }
            Reserves::Nothing | Reserves::Placement | Reserves::Peak => {
                self.own.needs.requests.clone()
            }
        }
    }

    /// True until the room that the pod gives up is free.
    pub(super) fn is_giving_up(&self) -> bool {
        self.labels.resizing || self.less(&self.kept()).is_some()
    }

    /// The pods that follow the placeholder ([`Observed::followers`]).
    pub(super) fn followers(&self) -> impl Iterator<Item = &'a Pod> {
        self.observed.followers(self.spec)
    }

    /// The pods that wait for the placeholder ([`Observed::waiting`]).
    pub(super) fn waiting(&self) -> impl Iterator<Item = &'a Pod> {
        self.observed.waiting(self.spec)
    }

    /// CPU and memory of the placeholder's own requests and of the pods beside it.
    pub(super) fn with_own(&self, beside: &Amounts) -> Amounts {
        beside_own(&self.own.needs.requests, beside)
    }

    /// The requests that the pod can be reduced to; `None` if it asks for no more than `size`.
    pub(super) fn less(&self, size: &Amounts) -> Option<Amounts> {
        let asks = &self.labels.asks;
        let size = combined(size, asks, i128::min);
        (size.milli_cpu < asks.milli_cpu || size.memory < asks.memory).then_some(size)
    }
}

/// The requests to try for the first pod of a placeholder, in this order, if the pod is created without the scheduling gate. If
/// the API server accepts none, the pod gets the requests of the specification. `None` if the pod is created with the gate, or if
/// the placeholder reserves no room.
///
/// Only a pod without a controller can be created in this way: a controller would create each later pod with the same requests.
/// If the run has TaskRuns or the placeholder has followers, the placeholder perhaps had a pod before, and the new pod may have
/// to return to the followers' node. So this pod starts with the gate.
pub(super) fn first_sizes(
    observed: &Observed,
    spec: &PlaceholderSpec,
    decision: &mut Decision,
) -> Option<Vec<Amounts>> {
    let (run, _) = observed.run.as_ref()?;
    let is_first = run.task_runs.is_empty() && observed.followers(spec).next().is_none();
    let is_asking = spec.backend == Backend::Pod && spec.reserves != Reserves::Nothing;
    let mut room = || observed.room(spec, true, decision);
    (is_first && is_asking).then(|| with_room(&spec.requests(), &room()))
}

/// The sum of a placeholder's own requests and each amount of room. Leaves out empty amounts.
fn with_room(own: &Amounts, room: &[Amounts]) -> Vec<Amounts> {
    let room = room.iter().filter(|it| **it != Amounts::default());
    let mut sizes: Vec<_> = room.map(|it| beside_own(own, it)).collect();
    sizes.dedup();
    sizes
}

fn beside_own(own: &Amounts, beside: &Amounts) -> Amounts {
    combined(own, beside, |own, beside| own + beside)
}

fn for_pod(pod: &Pod) -> String {
    format!("nodes that pod {} can use", pod.object.name)
}

fn on_node(node: &str) -> String {
    format!("node {node}, where pods of the run were")
}

/// Combines the CPU amounts with `combine`, and likewise the memory amounts. The result has no other resource, because
/// Kubernetes can change only CPU and memory of an existing pod.
fn combined(one: &Amounts, other: &Amounts, combine: fn(i128, i128) -> i128) -> Amounts {
    Amounts {
        milli_cpu: combine(one.milli_cpu, other.milli_cpu),
        memory: combine(one.memory, other.memory),
        ..Amounts::default()
    }
}
