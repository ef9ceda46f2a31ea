//! Texts about Kubernetes refusing a placeholder (N3). `failed` says what failed ("Failed to create claim ci/source"), `answer`
//! is Kubernetes' own text about it.

use super::{Reason, ReasonCode};

/// Bytes of Kubernetes' text in a message, so that the remedy behind it fits into an Event.
const ANSWER_LENGTH: usize = 600;

/// Declares a function for each refusal: `name: code, remedy`.
macro_rules! refusals {
    ($($(#[$doc:meta])* $name:ident: $code:ident, $remedy:literal;)*) => {$(
        $(#[$doc])*
        pub fn $name(failed: &str, answer: &str) -> Reason {
            refused(ReasonCode::$code, failed, answer, $remedy)
        }
    )*};
}

refusals! {
    /// A ResourceQuota forbids it.
    quota_exceeded: QuotaExceeded,
        "Raise the quota, or wait until other objects in the namespace are deleted.";
    /// A LimitRange forbids it.
    limit_range_violated: LimitRangeViolated,
        "Change the LimitRange. For new runs, you can also change placeholder-cpu and placeholder-memory in ConfigMap \
         coscheduler-config, or the storage request of the claim.";
    /// Pod Security forbids it.
    pod_security_violated: PodSecurityViolated,
        "Create the run again without this field in its podTemplate. Or choose a less strict Pod Security level, or a later \
         version of it, in the labels of the namespace.";
    /// A policy or an admission webhook denied it.
    admission_denied: AdmissionDenied,
        "Change that policy so that it allows objects with label app.kubernetes.io/managed-by: tekton-coscheduler.";
    /// The API server cannot call an admission webhook.
    admission_webhook_failed: AdmissionWebhookFailed,
        "Repair that webhook, or change it so that it skips objects with label app.kubernetes.io/managed-by: \
         tekton-coscheduler.";
    /// It names an object that does not exist.
    reference_missing: ReferenceMissing,
        "Create the missing object, or create the run again with an object that exists.";
    /// Its claim has no volume, because its StorageClass does not exist.
    storage_class_missing: ClaimNotProvisioned,
        "Create the StorageClass, or a default StorageClass if the claim names none. Or create the run again with a \
         StorageClass that exists.";
    /// Its claim has no volume for another reason.
    claim_not_provisioned: ClaimNotProvisioned,
        "The storage provisioner tries again by itself. If this does not help, read its log.";
    /// No node takes it.
    placeholder_unschedulable: PlaceholderUnschedulable,
        "Add a node that matches the run's podTemplate and has room, or make room on a node that matches.";
    /// Kubernetes refused it for another reason.
    placeholder_refused: PlaceholderRefused,
        "Remove this cause. The request is repeated, and the run continues when the API server accepts it.";
}

fn refused(code: ReasonCode, failed: &str, answer: &str, remedy: &str) -> Reason {
    let answer = answer.trim_end_matches('.');
    let (answer, cut) = match answer.len() {
        ..=ANSWER_LENGTH => (answer, ""),
        _ => (&answer[..answer.floor_char_boundary(ANSWER_LENGTH)], "…"),
    };
    Reason::new(code, format!("{failed}: {answer}{cut}. {remedy}"))
}
