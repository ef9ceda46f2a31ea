//! The pods of a run: the pods of its TaskRuns, and the pods of its placeholders.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::{ObjectRef, Placeholder, Record};
use crate::config::Backend;
use crate::node::Toleration;
use crate::pipeline_run::OwnerReference;
use crate::requests::Amounts;
use crate::volumes::{self, NodeTerm};

/// A pod of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pod {
    /// The identity and version of the pod.
    pub object: ObjectRef,
    /// Its namespace.
    pub namespace: String,
    /// The uid of its run, from label `tekton.dev/pipelineRunUID`.
    pub run_uid: String,
    /// The owner reference with `controller: true`.
    pub controller: Option<OwnerReference>,
    /// `Some` if the pod is a placeholder's pod.
    pub placeholder: Option<PlaceholderLabels>,
    /// The names of the placeholders in its required pod affinity. The pod must run on the node of each of them.
    pub follows: Vec<String>,
    /// Its phase.
    pub phase: PodPhase,
    /// True if a container has ever started.
    pub started: bool,
    /// The node that the pod is bound to. `None` if the pod is not bound.
    pub node: Option<String>,
    /// The time at which the scheduler bound the pod.
    pub bound: Option<Timestamp>,
    /// The scheduler's last result. `None` if the pod is bound, or if the scheduler has not tried to bind the pod yet.
    pub unscheduled: Option<Unscheduled>,
    /// The first of its scheduling gates other than [`GATE`](crate::reconcile::reserve::GATE). While the pod has any gate, the
    /// scheduler ignores the pod.
    pub gate: Option<String>,
    /// The time of its creation.
    pub created: Option<Timestamp>,
    /// The names of the claims that the pod's volumes use.
    pub claims: Vec<String>,
    /// Its requirements on a node, without those that come from its claims.
    pub needs: Needs,
}

/// A pod's requirements on a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Needs {
    /// Its requests.
    pub requests: Amounts,
    /// `spec.nodeSelector`.
    pub selector: BTreeMap<String, String>,
    /// The terms of its required node affinity; the node must meet one of them. `None` if it has no such affinity.
    pub terms: Option<Vec<NodeTerm>>,
    /// `spec.tolerations`.
    pub tolerations: Vec<Toleration>,
}

impl Needs {
    /// True if the node with this name and these labels meets the node selector and the node affinity.
    pub fn are_met_by(&self, node: &str, labels: &BTreeMap<String, String>) -> bool {
        let mut selector = self.selector.iter();
        let selected = selector.all(|(key, value)| labels.get(key) == Some(value));
        let terms = self.terms.as_ref();
        selected && terms.is_none_or(|terms| volumes::meets(node, labels, terms))
    }

    /// True if there may be a node that meets `others`, but does not meet this node selector and node affinity.
    pub fn limit_nodes_more_than(&self, others: &Self) -> bool {
        let mut selector = self.selector.iter();
        let more = selector.any(|(key, value)| others.selector.get(key) != Some(value));
        more || (self.terms.is_some() && self.terms != others.terms)
    }
}

/// `status.phase` of a pod.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum PodPhase {
    /// Not all containers have started.
    Pending,
    /// All containers have been created, and at least one of them runs, starts or restarts.
    Running,
    /// All containers have succeeded.
    Succeeded,
    /// All containers have ended, and at least one failed.
    Failed,
    /// The phase is not set, or this version does not know it.
    #[default]
    Unknown,
}

impl PodPhase {
    /// Reads `status.phase`.
    pub fn read(text: Option<&str>) -> Self {
        match text {
            Some("Pending") => Self::Pending,
            Some("Running") => Self::Running,
            Some("Succeeded") => Self::Succeeded,
            Some("Failed") => Self::Failed,
            Some(_) | None => Self::Unknown,
        }
    }

    /// True if all containers have ended.
    pub fn has_ended(self) -> bool {
        match self {
            Self::Succeeded | Self::Failed => true,
            Self::Pending | Self::Running | Self::Unknown => false,
        }
    }
}

/// The facts that only a placeholder's pod has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlaceholderLabels {
    /// The placeholder's name. Empty if the pod's name does not match its label.
    pub name: String,
    /// True if this product created the pod, and the pod has no controller any more.
    pub orphaned: bool,
    /// True if this product created the pod, and the run is the pod's controller. Such a pod makes up a placeholder of
    /// [`Backend::Pod`].
    pub of_run: bool,
    /// True while the pod has the scheduling gate [`GATE`](crate::reconcile::reserve::GATE), so that the scheduler ignores it.
    pub gated: bool,
    /// The requests in the pod's `spec`. If the pod is being resized, these are the new requests.
    pub asks: Amounts,
    /// True until the kubelet has finished the last resize.
    pub resizing: bool,
    /// If the manager has restricted the pod to some of the nodes that the placeholder's own template allows: a text about
    /// these nodes, from field `limited_by` of [`Place`](crate::reconcile::reserve::Place).
    pub limited_by: Option<String>,
}

