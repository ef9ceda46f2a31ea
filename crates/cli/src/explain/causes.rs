//! The cause for which a PipelineRun waits. Each cause has a name of a closed list, evidence, and a remedy.
//!
//! The manager reports what keeps a run from its placeholder, and what only it knows, in annotation `coscheduler.dev/blocked`.
//! This module names the other causes, from the objects that a run's author can read.

mod known;

use std::collections::BTreeSet;
use std::time::Duration;

use coscheduler_core::annotations::{BLOCKED, MODE};
use coscheduler_core::mode::Mode;
use coscheduler_core::observed::elapsed;
use coscheduler_core::reasons::ReasonCode;
use coscheduler_core::reconcile::make_room::tried_within;
use coscheduler_core::reconcile::reserve::GATE;
use coscheduler_core::reconcile::tell::blocked_reason;
use coscheduler_core::reconcile::tell::refusals::{lacks_room, missing_claim, waits_for_volume};
use coscheduler_kubernetes::pipeline_run::{PipelineRun, is_done, succeeded};
use coscheduler_kubernetes::tekton::TaskRun;
use coscheduler_kubernetes::{needs, pods};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStateWaiting, Event, Pod};
use kube::ResourceExt as _;
use serde::Serialize;
use serde_json::Value;

use crate::events::last_time;

use known::{
    CLAIM_IN_USE, CLAIM_MISSING, CLAIM_NOT_BOUND, CONTAINER_WAITS, GATED, Known, MAKE_ROOM,
    NO_ISOLATED_NODE, NO_ROOM, NODE_BEING_ADDED, OWN_PODS, PENDING, PLACEHOLDER_MISSING, SANDBOX,
    SCHEDULER, TASK_RUN_WAITS, UNSCHEDULABLE, VOLUME_NOT_MOUNTED, VOLUME_OUT_OF_REACH,
};

/// The objects of a run.
#[derive(Debug, Default)]
pub(super) struct Facts {
    pub(super) run: PipelineRun,
    /// The topmost parent of a child run. The manager reports on this run what its children wait for.
    pub(super) parent: Option<PipelineRun>,
    /// The run's pods, and the pods of the placeholders that they follow.
    pub(super) pods: Vec<Pod>,
    pub(super) task_runs: Vec<TaskRun>,
    /// Events about pods that wait.
    pub(super) events: Vec<Event>,
    /// The names of claims that do not exist.
    pub(super) missing_claims: BTreeSet<String>,
    pub(super) now: Timestamp,
}

/// The cause for which a run waits.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Cause {
    pub(super) reason: &'static str,
    pub(super) message: String,
    pub(super) evidence: Evidence,
    /// `None` if the message has the remedy.
    pub(super) remedy: Option<&'static str>,
}

/// The field that shows a cause.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Evidence {
    /// Kind and name.
    pub(super) object: String,
    pub(super) field: &'static str,
    pub(super) value: String,
}

/// A pod's condition with the scheduler's result.
const SCHEDULED: &str = "status.conditions[PodScheduled].message";

/// The states of a container that is about to start (Kubernetes `pkg/kubelet/kubelet_pods.go`).
const STARTING: [&str; 2] = ["ContainerCreating", "PodInitializing"];
/// The reasons of the kubelet's Events about volumes (Kubernetes `pkg/kubelet/events/event.go`).
const MOUNTS: [&str; 2] = ["FailedMount", "FailedAttachVolume"];
/// Tekton's reasons for a TaskRun that goes on without a pod (Tekton `pkg/apis/pipeline/v1/taskrun_types.go`).
const ON_ITS_WAY: [&str; 6] = [
    "ToBeRetried",
    "Started",
    "Running",
    "Pending",
    "ResolvingTaskRef",
    "ResolvingStepActionRef",
];

/// An autoscaler gives a node up if it is not ready within this time (Cluster Autoscaler, `max-node-provision-time`; Karpenter's
/// limit for the registration of a node is the same).
const PROVISIONING: Duration = Duration::from_secs(15 * 60);

