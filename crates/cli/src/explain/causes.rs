//! The cause for which a PipelineRun waits. Each cause has a name from a closed list, evidence, and a remedy.
//!
//! The manager writes a cause into annotation `coscheduler.dev/blocked` if the run cannot get its placeholder, or if only the
//! manager can know the cause. This module finds the other causes in objects that a run's author can read.

use std::collections::BTreeSet;
use std::time::Duration;

use coscheduler_core::annotations::BLOCKED;
use coscheduler_core::event_texts::{self, Reason, ReasonCode};
use coscheduler_core::observed::{self, elapsed};
use coscheduler_core::reconcile::tell::blocked_reason;
use coscheduler_core::reconcile::tell::refusals::REFUSALS;
use coscheduler_core::reconcile::tell::waiting::{Wait, first_wait};
use coscheduler_kubernetes::pipeline_run::{PipelineRun, is_done, succeeded};
use coscheduler_kubernetes::pods;
use coscheduler_kubernetes::tekton::TaskRun;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStateWaiting, Event, Pod};
use kube::ResourceExt as _;
use serde::Serialize;
use serde_json::Value;

use crate::events::last_time;

/// The objects of a run.
#[derive(Debug, Default)]
pub(super) struct Facts {
    pub(super) run: PipelineRun,
    /// The topmost parent of a child run. On this parent, the manager reports what its child runs wait for.
    pub(super) parent: Option<PipelineRun>,
    /// The run's pods, and the pods of the placeholders that they follow.
    pub(super) pods: Vec<Pod>,
    pub(super) task_runs: Vec<TaskRun>,
    /// Events about pods that have not started. If the manager reports a cause, also Events about placeholders and about claims
    /// without a volume.
    pub(super) events: Vec<Event>,
    /// The names of claims that do not exist.
    pub(super) missing_claims: BTreeSet<String>,
    pub(super) now: Timestamp,
}

/// The cause for which a run waits.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Cause {
    pub(super) reason: &'static str,
    /// The cause in words, and a remedy.
    pub(super) message: String,
    pub(super) evidence: Evidence,
}

/// The field that shows a cause.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Evidence {
    /// Kind and name.
    pub(super) object: String,
    pub(super) field: &'static str,
    pub(super) value: String,
}

/// The states of a container that is about to start (Kubernetes `pkg/kubelet/kubelet_pods.go`).
const STARTING: [&str; 2] = ["ContainerCreating", "PodInitializing"];
/// The reasons of the kubelet's Events about volumes (Kubernetes `pkg/kubelet/events/event.go`).
const MOUNTS: [&str; 2] = ["FailedMount", "FailedAttachVolume"];
/// A TaskRun without a pod makes progress if its condition has one of these reasons (Tekton
/// `pkg/apis/pipeline/v1/taskrun_types.go`).
const ON_ITS_WAY: [&str; 6] = [
    "ToBeRetried",
    "Started",
    "Running",
    "Pending",
    "ResolvingTaskRef",
    "ResolvingStepActionRef",
];

/// An autoscaler gives a node up if it is not ready within this time (Cluster Autoscaler, `max-node-provision-time`;
/// Karpenter's limit for the registration of a node is the same).
const PROVISIONING: Duration = Duration::from_secs(15 * 60);

/// The first cause for which the run waits. `None` if no cause is found, if the run is done or being deleted, or if its
/// `spec.status` is `Cancelled`.
pub(super) fn cause(facts: &Facts) -> Option<Cause> {
    let run = &facts.run;
    let status = run.spec.get("status").and_then(Value::as_str);
    let deleted = run.metadata.deletion_timestamp.is_some();
    if is_done(run) || deleted || status == Some("Cancelled") {
        return None;
    }
    let pending = event_texts::pipeline_run_pending();
    if let Some(status) = status.filter(|it| *it == pending.code.as_str()) {
        let evidence = Evidence::new(of_run(run), "spec.status", status);
        return Some(Cause::new(pending, evidence));
    }
    let views = facts.pods.iter().cloned().filter_map(pods::view);
    let views: Vec<observed::Pod> = views.collect();
    facts
        .reported()
        .or_else(|| facts.task_runs.iter().find_map(without_pod))
        .or_else(|| facts.tasks().find_map(|pod| facts.of_bound(pod)))
        .or_else(|| facts.of_unbound(&views))
        .or_else(|| facts.tasks().find_map(nominated))
}

