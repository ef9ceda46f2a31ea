//! Reads Kubernetes' errors about a placeholder (N3): the API server refuses the placeholder, its pod or one of its claims, a
//! claim gets no volume, or the scheduler finds no node. Each known error gets one of nine codes, and a remedy. (What our own
//! admission refuses is in `admit/denials.rs`.)
//!
//! Kubernetes writes its error texts for people and may change them. An unknown text gets code
//! [`ReasonCode::PlaceholderRefused`], and its words stay the same. Numbers that change with each try, such as the used part of a
//! quota, are removed from known texts. So one cause always gives the same [`Reason`].

use std::collections::BTreeSet;

use super::blocked_reason;
use crate::annotations::BLOCKED;
use crate::event_texts;
use crate::names::AssistantName;
use crate::observed::{Pod, Unscheduled};
use crate::pipeline_run::PipelineRun;
use crate::plan::{Reason, ReasonCode};
use crate::requests::Amounts;

/// The codes of the causes that keep a placeholder from being created or scheduled. All but the first come from an error text of
/// Kubernetes. The last code is for unknown error texts.
pub const REFUSALS: [ReasonCode; 11] = [
    ReasonCode::PlaceholderNameTaken,
    ReasonCode::QuotaExceeded,
    ReasonCode::LimitRangeViolated,
    ReasonCode::PodSecurityViolated,
    ReasonCode::AdmissionDenied,
    ReasonCode::AdmissionWebhookFailed,
    ReasonCode::ReferenceMissing,
    ReasonCode::ClaimNotProvisioned,
    ReasonCode::NoIsolatedNode,
    ReasonCode::PlaceholderUnschedulable,
    ReasonCode::PlaceholderRefused,
];

/// The prefix of a message that stands for several similar Events (client-go, `tools/record/events_cache.go`).
const COMBINED: &str = "(combined from similar events): ";

/// The reason why the API server refused a request. `act` is the request in words, for example "create claim source", and
/// `answer` is the API server's error text.
pub fn refused(act: &str, answer: &str) -> Reason {
    let (reason, detail) = read_answer(answer);
    reason(&format!("Failed to {act}"), &detail)
}

/// The reason why a placeholder's pod could not be created, from the note of an Event `FailedCreate`. `None` for a note about a
/// claim, because another Event reports the same error for the pod.
pub fn failed_create(note: &str) -> Option<Reason> {
    let note = note.strip_prefix(COMBINED).unwrap_or(note);
    // Releases of Kubernetes differ in the capital letter.
    let about_pod = ["Create Pod ", "create Pod "]
        .iter()
        .find_map(|verb| note.strip_prefix(verb))?;
    let (about, answer) = about_pod.split_once(" failed error: ")?;
    let pod = about.split(' ').next().unwrap_or_default();
    Some(match first_claim(answer) {
        Some((claim, answer)) => refused(&format!("create claim {claim}"), answer),
        None => refused(&format!("create pod {pod}"), answer),
    })
}

/// The reason why a claim has no volume, from the note of an Event `ProvisioningFailed` or `FailedBinding`.
pub fn not_provisioned(claim: &str, note: &str) -> Reason {
    let detail = note.strip_prefix(COMBINED).unwrap_or(note);
    let class_missing = detail.starts_with("storageclass.storage.k8s.io ")
        && detail.ends_with(" not found")
        || detail.ends_with("no storage class is set");
    let failed = format!("Claim {claim} has no volume");
    if class_missing {
        event_texts::storage_class_missing(&failed, detail)
    } else {
        event_texts::claim_not_provisioned(&failed, detail)
    }
}

/// The reason why a placeholder's pod has no node, from the scheduler's message `said`. The pod requests `asks`. `crowded` is
/// true if the placeholder is isolated, and other placeholders keep it from some nodes. `None` in two cases. First: the pod waits
/// for volumes. (If provisioning fails, a warning Event about the claim reports this.) Second: the message names a missing claim,
/// but `exists` is true for this claim. (The scheduler's cache does not have the claim yet.)
pub(super) fn unschedulable(
    name: &AssistantName,
    crowded: bool,
    asks: &Amounts,
    said: &str,
    exists: impl Fn(&str) -> bool,
) -> Option<Reason> {
    let detail = without_counts(said);
    if waits_for_volume(said) {
        return None;
    }
    let missing = missing_claim(said);
    if missing.as_deref().is_some_and(exists) {
        return None;
    }
    let reason = if missing.is_some() {
        event_texts::reference_missing
    } else if crowded {
        event_texts::no_isolated_node
    } else {
        event_texts::placeholder_unschedulable
    };
    let failed = format!("No node can run placeholder {name} (requests: {asks})");
    Some(reason(&failed, &detail))
}