/// The first cause for which the run waits. `None` if the run waits for nothing, or is done.
pub(super) fn cause(facts: &Facts) -> Option<Cause> {
    let run = &facts.run;
    let status = run.spec.get("status").and_then(Value::as_str);
    let deleted = run.metadata.deletion_timestamp.is_some();
    if is_done(run) || deleted || status == Some("Cancelled") {
        return None;
    }
    if status == Some(PENDING.reason) {
        let evidence = (format!("PipelineRun {}", run.name_any()), "spec.status");
        let message = "The PipelineRun must not start yet.";
        return Some(PENDING.at(evidence, PENDING.reason, message));
    }
    facts
        .reported()
        .or_else(|| facts.pods.iter().find_map(gates))
        .or_else(|| facts.task_runs.iter().find_map(without_pod))
        .or_else(|| {
            let tasks = facts.pods.iter().filter(|pod| !pods::is_placeholder(pod));
            let mut waiting = tasks.filter(|pod| !pods::phase(pod).has_ended());
            waiting.find_map(|pod| facts.of_pod(pod))
        })
}

impl Facts {
    /// The cause that the manager reports, with the scheduler's message as evidence if the scheduler is the source.
    fn reported(&self) -> Option<Cause> {
        let run = self.parent.as_ref().unwrap_or(&self.run);
        let annotation = run.annotations().get(BLOCKED)?;
        let reason = blocked_reason(annotation)?;
        let object = format!("PipelineRun {}", run.name_any());
        let mut cause = Cause {
            reason: reason.code.as_str(),
            message: reason.message,
            evidence: Evidence {
                object,
                field: "metadata.annotations[coscheduler.dev/blocked]",
                value: annotation.clone(),
            },
            remedy: None,
        };
        match reason.code {
            ReasonCode::PlaceholderUnschedulable => self.of_placeholder(run, cause),
            ReasonCode::ClaimsNotMovable => {
                let mut tasks = self.pods.iter().filter(|pod| !pods::is_placeholder(pod));
                if let Some(pod) = tasks.find(|pod| pods::is_unschedulable(pod)) {
                    cause.evidence = of_scheduler(pod);
                }
                cause.remedy = Some(MAKE_ROOM);
                Some(cause)
            }
            _ => Some(cause),
        }
    }

    /// The manager reports that a placeholder of `run` has no node.
    fn of_placeholder(&self, run: &PipelineRun, mut cause: Cause) -> Option<Cause> {
        let placeholders = || self.pods.iter().filter(|pod| pods::is_placeholder(pod));
        let isolated = Mode::IsolatePipelineRun.as_str();
        let isolated = run.annotations().get(MODE).is_some_and(|it| it == isolated);
        if let Some(pod) = placeholders().find(|pod| pods::is_unschedulable(pod)) {
            if let Some(coming) = self.node_comes(pod) {
                return Some(coming);
            }
            cause.evidence = of_scheduler(pod);
        } else if placeholders().next().is_some()
            && placeholders().all(|pod| pods::node(pod).is_some())
        {
            // The manager has not removed its annotation yet.
            return None;
        }
        // While the scheduler tries the placeholder again, only the manager's annotation has the scheduler's words.
        let said = &cause.evidence.value;
        if is_out_of_reach(said) {
            let message = "No node that the run's podTemplate allows can reach the volume of a claim of the run.";
            cause = VOLUME_OUT_OF_REACH.because(cause.evidence, message);
        } else if isolated && said.contains("anti-affinity rules") {
            cause = NO_ISOLATED_NODE.because(cause.evidence, &cause.message);
        }
        Some(cause)
    }

