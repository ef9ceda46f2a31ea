//! What is read of a pod: whose it is, and where it stands. Which claims it uses is read in pages of many pods.

mod page;
mod trim;

use coscheduler_core::evacuate::{BoundPod, Role, Toleration};
use coscheduler_core::labels::{
    AFFINITY_ASSISTANT, COMPONENT, INSTANCE, MANAGED_BY, TEKTON_COSCHEDULER,
};
use coscheduler_core::teardown::{ObjectRef, PlaceholderPod, PodPhase};
use k8s_openapi::api::core::v1::{Pod, PodCondition};

pub use self::page::Page;
pub use self::trim::trim;

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

/// The pod as something that is bound to a node, with that node's name; `None` before it is bound, and once it has ended.
pub fn bound(pod: &Pod) -> Option<(&str, BoundPod)> {
    let node = node(pod)?;
    let role = match phase(pod) {
        PodPhase::Succeeded | PodPhase::Failed => return None,
        _ if is_placeholder(pod) => Role::Placeholder,
        PodPhase::Pending if !any_container_started(pod) => Role::NeverStarted,
        PodPhase::Pending | PodPhase::Running | PodPhase::Unknown => Role::Started,
    };
    let tolerations = tolerations(pod);
    Some((node, BoundPod { role, tolerations }))
}

/// What the scheduler says of the pod, while it has found no node for it (Kubernetes API reference, `PodCondition`).
pub fn unschedulable(pod: &Pod) -> Option<&str> {
    unscheduled(pod)?.message.as_deref()
}

/// Whether the scheduler has said that it finds no node for the pod, and it has none yet.
pub fn is_unschedulable(pod: &Pod) -> bool {
    unscheduled(pod).is_some_and(|condition| condition.reason.as_deref() == Some("Unschedulable"))
}

fn unscheduled(pod: &Pod) -> Option<&PodCondition> {
    if node(pod).is_some() {
        return None;
    }
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    conditions
        .iter()
        .find(|condition| is_unscheduled(condition))
}

fn is_unscheduled(condition: &PodCondition) -> bool {
    condition.type_ == "PodScheduled" && condition.status == "False"
}

/// The taints that the pod bears.
pub fn tolerations(pod: &Pod) -> Vec<Toleration> {
    let spec = pod.spec.iter();
    let tolerations = spec.flat_map(|spec| spec.tolerations.iter().flatten());
    tolerations
        .map(|toleration| Toleration {
            key: toleration.key.clone().unwrap_or_default(),
            exists: toleration.operator.as_deref() == Some("Exists"),
            value: toleration.value.clone().unwrap_or_default(),
            effect: toleration.effect.clone().unwrap_or_default(),
            for_a_while: toleration.toleration_seconds.is_some(),
        })
        .collect()
}

/// The placeholders whose node the pod has to share, by the affinity that Tekton's pod builder has given it.
pub fn follows(pod: &Pod) -> Vec<&str> {
    let affinity = pod.spec.as_ref().and_then(|spec| spec.affinity.as_ref());
    let terms = affinity
        .and_then(|affinity| affinity.pod_affinity.as_ref())
        .and_then(|pods| {
            pods.required_during_scheduling_ignored_during_execution
                .as_ref()
        });
    let selectors = terms
        .into_iter()
        .flatten()
        .filter_map(|term| term.label_selector.as_ref()?.match_labels.as_ref());
    selectors
        .filter(|labels| labels.get(COMPONENT).map(String::as_str) == Some(AFFINITY_ASSISTANT))
        .filter_map(|labels| labels.get(INSTANCE).map(String::as_str))
        .collect()
}

fn any_container_started(pod: &Pod) -> bool {
    pod.status.iter().any(|status| {
        let containers = [&status.init_container_statuses, &status.container_statuses];
        let mut states = containers
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|container| container.state.as_ref());
        states.any(|state| state.running.is_some() || state.terminated.is_some())
    })
}

/// The claims among the pod's volumes; a generic ephemeral volume's is named after pod and volume.
pub fn claims(pod: &Pod) -> Vec<String> {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let volumes = pod
        .spec
        .iter()
        .flat_map(|spec| spec.volumes.iter().flatten());
    volumes
        .filter_map(|volume| match &volume.persistent_volume_claim {
            Some(source) => Some(source.claim_name.clone()),
            None => volume
                .ephemeral
                .as_ref()
                .map(|_| format!("{name}-{}", volume.name)),
        })
        .collect()
}

