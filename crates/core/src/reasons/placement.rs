//! Texts about the node of a placeholder and of the pods that follow it. `pod` is the name of a pod, and `asking` is the pod's
//! name with its requests.

use crate::reconcile::evacuate::Misplaced;
use crate::reconcile::requests::Amounts;
use crate::reconcile::tell::refusals::read_answer;

use super::{Reason, ReasonCode};

texts! {
    pod_evacuated(pod: &str, node: &str, cause: &Misplaced): PodEvacuated =
        "Pod {pod} left node {node}, because the node {cause}. The pod is created again on a node that accepts it.";

    reservation_reduced(placeholder: &str, asked: &Amounts, asks: &Amounts): ReservationReduced =
        "The scheduler found no node for placeholder {placeholder}, which asked for {asked}. The placeholder now asks for {asks}: \
         its own requests, and those of the largest pod that the run still has to start. Some pods of the run may have to wait \
         until others have ended.";

    reservation_under_quota(placeholder: &str): ReservationReduced =
        "Placeholder {placeholder} reserves no room at the beginning of the run, because a ResourceQuota of the namespace counts \
         CPU or memory. A reservation would use up quota that the pods of the run need. The placeholder asks for room only if a \
         pod of the run finds none.";

    reservation_not_reduced(placeholder: &str, node: &str): ReservationRefused =
        "Placeholder {placeholder} on node {node} could not give its room up within 10 seconds, because the API server or the \
         node's kubelet did not reduce its requests. The placeholder's pod is created again.";

    placeholder_asks_anew(pod: &str, placeholder: &str, node: &str): PlaceholderMoved =
        "The scheduler cannot bind pod {pod} to node {node}, where placeholder {placeholder} is. So the placeholder leaves this \
         node, and asks the scheduler for a node that can take the pod and the placeholder.";

    placeholder_asks_without(placeholder: &str, limit: &str): PlaceholderMoved =
        "The pod of placeholder {placeholder} could run only on {limit}. The scheduler could not place it there. No pod \
         of the run needs this restriction any more, or the node of the run's pods does not accept the placeholder any more. So the \
         placeholder's pod is created again without this restriction.";

    placeholder_returns(placeholder: &str, node: &str): PlaceholderMoved =
        "The scheduler found no node with the room that placeholder {placeholder} asked for. Pods of the run are on node {node}, so \
         the placeholder must be there too. The placeholder's pod is created again. It can run only on this node, and reserves no \
         room.";

    pod_let_go(pod: &str, placeholder: &str): PodLetGo =
        "Pod {pod} is now allowed to run on another node than placeholder {placeholder}. The scheduler found no node that has \
         room for both and reaches the volumes of the placeholder's claims. The pod uses none of these claims, so it need not run \
         on the placeholder's node.";

    moves_exhausted(asking: &str, node: &str, moves: u32): MovesExhausted =
        "The scheduler cannot bind {asking} to node {node}, where the pod's placeholder is. The pods of the run's \
         placeholders were created again {moves} times. The placeholders do not leave their nodes again for a pod that waits. The \
         run continues when this node can take the pod.";
}

/// The API server refuses the requests of a placeholder that asks for room. `next` are those that the placeholder asks for instead.
pub fn reservation_refused(
    placeholder: &str,
    asked: &Amounts,
    message: &str,
    next: Option<&Amounts>,
) -> Reason {
    let (_, message) = read_answer(message);
    let consequence = next.map_or_else(
        || "The placeholder reserves no room.".to_owned(),
        |next| {
            format!(
                "The placeholder asks for {next} instead: its own requests, and those of the run's largest pod."
            )
        },
    );
    let message = format!(
        "The API server does not let placeholder {placeholder} ask for {asked}: {message}. {consequence}"
    );
    Reason::new(ReasonCode::ReservationRefused, message)
}

/// A pod finds no room, and volumes keep the placeholder on its node.
pub fn claims_hold_placeholder(asking: &str, node: &str, claims: &[String]) -> Reason {
    let message = format!(
        "The scheduler cannot bind {asking} to node {node}. The pod and its placeholder cannot run on another node, because only \
         this node can reach the volumes of these claims: {}. The run continues when this node can take the pod.",
        claims.join(", ")
    );
    Reason::new(ReasonCode::ClaimsNotMovable, message)
}

/// Only one node reaches `claims`, and it has no room for what the placeholder asked for.
pub fn reservation_given_up(placeholder: &str, asked: &Amounts, claims: &[String]) -> Reason {
    let message = format!(
        "Only one node can reach the volumes of these claims: {}. This node has no room for placeholder {placeholder}, which \
         asked for {asked}. So the placeholder reserves no room. Pods of the run that fit on this node can start.",
        claims.join(", ")
    );
    Reason::new(ReasonCode::ReservationReduced, message)
}

/// A placeholder that asks for room finds no node, because only one node can reach its volumes.
pub fn claims_hold_unbound(placeholder: &str, asks: &Amounts, claims: &[String]) -> Reason {
    let message = format!(
        "Only one node can reach the volumes of these claims: {}. This node has no room for placeholder {placeholder}, which \
         asks for {asks}. Make room on this node. The run then continues.",
        claims.join(", ")
    );
    Reason::new(ReasonCode::ClaimsNotMovable, message)
}
