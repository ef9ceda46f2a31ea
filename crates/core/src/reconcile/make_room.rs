//! Helps pods that find no room on the node of their placeholder (N2, N7): this node lacks CPU, memory or another resource.
//! Either the placeholder leaves its node, and asks the scheduler for a node with more room ([`reserve`]). Or the manager lets
//! the pod run without its placeholder. The manager does not predict which node has room: only the scheduler knows.

use std::time::Duration;

use jiff::Timestamp;

use super::apart::left_out;
use super::evacuate::{FIRST_PAUSE, LONGEST_PAUSE};
use super::reserve::{self, MOMENT, Placed};
use super::tell::refusals::{tells_of_no_node, without_node};
use super::{Decision, Eviction, MOVES, Step, ask_again, pause};
use crate::event_texts;
use crate::node::misplaced;
use crate::observed::{Done, Observed, Pod, Record, Sight, elapsed};
use crate::plan::Reason;
use crate::volumes::SeenClaim;

/// The scheduler normally tries a waiting pod again within this time after the pod's placeholder is bound. Until then, the pod's
/// condition may be older than the placeholder's binding (`docs/decisions/making-room.md`).
const TRIED: Duration = Duration::from_secs(12);
/// At the latest, the scheduler tries a waiting pod again after this time, even without an event: kube-scheduler's
/// `podMaxInUnschedulablePodsDuration` (five minutes), plus the 30 seconds between its checks for such pods, plus its longest
/// backoff of ten seconds.
const TRIED_AT_LAST: Duration = Duration::from_secs(340);
/// The greatest number of times that the manager lets the pod of one TaskRun run without its placeholder. Each time, Tekton may
/// create the pod with the affinity again.
const TRIES: u32 = 5;

/// The time from the binding of a placeholder until the scheduler has normally tried a waiting pod of this placeholder again.
/// `said` is the scheduler's last message about the pod.
pub fn tried_within(said: &str) -> Duration {
    match tells_of_no_node(said) {
        true => TRIED_AT_LAST,
        false => TRIED,
    }
}

/// Makes room for the run's pods. If a pod waits and no step can help it, returns the reason.
pub(super) fn make_room(observed: &Observed, decision: &mut Decision) -> Option<Reason> {
    let mut cause = None;
    for placed in reserve::placed(observed) {
        let waiting = placed.waiting().filter(|pod| {
            without_node(pod).is_some() && pod.task_run().is_some() && !pod.object.deleting
        });
        let waiting: Vec<_> = waiting.collect();
        if let Some(node) = &placed.pod.node {
            let reported = placed.beside(node, &waiting, decision);
            cause = cause.or(reported);
        } else if placed.is_refused(decision) && placed.is_bound_by_claims() {
            // Nodes that cannot reach the placeholder's volumes may still take the pods that use none of its claims.
            placed.let_go(&waiting, decision);
        }
    }
    cause
}

