//! Helps pods that wait although their placeholder is bound to a node (N2, N4): the placeholder moves, the pod is freed from it,
//! or an Event tells the author the obstacle.
//!
//! The scheduler has the last word. A node that seems to have room but is not chosen counts as refused, and so do the target
//! nodes of a move that fails.

pub mod requests;
pub mod room;

mod arrive;
mod ask_anew;
mod choose;
mod report;

use std::collections::BTreeSet;
use std::time::Duration;

use super::evacuate::{FIRST_PAUSE, LONGEST_PAUSE};
use super::{Again, Decision, Step, Update, pause, reserve};
use crate::observed::{
    Answer, Done, ObjectRef, Observed, Placeholder, Pod, Record, Sight, elapsed,
};
use crate::plan::{Reason, ReasonCode, Separation};
use crate::volumes::SeenClaim;
use choose::{Action, ScaleUp};
use requests::Amounts;
use room::Needs;

/// How long a pod must need a step before the manager takes it: one watch may be behind another.
const SETTLED: Duration = Duration::from_secs(1);
/// How long the scheduler may leave a node unused that seems to have room.
const ROOM_LEFT: Duration = Duration::from_secs(30);
/// How long a node counts as refused.
const REFUSED: Duration = Duration::from_secs(120);
/// The longest time between two looks while a pod waits.
const LOOK: Duration = Duration::from_secs(5);
/// How often a pod is let go, if Tekton recreates it with its affinity.
const TRIES: u32 = 5;
/// The greatest age of an answer of the API server that allows a step.
const FRESH: Duration = Duration::from_secs(2);

/// A placeholder that is bound to a node, and the pods that wait for room on that node.
#[derive(Debug)]
struct Contention<'a> {
    observed: &'a Observed,
    /// The placeholder, with the needs of its pod. Its claims are all that it stands for, mounted or not.
    own: Placeholder,
    /// Its pod.
    pod: ObjectRef,
    /// The node that it is bound to.
    node: &'a str,
    /// How it stays away from other placeholders.
    separation: Separation,
    /// The pods, with their claims added to their needs, in the order of their names.
    waiting: Vec<Pod>,
    residents: Vec<Resident>,
}

/// A pod on the placeholder's node that has not ended, and decides whether the placeholder may leave.
#[derive(Clone, Debug, Default)]
struct Resident {
    /// Its requests.
    requests: Amounts,
    /// True if it belongs to the same run: then waiting for its end is worthwhile.
    own: bool,
    /// True if the placeholder must stay with it: it follows the placeholder, or uses a claim that the placeholder stands for.
    keeps: bool,
}

/// Makes room for the run's pods. Returns why one waits, if no step can help it.
pub(super) fn make_room(observed: &Observed, decision: &mut Decision) -> Option<Reason> {
    let mut cause = None;
    for own in observed.placeholders.values() {
        if own.object.deleting || observed.planned().is_empty() {
            continue;
        }
        let pod = observed.pod_of(own);
        if own.moving.is_some() {
            arrive::arrive(observed, own, pod.map(AsRef::as_ref), decision);
            continue;
        }
        let pod = pod.filter(|pod| pod.node.is_some() && !pod.object.deleting);
        // Until the kubelet has given a reservation up, the scheduler refuses pods that will fit.
        let pod = pod.filter(|pod| !reserve::holds_room(observed, own, pod));
        let contention = pod.and_then(|pod| Contention::see(observed, own, pod));
        let Some(contention) = contention else {
            continue;
        };
        // No watch reports when a node has room.
        decision.again = match decision.again {
            Again::OnChange | Again::Backoff => Again::Backoff,
            Again::After(time) => Again::After(time.min(LOOK)),
        };
        let reported = contention.decide(decision);
        cause = cause.or(reported);
    }
    cause
}

