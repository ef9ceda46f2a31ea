//! Texts about the node of a placeholder and of the pods that follow it. `pod` is the name of a pod; `asking` is
//! the pod's name and requests.

use crate::reconcile::evacuate::Misplaced;

texts! {
    pod_evacuated(pod: &str, node: &str, cause: &Misplaced): PodEvacuated =
        "Pod {pod} left node {node}: {cause}.";

    placeholder_leaves(pod: &str, placeholder: &str, node: &str): PlaceholderLeaves =
        "Pod {pod} waits until placeholder {placeholder} has left node {node}.";

    room_on_node(pod: &str, placeholder: &str, node: &str): RoomOnNode =
        "Node {node} of placeholder {placeholder} has room for pod {pod}. The pod waits for the scheduler.";

    run_holds_room(pod: &str, placeholder: &str, node: &str): RunHoldsRoom =
        "Pod {pod} waits for node {node} of placeholder {placeholder}: other pods of the run use the room there.";

    placeholder_stays(pod: &str, placeholder: &str, node: &str): RunHoldsRoom =
        "Pod {pod} waits for node {node}: placeholder {placeholder} stays there for other pods that run beside it.";

    scale_up_triggered(pod: &str): ScaleUpInFlight =
        "Pod {pod} waits: the cluster autoscaler is adding a node for it.";

    node_added(pod: &str): ScaleUpInFlight =
        "Pod {pod} waits: a node was added a moment ago.";

    /// A placeholder moved to a node that has room (N2). The scheduler chooses that node, so the text does not name it.
    placeholder_moved(pod: &str, placeholder: &str, node: &str): PlaceholderMoved =
        "Placeholder {placeholder} leaves node {node} for one that has room for pod {pod}.";

    pod_let_go(pod: &str, placeholder: &str): PodLetGo =
        "Pod {pod} runs without placeholder {placeholder}: no node takes both, and the pod uses none of the \
         placeholder's claims.";

    pod_fits_no_node(asking: &str, obstacles: &str): PodFitsNoNode =
        "No node takes {asking}: {obstacles}. Change the task's requests or its podTemplate, or add a node that takes the \
         pod.";

    pod_fits_no_node_beside(asking: &str, placeholder: &str, obstacles: &str): PodFitsNoNode =
        "No node that takes {asking} also takes placeholder {placeholder}: {obstacles}. Change the task's requests or its \
         podTemplate, or add a node that takes the pod.";

    claims_tie_to_other_nodes(asking: &str, placeholder: &str, obstacles: &str): ClaimsNotMovable =
        "No node that takes {asking} also takes placeholder {placeholder}: {obstacles}. Change the task's requests or its \
         podTemplate, or add a node that reaches the claims.";

    moves_exhausted(asking: &str, node: &str, moves: u32): MovesExhausted =
        "Node {node} has no room for {asking}, and the run's placeholders have already moved {moves} times. The run goes on \
         once the node has room.";

    pod_unschedulable(asking: &str, placeholder: &str): PodUnschedulable =
        "The scheduler rejected every candidate node for {asking} and placeholder {placeholder}. See the PodScheduled \
         conditions of both pods.";

    nodes_full(asking: &str, placeholder: &str): NodesFull =
        "Every node that could take {asking} and placeholder {placeholder} is full, or reserved by an isolated run. The run \
         goes on once one of them has room.";
}
