//! What is read of a pod: whose it is, and where it stands. Which claims it uses is read in pages of many pods.

mod page;

use coscheduler_core::labels::{AFFINITY_ASSISTANT, COMPONENT, INSTANCE};
use coscheduler_core::teardown::{ObjectRef, PlaceholderPod, PodPhase};
use k8s_openapi::api::core::v1::Pod;

pub use self::page::Page;
use crate::labels::{MANAGED_BY, TEKTON_COSCHEDULER};

/// Whether the pod is a placeholder rather than a TaskRun's pod. The label alone does not say: Tekton copies the labels
/// that an author gives a run to the pods of its TaskRuns.
pub fn is_placeholder(pod: &Pod) -> bool {
    let owners = pod.metadata.owner_references.iter().flatten();
    let mut controllers = owners.filter(|owner| owner.controller == Some(true));
    label(pod, COMPONENT) == Some(AFFINITY_ASSISTANT)
        && controllers.all(|controller| controller.kind != "TaskRun")
}

/// The placeholder's pod as `core` sees it. An orphan is what a StatefulSet of ours has made, by its labels and name, and
/// what has no controller any more.
pub fn placeholder(pod: &Pod) -> PlaceholderPod {
    let metadata = &pod.metadata;
    let name = metadata.name.clone().unwrap_or_default();
    let mut owners = metadata.owner_references.iter().flatten();
    let made_by_us = label(pod, MANAGED_BY) == Some(TEKTON_COSCHEDULER)
        && label(pod, INSTANCE).is_some_and(|assistant| name == format!("{assistant}-0"));
    PlaceholderPod {
        orphaned: made_by_us && !owners.any(|owner| owner.controller == Some(true)),
        pod: ObjectRef {
            name,
            uid: metadata.uid.clone().unwrap_or_default(),
            resource_version: metadata.resource_version.clone().unwrap_or_default(),
            deleting: metadata.deletion_timestamp.is_some(),
        },
    }
}

/// The pod's phase.
pub fn phase(pod: &Pod) -> PodPhase {
    PodPhase::read(
        pod.status
            .as_ref()
            .and_then(|status| status.phase.as_deref()),
    )
}

/// The node that the pod is bound to.
pub fn node(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}

/// The value of one label.
pub fn label<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    pod.metadata
        .labels
        .as_ref()?
        .get(key)
        .map(std::string::String::as_str)
}

/// Drops what nobody here reads, before a pod goes into a cache.
pub fn trim(pod: &mut Pod) {
    pod.metadata.managed_fields = None;
    pod.metadata.annotations = None;
    if let Some(spec) = &mut pod.spec {
        let node_name = spec.node_name.take();
        *spec = k8s_openapi::api::core::v1::PodSpec {
            node_name,
            ..Default::default()
        };
    }
    if let Some(status) = &mut pod.status {
        let phase = status.phase.take();
        *status = k8s_openapi::api::core::v1::PodStatus {
            phase,
            ..Default::default()
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(value: serde_json::Value) -> Pod {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_task_runs_pod_is_no_placeholder_whatever_its_labels_say() {
        let owned_by = |kind: &str| {
            pod(json!({"metadata": {
                "labels": {COMPONENT: AFFINITY_ASSISTANT},
                "ownerReferences": [{"apiVersion": "v1", "kind": kind, "name": "o", "uid": "u", "controller": true}],
            }}))
        };
        assert!(is_placeholder(&owned_by("StatefulSet")));
        assert!(!is_placeholder(&owned_by("TaskRun")));
    }

    #[test]
    fn an_orphan_is_a_placeholder_of_ours_without_a_controller() {
        #[track_caller]
        fn check(change: impl FnOnce(&mut serde_json::Value), expect: bool) {
            let mut object = json!({"metadata": {
                "name": "affinity-assistant-0123456789-0", "uid": "u", "resourceVersion": "7",
                "labels": {
                    COMPONENT: AFFINITY_ASSISTANT,
                    INSTANCE: "affinity-assistant-0123456789",
                    MANAGED_BY: TEKTON_COSCHEDULER,
                },
                "ownerReferences": [],
            }});
            change(&mut object["metadata"]);
            assert_eq!(placeholder(&pod(object)).orphaned, expect);
        }
        let owner = |controller: bool| json!([{"apiVersion": "v1", "kind": "K", "name": "o", "uid": "u", "controller": controller}]);
        check(|_| (), true);
        check(|pod| pod["ownerReferences"] = owner(false), true);
        check(|pod| pod["ownerReferences"] = owner(true), false);
        check(|pod| pod["name"] = "build".into(), false);
        check(|pod| pod["labels"][MANAGED_BY] = "tekton".into(), false);
        check(|pod| pod["labels"][INSTANCE] = "other".into(), false);
    }

    #[test]
    fn trimming_keeps_what_is_read() {
        let mut full = pod(json!({
            "metadata": {"name": "p", "annotations": {"a": "b"}},
            "spec": {"nodeName": "n", "containers": [{"name": "c"}]},
            "status": {"phase": "Succeeded", "podIP": "10.0.0.1"},
        }));
        trim(&mut full);
        assert_eq!(node(&full), Some("n"));
        assert_eq!(phase(&full), PodPhase::Succeeded);
        assert!(full.metadata.annotations.is_none());
    }
}