impl<'a> Contention<'a> {
    /// `None` if no pod waits for the placeholder.
    fn see(observed: &'a Observed, own: &Placeholder, pod: &'a Pod) -> Option<Self> {
        let waiting = observed.pods.values().filter(|pod| {
            pod.unscheduled.as_ref().is_some_and(|it| it.no_node)
                && pod.placeholder.is_none()
                && !pod.object.deleting
                && pod.follows.contains(&own.object.name)
                && observed.owns(pod)
        });
        let waiting: Vec<_> = waiting
            .map(|pod| {
                let mut pod = Pod::clone(pod);
                pod.needs.claims = claims(observed, &pod.claims);
                pod
            })
            .collect();
        if waiting.is_empty() {
            return None;
        }
        let node = pod.node.as_deref()?;
        let held = held(observed, own, pod);
        let residents = residents(observed, own, node, &held);
        let mut own = own.clone();
        let refused = own.record.refused.iter();
        let refused = refused.filter(|(_, at)| elapsed(**at, observed.now) < REFUSED);
        own.needs = Needs {
            requests: pod.needs.requests.clone(),
            claims: claims(observed, &held),
            refused: refused.map(|(node, _)| node.clone()).collect(),
            // The pod's own node affinity may come from an earlier move.
            ..own.needs
        };
        Some(Self {
            observed,
            own,
            pod: pod.object.clone(),
            node,
            separation: pod.separation,
            waiting,
            residents,
        })
    }

    /// Decides for each waiting pod. Returns why one waits, if no step can help it.
    fn decide(&self, decision: &mut Decision) -> Option<Reason> {
        let mut cause = None;
        let mut decided: Vec<&Needs> = Vec::new();
        for pod in &self.waiting {
            // Pods with the same needs get the same decision.
            if decided.contains(&&pod.needs) {
                continue;
            }
            decided.push(&pod.needs);
            let scale_up = self.scale_up(pod);
            let (mut action, mut reason) = self.choose(pod, scale_up);
            if reason.code == ReasonCode::RoomOnNode {
                let left = Sight::RoomLeft {
                    pod: pod.object.name.clone(),
                    node: self.node.to_owned(),
                };
                if decision.lasts_in(self.observed, left, ROOM_LEFT).is_zero() {
                    let mut pod = pod.clone();
                    pod.needs.refused.insert(self.node.to_owned());
                    (action, reason) = self.choose(&pod, scale_up);
                }
            }
            match action {
                Action::Wait => {}
                Action::Move(nodes) => {
                    if self.may_act(pod, decision, self.moved()) {
                        self.send(nodes, reason, decision);
                        break;
                    }
                }
                Action::LetGo => {
                    for other in self.waiting.iter().filter(|it| it.needs == pod.needs) {
                        self.let_go(other, reason.clone(), decision);
                    }
                }
                Action::Report if self.can_ask_anew(&reason) => {
                    if self.may_act(pod, decision, self.moved()) {
                        self.ask_anew(pod, decision);
                        break;
                    }
                }
                Action::Report => {
                    let wanted = Sight::Wanted(pod.object.name.clone());
                    if decision.lasts(self.observed, wanted, SETTLED)
                        && self.answer(pod, None, decision).is_some_and(|it| it.own)
                    {
                        cause = cause.or(Some(reason));
                    }
                }
            }
        }
        cause
    }

    fn moves(&self) -> u32 {
        self.moved().map_or(0, |done| done.times)
    }

    /// The moves of all placeholders of the run together.
    fn moved(&self) -> Option<Done> {
        let all = self.observed.placeholders.values();
        let moved = all.filter_map(|own| own.record.moved.as_ref());
        moved.cloned().reduce(|one, other| Done {
            times: one.times + other.times,
            last: one.last.max(other.last),
            why: one.why,
        })
    }

    /// Only the first scale-up since the pod was created counts, so that frequent scale-ups do not delay a move for ever.
    fn scale_up(&self, pod: &Pod) -> ScaleUp {
        let now = self.observed.now;
        let rooms = self.observed.nodes.values();
        let added = rooms.filter_map(|room| room.created);
        let added = added.filter(|created| pod.created.is_some_and(|since| *created >= since));
        let added = added.min();
        let answer = self.observed.answers.get(&pod.object.uid);
        let triggered = answer.and_then(|answer| answer.scale_up);
        let first = triggered.into_iter().chain(added).min();
        let ago = |at| {
            (first == at)
                .then(|| at.map(|at| elapsed(at, now)))
                .flatten()
        };
        ScaleUp {
            triggered: ago(triggered),
            node_added: ago(added),
            hold: self.observed.scale_up_hold,
        }
    }

