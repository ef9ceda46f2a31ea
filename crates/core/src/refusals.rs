//! Why a placeholder is not there: what the control plane says when it cannot create a placeholder, give one of its claims a
//! volume or find it a node, read into one of eight causes, with what helps (N3).
//!
//! These texts are written for people and are no contract. One that is not recognised becomes
//! [`ReasonCode::PlaceholderRefused`], as it stands. What differs from one try to the next (how much of a quota is used, how
//! many nodes there are) is left out, so that one cause is one [`Reason`] however often it is met.

use std::collections::BTreeSet;

use crate::annotations::BLOCKED;
use crate::names::AssistantName;
use crate::notices::blocked_reason;
use crate::observed::Planned;
use crate::pipeline_run::PipelineRun;
use crate::plan::{PlaceholderSpec, Reason, ReasonCode};
use crate::reasons;

/// Everything that keeps a placeholder from being created or scheduled; the last stands for what is not recognised.
pub const REFUSALS: [ReasonCode; 9] = [
    ReasonCode::QuotaExceeded,
    ReasonCode::LimitRangeViolated,
    ReasonCode::PodSecurityViolated,
    ReasonCode::AdmissionDenied,
    ReasonCode::AdmissionWebhookFailed,
    ReasonCode::ReferenceMissing,
    ReasonCode::ClaimNotProvisioned,
    ReasonCode::PlaceholderUnschedulable,
    ReasonCode::PlaceholderRefused,
];

/// What client-go writes before a message that stands for several (`tools/record/events_cache.go`).
const COMBINED: &str = "(combined from similar events): ";

/// A placeholder that exists, as far as it is seen waiting.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SeenPlaceholder {
    /// Why its pod could not be created the last time, by [`failed_create`]; `None` once the pod is there.
    pub refused: Option<Reason>,
    /// Why a claim of it has no volume, by [`not_provisioned`]: of those that have none, in the order of the plan.
    pub not_provisioned: Vec<Reason>,
    /// What the scheduler said last of its pod, while that has no node.
    pub unschedulable: Option<String>,
    /// The claims of it that exist.
    pub claims: BTreeSet<String>,
}

impl SeenPlaceholder {
    /// What the placeholder waits for, the first cause first; `None` where nobody has complained.
    fn waits_for(&self, name: &AssistantName) -> Option<Reason> {
        let refused = self.refused.clone();
        let not_provisioned = || self.not_provisioned.first().cloned();
        let said = self.unschedulable.as_deref();
        refused
            .or_else(not_provisioned)
            .or_else(|| unschedulable(name, said?, &self.claims))
    }
}

/// What is seen of the placeholders of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waits {
    /// Why one of them is not there.
    pub reason: Option<Reason>,
    /// Whether each of them exists.
    pub every_one_exists: bool,
}

/// What the placeholders of a run wait for. `seen` answers `None` for one that does not exist.
pub fn waits(
    planned: &Planned,
    seen: impl Fn(&PlaceholderSpec) -> Option<SeenPlaceholder>,
) -> Waits {
    let mut waits = Waits {
        reason: None,
        every_one_exists: true,
    };
    // One that cannot be planned for is told elsewhere.
    let Ok(plan) = planned else { return waits };
    for spec in plan.action.placeholders() {
        match seen(spec) {
            Some(seen) => waits.reason = waits.reason.or_else(|| seen.waits_for(&spec.name)),
            None => waits.every_one_exists = false,
        }
    }
    waits
}

/// Why the API server refused to `act` ("create claim ci/source"), from its answer.
pub fn refused(act: &str, answer: &str) -> Reason {
    let (reason, detail) = read_answer(answer);
    reason(&format!("Failed to {act}"), &detail)
}