impl<'a> Placed<'a> {
    /// Decides for a bound placeholder. The scheduler found no node for the pods in `waiting`.
    fn beside(&self, node: &str, waiting: &[&'a Pod], decision: &mut Decision) -> Option<Reason> {
        let (away, waiting): (Vec<_>, Vec<_>) =
            waiting.iter().copied().partition(|pod| self.is_away(pod));
        self.let_go(&away, decision);
        let (first, waiting) = (waiting.first()?, waiting.as_slice());
        let leaves = misplaced(&self.pod.needs.tolerations, self.observed.node(node)).is_some();
        // Until the kubelet has reduced a reservation, the scheduler refuses pods that will fit afterwards.
        if leaves || self.is_giving_up() {
            return None;
        }
        if let Some(size) = self.less(&self.own.needs.requests) {
            // The placeholder keeps room for later pods. The waiting pod needs this room now.
            if self.is_confirmed(first, None, decision) {
                decision.steps.push(self.shrink(size, None));
            }
            return None;
        }
        if self.must_stay(node) {
            return None;
        }
        let claims = self.observed.tied(self.spec, self.pod);
        if claims.is_empty() {
            return self.ask_anew(node, first, decision);
        }
        self.let_go(waiting, decision);
        let tied = waiting.iter().find(|pod| !self.is_free(pod))?;
        let reason = match self.is_allowed(tied) {
            true => event_texts::claims_hold_placeholder(&asking(tied), node, &claims),
            false => event_texts::claims_on_unsuitable_node(&asking(tied), node, &claims),
        };
        self.is_confirmed(tied, None, decision).then_some(reason)
    }

    /// True if not every node reaches the volumes of the placeholder's claims.
    pub(super) fn is_bound_by_claims(&self) -> bool {
        let claims = self.observed.claims_of(self.spec, self.pod);
        let mut seen = claims.iter().filter_map(|it| self.observed.volumes.get(it));
        seen.any(SeenClaim::limits_nodes)
    }

    /// True if pods on the node follow the placeholder, or use its claims. (Pods that use its claims may belong to other runs.)
    fn must_stay(&self, node: &str) -> bool {
        let follows = |pod: &Pod| pod.follows.contains(&self.own.object.name);
        let of_run = self.observed.pods.values().filter(|pod| follows(pod));
        let others = self.observed.pods.values().chain(&self.observed.sharing);
        let others = others.filter(|pod| self.shares_claim(pod));
        let mut pods = of_run.chain(others);
        pods.any(|pod| pod.placeholder.is_none() && pod.node.as_deref() == Some(node))
    }

    /// True if the pod uses a claim of the placeholder. The placeholder need not mount the claim.
    fn shares_claim(&self, pod: &Pod) -> bool {
        let claims = self.observed.claims_of(self.spec, self.pod);
        pod.claims.iter().any(|claim| claims.contains(claim))
    }

    /// True if the pod may run on another node than the placeholder.
    fn is_free(&self, pod: &Pod) -> bool {
        !self.spec.is_isolated() && !self.shares_claim(pod)
    }

    /// True if the pod uses a claim that the placeholder leaves out. Such a pod cannot run on the placeholder's node (V7).
    fn is_away(&self, pod: &Pod) -> bool {
        let left_out = left_out(self.observed, self.spec);
        pod.claims.iter().any(|claim| left_out.contains(claim))
    }

    /// Lets the placeholder leave its node, because the node cannot take a pod of the run. If the placeholder cannot leave, may
    /// return the reason why the pod waits. All placeholders of a run together leave at most [`MOVES`] times. If another pod of
    /// the run ends, the run has made progress, and the count begins anew. So the placeholder of a run with tasks for two
    /// architectures may change between their nodes.
    fn ask_anew(&self, node: &str, pod: &'a Pod, decision: &mut Decision) -> Option<Reason> {
        if let Some(resource) = self.lacking_elsewhere(pod, node) {
            let rest = self.tried_in(pod);
            // A new node may have enough of the resource, but when a node is added, the watch of nodes does not queue the run.
            // So the manager decides again after a pause.
            decision.look_in(if rest.is_zero() { LONGEST_PAUSE } else { rest });
            let waits = rest.is_zero() && self.is_confirmed(pod, None, decision);
            return waits.then(|| event_texts::resource_missing(&asking(pod), node, resource));
        }
        let ended = u32::try_from(self.observed.ended.len()).unwrap_or(u32::MAX);
        let moved = self.observed.placeholders.values();
        let moved = moved.filter_map(|own| moved_in_vain(&own.record, ended));
        let moves = moved.clone().map(|done| done.times).sum();
        if moves >= MOVES {
            let reason = event_texts::moves_exhausted(&asking(pod), node, moves);
            return self.is_confirmed(pod, None, decision).then_some(reason);
        }
        let pause = pause(moves, FIRST_PAUSE, LONGEST_PAUSE);
        let rests = moved.map(|done| done.rests(self.observed.now, pause));
        if !self.may_act(pod, rests.max().unwrap_or_default(), decision) {
            return None;
        }
        if moves + decision.moves() >= MOVES {
            return None;
        }
        let placeholder = &self.own.object.name;
        if !self.own.gated {
            decision.steps.push(Step::Gate(self.own.clone()));
        } else if self.own.observed {
            // The controller of the placeholder has observed the version with the gate, so it creates the next pod from this
            // version.
            let reason = event_texts::placeholder_asks_anew(&pod.object.name, placeholder, node);
            let before = &self.own.record;
            let record = Record {
                left: Some(node.to_owned()),
                moved: moved_in_vain(before, ended).cloned(),
                // A new leader may not have seen all pods that ended.
                ended: before.ended.max(ended),
                ..before.clone()
            };
            decision.steps.push(ask_again(self, record, reason));
        }
        None
    }

    /// True if a step for the pod may be taken now. Three conditions must hold: the pod is confirmed; the time in which the
    /// scheduler normally tries the pod again ([`Self::tried_in`]) is over; the pause after the last step is over (`rests` is
    /// the part of this pause that is left).
    fn may_act(&self, pod: &Pod, rests: Duration, decision: &mut Decision) -> bool {
        let rest = rests.max(self.tried_in(pod));
        if !rest.is_zero() {
            decision.look_in(rest);
        }
        rest.is_zero() && self.is_confirmed(pod, Some(MOMENT), decision)
    }

    /// After the scheduler has bound the placeholder, it normally tries the pod again within some time. Returns the part of this
    /// time that is left.
    fn tried_in(&self, pod: &Pod) -> Duration {
        let tried = match pod.scheduler_said() {
            // Another try of the scheduler would not help.
            _ if self.is_away(pod) || !self.is_allowed(pod) => Duration::ZERO,
            Some(said) => tried_within(said),
            None => TRIED,
        };
        self.rests(tried, self.pod.bound)
    }

    /// True if the labels of the placeholder's node allow the pod there.
    fn is_allowed(&self, pod: &Pod) -> bool {
        let node = self.pod.node.as_ref();
        let node = node.and_then(|node| self.observed.node(node));
        node.is_none_or(|node| pod.needs.are_met_by(&node.name, &node.labels))
    }

    /// The part of `time` that is left, if `time` began at `since`. Zero if `since` is `None`.
    fn rests(&self, time: Duration, since: Option<Timestamp>) -> Duration {
        let left = since.map(|since| time.saturating_sub(elapsed(since, self.observed.now)));
        left.unwrap_or_default()
    }

    /// True if the pod has needed a step for [`MOMENT`], and [`Decision::confirms`] is true for the pod.
    fn is_confirmed(&self, pod: &Pod, fresh: Option<Duration>, decision: &mut Decision) -> bool {
        let wanted = Sight::Wanted(pod.object.name.clone());
        decision.lasts(self.observed, wanted, MOMENT)
            && decision.confirms(self.observed, pod, fresh)
    }

    /// Lets waiting pods run without their placeholder, if they may run on another node.
    fn let_go(&self, waiting: &[&Pod], decision: &mut Decision) {
        for pod in waiting.iter().filter(|pod| self.is_free(pod)) {
            let answer = self.observed.answers.get(&pod.object.uid);
            let times = answer.map_or(0, |answer| answer.let_go);
            // Each time the manager lets the pod go, Tekton creates the pod again. So the pod's age is the time since the last
            // such step.
            let last = pod.created.filter(|_| times > 0);
            let rests = self.rests(pause(times, FIRST_PAUSE, LONGEST_PAUSE), last);
            if times < TRIES
                && self.may_act(pod, rests, decision)
                && let Some(task_run) = pod.task_run()
            {
                let (name, placeholder) = (&pod.object.name, self.spec.name.as_str());
                decision.steps.push(Step::LetGo {
                    pod: pod.object.clone(),
                    task_run: task_run.clone(),
                    placeholder: self.own.object.name.clone(),
                    times: times + 1,
                    reason: match self.is_away(pod) {
                        true => event_texts::pod_away(name, placeholder),
                        false => event_texts::pod_let_go(name, placeholder),
                    },
                });
            }
        }
    }
}

impl Decision {
    /// The number of moves in this decision. The placeholders' records do not contain them yet.
    fn moves(&self) -> u32 {
        let moves = self.steps.iter().map(|step| match step {
            Step::Evict(Eviction {
                own: Some(own),
                record: Some(record),
                ..
            }) => u32::from(record.moved != own.record.moved),
            _ => 0,
        });
        moves.sum()
    }