    fn of_pod(&self, pod: &Pod) -> Option<Cause> {
        let at = |field| (name(pod), field);
        let Some(node) = pods::node(pod) else {
            let nominated = pod
                .status
                .as_ref()
                .and_then(|it| it.nominated_node_name.as_deref());
            if let Some(node) = nominated.filter(|node| !node.is_empty()) {
                let message = "The scheduler has chosen a node for the pod. It may have to remove other pods first.";
                return Some(SCHEDULER.at(at("status.nominatedNodeName"), node, message));
            }
            return pods::is_unschedulable(pod).then(|| self.of_unbound(pod));
        };
        if let Some(waiting) = stuck_container(pod) {
            let reason = waiting.reason.as_deref().unwrap_or_default();
            let said = waiting.message.as_deref().unwrap_or_default();
            let message = format!("A container of the pod on node {node} cannot start: {reason}.");
            let field = "status: state.waiting.message of a container";
            return Some(CONTAINER_WAITS.at(at(field), said, &message));
        }
        // A pod with a sandbox has its volumes.
        if pods::has_started(pod) || pods::has_sandbox(pod) {
            return None;
        }
        let obstacles = self.events_of(pod).filter_map(|event| {
            let reason = event.reason.as_deref().unwrap_or_default();
            match reason {
                "FailedCreatePodSandBox" => Some((event, &SANDBOX)),
                _ => MOUNTS
                    .contains(&reason)
                    .then_some((event, &VOLUME_NOT_MOUNTED)),
            }
        });
        let (event, known) = obstacles.max_by_key(|(event, _)| last_time(event))?;
        let message = format!("The kubelet of node {node} cannot start the pod.");
        let note = event.message.as_deref().unwrap_or_default();
        let at = (format!("Event about {}", name(pod)), "message");
        Some(known.at(at, note, &message))
    }

    /// The scheduler has found no node for the pod.
    fn of_unbound(&self, pod: &Pod) -> Cause {
        let said = pods::scheduler_said(pod).unwrap_or_default();
        let because =
            |known: &Known, message: &str| known.at((name(pod), SCHEDULED), said, message);
        if waits_for_volume(said) {
            return because(&CLAIM_NOT_BOUND, "A claim of the pod has no volume.");
        }
        if said.contains("ReadWriteOncePod") {
            return because(&CLAIM_IN_USE, "Another pod uses a claim of the pod.");
        }
        if let Some(claim) = missing_claim(said) {
            return if self.missing_claims.contains(&claim) {
                because(&CLAIM_MISSING, &format!("Claim {claim} does not exist."))
            } else {
                let message = format!("The scheduler has not seen claim {claim} yet.");
                because(&SCHEDULER, &message)
            };
        }
        if let Some(coming) = self.node_comes(pod) {
            return coming;
        }
        let follows = pods::follows(pod);
        let Some(placeholder) = follows.first() else {
            return because(&UNSCHEDULABLE, "No node can run the pod.");
        };
        let own = format!("{placeholder}-0");
        let Some(leader) = self.pods.iter().find(|it| it.name_any() == own) else {
            let message = format!("Placeholder {placeholder} of the pod has no pod.");
            return because(&PLACEHOLDER_MISSING, &message);
        };
        let Some(node) = pods::node(leader) else {
            let message = format!("Placeholder {placeholder} of the pod has no node yet.");
            return because(&SCHEDULER, &message);
        };
        let bound = pods::view(leader.clone()).and_then(|leader| leader.bound);
        if bound.is_some_and(|bound| elapsed(bound, self.now) < tried_within(said)) {
            let message = format!(
                "The scheduler has perhaps not tried the pod since its placeholder is on node {node}."
            );
            return because(&SCHEDULER, &message);
        }
        if !lacks_room(said) {
            let message = format!("The pod cannot run on node {node}, where its placeholder is.");
            return because(&UNSCHEDULABLE, &message);
        }
        let beside = self.pods.iter().filter(|it| {
            pods::node(it) == Some(node)
                && !pods::is_placeholder(it)
                && !pods::phase(it).has_ended()
                && needs::requests(it).resources().next().is_some()
        });
        let beside: Vec<_> = beside.map(|it| it.name_any()).collect();
        if beside.is_empty() {
            let message = format!("Node {node}, where the pod's placeholder is, has no room.");
            return because(&NO_ROOM, &message);
        }
        let message = format!(
            "The pod has no room on node {node} beside these pods of the run: {}.",
            beside.join(", ")
        );
        because(&OWN_PODS, &message)
    }

    fn events_of(&self, pod: &Pod) -> impl Iterator<Item = &Event> {
        let uid = pod.metadata.uid.clone();
        self.events
            .iter()
            .filter(move |it| it.involved_object.uid == uid)
    }

    /// The cause that an autoscaler adds a node for the pod, if that is the last word of an autoscaler.
    fn node_comes(&self, pod: &Pod) -> Option<Cause> {
        let words = self.events_of(pod).filter_map(|it| Some((it, word(it)?)));
        let (event, comes) = words.max_by_key(|(event, _)| last_time(event))?;
        let age = elapsed(last_time(event)?, self.now);
        (comes && age < PROVISIONING).then(|| {
            let note = event.message.as_deref().unwrap_or_default();
            let at = (format!("Event about {}", name(pod)), "message");
            NODE_BEING_ADDED.at(at, note, "An autoscaler adds a node for the pod.")
        })
    }
}