    /// True if a step for the pod may be taken now: the pod has needed it for a while, `last` is long enough ago, and the API
    /// server has confirmed that the pod is the run's. Labels and affinity prove nothing: by `taskRunSpecs`, a run can give its
    /// pods those of another run.
    fn may_act(&self, pod: &Pod, decision: &mut Decision, last: Option<Done>) -> bool {
        let now = self.observed.now;
        let wanted = Sight::Wanted(pod.object.name.clone());
        if !decision.lasts(self.observed, wanted, SETTLED) {
            return false;
        }
        let rest = last.map_or(Duration::ZERO, |done| {
            done.rests(now, pause(done.times, FIRST_PAUSE, LONGEST_PAUSE))
        });
        if !rest.is_zero() {
            decision.look_in(rest);
            return false;
        }
        self.answer(pod, Some(FRESH), decision)
            .is_some_and(|answer| answer.own)
    }

    /// The API server's answer about a pod, not older than `fresh`. If there is none, adds a step that asks.
    fn answer(
        &self,
        pod: &Pod,
        fresh: Option<Duration>,
        decision: &mut Decision,
    ) -> Option<Answer> {
        let answer = self.observed.answers.get(&pod.object.uid).copied();
        // A pod of another run stays one, so such an answer never expires.
        let answer = answer.filter(|answer| {
            !answer.own || fresh.is_none_or(|fresh| elapsed(answer.at, self.observed.now) < fresh)
        });
        if let (None, Some(task_run)) = (answer, pod.task_run()) {
            decision.steps.push(Step::Ask {
                pod: pod.object.clone(),
                task_run: task_run.clone(),
                run_uid: pod.run_uid.clone(),
            });
        }
        answer
    }

    fn send(&self, nodes: Vec<String>, reason: Reason, decision: &mut Decision) {
        let before = self.own.record.moved.as_ref();
        decision.steps.push(Step::Send {
            update: Update {
                placeholder: self.own.object.name.clone(),
                record: Record {
                    moved: Done::again(before, self.observed.now, &reason.message),
                    ..self.own.record.clone()
                },
                reason: Some(reason),
            },
            nodes,
        });
    }

    fn let_go(&self, pod: &Pod, reason: Reason, decision: &mut Decision) {
        let answer = self.observed.answers.get(&pod.object.uid);
        let times = answer.map_or(0, |answer| answer.let_go);
        // Tekton recreates the pod each time, so the pod's age is the time since then.
        let last = pod.created.filter(|_| times > 0).map(|last| Done {
            times,
            last,
            why: String::new(),
        });
        if times >= TRIES || !self.may_act(pod, decision, last) {
            return;
        }
        if let Some(task_run) = pod.task_run() {
            decision.steps.push(Step::LetGo {
                pod: pod.object.clone(),
                task_run: task_run.clone(),
                placeholder: self.own.object.name.clone(),
                times: times + 1,
                reason,
            });
        }
    }
}

fn claims(observed: &Observed, names: &[String]) -> Vec<SeenClaim> {
    let seen = |name: &String| {
        let seen = observed.volumes.get(name).cloned();
        seen.unwrap_or_else(|| SeenClaim {
            name: name.clone(),
            ..SeenClaim::default()
        })
    };
    names.iter().map(seen).collect()
}

/// The claims that a placeholder stands for, mounted or not.
fn held(observed: &Observed, own: &Placeholder, pod: &Pod) -> Vec<String> {
    let planned = observed.planned_as(own).into_iter();
    let planned = planned.flat_map(|spec| spec.claims().collect::<Vec<_>>());
    let held: BTreeSet<_> = pod.claims.iter().cloned().chain(planned).collect();
    held.into_iter().collect()
}

/// The pods that decide whether the placeholder may leave the node: the run's own, and those of other runs that use its claims.
fn residents(observed: &Observed, own: &Placeholder, node: &str, held: &[String]) -> Vec<Resident> {
    let there = |pod: &&std::sync::Arc<Pod>| {
        pod.node.as_deref() == Some(node) && pod.role().is_some() && pod.placeholder.is_none()
    };
    let uses = |pod: &Pod| pod.claims.iter().any(|claim| held.contains(claim));
    let of_run = observed.pods.values().filter(there).map(|pod| Resident {
        requests: pod.needs.requests.clone(),
        own: true,
        keeps: pod.follows.contains(&own.object.name) || uses(pod),
    });
    let others = observed.sharing.iter().filter(there);
    let others = others.filter(|pod| uses(pod)).map(|pod| Resident {
        requests: pod.needs.requests.clone(),
        own: false,
        keeps: true,
    });
    of_run.chain(others).collect()
}
