//! Texts about the node of a placeholder and of the pods that follow it. `pod` is a pod's name; `asking` is that name with
//! what the pod requests.

use crate::evacuate::Misplaced;

use super::{Reason, ReasonCode};

/// A pod left a node that turns pods away (N1).
pub fn pod_evacuated(pod: &str, node: &str, cause: &Misplaced) -> Reason {
    let message = format!("Pod {pod} left node {node}: {cause}.");
    Reason::new(ReasonCode::PodEvacuated, message)
}

/// A pod waits for a placeholder that is leaving its node (N1).
pub fn placeholder_leaves(pod: &str, placeholder: &str, node: &str) -> Reason {
    let message = format!("Pod {pod} waits until placeholder {placeholder} has left node {node}.");
    Reason::new(ReasonCode::PlaceholderLeaves, message)
}

/// The placeholder's node has room for the pod (N2).
pub fn room_on_node(pod: &str, placeholder: &str, node: &str) -> Reason {
    let message = format!(
        "Node {node} of placeholder {placeholder} has room for pod {pod}. The pod waits for the scheduler."
    );
    Reason::new(ReasonCode::RoomOnNode, message)
}

/// The run's own pods use the room that the pod needs (N2).
pub fn run_holds_room(pod: &str, placeholder: &str, node: &str) -> Reason {
    let message = format!(
        "Pod {pod} waits for node {node} of placeholder {placeholder}: other pods of the run use the room there."
    );
    Reason::new(ReasonCode::RunHoldsRoom, message)
}

/// Other pods keep the placeholder on its node (N2).
pub fn placeholder_stays(pod: &str, placeholder: &str, node: &str) -> Reason {
    let message = format!(
        "Pod {pod} waits for node {node}: placeholder {placeholder} stays there for other pods that run beside it."
    );
    Reason::new(ReasonCode::RunHoldsRoom, message)
}

/// The cluster autoscaler is adding a node for the pod (N4).
pub fn scale_up_triggered(pod: &str) -> Reason {
    let message = format!("Pod {pod} waits: the cluster autoscaler is adding a node for it.");
    Reason::new(ReasonCode::ScaleUpInFlight, message)
}

/// A new node may take the pod (N4).
pub fn node_added(pod: &str) -> Reason {
    let message = format!("Pod {pod} waits: a node was added a moment ago.");
    Reason::new(ReasonCode::ScaleUpInFlight, message)
}

/// A placeholder moved to a node that has room (N2). The scheduler chooses that node, so the text does not name it.
pub fn placeholder_moved(pod: &str, placeholder: &str, node: &str) -> Reason {
    let message = format!(
        "Placeholder {placeholder} leaves node {node} for one that has room for pod {pod}."
    );
    Reason::new(ReasonCode::PlaceholderMoved, message)
}

/// A pod runs without its placeholder (N2).
pub fn pod_let_go(pod: &str, placeholder: &str) -> Reason {
    let message = format!(
        "Pod {pod} runs without placeholder {placeholder}: no node takes both, and the pod uses none of the placeholder's \
         claims."
    );
    Reason::new(ReasonCode::PodLetGo, message)
}

/// No node takes the pod, not even an empty one (N2).
pub fn pod_fits_no_node(asking: &str, obstacles: &str) -> Reason {
    let message = format!("No node takes {asking}: {obstacles}. {ADD_A_NODE}");
    Reason::new(ReasonCode::PodFitsNoNode, message)
}

/// No node that takes the pod takes its placeholder too, not even an empty one (N2).
pub fn pod_fits_no_node_beside(asking: &str, placeholder: &str, obstacles: &str) -> Reason {
    let message = format!("{}. {ADD_A_NODE}", beside(asking, placeholder, obstacles));
    Reason::new(ReasonCode::PodFitsNoNode, message)
}

/// No node that takes the pod reaches the placeholder's claims (N2).
pub fn claims_tie_to_other_nodes(asking: &str, placeholder: &str, obstacles: &str) -> Reason {
    let message = format!(
        "{}. Change the task's requests or its podTemplate, or add a node that reaches the claims.",
        beside(asking, placeholder, obstacles)
    );
    Reason::new(ReasonCode::ClaimsNotMovable, message)
}

/// The run's placeholders were moved as often as they may be (N2).
pub fn moves_exhausted(asking: &str, node: &str, moves: u32) -> Reason {
    let message = format!(
        "Node {node} has no room for {asking}, and the run's placeholders have already moved {moves} times. The run goes on \
         once the node has room."
    );
    Reason::new(ReasonCode::MovesExhausted, message)
}

/// The scheduler rejects the nodes that have room (N2).
pub fn pod_unschedulable(asking: &str, placeholder: &str) -> Reason {
    let message = format!(
        "The scheduler rejected every candidate node for {asking} and placeholder {placeholder}. See the PodScheduled \
         conditions of both pods."
    );
    Reason::new(ReasonCode::PodUnschedulable, message)
}

/// The nodes that could take the pod and its placeholder are full (N2).
pub fn nodes_full(asking: &str, placeholder: &str) -> Reason {
    let message = format!(
        "Every node that could take {asking} and placeholder {placeholder} is full, or reserved by an isolated run. The run \
         goes on once one of them has room."
    );
    Reason::new(ReasonCode::NodesFull, message)
}

const ADD_A_NODE: &str =
    "Change the task's requests or its podTemplate, or add a node that takes the pod.";

fn beside(asking: &str, placeholder: &str, obstacles: &str) -> String {
    format!("No node that takes {asking} also takes placeholder {placeholder}: {obstacles}")
}
