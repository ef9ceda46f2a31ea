//! Decides if a Kubernetes object belongs to this product.

use coscheduler_core::labels::{MANAGED_BY, PIPELINE_RUN_UID, TEKTON_COSCHEDULER};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// True if this product created the object for a PipelineRun, or took it over. Such an object has label [`PIPELINE_RUN_UID`].
/// In addition, label [`MANAGED_BY`] has our value, or the PipelineRun with this uid owns the object. Label [`MANAGED_BY`]
/// alone proves nothing, because Tekton copies the labels of a run to its own affinity assistants and their claims.
pub fn is_ours(metadata: &ObjectMeta) -> bool {
    let label = |key: &str| metadata.labels.as_ref()?.get(key).map(String::as_str);
    let owners = metadata.owner_references.iter().flatten();
    let mut runs = owners.filter(|owner| owner.kind == "PipelineRun");
    label(PIPELINE_RUN_UID).is_some_and(|uid| {
        label(MANAGED_BY) == Some(TEKTON_COSCHEDULER) || runs.any(|owner| owner.uid == uid)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[track_caller]
    fn check(labels: Value, owner: &str, expect: bool) {
        let owners =
            json!([{"apiVersion": "tekton.dev/v1", "kind": owner, "name": "run", "uid": "u"}]);
        let metadata = json!({"labels": labels, "ownerReferences": owners});
        let metadata = serde_json::from_value(metadata).unwrap();
        assert_eq!(is_ours(&metadata), expect, "{labels}");
    }

    #[test]
    fn n6_what_is_ours_says_so_or_carries_the_uid_of_the_run_that_owns_it() {
        check(
            json!({MANAGED_BY: TEKTON_COSCHEDULER}),
            "PipelineRun",
            false,
        );
        let both = json!({MANAGED_BY: TEKTON_COSCHEDULER, PIPELINE_RUN_UID: "u"});
        check(both, "TaskRun", true);
        check(json!({PIPELINE_RUN_UID: "u"}), "PipelineRun", true);
        check(json!({PIPELINE_RUN_UID: "other"}), "PipelineRun", false);
        check(json!({PIPELINE_RUN_UID: "u"}), "TaskRun", false);
        check(
            json!({"tekton.dev/pipelineRun": "run"}),
            "PipelineRun",
            false,
        );
        check(json!({}), "PipelineRun", false);
    }
}
