//! Texts about the node of a placeholder and of the pods that follow it. `pod` is the name of a pod; `asking` is the same with
//! its requests.

use crate::evacuate::Misplaced;

texts! {
    /// A pod left a node that turns pods away (N1).
    pod_evacuated(pod: &str, node: &str, cause: &Misplaced): PodEvacuated =
        "Pod {pod} left node {node}: {cause}.";

    /// A pod waits for a placeholder that is leaving its node (N1).
    placeholder_leaves(pod: &str, placeholder: &str, node: &str): PlaceholderLeaves =
        "Pod {pod} waits until placeholder {placeholder} has left node {node}.";

    /// The placeholder's node has room for the pod (N2).
    room_on_node(pod: &str, placeholder: &str, node: &str): RoomOnNode =
        "Node {node} of placeholder {placeholder} has room for pod {pod}. The pod waits for the scheduler.";

    /// The run's own pods use the room that the pod needs (N2).
    run_holds_room(pod: &str, placeholder: &str, node: &str): RunHoldsRoom =
        "Pod {pod} waits for node {node} of placeholder {placeholder}: other pods of the run use the room there.";

    /// Other pods keep the placeholder on its node (N2).
    placeholder_stays(pod: &str, placeholder: &str, node: &str): RunHoldsRoom =
        "Pod {pod} waits for node {node}: placeholder {placeholder} stays there for other pods that run beside it.";

    /// The cluster autoscaler is adding a node for the pod (N4).
    scale_up_triggered(pod: &str): ScaleUpInFlight =
        "Pod {pod} waits: the cluster autoscaler is adding a node for it.";

    /// A new node may take the pod (N4).
    node_added(pod: &str): ScaleUpInFlight =
        "Pod {pod} waits: a node was added a moment ago.";

    /// A placeholder moved to a node that has room (N2). The scheduler chooses that node, so the text does not name it.
    placeholder_moved(pod: &str, placeholder: &str, node: &str): PlaceholderMoved =
        "Placeholder {placeholder} leaves node {node} for one that has room for pod {pod}.";

    /// A pod runs without its placeholder (N2).
    pod_let_go(pod: &str, placeholder: &str): PodLetGo =
        "Pod {pod} runs without placeholder {placeholder}: no node takes both, and the pod uses none of the \
         placeholder's claims.";

    /// No node takes the pod, not even an empty one (N2).
    pod_fits_no_node(asking: &str, obstacles: &str): PodFitsNoNode =
        "No node takes {asking}: {obstacles}. Change the task's requests or its podTemplate, or add a node that takes the \
         pod.";

    /// No node that takes the pod takes its placeholder too, not even an empty one (N2).
    pod_fits_no_node_beside(asking: &str, placeholder: &str, obstacles: &str): PodFitsNoNode =
        "No node that takes {asking} also takes placeholder {placeholder}: {obstacles}. Change the task's requests or its \
         podTemplate, or add a node that takes the pod.";

    /// No node that takes the pod reaches the placeholder's claims (N2).
    claims_tie_to_other_nodes(asking: &str, placeholder: &str, obstacles: &str): ClaimsNotMovable =
        "No node that takes {asking} also takes placeholder {placeholder}: {obstacles}. Change the task's requests or its \
         podTemplate, or add a node that reaches the claims.";

    /// The run's placeholders were moved as often as they may be (N2).
    moves_exhausted(asking: &str, node: &str, moves: u32): MovesExhausted =
        "Node {node} has no room for {asking}, and the run's placeholders have already moved {moves} times. The run goes on \
         once the node has room.";

    /// The scheduler rejects the nodes that have room (N2).
    pod_unschedulable(asking: &str, placeholder: &str): PodUnschedulable =
        "The scheduler rejected every candidate node for {asking} and placeholder {placeholder}. See the PodScheduled \
         conditions of both pods.";

    /// The nodes that could take the pod and its placeholder are full (N2).
    nodes_full(asking: &str, placeholder: &str): NodesFull =
        "Every node that could take {asking} and placeholder {placeholder} is full, or reserved by an isolated run. The run \
         goes on once one of them has room.";
}
