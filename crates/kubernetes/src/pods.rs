//! Reads a pod of a run, and keeps only the fields that decisions need. [`Page`] reads only the claims and phases of many pods.

mod page;

use coscheduler_core::annotations::LIMITED_BY;
use coscheduler_core::labels::{
    AFFINITY_ASSISTANT, COMPONENT, INSTANCE, MANAGED_BY, PIPELINE_RUN_UID, TEKTON_COSCHEDULER,
};
use coscheduler_core::names::pod_name;
use coscheduler_core::observed::PodPhase;
use coscheduler_core::observed::{self, PlaceholderLabels, Unscheduled};
use coscheduler_core::reconcile::reserve::GATE;
use k8s_openapi::api::core::v1::{Affinity, Pod, PodAffinityTerm, PodCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;

pub use self::page::Page;
use crate::{needs, objects};

/// Selects the pods that have not ended. Only these may still use their claims (Kubernetes, "Field Selectors").
pub const NOT_ENDED: &str = "status.phase!=Succeeded,status.phase!=Failed";
/// Selects the pods that have ended.
pub const ENDED: &str = "status.phase!=Pending,status.phase!=Running,status.phase!=Unknown";

/// Converts the pod. `None` if it does not have the label with a run's uid.
pub fn view(pod: Pod) -> Option<observed::Pod> {
    let run_uid = label(&pod, PIPELINE_RUN_UID)?.to_owned();
    let node = node(&pod).map(str::to_owned);
    let gate = gates(&pod).find(|gate| *gate != GATE).map(str::to_owned);
    Some(observed::Pod {
        run_uid,
        controller: objects::controller(&pod.metadata),
        placeholder: placeholder(&pod),
        follows: follows(&pod),
        phase: phase(&pod),
        started: has_started(&pod),
        unscheduled: node.is_none().then(|| unscheduled(&pod)).flatten(),
        bound: scheduled(&pod, "True").and_then(|it| Some(it.last_transition_time.as_ref()?.0)),
        node,
        gate,
        created: pod.metadata.creation_timestamp.as_ref().map(|time| time.0),
        claims: claims(&pod),
        needs: needs::needs(&pod),
        namespace: pod.metadata.namespace.clone().unwrap_or_default(),
        object: objects::reference(pod.metadata),
    })
}

/// Converts the metadata of a pod that has ended. `None` if it is a placeholder's pod, or has no label with a run's uid.
pub fn ended(metadata: ObjectMeta) -> Option<observed::Pod> {
    let pod = Pod {
        metadata,
        ..Pod::default()
    };
    view(pod).filter(|pod| pod.placeholder.is_none())
}

/// True if the pod belongs to a placeholder.
pub fn is_placeholder(pod: &Pod) -> bool {
    placeholder(pod).is_some()
}

/// The facts about a placeholder's pod. `None` if the pod lacks label [`COMPONENT`], or if a TaskRun controls it: Tekton copies
/// a run's labels to the pods of its TaskRuns. `Pod::is_of` of `core` checks that the pod really belongs to a placeholder. The
/// pod is orphaned if it has no controller, and its labels and its name say that this product created it.
fn placeholder(pod: &Pod) -> Option<PlaceholderLabels> {
    let controller = objects::controller(&pod.metadata);
    if label(pod, COMPONENT) != Some(AFFINITY_ASSISTANT)
        || controller.as_ref().is_some_and(|it| it.kind == "TaskRun")
    {
        return None;
    }
    let instance = label(pod, INSTANCE).unwrap_or_default();
    // Anybody can set labels. So the name must match too: the pod of a placeholder is named after the placeholder.
    let named = pod.metadata.name.as_deref() == Some(&pod_name(instance));
    let made_by_us = named && label(pod, MANAGED_BY) == Some(TEKTON_COSCHEDULER);
    let of_run = controller.as_ref().is_some_and(|it| {
        it.kind == "PipelineRun" && Some(&*it.uid) == label(pod, PIPELINE_RUN_UID)
    });
    Some(PlaceholderLabels {
        name: if named {
            instance.to_owned()
        } else {
            String::new()
        },
        orphaned: made_by_us && controller.is_none(),
        of_run: made_by_us && of_run,
        gated: is_gated(pod),
        asks: needs::asks(pod),
        resizing: needs::is_resizing(pod),
        limited_by: pod
            .metadata
            .annotations
            .as_ref()
            .and_then(|all| all.get(LIMITED_BY).cloned()),
    })
}

/// True if the pod has the scheduling gate [`GATE`].
pub fn is_gated(pod: &Pod) -> bool {
    gates(pod).any(|gate| gate == GATE)
}

/// The names of the pod's scheduling gates.
fn gates(pod: &Pod) -> impl Iterator<Item = &str> {
    let spec = pod.spec.iter();
    let gates = spec.flat_map(|spec| spec.scheduling_gates.iter().flatten());
    gates.map(|gate| gate.name.as_str())
}

/// The pod's phase.
pub fn phase(pod: &Pod) -> PodPhase {
    let status = pod.status.as_ref();
    PodPhase::read(status.and_then(|status| status.phase.as_deref()))
}

/// The node that the pod is bound to.
pub fn node(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}

/// True if the pod has no node, and the scheduler's last try neither found a node nor began to make room on one.
pub fn is_unschedulable(pod: &Pod) -> bool {
    node(pod).is_none() && unscheduled(pod).is_some_and(|unscheduled| unscheduled.no_node)
}

/// The message of the scheduler's last result for a pod that it has not bound.
pub fn scheduler_said(pod: &Pod) -> Option<&str> {
    scheduled(pod, "False")?.message.as_deref()
}

/// The scheduler's last result for a pod that it has not bound (Kubernetes API reference, `PodCondition`).
fn unscheduled(pod: &Pod) -> Option<Unscheduled> {
    let condition = scheduled(pod, "False")?;
    let nominated = pod.status.as_ref()?.nominated_node_name.clone();
    // If the scheduler makes room on a node by preemption, it nominates this node. For a placeholder that must not preempt others,
    // the name may be left over from an earlier try (kube-scheduler 1.35).
    let spec = pod.spec.as_ref();
    let never = spec.and_then(|spec| spec.preemption_policy.as_deref()) == Some("Never");
    let preempts = nominated.is_some() && !(never && is_placeholder(pod));
    let reason = condition.reason.as_deref();
    Some(Unscheduled {
        no_node: reason == Some("Unschedulable") && !preempts,
        failed: reason == Some("SchedulerError"),
        nominated,
        message: condition.message.clone(),
        written: written(pod),
        is_newest: condition
            .observed_generation
            .is_some_and(|of| Some(of) >= pod.metadata.generation),
    })
}

/// The time at which kube-scheduler last changed the pod's status. A condition has no such time: `lastTransitionTime` stays the
/// same if only the message changes.
fn written(pod: &Pod) -> Option<Timestamp> {
    let fields = pod.metadata.managed_fields.iter().flatten();
    let by_scheduler = fields.filter(|it| {
        it.manager.as_deref() == Some("kube-scheduler")
            && it.subresource.as_deref() == Some("status")
    });
    by_scheduler
        .filter_map(|it| Some(it.time.as_ref()?.0))
        .max()
}

/// Condition `PodScheduled`, if it has this status.
fn scheduled<'a>(pod: &'a Pod, status: &str) -> Option<&'a PodCondition> {
    condition(pod, "PodScheduled", status)
}

