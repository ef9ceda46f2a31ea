//! Texts about the node of a placeholder and of the pods that follow it. Parameter `pod` is a pod's name. `asking` is a pod in
//! words, with its requests if it has any. `claims` are the claims whose volumes only one node reaches.

use crate::reconcile::tell::refusals::read_answer;
use crate::requests::Amounts;

texts! {
    pod_evacuated(pod: &str, node: &str, cause: &str): PodEvacuated =
        "Pod {pod} on node {node} was deleted, because the node {cause}. If the pod is still needed, a new pod is created. The \
         new pod may have to wait for a node that accepts it.";

    reservation_reduced(placeholder: &str, asked: &Amounts, asks: &Amounts): ReservationReduced =
        "The scheduler found no node for placeholder {placeholder}, which asked for {asked}. The placeholder now asks for \
         {asks}: its own requests, and those of the largest pod that must still be started on its node. Some pods of the run may \
         have to wait until others have ended.";

    reservation_of_claims(placeholder: &str, asked: &Amounts, asks: &Amounts): ReservationReduced =
        "The scheduler found no node for placeholder {placeholder}, which asked for {asked}. Only some nodes can reach the \
         volumes of its claims. The placeholder now asks for {asks}: its own requests, and those of the largest pod that either \
         uses one of these claims or already waits for the placeholder. A pod that uses none of these claims can run on another \
         node if it finds no room beside the placeholder.";

    reservation_under_quota(placeholder: &str): ReservationReduced =
        "Placeholder {placeholder} reserves no room for the pods of the run at first, because a ResourceQuota of the namespace \
         limits CPU or memory. A reservation would use up quota that these pods need. The placeholder asks for room only when \
         a pod of the run finds no room on the placeholder's node.";

    reservation_not_reduced(placeholder: &str, node: &str): ReservationRefused =
        "tekton-coscheduler reduces the requests of a placeholder when the placeholder has a node, so that pods of the run can \
         use the room. But the API server or the kubelet of node {node} did not reduce the requests of placeholder {placeholder} \
         within 10 seconds. So the placeholder's pod is created again, and reserves no room.";

    placeholder_asks_anew(pod: &str, placeholder: &str, node: &str): PlaceholderMoved =
        "The scheduler cannot bind pod {pod} to node {node}, where placeholder {placeholder} is. So the placeholder leaves \
         this node, and asks the scheduler for a node that can take the pod and the placeholder.";

    placeholder_asks_without(placeholder: &str, limit: &str): PlaceholderMoved =
        "Placeholder {placeholder} was restricted to {limit}. The scheduler could not bind the placeholder's pod there. No pod of \
         the run needs this restriction any more. So the placeholder's pod is created again, without this restriction.";

    placeholder_returns(placeholder: &str, node: &str): PlaceholderMoved =
        "The scheduler has bound pods of the run to node {node}, but it has not bound placeholder {placeholder}, which must be on \
         the same node. So the placeholder's pod is created again. The new pod can run only on this node, and reserves no room.";

    placeholder_not_bound(placeholder: &str): PlaceholderMoved =
        "The scheduler chose a node for placeholder {placeholder}, but the binding failed. The scheduler may already be binding \
         pods of the run to the same node, because it does not wait for the placeholder's binding. The placeholder must then be \
         on this node too. So the placeholder's pod is created again, and waits until these pods are bound, but at most until \
         three seconds after the failure. If they are bound by then, the new pod can run only on their node.";

    pod_let_go(pod: &str, placeholder: &str): PodLetGo =
        "Pod {pod} is now allowed to run on another node than placeholder {placeholder}. The scheduler found no node that can \
         take both of them and that reaches the volumes of the placeholder's claims. The pod uses none of these claims, so it \
         need not run on the placeholder's node.";

    pod_away(pod: &str, placeholder: &str): PodLetGo =
        "Pod {pod} is now allowed to run on another node than placeholder {placeholder}, because no node can reach both the \
         volume of a claim that the pod uses and the volumes of the placeholder's claims.";

    moves_exhausted(asking: &str, node: &str, moves: u32): MovesExhausted =
        "The scheduler cannot bind {asking} to node {node}, where the pod's placeholder is. The run's placeholders have asked \
         the scheduler for other nodes {moves} times, as often as is allowed. They may ask again only after another pod of the \
         run has ended. The run continues when node {node} can take the pod, or when the placeholder gets another node that can \
         take the pod.";

    resource_missing(asking: &str, node: &str, resource: &str): ResourceMissing =
        "The scheduler cannot bind {asking} to node {node}, where the pod's placeholder is. The placeholder stays there, because \
         no other suitable node has enough {resource}. (A suitable node reaches the volumes of the placeholder's claims, and its \
         labels and taints allow the pod and the placeholder.) The run continues when node {node} can take the pod, or when \
         another suitable node has enough {resource}.";

    claims_hold_placeholder(asking: &str, node: &str, claims: &[String]): ClaimsNotMovable =
        "The scheduler cannot bind {asking} to node {node}. The pod and its placeholder cannot run on another node, because only \
         this node can reach the volumes of these claims: {claims}. The run continues when this node can take the pod. Make room there: \
         `kubectl coschedule nodes -o wide` shows the pods on it.",
        claims = claims.join(", ");

    claims_on_unsuitable_node(asking: &str, node: &str, claims: &[String]): ClaimsNotMovable =
        "Only node {node} can reach the volumes of these claims: {claims}. The placeholder of {asking} has these claims, so the \
         placeholder and the pod must be on this node. But the node selector or node affinity of the pod does not allow this \
         node. So the pod cannot run. Use different claims for tasks that need different nodes, and create the run again.",
        claims = claims.join(", ");

    reservation_given_up(placeholder: &str, asked: &Amounts, claims: &[String]): ReservationReduced =
        "Only one node can reach the volumes of these claims: {claims}. The scheduler did not bind placeholder {placeholder}, \
         which asked for {asked}, to this node. So the placeholder now reserves no room. Pods of the run that fit on this node \
         can start.",
        claims = claims.join(", ");

    claims_hold_unbound(placeholder: &str, asks: &Amounts, claims: &[String]): ClaimsNotMovable =
        "Only one node can reach the volumes of these claims: {claims}. The scheduler cannot bind placeholder {placeholder}, \
         which asks for {asks}, to this node. Make room there: `kubectl coschedule nodes -o wide` shows the pods on it. The run \
         then continues.",
        claims = claims.join(", ");

    claims_on_taken_node(placeholder: &str, claims: &[String]): ClaimsNotMovable =
        "Only one node can reach the volumes of these claims: {claims}. A pod on this node keeps placeholder {placeholder} away. \
         Normally this pod is the placeholder of another run, and one of the two runs is in mode isolate-pipelinerun. `kubectl \
         coschedule nodes -o wide` shows the pods on the node. The run continues when the other pod is gone.",
        claims = claims.join(", ");

    /// The placeholder asks for `next` instead. If `next` is `None`, it reserves no room.
    reservation_refused(placeholder: &str, asked: &Amounts, answer: &str, next: Option<&Amounts>): ReservationRefused =
        "The API server does not let placeholder {placeholder} ask for {asked}: {answer}. {consequence}",
        answer = read_answer(answer).1.trim_end_matches('.'),
        consequence = match next {
            None => "The placeholder reserves no room.".to_owned(),
            Some(next) => format!(
                "The placeholder asks for {next} instead: its own requests, and those of the largest pod that must still \
                 be started on its node."
            ),
        };
}