/// What the scheduler says about a pod without a node.
fn of_scheduler(pod: &Pod) -> Evidence {
    Evidence {
        object: name(pod),
        field: SCHEDULED,
        value: pods::scheduler_said(pod).unwrap_or_default().to_owned(),
    }
}

/// True if the scheduler excludes each node because of a volume or of the pod's own choice of nodes, and some because of a volume
/// (Kubernetes `pkg/scheduler/framework/plugins/volumebinding/binder.go` and `nodeaffinity/node_affinity.go`).
fn is_out_of_reach(said: &str) -> bool {
    const VOLUME: &str = "didn't match PersistentVolume's node affinity";
    const CHOICE: &str = "didn't match Pod's node affinity/selector";
    let reasons = said.split_once("available: ").map(|(_, reasons)| reasons);
    let reasons = reasons
        .and_then(|it| it.split(". ").next())
        .unwrap_or_default();
    let mut each = reasons.trim_end_matches('.').split(", ");
    reasons.contains(VOLUME) && each.all(|it| it.ends_with(VOLUME) || it.ends_with(CHOICE))
}

/// What an autoscaler says about a pod: true if a node is being added. Karpenter also nominates existing nodes.
fn word(event: &Event) -> Option<bool> {
    let note = event.message.as_deref().unwrap_or_default();
    match (source(event)?, event.reason.as_deref()?) {
        ("karpenter", "Nominated") => Some(!note.contains("node/")),
        ("cluster-autoscaler", "TriggeredScaleUp") => Some(true),
        ("karpenter", "FailedScheduling") | ("cluster-autoscaler", "NotTriggerScaleUp") => {
            Some(false)
        }
        _ => None,
    }
}

/// Another scheduling gate than that of tekton-coscheduler.
fn gates(pod: &Pod) -> Option<Cause> {
    let gates = pod.spec.as_ref()?.scheduling_gates.as_ref()?;
    let gate = gates.iter().find(|gate| gate.name != GATE)?;
    let message = "The scheduler ignores the pod, because the pod has a scheduling gate.";
    Some(GATED.at((name(pod), "spec.schedulingGates"), &gate.name, message))
}

/// Tekton has not created the TaskRun's pod, and says why.
fn without_pod(task_run: &TaskRun) -> Option<Cause> {
    let status = &task_run.status;
    let has_pod = status["podName"]
        .as_str()
        .is_some_and(|pod| !pod.is_empty());
    let condition = succeeded(status.get("conditions"))?;
    let reason = condition["reason"].as_str()?;
    if has_pod || condition["status"] != "Unknown" || ON_ITS_WAY.contains(&reason) {
        return None;
    }
    let said = condition["message"].as_str().unwrap_or_default();
    let object = format!("TaskRun {}", task_run.name_any());
    let message = format!("Tekton has not created the pod of the TaskRun: {reason}.");
    let field = "status.conditions[Succeeded].message";
    Some(TASK_RUN_WAITS.at((object, field), said, &message))
}

/// A container that waits for something that may never come.
fn stuck_container(pod: &Pod) -> Option<&ContainerStateWaiting> {
    let status = pod.status.as_ref()?;
    let containers = [&status.init_container_statuses, &status.container_statuses];
    let containers = containers.into_iter().flatten().flatten();
    let mut waiting = containers.filter_map(|it| it.state.as_ref()?.waiting.as_ref());
    waiting.find(|it| {
        let reason = it.reason.as_deref();
        reason.is_some_and(|reason| !STARTING.contains(&reason))
    })
}

/// The program that wrote the Event.
fn source(event: &Event) -> Option<&str> {
    let new = event.reporting_component.as_deref();
    let old = event.source.as_ref().and_then(|it| it.component.as_deref());
    new.filter(|it| !it.is_empty()).or(old)
}

fn name(pod: &Pod) -> String {
    format!("Pod {}", pod.name_any())
}

#[cfg(test)]
mod tests;
