//! The cause for which a PipelineRun waits. Each cause has a name of a closed list, evidence, and a remedy.
//!
//! The manager reports what keeps a run from its placeholder, and what only it knows, in annotation `coscheduler.dev/blocked`.
//! This module names the other causes, from the objects that a run's author can read.

use coscheduler_core::annotations::BLOCKED;
use coscheduler_core::reasons::ReasonCode;
use coscheduler_core::reconcile::reserve::GATE;
use coscheduler_core::reconcile::tell::blocked_reason;
use coscheduler_core::reconcile::tell::refusals::{lacks_room, tells_of_no_node, waits_for_volume};
use coscheduler_kubernetes::pipeline_run::{PipelineRun, is_done};
use coscheduler_kubernetes::pods;
use coscheduler_kubernetes::tekton::TaskRun;
use k8s_openapi::api::core::v1::{ContainerStateWaiting, Pod};
use k8s_openapi::api::events::v1::Event;
use kube::ResourceExt as _;
use serde::Serialize;
use serde_json::Value;

use crate::events::last_time;

/// The objects of a run.
#[derive(Debug, Default)]
pub(super) struct Facts {
    pub(super) run: PipelineRun,
    /// The run's pods, and the pods of the placeholders that they follow.
    pub(super) pods: Vec<Pod>,
    pub(super) task_runs: Vec<TaskRun>,
    /// Events about pods that wait.
    pub(super) events: Vec<Event>,
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

/// A cause that the manager does not report.
#[derive(Debug)]
struct Known {
    reason: &'static str,
    remedy: &'static str,
}

const PENDING: Known = Known {
    reason: "PipelineRunPending",
    remedy: "Remove spec.status from the PipelineRun. If a queue such as Kueue set it, wait for the queue.",
};
const GATED: Known = Known {
    reason: "SchedulingGated",
    remedy: "Wait until the owner of the gate, such as Kueue, removes it, or configure the owner so that it ignores the pods.",
};
const NODE_BEING_ADDED: Known = Known {
    reason: "NodeBeingAdded",
    remedy: "Wait until the autoscaler's node is ready.",
};
const NO_ISOLATED_NODE: Known = Known {
    reason: "NoIsolatedNode",
    remedy: "Wait until another run has ended, add a node, or choose another mode than isolate-pipelinerun.",
};
const TASK_RUN_WAITS: Known = Known {
    reason: "TaskRunHasNoPod",
    remedy: "Correct what Tekton's message names. If it is a quota, raise the quota, or wait until other pods have ended.",
};
const CLAIM_NOT_BOUND: Known = Known {
    reason: "ClaimNotBound",
    remedy: "Wait until the claim has a volume. If it gets none, read the claim's Events.",
};
const CLAIM_IN_USE: Known = Known {
    reason: "ClaimInUse",
    remedy: "Wait until the pod that uses the ReadWriteOncePod claim has ended.",
};
const PLACEHOLDER_MISSING: Known = Known {
    reason: "PlaceholderMissing",
    remedy: "Wait some seconds. If the placeholder's pod does not appear, ask your operator whether placeholder-manager, \
             affinity-planner and watcher are running.",
};
const SCHEDULER: Known = Known {
    reason: "WaitsForScheduler",
    remedy: "Wait some seconds until the scheduler tries again.",
};
const OWN_PODS: Known = Known {
    reason: "WaitsForOwnPods",
    remedy: "Wait until these pods have ended. To run more pods at the same time, use larger nodes, or request less.",
};
const NO_ROOM: Known = Known {
    reason: "NoRoomBesidePlaceholder",
    remedy: "Wait some seconds. tekton-coscheduler moves the placeholder, or reports on the run why it cannot.",
};
const UNSCHEDULABLE: Known = Known {
    reason: "PodUnschedulable",
    remedy: "Add a node that meets the scheduler's message, or change the pod's podTemplate or requests.",
};
const CONTAINER_WAITS: Known = Known {
    reason: "ContainerCannotStart",
    remedy: "Correct what the message names, such as the image, its pull secret, or a ConfigMap or Secret of the step.",
};
const VOLUME_NOT_MOUNTED: Known = Known {
    reason: "VolumeNotMounted",
    remedy: "Correct what the message names. If the volume is attached to another node, wait until it is detached there.",
};

/// A pod's condition with the scheduler's result.
const SCHEDULED: &str = "status.conditions[PodScheduled].message";

/// The states of a container that is about to start (Kubernetes `pkg/kubelet/kubelet_pods.go`).
const STARTING: [&str; 2] = ["ContainerCreating", "PodInitializing"];
/// The reasons of the kubelet's Events about volumes (Kubernetes `pkg/kubelet/events/event.go`).
const MOUNTS: [&str; 2] = ["FailedMount", "FailedAttachVolume"];
/// Tekton's reasons for a TaskRun that goes on without a pod (Tekton `pkg/apis/pipeline/v1/taskrun_types.go`).
const ON_ITS_WAY: [&str; 5] = [
    "Started",
    "Running",
    "Pending",
    "ResolvingTaskRef",
    "ResolvingStepActionRef",
];

/// What autoscalers say about a pod, each with true if a node will be added or is about to be ready: Karpenter, and Cluster
/// Autoscaler.
const AUTOSCALERS: [(&str, bool); 4] = [
    ("Nominated", true),
    ("TriggeredScaleUp", true),
    ("FailedScheduling", false),
    ("NotTriggerScaleUp", false),
];

/// The first cause for which the run waits. `None` if the run waits for nothing, or is done.
pub(super) fn cause(facts: &Facts) -> Option<Cause> {
    let run = &facts.run;
    if is_done(run) {
        return None;
    }
    if run.spec.get("status").and_then(Value::as_str) == Some(PENDING.reason) {
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

impl Known {
    fn at(&self, (object, field): (String, &'static str), value: &str, message: &str) -> Cause {
        Cause {
            reason: self.reason,
            message: message.to_owned(),
            evidence: Evidence {
                object,
                field,
                value: value.to_owned(),
            },
            remedy: Some(self.remedy),
        }
    }
}

impl Facts {
    /// The cause that the manager reports, with the scheduler's message as evidence if the scheduler is the source.
    fn reported(&self) -> Option<Cause> {
        let annotation = self.run.annotations().get(BLOCKED)?;
        let reason = blocked_reason(annotation)?;
        let object = format!("PipelineRun {}", self.run.name_any());
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
        if reason.code != ReasonCode::PlaceholderUnschedulable {
            return Some(cause);
        }
        let unbound = |pod: &&Pod| pods::is_placeholder(pod) && pods::is_unschedulable(pod);
        if let Some(pod) = self.pods.iter().find(unbound) {
            let said = pods::scheduler_said(pod).unwrap_or_default();
            if let Some(coming) = self.node_comes(pod) {
                return Some(coming);
            }
            if said.contains("anti-affinity rules") {
                (cause.reason, cause.remedy) =
                    (NO_ISOLATED_NODE.reason, Some(NO_ISOLATED_NODE.remedy));
            }
            cause.evidence = Evidence {
                object: name(pod),
                field: SCHEDULED,
                value: said.to_owned(),
            };
        }
        Some(cause)
    }

    fn of_pod(&self, pod: &Pod) -> Option<Cause> {
        let Some(node) = pods::node(pod) else {
            return pods::is_unschedulable(pod).then(|| self.of_unbound(pod));
        };
        let at = |field| (name(pod), field);
        if let Some(waiting) = stuck_container(pod) {
            let reason = waiting.reason.as_deref().unwrap_or_default();
            let said = waiting.message.as_deref().unwrap_or_default();
            let message = format!("A container of the pod on node {node} cannot start: {reason}.");
            let field = "status.containerStatuses[].state.waiting.message";
            return Some(CONTAINER_WAITS.at(at(field), said, &message));
        }
        if pods::has_started(pod) {
            return None;
        }
        let mut events = self.events_of(pod);
        let event = events.find(|it| MOUNTS.contains(&it.reason.as_deref().unwrap_or_default()))?;
        let message = format!("A volume of the pod cannot be mounted on node {node}.");
        let note = event.note.as_deref().unwrap_or_default();
        let at = (format!("Event about {}", name(pod)), "note");
        Some(VOLUME_NOT_MOUNTED.at(at, note, &message))
    }

    /// The scheduler has found no node for the pod.
    fn of_unbound(&self, pod: &Pod) -> Cause {
        if let Some(coming) = self.node_comes(pod) {
            return coming;
        }
        let said = pods::scheduler_said(pod).unwrap_or_default();
        let because =
            |known: &Known, message: &str| known.at((name(pod), SCHEDULED), said, message);
        if waits_for_volume(said) {
            return because(&CLAIM_NOT_BOUND, "A claim of the pod has no volume.");
        }
        if said.contains("ReadWriteOncePod") {
            return because(&CLAIM_IN_USE, "Another pod uses a claim of the pod.");
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
        if tells_of_no_node(said) {
            let message = format!(
                "The scheduler last tried the pod before its placeholder was on node {node}."
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
        self.events.iter().filter(move |event| {
            let regarding = event.regarding.as_ref();
            regarding.is_some_and(|it| it.uid == uid)
        })
    }

    /// The cause that an autoscaler adds a node for the pod, if that is the last word of an autoscaler.
    fn node_comes(&self, pod: &Pod) -> Option<Cause> {
        let word = |event: &Event| {
            let reason = event.reason.as_deref()?;
            let by_scheduler = source(event).is_some_and(|it| it == "default-scheduler");
            let word = AUTOSCALERS.iter().find(|(word, _)| *word == reason);
            word.filter(|_| !by_scheduler).map(|(_, comes)| *comes)
        };
        let words = self.events_of(pod).filter_map(|it| Some((it, word(it)?)));
        let (event, comes) = words.max_by_key(|(event, _)| last_time(event))?;
        comes.then(|| {
            let note = event.note.as_deref().unwrap_or_default();
            let at = (format!("Event about {}", name(pod)), "note");
            NODE_BEING_ADDED.at(at, note, "An autoscaler adds a node for the pod.")
        })
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
    let mut conditions = status["conditions"].as_array()?.iter();
    let condition = conditions.find(|it| it["type"] == "Succeeded")?;
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
    let old = event.deprecated_source.as_ref();
    let new = event.reporting_controller.as_deref();
    new.filter(|it| !it.is_empty())
        .or_else(|| old?.component.as_deref())
}

fn name(pod: &Pod) -> String {
    format!("Pod {}", pod.name_any())
}

#[cfg(test)]
mod tests;
