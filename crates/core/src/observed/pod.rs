//! The pods of a run: the pods of its TaskRuns, and the pods of its placeholders.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::{ObjectRef, Placeholder};
use crate::pipeline_run::OwnerReference;
use crate::reconcile::evacuate::{Role, Toleration};
use crate::reconcile::requests::Amounts;
use crate::volumes::NodeTerm;

/// A pod of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pod {
    /// The pod.
    pub object: ObjectRef,
    /// Its namespace.
    pub namespace: String,
    /// The uid of its run, from its label.
    pub run_uid: String,
    /// The controller among its owners.
    pub controller: Option<OwnerReference>,
    /// Set if the pod belongs to a placeholder.
    pub placeholder: Option<PlaceholderLabels>,
    /// The placeholders that its required pod affinity names. It must run on their node.
    pub follows: Vec<String>,
    /// Its phase.
    pub phase: PodPhase,
    /// True if a container has ever started.
    pub started: bool,
    /// The node that it is bound to.
    pub node: Option<String>,
    /// The time since which it is bound.
    pub bound: Option<Timestamp>,
    /// The scheduler's last result. `None` if the pod has a node.
    pub unscheduled: Option<Unscheduled>,
    /// The time of its creation.
    pub created: Option<Timestamp>,
    /// The claims that it uses.
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

/// The facts about a placeholder's pod that other pods do not have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlaceholderLabels {
    /// The placeholder's name. Empty if the pod's name does not match its label.
    pub name: String,
    /// True if this product created the pod, and the pod has no controller any more.
    pub orphaned: bool,
    /// True while the pod has the scheduling gate [`GATE`](crate::reconcile::reserve::GATE), so that the scheduler ignores it.
    pub gated: bool,
    /// The requests in its spec. If the pod is being resized, these are the new requests.
    pub asks: Amounts,
    /// True until the kubelet has finished the last resize.
    pub resizing: bool,
    /// What limits its nodes, as in [`Place`](crate::reconcile::reserve::Place).
    pub limited_by: Option<String>,
}

/// Condition `PodScheduled` with status `False`: the scheduler has not bound the pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unscheduled {
    /// True if the condition's reason is `Unschedulable`: the scheduler found no node.
    pub no_node: bool,
    /// The condition's message.
    pub message: Option<String>,
    /// True if the pod has not changed since the scheduler wrote the condition.
    pub is_newest: bool,
}

impl Pod {
    /// Its role in an evacuation. `None` if the pod has ended.
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

    /// The pod's tolerations.
    pub fn tolerations(&self) -> &[Toleration] {
        &self.needs.tolerations
    }

    /// True if this placeholder's object controls the pod.
    pub fn is_of(&self, placeholder: &Placeholder) -> bool {
        let controller = self.controller.as_ref();
        self.placeholder.is_some() && controller.is_some_and(|it| it.uid == placeholder.object.uid)
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
