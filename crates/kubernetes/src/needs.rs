//! Reads a pod's requirements on a node, and a node's allocatable resources (N2).

use coscheduler_core::reconcile::requests::{
    self, Amounts, InitContainer, PodResources, ResourceList,
};
use coscheduler_core::reconcile::room::Needs;
use coscheduler_core::volumes::NodeTerm;
use k8s_openapi::api::core::v1::{
    Container, ContainerStatus, Node, NodeSelector, Pod, PodStatus, ResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use std::collections::BTreeMap;

use crate::pods;
use crate::volumes::term;

/// The pod's requests, as the scheduler computes them.
pub fn requests(pod: &Pod) -> Amounts {
    let Some(spec) = &pod.spec else {
        return Amounts::default();
    };
    let status = pod.status.as_ref();
    let infeasible = status.is_some_and(is_resize_infeasible);
    let statuses = |status: &PodStatus| {
        let lists = [
            status.container_statuses.clone(),
            status.init_container_statuses.clone(),
        ];
        lists.into_iter().flatten().flatten().collect::<Vec<_>>()
    };
    let statuses = status.map(statuses).unwrap_or_default();
    let in_force = |container: &Container| {
        let asked = asked(container.resources.as_ref());
        let status = statuses.iter().find(|status| status.name == container.name);
        status
            .and_then(|status| resized(&asked, status, infeasible))
            .unwrap_or(asked)
    };
    let init_containers = spec.init_containers.iter().flatten().map(|container| {
        let sidecar = container.restart_policy.as_deref() == Some("Always");
        // Of the init containers, Kubernetes can resize only sidecars.
        let requests = if sidecar {
            in_force(container)
        } else {
            asked(container.resources.as_ref())
        };
        InitContainer { requests, sidecar }
    });
    requests::requests(&PodResources {
        init_containers: init_containers.collect(),
        containers: spec.containers.iter().map(in_force).collect(),
        pod: asked(spec.resources.as_ref()),
        overhead: list(spec.overhead.as_ref()),
    })
}

/// True if the kubelet reports that a container has more than it asks for.
pub fn is_resizing(pod: &Pod) -> bool {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let statuses = pod.status.iter();
    let statuses = statuses.flat_map(|status| status.container_statuses.iter().flatten());
    let statuses: Vec<_> = statuses.collect();
    containers.into_iter().any(|container| {
        let asked = asked(container.resources.as_ref());
        let mut statuses = statuses.iter();
        let status = statuses.find(|status| status.name == container.name);
        status.is_some_and(|status| resized(&asked, status, false).is_some_and(|it| it != asked))
    })
}

/// The requests of the pod's containers, without what the kubelet reports of a resize.
pub fn asks(pod: &Pod) -> Amounts {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    requests::requests(&PodResources {
        containers: containers.map(|it| asked(it.resources.as_ref())).collect(),
        ..PodResources::default()
    })
}

/// The pod's requirements on a node, without its claims and the nodes that the scheduler refused.
pub fn needs(pod: &Pod) -> Needs {
    let spec = pod.spec.as_ref();
    let affinity = spec.and_then(|spec| spec.affinity.as_ref()?.node_affinity.as_ref());
    let required = affinity.and_then(|affinity| {
        affinity
            .required_during_scheduling_ignored_during_execution
            .as_ref()
    });
    Needs {
        requests: requests(pod),
        selector: spec
            .and_then(|spec| spec.node_selector.clone())
            .unwrap_or_default(),
        terms: required.map(terms),
        tolerations: pods::tolerations(pod),
        ..Needs::default()
    }
}

/// The node's allocatable amounts, and the number of pods that it takes.
pub fn allocatable(node: &Node) -> (Amounts, i128) {
    let status = node.status.as_ref();
    requests::allocatable(&list(status.and_then(|status| status.allocatable.as_ref())))
}

fn asked(resources: Option<&ResourceRequirements>) -> ResourceList {
    list(resources.and_then(|resources| resources.requests.as_ref()))
}

fn resized(
    asked: &ResourceList,
    status: &ContainerStatus,
    infeasible: bool,
) -> Option<ResourceList> {
    let actual = status.resources.as_ref()?;
    let allocated = list(status.allocated_resources.as_ref());
    Some(requests::in_force(
        asked,
        &list(actual.requests.as_ref()),
        &allocated,
        infeasible,
    ))
}

fn is_resize_infeasible(status: &PodStatus) -> bool {
    let mut conditions = status.conditions.iter().flatten();
    conditions.any(|condition| {
        condition.type_ == "PodResizePending" && condition.reason.as_deref() == Some("Infeasible")
    })
}

/// The API server has validated every quantity. One that cannot be parsed here is left to the scheduler.
fn list(list: Option<&BTreeMap<String, Quantity>>) -> ResourceList {
    let entries = list.into_iter().flatten();
    entries
        .filter_map(|(name, quantity)| Some((name.clone(), quantity.0.parse().ok()?)))
        .collect()
}

fn terms(selector: &NodeSelector) -> Vec<NodeTerm> {
    selector.node_selector_terms.iter().map(term).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(value: serde_json::Value) -> Pod {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn n2_everything_that_a_pod_asks_for_is_read() {
        let full = pod(json!({
            "metadata": {"name": "p"},
            "spec": {
                "initContainers": [
                    {"name": "sidecar", "restartPolicy": "Always", "resources": {"requests": {"cpu": "1"}}},
                    {"name": "init", "resources": {"requests": {"cpu": "3", "memory": "1Gi"}}},
                ],
                "containers": [{"name": "step", "resources": {
                    "requests": {"cpu": "500m", "example.dev/gpu": "1"}, "limits": {"cpu": "9"}}}],
                "overhead": {"cpu": "100m"},
                "nodeSelector": {"arch": "arm64"},
                "tolerations": [{"key": "ci", "operator": "Exists"}],
                "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                    {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]},
                ]}}},
            },
            "status": {"phase": "Pending"},
        }));
        let needs = needs(&full);
        assert_eq!(
            needs.requests.to_string(),
            "cpu 4100m, memory 1Gi, example.dev/gpu 1"
        );
        assert_eq!(needs.selector["arch"], "arm64");
        assert_eq!(needs.tolerations[0].key, "ci");
        assert_eq!(needs.terms.as_ref().unwrap()[0].expressions[0].key, "disk");
    }

    #[test]
    fn n2_a_container_that_is_resized_counts_with_the_most_of_what_is_in_force() {
        let resized = |reason: &str| {
            let pod = pod(json!({
                "metadata": {"name": "p"},
                "spec": {"nodeName": "n", "containers": [{"name": "c", "resources": {"requests": {"cpu": "3"}}}]},
                "status": {
                    "conditions": [{"type": "PodResizePending", "status": "True", "reason": reason}],
                    "containerStatuses": [{
                        "name": "c", "image": "i", "imageID": "", "ready": true, "restartCount": 0,
                        "allocatedResources": {"cpu": "2"}, "resources": {"requests": {"cpu": "1"}}}],
                },
            }));
            requests(&pod).to_string()
        };
        assert_eq!(resized("Deferred"), "cpu 3");
        assert_eq!(resized("Infeasible"), "cpu 2");
    }

    #[test]
    fn n2_what_a_node_has_is_read() {
        let node: Node = serde_json::from_value(json!({
            "metadata": {"name": "n"},
            "status": {"allocatable": {"cpu": "3920m", "pods": "110"}, "capacity": {"cpu": "4"}},
        }))
        .unwrap();
        let (amounts, pods) = allocatable(&node);
        assert_eq!((amounts.to_string().as_str(), pods), ("cpu 3920m", 110));
    }
}
