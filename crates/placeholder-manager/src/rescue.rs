//! Carries out what `core` decides about pods that wait although their placeholder is on a node (N2, N4): moves the placeholder,
//! lets the pod go, or says what is in the way.
//!
//! The scheduler has the last word. What it does is watched, not foreseen: a node that has room by what is counted and is not
//! taken counts as refused for a while, and so do nodes that a moved placeholder does not get.

mod seen;
mod state;

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use tracing::{info, warn};

use coscheduler_core::evacuate::Role;
use coscheduler_core::labels::PIPELINE_RUN_UID;
use coscheduler_core::pinned::Pinned;
use coscheduler_core::pipeline_run::{PipelineRun, RunState};
use coscheduler_core::plan::{Reason, ReasonCode};
use coscheduler_core::rescue::{Action, Decision, rescue};
use coscheduler_kubernetes::{events, moves, pods};
use coscheduler_runtime::queue::Outcome;

use crate::SERVICE;
use crate::cache::{Cache, Run, RunKey};
use crate::error::Error;
use crate::evacuate::belongs;
use crate::objects::Objects;
use seen::{see, stays, task_run, waiting};
use state::State;

/// How soon a run is looked at again whose placeholder is being moved, should nothing be heard of it.
const STEP: Duration = Duration::from_secs(1);
/// How soon at the latest while it is known when something will be due.
const LOOK: Duration = Duration::from_secs(5);

/// Why runs wait, for their authors.
pub(crate) type Causes = Arc<Mutex<HashMap<RunKey, Reason>>>;

/// Making room.
pub(crate) struct Rescue {
    cache: Arc<Cache>,
    objects: Objects,
    /// For how long a scale-up in flight holds moves back (N4).
    hold: Duration,
    causes: Causes,
    /// Has the run's author told.
    notice: Box<dyn Fn(RunKey) + Send + Sync>,
    /// What has been done and seen, of runs whose pods wait or have waited.
    states: Mutex<HashMap<RunKey, State>>,
}

/// A run as it is looked at.
struct Look<'a> {
    key: &'a RunKey,
    itself: &'a PipelineRun,
    run: &'a Run,
}

impl Rescue {
    /// Makes room in what `cache` knows, through `objects`. What cannot be helped goes into `causes`, and then the run's author
    /// is told by `notice`.
    pub(crate) fn new(
        cache: Arc<Cache>,
        objects: Objects,
        hold: Duration,
        causes: Causes,
        notice: impl Fn(RunKey) + Send + Sync + 'static,
    ) -> Self {
        Self {
            cache,
            objects,
            hold,
            causes,
            notice: Box::new(notice),
            states: Mutex::default(),
        }
    }

    /// Looks whether a run's pods wait for room, as work from the queue.
    pub(crate) async fn work(&self, key: RunKey) -> Outcome {
        let active = self.cache.get(&key).and_then(|run| {
            let itself = run.itself()?;
            let active = !itself.deletion && itself.state == RunState::Active;
            // Where what was pinned cannot be read, nobody knows what it may do.
            let readable = matches!(Pinned::read(&itself.annotations), Ok(Some(_)));
            (active && readable).then_some((itself, run))
        });
        let Some((itself, run)) = active else {
            self.states().remove(&key);
            self.say(&key, None);
            return Outcome::Done;
        };
        let mut state = self.states().remove(&key).unwrap_or_default();
        let look = Look {
            key: &key,
            itself: &itself,
            run: &run,
        };
        let outcome = match self.look(&look, &mut state).await {
            Ok(outcome) => outcome,
            Err(error) => {
                warn!(
                    namespace = key.namespace,
                    pipeline_run = itself.name,
                    error = format!("{:#}", anyhow::Error::from(error)),
                    "failed to make room for a run, will try again"
                );
                Outcome::Retry
            }
        };
        if !state.is_empty() {
            self.states().insert(key, state);
        }
        outcome
    }