impl Facts {
    /// The cause that the manager reports. The evidence is an Event or the scheduler's message, if one of them fits the cause,
    /// and otherwise the manager's annotation. If an autoscaler adds a node for the placeholder, this is the cause instead.
    fn reported(&self) -> Option<Cause> {
        let run = self.parent.as_ref().unwrap_or(&self.run);
        let annotation = run.annotations().get(BLOCKED)?;
        let reason = blocked_reason(annotation)?;
        let about_placeholder = match reason.code {
            ReasonCode::PlaceholderUnschedulable
            | ReasonCode::NoIsolatedNode
            | ReasonCode::ReferenceMissing
            | ReasonCode::VolumeOutOfReach => Some(true),
            ReasonCode::ClaimsNotMovable => {
                let waits = |pod: &Pod| pods::is_placeholder(pod) && pods::is_unschedulable(pod);
                Some(self.pods.iter().any(waits))
            }
            _ => None,
        };
        let field = "metadata.annotations[coscheduler.dev/blocked]";
        let refused = REFUSALS.contains(&reason.code);
        let mut cause = Cause::new(reason, Evidence::new(of_run(run), field, annotation));
        if let Some(refusal) = self.refusal().filter(|_| refused) {
            cause.evidence = of_event(refusal);
        }
        let Some(about_placeholder) = about_placeholder else {
            return Some(cause);
        };
        let of_kind = |pod: &&Pod| pods::is_placeholder(pod) == about_placeholder;
        let pods = || self.pods.iter().filter(of_kind);
        if let Some(pod) = pods().find(|pod| pods::is_unschedulable(pod)) {
            if let Some(coming) = self.node_comes(pod).filter(|_| about_placeholder) {
                return Some(coming);
            }
            cause.evidence = of_scheduler(pod);
        } else if about_placeholder
            && pods().next().is_some()
            && pods().all(|pod| pods::node(pod).is_some())
        {
            // The manager has not removed its annotation yet.
            return None;
        }
        Some(cause)
    }

    /// The pods of TaskRuns that have not ended.
    fn tasks(&self) -> impl Iterator<Item = &Pod> {
        let tasks = self.pods.iter().filter(|pod| !pods::is_placeholder(pod));
        tasks.filter(|pod| !pods::phase(pod).has_ended())
    }

    /// The cause for which a pod without a node waits.
    fn of_unbound(&self, views: &[observed::Pod]) -> Option<Cause> {
        let exists = |claim: &str| !self.missing_claims.contains(claim);
        let Wait {
            pod: view, reason, ..
        } = first_wait(views.iter(), exists, self.now)?;
        let mut pods = self.pods.iter();
        let pod = pods.find(|pod| pod.name_any() == view.object.name)?;
        if let Some(gate) = &view.gate {
            let evidence = Evidence::new(of_pod(pod), "spec.schedulingGates", gate);
            return Some(Cause::new(reason, evidence));
        }
        let coming = match reason.code {
            ReasonCode::ClaimNotBound | ReasonCode::ClaimInUse | ReasonCode::ClaimMissing => None,
            _ => self.node_comes(pod),
        };
        coming.or_else(|| Some(Cause::new(reason, of_scheduler(pod))))
    }

    /// The cause for which a pod that is on a node has not started.
    fn of_bound(&self, pod: &Pod) -> Option<Cause> {
        let (name, node) = (pod.name_any(), pods::node(pod)?);
        if let Some(waiting) = stuck_container(pod) {
            let reason = waiting.reason.as_deref().unwrap_or_default();
            let reason = event_texts::container_cannot_start(&name, reason);
            let said = waiting.message.as_deref().unwrap_or_default();
            let field = "status: state.waiting.message of a container";
            return Some(Cause::new(reason, Evidence::new(of_pod(pod), field, said)));
        }
        // A pod with a sandbox has its volumes.
        if pods::has_started(pod) || pods::has_sandbox(pod) {
            return None;
        }
        let obstacles = self.events_of(pod).filter_map(|event| {
            let reason = event.reason.as_deref()?;
            if reason == "FailedCreatePodSandBox" {
                return Some((event, event_texts::sandbox_not_created(&name, node)));
            }
            let mounts = MOUNTS.contains(&reason);
            mounts.then(|| (event, event_texts::volume_not_mounted(&name, node)))
        });
        let (event, reason) = obstacles.max_by_key(|(event, _)| last_time(event))?;
        Some(Cause::new(reason, of_event(event)))
    }

