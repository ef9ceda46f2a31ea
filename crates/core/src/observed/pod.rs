//! The pods of a run: the pods of its TaskRuns, and the pods of its placeholders.

use jiff::Timestamp;

use super::{ObjectRef, Placeholder};
use crate::pipeline_run::OwnerReference;
use crate::plan::Separation;
use crate::reconcile::evacuate::{Role, Toleration};
use crate::reconcile::requests::Amounts;
use crate::reconcile::room::Needs;

/// A pod of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pod {
    /// The pod.
    pub object: ObjectRef,
    /// Its namespace.
    pub namespace: String,
    /// The uid of its run, by its label.
    pub run_uid: String,
    /// Its controller.
    pub controller: Option<OwnerReference>,
    /// Set if it is a placeholder's pod.
    pub placeholder: Option<PlaceholderLabels>,
    /// The placeholders whose node it must share, by its required pod affinity.
    pub follows: Vec<String>,
    /// Its phase.
    pub phase: PodPhase,
    /// True if a container has ever started.
    pub started: bool,
    /// The node that it is bound to.
    pub node: Option<String>,
    /// The scheduler's last result, while it has no node.
    pub unscheduled: Option<Unscheduled>,
    /// When it was created.
    pub created: Option<Timestamp>,
    /// The claims that it uses.
    pub claims: Vec<String>,
    /// Its requirements on a node, without its claims.
    pub needs: Needs,
    /// How it stays away from placeholders.
    pub separation: Separation,
}

/// `status.phase` of a pod.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum PodPhase {
    /// Not all containers have started.
    Pending,
    /// At least one container runs.
    Running,
    /// All containers have succeeded.
    Succeeded,
    /// All containers have ended, and at least one failed.
    Failed,
    /// Missing, or a phase of a later version of Kubernetes.
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

    /// True if no container runs any more.
    pub fn has_ended(self) -> bool {
        match self {
            Self::Succeeded | Self::Failed => true,
            Self::Pending | Self::Running | Self::Unknown => false,
        }
    }
}

/// What a placeholder's pod has that other pods have not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlaceholderLabels {
    /// The placeholder's name; empty if label and pod name disagree.
    pub name: String,
    /// True if this product created the pod and it has no controller any more.
    pub orphaned: bool,
    /// True while the scheduling gate [`GATE`](crate::reconcile::reserve::GATE) keeps the pod from the scheduler.
    pub gated: bool,
    /// The requests of its containers. A resize that is under way counts as done.
    pub asks: Amounts,
    /// True until the kubelet has acted on the last resize.
    pub resizing: bool,
}

/// Condition `PodScheduled` with status `False`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unscheduled {
    /// True if its reason is `Unschedulable`: the scheduler has found no node.
    pub no_node: bool,
    /// Its message.
    pub message: Option<String>,
    /// True unless the pod has changed since.
    pub is_newest: bool,
}

impl Pod {
    /// Its role for an evacuation; `None` once it has ended.
    pub fn role(&self) -> Option<Role> {
        match self.phase {
            PodPhase::Succeeded | PodPhase::Failed => None,
            _ if self.placeholder.is_some() => Some(Role::Placeholder),
            PodPhase::Pending if !self.started => Some(Role::NeverStarted),
            PodPhase::Pending | PodPhase::Running | PodPhase::Unknown => Some(Role::Started),
        }
    }

    /// The TaskRun that controls it.
    pub fn task_run(&self) -> Option<&OwnerReference> {
        let controller = self.controller.as_ref();
        controller.filter(|controller| controller.kind == "TaskRun")
    }

    /// Its tolerations.
    pub fn tolerations(&self) -> &[Toleration] {
        &self.needs.tolerations
    }

    /// True if the placeholder controls this pod.
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