/// The claim that the scheduler's message calls "not found". This claim does not exist, or the scheduler's cache does not have it
/// yet. `None` if the message names no such claim (`pkg/scheduler/framework/plugins/volumebinding`).
pub(super) fn missing_claim(said: &str) -> Option<String> {
    let detail = without_counts(said);
    let claim = detail.strip_prefix("persistentvolumeclaim \"")?;
    claim.strip_suffix("\" not found").map(str::to_owned)
}

/// True if the scheduler's message says that the pod waits for a volume (`pkg/scheduler/framework/plugins/volumebinding`).
pub(super) fn waits_for_volume(said: &str) -> bool {
    said.contains("pod has unbound immediate PersistentVolumeClaims")
}

/// True if the scheduler's message says that another pod uses a `ReadWriteOncePod` claim of the pod
/// (`pkg/scheduler/framework/plugins/volumerestrictions`).
pub(super) fn waits_for_other_pod(said: &str) -> bool {
    said.contains("ReadWriteOncePod")
}

/// True if the scheduler's message says that the pod waits for one of its claims. Another node would not help.
pub(in crate::reconcile) fn waits_for_claim(said: &str) -> bool {
    waits_for_volume(said) || waits_for_other_pod(said) || missing_claim(said).is_some()
}

/// The scheduler's answer, if it has found no node for the pod. `None` also if the pod waits for one of its claims, because the
/// scheduler has not looked for a node yet.
pub(in crate::reconcile) fn without_node(pod: &Pod) -> Option<&Unscheduled> {
    let refused = pod.unscheduled.as_ref().filter(|it| it.no_node);
    refused.filter(|it| !it.message.as_deref().is_some_and(waits_for_claim))
}

/// True if the scheduler's message says that another pod keeps the placeholder from at least one node. Normally this pod is a
/// placeholder, and one of the two is isolated
/// (`pkg/scheduler/framework/plugins/interpodaffinity/filtering.go`).
pub(super) fn meets_other_placeholders(said: &str) -> bool {
    said.contains("anti-affinity rules")
}

/// True if the scheduler's message says that at least one node lacks room
/// (`pkg/scheduler/framework/plugins/noderesources/fit.go`, `fitsRequest`).
pub fn lacks_room(said: &str) -> bool {
    said.contains("Insufficient ") || said.contains("Too many pods")
}

/// True if the scheduler's message names only the pod's affinity to other pods as the cause. If the pod's placeholder is bound,
/// such a message is probably older than the binding: since the binding, the placeholder's node meets the affinity, so a newer
/// message would give another cause for this node (`pkg/scheduler/framework/plugins/interpodaffinity/filtering.go`,
/// `ErrReasonAffinityRulesNotMatch`).
pub(in crate::reconcile) fn tells_of_no_node(said: &str) -> bool {
    let first = said.split(". ").next().unwrap_or_default();
    let causes = first.split_once("nodes are available: ");
    causes.is_some_and(|(_, causes)| {
        let mut causes = causes.trim_end_matches('.').split(", ");
        causes.all(|cause| cause.ends_with("didn't match pod affinity rules"))
    })
}

/// The code in annotation [`BLOCKED`] of a run, if it is one of [`REFUSALS`].
pub fn said_on(run: &PipelineRun) -> Option<ReasonCode> {
    let reason = blocked_reason(run.annotations.get(BLOCKED)?)?;
    REFUSALS.contains(&reason.code).then_some(reason.code)
}