    /// True if the API server has confirmed that the pod's TaskRun belongs to the run, and this answer is younger than `fresh`.
    /// With `None`, the answer may have any age. If the result is false and the pod has a TaskRun, adds the step that asks the
    /// API server. Labels and affinity prove nothing: with `taskRunSpecs`, a run can give its pods the labels and the affinity of
    /// another run's pods.
    pub(super) fn confirms(
        &mut self,
        observed: &Observed,
        pod: &Pod,
        fresh: Option<Duration>,
    ) -> bool {
        // A stored answer about this pod is positive: after a negative answer, no caller calls this function for the pod.
        let answer = observed.answers.get(&pod.object.uid);
        let confirmed = answer.is_some_and(|answer| {
            fresh.is_none_or(|fresh| elapsed(answer.at, observed.now) < fresh)
        });
        if let (false, Some(task_run)) = (confirmed, pod.task_run()) {
            self.steps.push(Step::Ask {
                pod: pod.object.clone(),
                task_run: task_run.clone(),
                run_uid: pod.run_uid.clone(),
            });
        }
        confirmed
    }
}

/// The moves after which none of the run's pods has ended, so that the run has made no progress. `ended` is the number of the
/// run's pods that have ended until now.
fn moved_in_vain(record: &Record, ended: u32) -> Option<&Done> {
    record.moved.as_ref().filter(|_| record.ended >= ended)
}

/// The pod's name, with its requests if it has any.
fn asking(pod: &Pod) -> String {
    match pod.needs.requests.to_string() {
        nothing if nothing.is_empty() => format!("pod {}", pod.object.name),
        requests => format!("pod {} (requests: {requests})", pod.object.name),
    }
}
