//! Texts about errors of Kubernetes that concern a placeholder (N3). Each text begins with the value of parameter `failed`. This
//! value names the action that failed, such as "Failed to create claim source", or the problem, such as "Claim source has no
//! volume". `answer` is the error text of Kubernetes.

use super::{NOTE_LENGTH, Reason, ReasonCode};

/// Declares one function for each cause: `name: code, remedy`.
macro_rules! refusals {
    ($($(#[$doc:meta])* $name:ident: $code:ident, $remedy:literal;)*) => {$(
        $(#[$doc])*
        pub fn $name(failed: &str, answer: &str) -> Reason {
            refused(ReasonCode::$code, failed, answer, $remedy)
        }
    )*};
}

refusals! {
    /// A ResourceQuota does not allow the object.
    quota_exceeded: QuotaExceeded,
        "Raise the quota, or wait until other objects in the namespace are deleted. If the quota limits the number of pods, it \
         must allow the placeholder's pod and a pod of the run at the same time.";
    /// A LimitRange does not allow the object.
    limit_range_violated: LimitRangeViolated,
        "Change the LimitRange: the run then continues. Or change the refused value, and create the run again. If a claim was \
         refused, change the storage request in the volumeClaimTemplate. If a pod was refused, ask your operator to change \
         placeholder-cpu or placeholder-memory in ConfigMap coscheduler-config. If the error names a \"max limit to request \
         ratio\", create the run again with annotation coscheduler.dev/placeholder-reserves: nothing. This works only if your \
         operator allows this value.";
    /// Pod Security does not allow the placeholder's pod.
    pod_security_violated: PodSecurityViolated,
        "This error names a field. Remove the field from the run's podTemplate, and create the run again. Or set a less strict \
         Pod Security level, or a later Pod Security version, in the labels of the namespace.";
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
        "Create the missing object. Or create the run again with the name of an object that exists.";
    /// A claim of the placeholder has no volume, because the claim's StorageClass does not exist, or because the claim names none
    /// and the cluster has no default StorageClass.
    storage_class_missing: ClaimNotProvisioned,
        "Create the StorageClass. If the claim names no StorageClass, create a default StorageClass. Or create the run again \
         with a StorageClass that exists.";
    /// A claim of the placeholder has no volume for another reason.
    claim_not_provisioned: ClaimNotProvisioned,
        "The storage provisioner tries again by itself. If the claim still gets no volume, read the log of the provisioner.";
    /// The scheduler finds no node for the placeholder.
    placeholder_unschedulable: PlaceholderUnschedulable,
        "An autoscaler may add a node. If none does, add a node that matches the run's podTemplate and has room, or make room on \
         a matching node.";
    /// Other placeholders are on the nodes that an isolated placeholder could use.
    no_isolated_node: NoIsolatedNode,
        "The run continues by itself when a node matches the run's podTemplate, has room, and has no other placeholder of \
         the isolation scope (cluster or namespace). If you do not want to wait, add such a node, or create the run again in a \
         mode other than isolate-pipelinerun.";
    /// Kubernetes refused the placeholder for another reason.
    placeholder_refused: PlaceholderRefused,
        "Correct the cause of this error. tekton-coscheduler repeats the request. The run continues when the API server accepts \
         the request.";
}

fn refused(code: ReasonCode, failed: &str, answer: &str, remedy: &str) -> Reason {
    let answer = answer.trim_end_matches('.');
    // The note of the Event must also have room for the remedy.
    let room = NOTE_LENGTH.saturating_sub(failed.len() + remedy.len() + ": …. ".len());
    let (answer, cut) = if answer.len() <= room {
        (answer, "")
    } else {
        (&answer[..answer.floor_char_boundary(room)], "…")
    };
    Reason::new(code, format!("{failed}: {answer}{cut}. {remedy}"))
}