/// True if the kubelet has created the pod's sandbox (condition `PodReadyToStartContainers`).
pub fn has_sandbox(pod: &Pod) -> bool {
    condition(pod, "PodReadyToStartContainers", "True").is_some()
}

/// The pod's condition with this type, if it has this status.
fn condition<'a>(pod: &'a Pod, type_: &str, status: &str) -> Option<&'a PodCondition> {
    let mut conditions = pod
        .status
        .iter()
        .flat_map(|it| it.conditions.iter().flatten());
    conditions.find(|it| it.type_ == type_ && it.status == status)
}

/// The names of the placeholders in the pod's required pod affinity. Tekton adds this affinity.
pub fn follows(pod: &Pod) -> Vec<String> {
    let terms = affinity(pod).and_then(|affinity| affinity.pod_affinity.as_ref());
    let terms = terms.and_then(|pods| {
        pods.required_during_scheduling_ignored_during_execution
            .as_ref()
    });
    let terms = terms
        .into_iter()
        .flatten()
        .filter(|term| selects_placeholders(term));
    terms
        .filter_map(|term| selector(term, INSTANCE).map(str::to_owned))
        .collect()
}

fn affinity(pod: &Pod) -> Option<&Affinity> {
    pod.spec.as_ref()?.affinity.as_ref()
}

fn selects_placeholders(term: &PodAffinityTerm) -> bool {
    selector(term, COMPONENT) == Some(AFFINITY_ASSISTANT)
}

fn selector<'a>(term: &'a PodAffinityTerm, key: &str) -> Option<&'a str> {
    let labels = term.label_selector.as_ref()?.match_labels.as_ref()?;
    labels.get(key).map(String::as_str)
}