    /// The newest Event of type `Warning` about the object that controls a placeholder's pod, or about a claim.
    fn refusal(&self) -> Option<&Event> {
        let refusals = self.events.iter().filter(|event| {
            let kind = event.involved_object.kind.as_deref();
            let is_warning = event.type_.as_deref() == Some("Warning");
            is_warning && matches!(kind, Some("StatefulSet" | "PersistentVolumeClaim"))
        });
        refusals.max_by_key(|event| last_time(event))
    }

    fn events_of(&self, pod: &Pod) -> impl Iterator<Item = &Event> {
        let uid = pod.metadata.uid.clone();
        self.events
            .iter()
            .filter(move |it| it.involved_object.uid == uid)
    }

    /// The cause "an autoscaler adds a node for the pod", if the newest Event of an autoscaler about the pod says so and is
    /// younger than [`PROVISIONING`].
    fn node_comes(&self, pod: &Pod) -> Option<Cause> {
        let words = self.events_of(pod).filter_map(|it| Some((it, word(it)?)));
        let (event, comes) = words.max_by_key(|(event, _)| last_time(event))?;
        let age = elapsed(last_time(event)?, self.now);
        let reason = || event_texts::node_being_added(&pod.name_any());
        (comes && age < PROVISIONING).then(|| Cause::new(reason(), of_event(event)))
    }
}

impl Cause {
    fn new(reason: Reason, evidence: Evidence) -> Self {
        Self {
            reason: reason.code.as_str(),
            message: reason.message,
            evidence,
        }
    }
}

impl Evidence {
    fn new(object: String, field: &'static str, value: &str) -> Self {
        let value = value.to_owned();
        Self {
            object,
            field,
            value,
        }
    }
}

/// The scheduler's message about a pod without a node.
fn of_scheduler(pod: &Pod) -> Evidence {
    let said = pods::scheduler_said(pod).unwrap_or_default();
    Evidence::new(of_pod(pod), "status.conditions[PodScheduled].message", said)
}

/// The message of an Event.
fn of_event(event: &Event) -> Evidence {
    let note = event.message.as_deref().unwrap_or_default();
    let about = &event.involved_object;
    let [kind, name] = [&about.kind, &about.name].map(|it| it.as_deref().unwrap_or_default());
    Evidence::new(format!("Event about {kind} {name}"), "message", note)
}

/// The cause that the scheduler makes room for the pod on the node that it has chosen.
fn nominated(pod: &Pod) -> Option<Cause> {
    let node = pod.status.as_ref()?.nominated_node_name.as_deref()?;
    if node.is_empty() || pods::node(pod).is_some() {
        return None;
    }
    let evidence = Evidence::new(of_pod(pod), "status.nominatedNodeName", node);
    let reason = event_texts::scheduler_makes_room(&pod.name_any(), node);
    Some(Cause::new(reason, evidence))
}

/// The statement of an autoscaler about a pod: true if a node is being added, false if not. `None` for any other Event.
/// Karpenter also nominates existing nodes; such an Event names the node.
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

/// The cause that Tekton gives if it has not created the TaskRun's pod.
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
    let name = task_run.name_any();
    let reason = event_texts::task_run_has_no_pod(&name, reason);
    let field = "status.conditions[Succeeded].message";
    Some(Cause::new(
        reason,
        Evidence::new(format!("TaskRun {name}"), field, said),
    ))
}

/// A container that waits, and is not about to start. Its reason is, for example, `ImagePullBackOff`.
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

fn of_pod(pod: &Pod) -> String {
    format!("Pod {}", pod.name_any())
}

fn of_run(run: &PipelineRun) -> String {
    format!("PipelineRun {}", run.name_any())
}

#[cfg(test)]
mod tests;