    async fn look(&self, look: &Look<'_>, state: &mut State) -> Result<Outcome, Error> {
        let mut looks_again = false;
        let mut due: Option<Duration> = None;
        let mut sooner = |left: Option<Duration>| due = left.into_iter().chain(due).min();
        let mut cause = None;
        let mut waiting_anywhere = BTreeSet::new();
        for (name, set) in &look.run.stateful_sets {
            if set.metadata.deletion_timestamp.is_some() {
                continue;
            }
            let waiting = waiting(look.run, name);
            waiting_anywhere.extend(waiting.iter().map(|pod| pod.name_any()));
            let pod = look.run.pods.get(&format!("{name}-0"));
            let pod = pod.filter(|pod| belongs(look.run, pod, Role::Placeholder));
            if self.arrives(look, state, set, pod).await? {
                sooner(Some(STEP));
                continue;
            }
            let Some(pod) = pod.filter(|pod| stays(pod) && !waiting.is_empty()) else {
                continue;
            };
            // Nobody tells when there is room.
            looks_again = true;
            for waiting in &waiting {
                let decision = self.decide(look, state, (set, pod), waiting).await?;
                let Some(Decision { action, reason }) = decision else {
                    continue;
                };
                match action {
                    Action::Wait => {}
                    Action::Move(nodes) => {
                        self.send(look, state, set, &nodes, &reason).await?;
                        break;
                    }
                    Action::LetGo => self.let_go(look, state, name, waiting, &reason).await?,
                    Action::Report => {
                        let settled = state.settles_in(&waiting.name_any());
                        if settled.is_some_and(|left| left.is_zero())
                            && self.is_own(look, state, waiting).await?
                        {
                            cause = cause.or(Some(reason));
                        }
                    }
                }
            }
        }
        for name in &waiting_anywhere {
            sooner(state.due_in(name, self.hold).map(|left| left.min(LOOK)));
        }
        state.keep(&waiting_anywhere);
        self.say(look.key, cause);
        Ok(match due {
            Some(due) => Outcome::Later(due),
            None if looks_again => Outcome::Retry,
            None => Outcome::Done,
        })
    }

    /// Takes the next step of a move. True while one is under way.
    async fn arrives(
        &self,
        look: &Look<'_>,
        state: &mut State,
        set: &StatefulSet,
        pod: Option<&Arc<Pod>>,
    ) -> Result<bool, Error> {
        let Some(moving) = moves::under_way(set) else {
            return Ok(false);
        };
        let Some(pod) = pod.filter(|pod| pod.metadata.deletion_timestamp.is_none()) else {
            return Ok(true);
        };
        let namespace = &look.key.namespace;
        match pods::node(pod) {
            Some(node) if moving.nodes.iter().any(|to| to == node) => {
                self.patch(look, set, moves::end(set)).await?;
            }
            // Made from the template as it was. Its successor is not, once the StatefulSet's controller knows.
            Some(_) if moves::is_observed(set) => {
                self.objects.evict(namespace, pod, false).await?;
            }
            None if pods::is_unschedulable(pod)
                && state.is_lost(&pod.uid().unwrap_or_default()) =>
            {
                state.refused_placeholder(&set.name_any(), &moving.nodes);
                if self.patch(look, set, moves::end(set)).await? {
                    self.objects.evict(namespace, pod, true).await?;
                }
            }
            Some(_) | None => {}
        }
        Ok(true)
    }

    /// What is to be done now about a pod that waits; `None` where that is to be seen first.
    async fn decide(
        &self,
        look: &Look<'_>,
        state: &mut State,
        (set, pod): (&StatefulSet, &Pod),
        waiting: &Pod,
    ) -> Result<Option<Decision>, Error> {
        let of = (look.key, look.itself, look.run);
        let Some(seen) = see(&self.cache, of, state, (set, pod), waiting) else {
            return Ok(None);
        };
        let name = waiting.name_any();
        state.scale_up(&name, self.cache.node_added(), self.hold);
        let mut decision = rescue(&seen.contention(state.moves(), state.scaling(&name, self.hold)));
        let acts = |decision: &Decision| match decision.action {
            Action::Move(_) | Action::LetGo => true,
            Action::Wait | Action::Report => false,
        };
        let node = seen.placeholder.node.as_str();
        let room = decision.reason.code == ReasonCode::RoomOnNode;
        let wanted = decision.action != Action::Wait;
        state.seen(&name, room.then_some(node), wanted);
        if state.is_news(&name, decision.reason.code) {
            info!(
                namespace = look.key.namespace,
                pipeline_run = look.itself.name,
                pod = name,
                reason = decision.reason.code.as_str(),
                message = decision.reason.message,
                "decided about a pod that waits for room"
            );
        }
        if acts(&decision) {
            let may_act = state.may_act_in(&name).is_some_and(|left| left.is_zero());
            if !may_act || !self.is_own(look, state, waiting).await? {
                return Ok(None);
            }
            let uid = waiting.metadata.uid.as_deref().unwrap_or_default();
            if self
                .objects
                .is_scaled_up_for(&look.key.namespace, uid)
                .await?
            {
                state.scale_up_triggered(&name);
                decision = rescue(&seen.contention(state.moves(), state.scaling(&name, self.hold)));
            }
        }
        Ok(Some(decision))
    }