/// The value of one label.
pub fn label<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    pod.metadata
        .labels
        .as_ref()?
        .get(key)
        .map(std::string::String::as_str)
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
    fn a_pod_follows_the_placeholders_of_its_required_affinity() {
        let term = |labels: serde_json::Value| json!({"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": labels}});
        let mut pod = pod(json!({
            "metadata": {"name": "p"},
            "spec": {"containers": [], "affinity": {
                "podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
                    term(json!({COMPONENT: AFFINITY_ASSISTANT, INSTANCE: "affinity-assistant-1"})),
                    term(json!({COMPONENT: "database", INSTANCE: "postgres"})),
                ]},
                "nodeAffinity": {},
            }},
        }));
        trim(&mut pod);
        assert_eq!(follows(&pod), ["affinity-assistant-1"]);
    }

    #[test]
    fn a_pod_has_started_with_its_first_container() {
        #[track_caller]
        fn check(status: serde_json::Value, expect: Option<Role>) {
            let mut pod = pod(json!({
                "metadata": {"name": "p"},
                "spec": {"nodeName": "n", "containers": [], "tolerations": [
                    {"key": "spot", "operator": "Exists", "tolerationSeconds": 300}]},
                "status": status,
            }));
            let before = bound(&pod).map(|(node, pod)| (node.to_owned(), pod));
            assert_eq!(before.as_ref().map(|(_, pod)| pod.role), expect);
            trim(&mut pod);
            assert_eq!(
                bound(&pod).map(|(node, pod)| (node.to_owned(), pod)),
                before
            );
        }
        let waiting = json!([{"name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"waiting": {"reason": "PodInitializing"}}}]);
        let ended = json!([{"name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"terminated": {"exitCode": 0}}}]);
        check(json!({}), Some(Role::Started));
        check(json!({"phase": "Pending"}), Some(Role::NeverStarted));
        check(
            json!({"phase": "Pending", "containerStatuses": waiting}),
            Some(Role::NeverStarted),
        );
        let initialising = json!({"phase": "Pending", "containerStatuses": waiting, "initContainerStatuses": ended});
        check(initialising, Some(Role::Started));
        check(json!({"phase": "Running"}), Some(Role::Started));
        check(json!({"phase": "Succeeded"}), None);
    }

    #[test]
    fn n3_what_the_scheduler_says_is_read_while_it_has_found_no_node() {
        let condition = |type_: &str, status: &str| json!({"type": type_, "status": status, "message": "none fits"});
        let with = |node: Option<&str>, conditions: serde_json::Value| {
            let mut pod = pod(json!({
                "metadata": {"name": "p"},
                "spec": {"nodeName": node, "containers": []},
                "status": {"phase": "Pending", "conditions": conditions},
            }));
            trim(&mut pod);
            unschedulable(&pod).map(str::to_owned)
        };
        let ready = condition("Ready", "False");
        let unscheduled = condition("PodScheduled", "False");
        let said = Some("none fits".to_owned());
        assert_eq!(with(None, json!([ready, unscheduled])), said);
        assert_eq!(with(Some("n"), json!([unscheduled])), None);
        assert_eq!(with(None, json!([condition("PodScheduled", "True")])), None);
        assert_eq!(with(None, json!([])), None);
    }

    #[test]
    fn n2_a_pod_that_waits_is_known_by_its_condition_and_its_claims_by_its_volumes() {
        let waiting = |reason: &str, node: Option<&str>| {
            let mut pod = pod(json!({
                "metadata": {"name": "p"},
                "spec": {"nodeName": node, "containers": [], "volumes": [
                    {"name": "a", "persistentVolumeClaim": {"claimName": "one"}},
                    {"name": "b", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}},
                    {"name": "c", "emptyDir": {}},
                ]},
                "status": {"phase": "Pending", "conditions": [
                    {"type": "PodScheduled", "status": "False", "reason": reason, "message": "0/1 nodes"}]},
            }));
            trim(&mut pod);
            assert_eq!(claims(&pod), ["one", "p-b"]);
            is_unschedulable(&pod)
        };
        assert!(waiting("Unschedulable", None));
        assert!(!waiting("SchedulingGated", None));
        assert!(!waiting("Unschedulable", Some("n")));
    }
}