/// True if a container of the pod is in state `running` or `terminated`.
pub fn has_started(pod: &Pod) -> bool {
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

/// The claims that the pod's volumes use. A generic ephemeral volume uses claim `<pod>-<volume>`.
pub fn claims(pod: &Pod) -> Vec<String> {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let volumes = pod
        .spec
        .iter()
        .flat_map(|spec| spec.volumes.iter().flatten());
    let names = volumes.filter_map(|volume| match &volume.persistent_volume_claim {
        Some(source) => Some(source.claim_name.clone()),
        None => volume
            .ephemeral
            .as_ref()
            .map(|_| format!("{name}-{}", volume.name)),
    });
    names.collect()
}

/// The value of label `key`.
pub fn label<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    pod.metadata.labels.as_ref()?.get(key).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;
    use coscheduler_core::observed::Role;
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
        assert!(placeholder(&owned_by("StatefulSet")).is_some());
        assert_eq!(placeholder(&owned_by("TaskRun")), None);
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
            assert_eq!(placeholder(&pod(object)).unwrap().orphaned, expect);
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
    fn only_the_schedulers_own_change_of_the_status_has_the_time_of_its_result() {
        let fields = |manager: &str, subresource: &str, time: &str| json!({"manager": manager, "subresource": subresource, "time": time, "operation": "Update"});
        let pod = pod(json!({
            "metadata": {"managedFields": [
                fields("kube-scheduler", "status", "2026-01-01T00:00:05Z"),
                fields("kube-scheduler", "", "2026-01-01T00:00:07Z"),
                fields("kubelet", "status", "2026-01-01T00:00:09Z"),
            ]},
            "spec": {"containers": []},
            "status": {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]},
        }));
        let written = unscheduled(&pod).unwrap().written.unwrap();
        assert_eq!(written.to_string(), "2026-01-01T00:00:05Z");
    }

    #[test]
    fn a_pod_follows_the_placeholders_of_its_required_affinity() {
        let term = |labels: serde_json::Value| json!({"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": labels}});
        let pod = pod(json!({
            "metadata": {"name": "p"},
            "spec": {"containers": [], "affinity": {
                "podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
                    term(json!({COMPONENT: AFFINITY_ASSISTANT, INSTANCE: "affinity-assistant-1"})),
                    term(json!({COMPONENT: "database", INSTANCE: "postgres"})),
                ]},
                "nodeAffinity": {},
            }},
        }));
        assert_eq!(follows(&pod), ["affinity-assistant-1"]);
    }

    /// A pod of a run, converted to the type of `core`.
    fn seen(node: Option<&str>, status: serde_json::Value) -> observed::Pod {
        let volumes = json!([
            {"name": "a", "persistentVolumeClaim": {"claimName": "one"}},
            {"name": "b", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}},
            {"name": "c", "emptyDir": {}},
        ]);
        let tolerations = json!([{"key": "spot", "operator": "Exists", "tolerationSeconds": 300}]);
        view(pod(json!({
            "metadata": {"name": "p", "labels": {PIPELINE_RUN_UID: "u"}},
            "spec": {"nodeName": node, "containers": [], "volumes": volumes, "tolerations": tolerations},
            "status": status,
        })))
        .unwrap()
    }

    #[test]
    fn a_pod_without_a_runs_label_is_of_no_run() {
        assert_eq!(view(pod(json!({"metadata": {"name": "p"}}))), None);
    }

    #[test]
    fn a_pod_has_started_with_its_first_container() {
        #[track_caller]
        fn check(status: serde_json::Value, expect: Option<Role>) {
            let pod = seen(Some("n"), status);
            assert_eq!(pod.role(), expect);
            assert!(pod.needs.tolerations[0].for_a_while && pod.needs.tolerations[0].exists);
            assert_eq!(pod.node.as_deref(), Some("n"));
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
            let pod = seen(node, json!({"phase": "Pending", "conditions": conditions}));
            pod.unscheduled.and_then(|unscheduled| unscheduled.message)
        };
        let ready = condition("Ready", "False");
        let unscheduled = condition("PodScheduled", "False");
        let said = Some("none fits".to_owned());
        assert_eq!(with(None, json!([ready, unscheduled])), said);
        assert_eq!(with(Some("n"), json!([unscheduled])), None);
        assert_eq!(with(None, json!([condition("PodScheduled", "True")])), None);
        let mut scheduled = condition("PodScheduled", "True");
        scheduled["lastTransitionTime"] = "2026-01-01T00:00:00Z".into();
        let bound = seen(Some("n"), json!({"conditions": [scheduled]}));
        assert_eq!(bound.bound.unwrap().to_string(), "2026-01-01T00:00:00Z");
        assert_eq!(with(None, json!([])), None);
    }

    #[test]
    fn n2_a_pod_that_waits_is_known_by_its_condition_and_its_claims_by_its_volumes() {
        let waiting = |reason: &str, node: Option<&str>| {
            let condition = json!({"type": "PodScheduled", "status": "False", "reason": reason, "message": "0/1 nodes"});
            let pod = seen(node, json!({"phase": "Pending", "conditions": [condition]}));
            assert_eq!(pod.claims, ["one", "p-b"]);
            pod.unscheduled.map(|it| (it.no_node, it.failed))
        };
        assert_eq!(waiting("Unschedulable", None), Some((true, false)));
        assert_eq!(waiting("SchedulingGated", None), Some((false, false)));
        assert_eq!(waiting("SchedulerError", None), Some((false, true)));
        assert_eq!(waiting("Unschedulable", Some("n")), None);
        let condition =
            json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable"});
        let status = json!({"nominatedNodeName": "n", "conditions": [condition]});
        let preempts = seen(None, status.clone()).unscheduled.unwrap();
        assert!(!preempts.no_node);
        assert_eq!(preempts.nominated.as_deref(), Some("n"));
        for (component, left_over) in [("other", false), (AFFINITY_ASSISTANT, true)] {
            let never = pod(json!({
                "metadata": {"labels": {COMPONENT: component}},
                "spec": {"preemptionPolicy": "Never", "containers": []},
                "status": status,
            }));
            assert_eq!(is_unschedulable(&never), left_over);
        }
    }
}