/// Condition `PodScheduled` with status `False`: the scheduler has not bound the pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unscheduled {
    /// True if the scheduler found no node: the condition's reason is `Unschedulable`, and the scheduler has not nominated a node
    /// on which it makes room by preemption.
    pub no_node: bool,
    /// True if the scheduler met an error, normally because it could not bind the pod to the node that it had chosen: the
    /// condition's reason is `SchedulerError`. After a second or more, the scheduler chooses a node again.
    pub failed: bool,
    /// `status.nominatedNodeName`: the node that the scheduler tries first.
    pub nominated: Option<String>,
    /// The condition's message.
    pub message: Option<String>,
    /// The time at which kube-scheduler last changed the pod's status, in whole seconds.
    pub written: Option<Timestamp>,
    /// True if the pod's `spec` has not changed since the scheduler wrote the condition. False if the condition has no
    /// `observedGeneration`.
    pub is_newest: bool,
}

/// The role of a bound pod in its run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// A placeholder's pod.
    Placeholder,
    /// A TaskRun's pod in which no container has ever started.
    NeverStarted,
    /// A TaskRun's pod with a container that runs or has run.
    Started,
}

impl Pod {
    /// The pod's role. `None` if the pod has ended.
    pub fn role(&self) -> Option<Role> {
        match self.phase {
            PodPhase::Succeeded | PodPhase::Failed => None,
            _ if self.placeholder.is_some() => Some(Role::Placeholder),
            PodPhase::Pending if !self.started => Some(Role::NeverStarted),
            PodPhase::Pending | PodPhase::Running | PodPhase::Unknown => Some(Role::Started),
        }
    }

    /// The TaskRun that controls the pod.
    pub fn task_run(&self) -> Option<&OwnerReference> {
        let controller = self.controller.as_ref();
        controller.filter(|controller| controller.kind == "TaskRun")
    }

    /// True if the scheduler has found no node for the pod ([`Unscheduled::no_node`]).
    pub fn is_refused(&self) -> bool {
        self.unscheduled.as_ref().is_some_and(|it| it.no_node)
    }

    /// The scheduler's message about its last try to bind the pod. `None` if the pod is bound.
    pub fn scheduler_said(&self) -> Option<&str> {
        self.unscheduled.as_ref()?.message.as_deref()
    }

    /// True if this is the pod of the placeholder. Either the placeholder's object controls the pod. Or the placeholder is only
    /// this pod, or was only this pod before it got a controller.
    pub fn is_of(&self, placeholder: &Placeholder) -> bool {
        let Some(labels) = &self.placeholder else {
            return false;
        };
        let controller = self.controller.as_ref();
        let same_name = labels.name == placeholder.object.name;
        controller.is_some_and(|it| it.uid == placeholder.object.uid)
            || (labels.of_run && same_name && self.run_uid == placeholder.run_uid)
    }

    /// The placeholder that this pod makes up ([`Backend::Pod`]). `None` for any other pod.
    pub fn to_placeholder(&self) -> Option<Placeholder> {
        let labels = self.placeholder.as_ref().filter(|it| it.of_run)?;
        Some(Placeholder {
            object: ObjectRef {
                name: labels.name.clone(),
                ..self.object.clone()
            },
            namespace: self.namespace.clone(),
            backend: Backend::Pod,
            controller: self.controller.clone(),
            run_uid: self.run_uid.clone(),
            created: self.created,
            claims: self.claims.clone(),
            needs: self.needs.clone(),
            priority_class: None,
            // If the manager moves the placeholder, the placeholder's next pod has a controller and starts with the gate.
            gated: true,
            parked: false,
            observed: true,
            record: Record::default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_of_other_versions_are_not_known() {
        assert_eq!(PodPhase::read(Some("Succeeded")), PodPhase::Succeeded);
        for text in [
            None,
            Some(""),
            Some("Unknown"),
            Some("succeeded"),
            Some("Evicted"),
        ] {
            assert_eq!(PodPhase::read(text), PodPhase::Unknown);
        }
    }
}
