//! The causes that the manager does not report: the name and the remedy of each.

use super::{Cause, Evidence};

/// A cause that the manager does not report.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) reason: &'static str,
    pub(super) remedy: &'static str,
}

pub(super) const PENDING: Known = Known {
    reason: "PipelineRunPending",
    remedy: "Remove spec.status from the PipelineRun. If a queue such as Kueue set it, wait for the queue.",
};
pub(super) const GATED: Known = Known {
    reason: "SchedulingGated",
    remedy: "Wait until the owner of the gate, such as Kueue, removes it, or configure the owner so that it ignores the pods.",
};
pub(super) const NODE_BEING_ADDED: Known = Known {
    reason: "NodeBeingAdded",
    remedy: "Wait until the autoscaler's node is ready.",
};
pub(super) const NO_ISOLATED_NODE: Known = Known {
    reason: "NoIsolatedNode",
    remedy: "Wait until another run has ended, add a node, or choose another mode than isolate-pipelinerun.",
};
pub(super) const VOLUME_OUT_OF_REACH: Known = Known {
    reason: "VolumeOutOfReach",
    remedy: "Change the podTemplate so that it allows a node that can reach the volume, or use another claim, and create the run \
             again. More nodes do not help, unless they can reach the volume.",
};
pub(super) const TASK_RUN_WAITS: Known = Known {
    reason: "TaskRunHasNoPod",
    remedy: "Correct what Tekton's message names. If it is a quota, raise the quota, or wait until other pods have ended.",
};
pub(super) const CLAIM_NOT_BOUND: Known = Known {
    reason: "ClaimNotBound",
    remedy: "Wait until the claim has a volume. If it gets none, read the claim's Events.",
};
pub(super) const CLAIM_MISSING: Known = Known {
    reason: "ClaimMissing",
    remedy: "Create the claim, or create the run again with a claim that exists.",
};
pub(super) const CLAIM_IN_USE: Known = Known {
    reason: "ClaimInUse",
    remedy: "Wait until the pod that uses the ReadWriteOncePod claim has ended.",
};
pub(super) const PLACEHOLDER_MISSING: Known = Known {
    reason: "PlaceholderMissing",
    remedy: "Wait some seconds. If the placeholder's pod does not appear, ask your operator whether placeholder-manager, \
             affinity-planner and watcher are running.",
};
pub(super) const SCHEDULER: Known = Known {
    reason: "WaitsForScheduler",
    remedy: "Wait some seconds until the scheduler tries again.",
};
pub(super) const OWN_PODS: Known = Known {
    reason: "WaitsForOwnPods",
    remedy: "Wait until these pods have ended. To run more pods at the same time, use larger nodes, or request less.",
};
pub(super) const NO_ROOM: Known = Known {
    reason: "NoRoomBesidePlaceholder",
    remedy: "Wait some seconds. tekton-coscheduler moves the placeholder, or reports on the run why it cannot.",
};
pub(super) const UNSCHEDULABLE: Known = Known {
    reason: "PodUnschedulable",
    remedy: "Add a node that meets the scheduler's message, or change the pod's podTemplate or requests.",
};
pub(super) const CONTAINER_WAITS: Known = Known {
    reason: "ContainerCannotStart",
    remedy: "Correct what the message names, such as the image, its pull secret, or a ConfigMap or Secret of the step.",
};
pub(super) const SANDBOX: Known = Known {
    reason: "SandboxNotCreated",
    remedy: "Correct what the message names, such as the network of the node.",
};
pub(super) const VOLUME_NOT_MOUNTED: Known = Known {
    reason: "VolumeNotMounted",
    remedy: "Correct what the message names. If the volume is attached to another node, wait until it is detached there.",
};

/// The remedy for a cause that the manager reports without one.
pub(super) const MAKE_ROOM: &str = "Make room on the node (`kubectl coschedule nodes -o wide` shows the pods on it), or make it \
     usable again. If a volumeClaimTemplate made the claims, a new run gets new ones, which may be on another node.";

impl Known {
    /// The cause with the object and the field that show it, the field's value, and a sentence.
    pub(super) fn at(
        &self,
        (object, field): (String, &'static str),
        value: &str,
        message: &str,
    ) -> Cause {
        let evidence = Evidence {
            object,
            field,
            value: value.to_owned(),
        };
        self.because(evidence, message)
    }

    /// The cause with its evidence and a sentence.
    pub(super) fn because(&self, evidence: Evidence, message: &str) -> Cause {
        Cause {
            reason: self.reason,
            message: message.to_owned(),
            evidence,
            remedy: Some(self.remedy),
        }
    }
}