/// Why a placeholder's pod could not be created, from the note of an Event `FailedCreate`. `None` for a note about a claim:
/// another one about the pod says the same (Kubernetes 1.35, `pkg/controller/statefulset/stateful_pod_control.go`).
pub fn failed_create(note: &str) -> Option<Reason> {
    let note = note.strip_prefix(COMBINED).unwrap_or(note);
    // Which of the two it is depends on the release.
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

/// Why a claim has no volume, from the note of an Event `ProvisioningFailed` or `FailedBinding`.
pub fn not_provisioned(claim: &str, note: &str) -> Reason {
    let detail = note.strip_prefix(COMBINED).unwrap_or(note);
    let class_missing = detail.starts_with("storageclass.storage.k8s.io ")
        && detail.ends_with(" not found")
        || detail.ends_with("no storage class is set");
    let failed = format!("Claim {claim} has no volume");
    if class_missing {
        reasons::storage_class_missing(&failed, detail)
    } else {
        reasons::claim_not_provisioned(&failed, detail)
    }
}

/// Why a placeholder's pod has no node, from what the scheduler says of it. `None` while it waits for volumes that are on
/// their way: should they not come, there is a complaint about the claim. `None`, too, where the scheduler has yet to hear of
/// a claim that exists.
fn unschedulable(name: &AssistantName, said: &str, existing: &BTreeSet<String>) -> Option<Reason> {
    let detail = without_counts(said);
    if detail.contains("pod has unbound immediate PersistentVolumeClaims") {
        return None;
    }
    let failed = format!("No node takes placeholder {name}");
    let missing = detail
        .strip_prefix("persistentvolumeclaim \"")
        .and_then(|rest| rest.strip_suffix("\" not found"));
    if missing.is_some_and(|claim| existing.contains(claim)) {
        return None;
    }
    Some(if missing.is_some() {
        reasons::reference_missing(&failed, &detail)
    } else {
        reasons::placeholder_unschedulable(&failed, &detail)
    })
}

/// Whether annotation [`BLOCKED`] of a run is to stay although nothing else is known to block it: a placeholder is not there,
/// and whoever was refused it last has said so.
pub fn still_refused(run: &PipelineRun, waits: &Waits) -> bool {
    !waits.every_one_exists && said_on(run).is_some()
}

/// The refusal in annotation [`BLOCKED`] of a run.
pub fn said_on(run: &PipelineRun) -> Option<ReasonCode> {
    let reason = blocked_reason(run.annotations.get(BLOCKED)?)?;
    REFUSALS.contains(&reason.code).then_some(reason.code)
}

/// What the API server's answer means: a reason, and the part of the answer that stays the same from try to try.
fn read_answer(answer: &str) -> (fn(&str, &str) -> Reason, String) {
    // Those first: what others answer with is theirs, whatever it reads like.
    if answer.starts_with("admission webhook ") {
        return (reasons::admission_denied, answer.to_owned());
    }
    if let Some(webhook) = failed_webhook(answer) {
        return (reasons::admission_webhook_failed, webhook);
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
        return (reasons::quota_exceeded, quota);
    }
    let reason = if is_missing {
        reasons::reference_missing
    } else if is_policy {
        reasons::admission_denied
    } else if is_limit(detail) {
        reasons::limit_range_violated
    } else if detail.starts_with("violates PodSecurity ") {
        reasons::pod_security_violated
    } else {
        return (reasons::placeholder_refused, answer.to_owned());
    };
    (reason, detail.to_owned())
}

/// Which webhook could not be called, and the end of the story: addresses and ports differ from call to call.
fn failed_webhook(answer: &str) -> Option<String> {
    let answer = answer
        .strip_prefix("Internal error occurred: ")
        .unwrap_or(answer);
    let rest = answer.strip_prefix("failed calling webhook \"")?;
    let (name, story) = rest.split_once('"')?;
    let end = story.rsplit(": ").next().unwrap_or_default();
    Some(format!("webhook \"{name}\" cannot be called: {end}"))
}

/// What a quota says, without how much of it is used at the moment
/// (`k8s.io/apiserver/pkg/admission/plugin/resourcequota/controller.go`).
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

/// Whether a LimitRange says so; several of its sentences come in brackets
/// (`plugin/pkg/admission/limitranger/admission.go`).
fn is_limit(detail: &str) -> bool {
    let detail = detail.strip_prefix('[').unwrap_or(detail);
    let bound = detail.starts_with("minimum ") || detail.starts_with("maximum ");
    bound && detail.contains(" usage per ") || detail.contains(" max limit to request ratio per ")
}

/// The claim that a pod could not be created for, and the answer about it: of several the first by name, as they come in any
/// order.
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

/// What keeps the nodes from taking a pod, without how many of them each, and without what preemption and others could do
/// about it, which come in a sentence of their own (`pkg/scheduler/framework/types.go`, `FitError`).
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
