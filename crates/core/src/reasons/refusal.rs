//! Texts about placeholders that Kubernetes refuses (N3). `failed` is the failed action ("Failed to create claim ci/source").
//! `answer` is the error text of Kubernetes.

use super::{Reason, ReasonCode};

/// The most bytes of Kubernetes' text in a message. The remedy after this text must fit into the Event too.
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
    /// A ResourceQuota forbids the object.
    quota_exceeded: QuotaExceeded,
        "Raise the quota, or wait until other objects in the namespace are deleted.";
    /// A LimitRange forbids the object.
    limit_range_violated: LimitRangeViolated,
        "Change the LimitRange. For new runs, you can also change placeholder-cpu and placeholder-memory in ConfigMap \
         coscheduler-config, or the storage request of the claim.";
    /// Pod Security forbids the placeholder's pod.
    pod_security_violated: PodSecurityViolated,
        "Remove the field that Pod Security names from the podTemplate of the run, and create the run again. Or set a less strict Pod Security level, or a later Pod \
         Security version, in the labels of the namespace.";
    /// A policy or an admission webhook denied the object.
    admission_denied: AdmissionDenied,
        "Change this policy or webhook so that it allows objects with label app.kubernetes.io/managed-by: \
         tekton-coscheduler.";
    /// The API server cannot call an admission webhook.
    admission_webhook_failed: AdmissionWebhookFailed,
        "Repair this webhook, or change it so that it skips objects with label app.kubernetes.io/managed-by: \
         tekton-coscheduler.";
    /// The placeholder names an object that does not exist.
    reference_missing: ReferenceMissing,
        "Create the missing object, or create the run again with an object that exists.";
    /// A claim of the placeholder has no volume, because the claim's StorageClass does not exist.
    storage_class_missing: ClaimNotProvisioned,
        "Create the StorageClass. If the claim names no StorageClass, create a default StorageClass. Or create the run again \
         with a StorageClass that exists.";
    /// A claim of the placeholder has no volume for another reason.
    claim_not_provisioned: ClaimNotProvisioned,
        "The storage provisioner tries again by itself. If the claim still gets no volume, read the provisioner's log.";
    /// The scheduler finds no node for the placeholder.
    placeholder_unschedulable: PlaceholderUnschedulable,
        "Add a node that matches the run's podTemplate and has room, or make room on a node that matches the podTemplate.";
    /// Kubernetes refused the placeholder for another reason.
    placeholder_refused: PlaceholderRefused,
        "Remove this cause. tekton-coscheduler repeats the request. The run continues when the API server accepts the request.";
}

fn refused(code: ReasonCode, failed: &str, answer: &str, remedy: &str) -> Reason {
    let answer = answer.trim_end_matches('.');
    let (answer, cut) = match answer.len() {
        ..=ANSWER_LENGTH => (answer, ""),
        _ => (&answer[..answer.floor_char_boundary(ANSWER_LENGTH)], "…"),
    };
    Reason::new(code, format!("{failed}: {answer}{cut}. {remedy}"))
}