    /// Whether a pod that waits is of a task of the run. Labels and affinity are anybody's to write: by `taskRunSpecs` a run can
    /// give its pods those of another one. Who owns the pod's TaskRun is not, and is asked before anything is done or said.
    async fn is_own(&self, look: &Look<'_>, state: &mut State, pod: &Pod) -> Result<bool, Error> {
        let (name, uid) = (pod.name_any(), pod.uid().unwrap_or_default());
        if let Some(known) = state.is_own(&name, &uid) {
            return Ok(known);
        }
        // Of a part of the run it is the part's.
        let run = pods::label(pod, PIPELINE_RUN_UID).unwrap_or_default();
        let own = match task_run(pod) {
            Some(task) => {
                let namespace = &look.key.namespace;
                self.objects.is_task_of(namespace, task, run).await?
            }
            None => false,
        };
        if !own {
            warn!(
                namespace = look.key.namespace,
                pipeline_run = look.itself.name,
                pod = name,
                "left a pod alone that says it is of a run whose it is not"
            );
        }
        state.own(&name, &uid, own);
        Ok(own)
    }

    /// Sends a placeholder to one of these nodes.
    async fn send(
        &self,
        look: &Look<'_>,
        state: &mut State,
        set: &StatefulSet,
        nodes: &[String],
        reason: &Reason,
    ) -> Result<(), Error> {
        let sent = self
            .patch(look, set, Some(moves::begin(set, nodes)))
            .await?;
        if sent {
            state.moved();
            self.tell(look, reason, nodes).await?;
        }
        Ok(())
    }

    async fn let_go(
        &self,
        look: &Look<'_>,
        state: &mut State,
        placeholder: &str,
        pod: &Pod,
        reason: &Reason,
    ) -> Result<(), Error> {
        let Some(owner) = task_run(pod) else {
            return Ok(());
        };
        let namespace = &look.key.namespace;
        let known = self
            .objects
            .let_go(namespace, &owner.name, &owner.uid, placeholder)
            .await?;
        // Tekton makes the pod anew, from the TaskRun as it is by then.
        if known && self.objects.evict(namespace, pod, true).await? {
            state.let_go(&pod.name_any());
            self.tell(look, reason, &[]).await?;
        }
        Ok(())
    }

    /// Patches exactly this version of a StatefulSet. False where it has changed since.
    async fn patch(
        &self,
        look: &Look<'_>,
        set: &StatefulSet,
        patch: Option<serde_json::Value>,
    ) -> Result<bool, Error> {
        let Some(patch) = patch else { return Ok(false) };
        let namespace = &look.key.namespace;
        let patched = self
            .objects
            .patch_stateful_set(namespace, &set.name_any(), &patch)
            .await?;
        let known = patched.is_some();
        if let Some(mut patched) = patched {
            patched.metadata.managed_fields = None;
            self.cache.refresh(patched);
        }
        Ok(known)
    }

    async fn tell(&self, look: &Look<'_>, reason: &Reason, nodes: &[String]) -> Result<(), Error> {
        info!(
            namespace = look.key.namespace,
            pipeline_run = look.itself.name,
            reason = reason.code.as_str(),
            message = reason.message,
            nodes = nodes.join(", "),
            "made room for a pod"
        );
        match events::of_run(look.itself, reason, SERVICE.name, Timestamp::now()) {
            Some(event) => self.objects.create_event(&look.key.namespace, &event).await,
            None => Ok(()),
        }
    }

    /// Says why a run waits, where that is new.
    fn say(&self, key: &RunKey, cause: Option<Reason>) {
        let mut causes = self.causes.lock().unwrap_or_else(PoisonError::into_inner);
        if causes.get(key) == cause.as_ref() {
            return;
        }
        match cause {
            Some(cause) => causes.insert(key.clone(), cause),
            None => causes.remove(key),
        };
        drop(causes);
        (self.notice)(key.clone());
    }

    fn states(&self) -> MutexGuard<'_, HashMap<RunKey, State>> {
        self.states.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
