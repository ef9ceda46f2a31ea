//! Texts about the node of a placeholder and of the pods that follow it. `pod` is the name of a pod, and `asking` is the pod's
//! name with its requests. `obstacles` is a sentence about the problems of the nodes, from `reconcile/make_room/report.rs`.

use crate::reconcile::evacuate::Misplaced;
use crate::reconcile::requests::Amounts;

texts! {
    pod_evacuated(pod: &str, node: &str, cause: &Misplaced): PodEvacuated =
        "Pod {pod} left node {node}, because the node {cause}. The pod is created again on a node that accepts it.";

    placeholder_leaves(pod: &str, placeholder: &str, node: &str): PlaceholderLeaves =
        "Pod {pod} waits until placeholder {placeholder} has left node {node}.";

    room_on_node(pod: &str, placeholder: &str, node: &str): RoomOnNode =
        "Node {node} of placeholder {placeholder} has room for pod {pod}. The pod waits for the scheduler.";

    run_holds_room(pod: &str, placeholder: &str, node: &str): RunHoldsRoom =
        "Pod {pod} waits for room on node {node} of placeholder {placeholder}. Other pods of the run use that room now.";

    placeholder_stays(pod: &str, placeholder: &str, node: &str): RunHoldsRoom =
        "Pod {pod} waits for room on node {node}. Placeholder {placeholder} stays there until the pods that need it have ended.";

    reservation_reduced(placeholder: &str, asked: &Amounts, asks: &Amounts): ReservationReduced =
        "The scheduler found no node for placeholder {placeholder}, which asked for {asked}: all that the pods of the run can \
         request at the same time. The placeholder now asks for {asks}. Some pods may have to wait for each other.";

    reservation_under_quota(placeholder: &str): ReservationRefused =
        "Placeholder {placeholder} reserves no room, because a ResourceQuota of the namespace counts CPU or memory. The \
         reservation would take the quota from the pods of the run.";

    reservation_refused(placeholder: &str, asked: &Amounts, message: &str): ReservationRefused =
        "The API server does not let placeholder {placeholder} ask for {asked}: {message}. The placeholder reserves no room.";

    placeholder_asks_anew(pod: &str, placeholder: &str, node: &str): PlaceholderMoved =
        "Placeholder {placeholder} leaves node {node}, which has no room for pod {pod}. The placeholder asks the scheduler for \
         a node that takes both.";

    scale_up_triggered(pod: &str): ScaleUpInFlight =
        "Pod {pod} waits, because the cluster autoscaler adds a node for this pod.";

    node_added(pod: &str): ScaleUpInFlight =
        "Pod {pod} waits, because a node was added a moment ago and may have room for the pod.";

    /// A placeholder moved to a node that has room (N2). The scheduler chooses that node, so the text does not name it.
    placeholder_moved(pod: &str, placeholder: &str, node: &str): PlaceholderMoved =
        "Placeholder {placeholder} leaves node {node}, because pod {pod} has no room there. The placeholder and the pod \
         go to a node that has room.";

    pod_let_go(pod: &str, placeholder: &str): PodLetGo =
        "Pod {pod} may run on another node than placeholder {placeholder}, because no node can run both. This is safe, \
         because the pod uses no claim of the placeholder.";

    pod_fits_no_node(asking: &str, obstacles: &str): PodFitsNoNode =
        "No node can run {asking}. {obstacles}. Change the task's requests or its podTemplate, or add a node that can run the \
         pod.";

    pod_fits_no_node_beside(asking: &str, placeholder: &str, obstacles: &str): PodFitsNoNode =
        "No node can run both {asking} and placeholder {placeholder}. {obstacles}. Change the task's requests or its \
         podTemplate, or add a node that can run both.";

    claims_tie_to_other_nodes(asking: &str, placeholder: &str, obstacles: &str): ClaimsNotMovable =
        "No node can run both {asking} and placeholder {placeholder}. {obstacles}. Change the task's requests or its \
         podTemplate, or add a node that can run both and reach the claims.";

    moves_exhausted(asking: &str, node: &str, moves: u32): MovesExhausted =
        "Node {node} has no room for {asking}. The run's placeholders have moved {moves} times and do not move again. Make \
         room on this node. The run then continues.";

    pod_unschedulable(asking: &str, placeholder: &str): PodUnschedulable =
        "The scheduler rejected every node that has room for {asking} and placeholder {placeholder}. Read the scheduler's \
         reasons in condition PodScheduled of the pod.";

    nodes_full(asking: &str, placeholder: &str): NodesFull =
        "No node has room for {asking} and placeholder {placeholder} now. Each node that can run both pods is full, or is \
         reserved for an isolated run. The run continues when one of these nodes has room.";
}