/// Reads the API server's error text. Returns the function of module [`event_texts`] for its cause, and the part of the text that is
/// the same at each try.
pub(crate) fn read_answer(answer: &str) -> (fn(&str, &str) -> Reason, String) {
    // Answers from webhooks are read first, because their texts may look like any other answer.
    if answer.starts_with("admission webhook ") {
        return (event_texts::admission_denied, answer.to_owned());
    }
    if let Some(webhook) = failed_webhook(answer) {
        return (event_texts::admission_webhook_failed, webhook);
    }
    let detail = match answer.split_once("\" is forbidden: ") {
        Some((_, detail)) => detail,
        None => answer,
    };
    let is = |prefix: &str, suffix: &str| detail.starts_with(prefix) && detail.ends_with(suffix);
    let is_missing = is("error looking up service account ", " not found")
        || is("no PriorityClass with name ", " was found")
        || is("pod rejected: RuntimeClass ", " not found");
    let is_policy = ["ValidatingAdmissionPolicy ", "policy "]
        .iter()
        .any(|prefix| detail.starts_with(prefix))
        && detail.contains(" denied request: ");
    if let Some(quota) = quota(detail) {
        return (event_texts::quota_exceeded, quota);
    }
    let reason = if is_missing {
        event_texts::reference_missing
    } else if is_policy {
        event_texts::admission_denied
    } else if is_limit(detail) {
        event_texts::limit_range_violated
    } else if detail.starts_with("violates PodSecurity ") {
        event_texts::pod_security_violated
    } else {
        return (event_texts::placeholder_refused, answer.to_owned());
    };
    (reason, detail.to_owned())
}

/// A text with the webhook that could not be called, and the innermost cause. The other parts of the answer contain addresses and
/// ports, which differ from call to call. `None` if the answer is about something else.
fn failed_webhook(answer: &str) -> Option<String> {
    let answer = answer
        .strip_prefix("Internal error occurred: ")
        .unwrap_or(answer);
    let rest = answer.strip_prefix("failed calling webhook \"")?;
    let (name, causes) = rest.split_once('"')?;
    let innermost = causes.rsplit(": ").next().unwrap_or_default();
    Some(format!("webhook \"{name}\" cannot be called: {innermost}"))
}

/// The message of a quota, without the amounts in use. `None` if the answer is about something else.
/// Source: Kubernetes `k8s.io/apiserver/pkg/admission/plugin/resourcequota/controller.go`.
fn quota(detail: &str) -> Option<String> {
    let prefixes = [
        "exceeded quota: ",
        "failed quota: ",
        "insufficient quota to ",
        "status unknown for quota: ",
    ];
    if !prefixes.iter().any(|prefix| detail.starts_with(prefix)) {
        return None;
    }
    let unused = detail.split_once(", used: ").and_then(|(before, after)| {
        let (_, limited) = after.split_once(", limited: ")?;
        Some(format!("{before}, limited: {limited}"))
    });
    Some(unused.unwrap_or_else(|| detail.to_owned()))
}

/// True for the message of a LimitRange. A list of several messages is in brackets
/// (`plugin/pkg/admission/limitranger/admission.go`).
fn is_limit(detail: &str) -> bool {
    let detail = detail.strip_prefix('[').unwrap_or(detail);
    let bound = detail.starts_with("minimum ") || detail.starts_with("maximum ");
    bound && detail.contains(" usage per ") || detail.contains(" max limit to request ratio per ")
}

/// The claim that the placeholder's controller could not create, and the API server's answer about this claim. (The controller
/// creates a pod only after its claims.) If there are several such claims, returns the first in alphabetical order, because
/// Kubernetes lists them in any order.
fn first_claim(answer: &str) -> Option<(&str, &str)> {
    const MARK: &str = "failed to create PVC ";
    let list = answer
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    let claims = list.unwrap_or(answer).strip_prefix(MARK)?;
    let between = format!(", {MARK}");
    let claims = claims.split(between.as_str());
    claims.filter_map(|claim| claim.split_once(": ")).min()
}

/// The scheduler's reasons, each without its number of nodes, and without the sentences about preemption that follow them
/// (`pkg/scheduler/framework/types.go`, `FitError`).
fn without_counts(said: &str) -> String {
    let said = match said.split_once(" nodes are available: ") {
        Some((number, said)) if number.starts_with("0/") => said.split(". ").next().unwrap_or(said),
        _ => said,
    };
    let reasons: BTreeSet<&str> = said
        .trim_end_matches('.')
        .split(", ")
        .map(|reason| match reason.split_once(' ') {
            Some((number, reason)) if number.bytes().all(|byte| byte.is_ascii_digit()) => reason,
            _ => reason,
        })
        .collect();
    reasons.into_iter().collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests;
