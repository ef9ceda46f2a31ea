//! Texts about Kubernetes refusing a placeholder (N3). `failed` says what failed ("Failed to create claim ci/source"), `answer`
//! is Kubernetes' own text about it.

use super::{Reason, ReasonCode};

/// Bytes of Kubernetes' text in a message, so that the remedy behind it fits into an Event.
const ANSWER_LENGTH: usize = 600;

/// A ResourceQuota forbids it.
pub fn quota_exceeded(failed: &str, answer: &str) -> Reason {
    let remedy = "Raise the quota, or wait until other objects in the namespace are gone.";
    refused(ReasonCode::QuotaExceeded, failed, answer, remedy)
}

/// A LimitRange forbids it.
pub fn limit_range_violated(failed: &str, answer: &str) -> Reason {
    let remedy = "Change the LimitRange. For new runs, you can also change placeholder-cpu and placeholder-memory, or the \
                  storage request of the claim.";
    refused(ReasonCode::LimitRangeViolated, failed, answer, remedy)
}

/// Pod Security forbids it.
pub fn pod_security_violated(failed: &str, answer: &str) -> Reason {
    let remedy = "Let the namespace enforce a lower level or a later version, or create the run again without this field in \
                  its podTemplate.";
    refused(ReasonCode::PodSecurityViolated, failed, answer, remedy)
}

/// A policy or an admission webhook denied it.
pub fn admission_denied(failed: &str, answer: &str) -> Reason {
    let remedy = "Make that policy allow objects with label app.kubernetes.io/managed-by: tekton-coscheduler.";
    refused(ReasonCode::AdmissionDenied, failed, answer, remedy)
}

/// The API server cannot call an admission webhook.
pub fn admission_webhook_failed(failed: &str, answer: &str) -> Reason {
    let remedy = "Restore that webhook, or make it ignore objects with label app.kubernetes.io/managed-by: \
                  tekton-coscheduler.";
    refused(ReasonCode::AdmissionWebhookFailed, failed, answer, remedy)
}

/// It names an object that does not exist.
pub fn reference_missing(failed: &str, answer: &str) -> Reason {
    let remedy = "Create the missing object, or create the run again with one that exists.";
    refused(ReasonCode::ReferenceMissing, failed, answer, remedy)
}

/// Kubernetes refused it for another reason.
pub fn placeholder_refused(failed: &str, answer: &str) -> Reason {
    let remedy = "The run goes on once the API server accepts the request.";
    refused(ReasonCode::PlaceholderRefused, failed, answer, remedy)
}

/// A claim has no volume, because its StorageClass does not exist.
pub fn storage_class_missing(claim: &str, answer: &str) -> Reason {
    let remedy = "Create that StorageClass, or a default one if the claim names none, or create the run again with one that \
                  exists.";
    not_provisioned(claim, answer, remedy)
}

/// A claim has no volume for another reason.
pub fn claim_not_provisioned(claim: &str, answer: &str) -> Reason {
    let remedy = "The provisioner tries again by itself. See its log.";
    not_provisioned(claim, answer, remedy)
}

/// No node takes a placeholder.
pub fn placeholder_unschedulable(failed: &str, answer: &str) -> Reason {
    let remedy = "Add a node that meets the run's podTemplate and has room, or make room on one.";
    refused(ReasonCode::PlaceholderUnschedulable, failed, answer, remedy)
}

fn not_provisioned(claim: &str, answer: &str, remedy: &str) -> Reason {
    let failed = format!("Claim {claim} has no volume");
    refused(ReasonCode::ClaimNotProvisioned, &failed, answer, remedy)
}

fn refused(code: ReasonCode, failed: &str, answer: &str, remedy: &str) -> Reason {
    let answer = answer.trim_end_matches('.');
    let (answer, cut) = match answer.len() {
        ..=ANSWER_LENGTH => (answer, ""),
        _ => (&answer[..answer.floor_char_boundary(ANSWER_LENGTH)], "…"),
    };
    Reason::new(code, format!("{failed}: {answer}{cut}. {remedy}"))
}
