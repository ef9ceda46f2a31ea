//! Reads the requirements of a pod on its node (N2).

use coscheduler_core::labels::AFFINITY_ASSISTANT;
use coscheduler_core::node::Toleration;
use coscheduler_core::observed::Needs;
use coscheduler_core::requests::{self, Amounts, InitContainer, PodResources, ResourceList};
use coscheduler_core::volumes::NodeTerm;
use k8s_openapi::api::core::v1::{NodeSelectorTerm, Pod, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use std::collections::BTreeMap;

use crate::volumes::term;

/// The pod's requests, as the scheduler computes them. A resize that is under way counts as done.
pub fn requests(pod: &Pod) -> Amounts {
    let Some(spec) = &pod.spec else {
        return Amounts::default();
    };
    let init_containers = spec.init_containers.iter().flatten();
    let init_containers = init_containers.map(|container| InitContainer {
        requests: asked(container.resources.as_ref()),
        sidecar: container.restart_policy.as_deref() == Some("Always"),
    });
    let containers = spec.containers.iter();
    requests::requests(&PodResources {
        init_containers: init_containers.collect(),
        containers: containers.map(|it| asked(it.resources.as_ref())).collect(),
        pod: asked(spec.resources.as_ref()),
        overhead: list(spec.overhead.as_ref()),
    })
}

/// True if the kubelet reports that a placeholder's own container has more than its spec requests. Then a resize is not finished.
pub fn is_resizing(pod: &Pod) -> bool {
    let statuses = pod.status.iter();
    let statuses = statuses.flat_map(|status| status.container_statuses.iter().flatten());
    let mut own = statuses.filter(|status| status.name == AFFINITY_ASSISTANT);
    own.any(|status| {
        let asks = own_requests(pod);
        let actual = asked(status.resources.as_ref());
        let allocated = list(status.allocated_resources.as_ref());
        let more = |(name, amount): (&String, &_)| asks.get(name).is_some_and(|it| amount > it);
        actual.iter().chain(&allocated).any(more)
    })
}

/// The requests in the spec of a placeholder's own container. The status of a resize is ignored.
pub fn asks(pod: &Pod) -> Amounts {
    requests::amounts(&own_requests(pod))
}

/// As [`asks`], but without rounding up fractions. The container is found by its name, because a webhook may have added other
/// containers.
fn own_requests(pod: &Pod) -> ResourceList {
    let mut containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let own = containers.find(|container| container.name == AFFINITY_ASSISTANT);
    asked(own.and_then(|own| own.resources.as_ref()))
}

/// The pod's requirements on a node, without its claims.
pub fn needs(pod: &Pod) -> Needs {
    let spec = pod.spec.as_ref();
    let affinity = spec.and_then(|spec| spec.affinity.as_ref()?.node_affinity.clone());
    let required = affinity.and_then(|it| it.required_during_scheduling_ignored_during_execution);
    let selector = spec.and_then(|spec| spec.node_selector.clone());
    Needs {
        requests: requests(pod),
        selector: selector.unwrap_or_default(),
        terms: required.map(|required| terms(&required.node_selector_terms)),
        tolerations: tolerations(pod),
    }
}

/// The amounts of a resource list, without the number of pods.
pub(crate) fn amounts(amounts: Option<&BTreeMap<String, Quantity>>) -> Amounts {
    requests::amounts(&list(amounts))
}

fn asked(resources: Option<&ResourceRequirements>) -> ResourceList {
    list(resources.and_then(|resources| resources.requests.as_ref()))
}

/// The API server has validated every quantity. If a quantity cannot be parsed here, it is left out, and only the scheduler sees
/// it.
fn list(list: Option<&BTreeMap<String, Quantity>>) -> ResourceList {
    let entries = list.into_iter().flatten();
    let parsed = entries.filter_map(|(name, it)| Some((name.clone(), it.0.parse().ok()?)));
    parsed.collect()
}

/// The terms of a node selector.
pub(crate) fn terms(terms: &[NodeSelectorTerm]) -> Vec<NodeTerm> {
    terms.iter().map(term).collect()
}

/// The pod's tolerations.
fn tolerations(pod: &Pod) -> Vec<Toleration> {
    let spec = pod.spec.iter();
    let tolerations = spec.flat_map(|spec| spec.tolerations.iter().flatten());
    tolerations.map(toleration).collect()
}

/// Converts a toleration.
pub(crate) fn toleration(toleration: &k8s_openapi::api::core::v1::Toleration) -> Toleration {
    Toleration {
        key: toleration.key.clone().unwrap_or_default(),
        exists: toleration.operator.as_deref() == Some("Exists"),
        value: toleration.value.clone().unwrap_or_default(),
        effect: toleration.effect.clone().unwrap_or_default(),
        for_a_while: toleration.toleration_seconds.is_some(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn n2_what_a_pod_asks_for_is_read() {
        let full = json!({
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
        });
        let needs = needs(&serde_json::from_value(full).unwrap());
        let requests = "cpu 4100m, memory 1Gi, example.dev/gpu 1";
        assert_eq!(needs.requests.to_string(), requests);
        assert_eq!(needs.selector["arch"], "arm64");
        assert_eq!(needs.tolerations[0].key, "ci");
        assert_eq!(needs.terms.as_ref().unwrap()[0].expressions[0].key, "disk");
    }

    #[test]
    fn b3_a_resize_is_under_way_until_the_kubelet_reports_it() {
        for (more, expect) in [
            (json!({}), false),
            (json!({"resources": {"requests": {"cpu": "1000m"}}}), false),
            (json!({"resources": {"requests": {"cpu": "3"}}}), true),
            (json!({"allocatedResources": {"cpu": "3"}}), true),
        ] {
            let mut status = json!({"name": AFFINITY_ASSISTANT, "image": "i", "imageID": "", "ready": true, "restartCount": 0});
            let fields = more.as_object().unwrap().clone();
            status.as_object_mut().unwrap().extend(fields);
            let container =
                |name, cpu| json!({"name": name, "resources": {"requests": {"cpu": cpu}}});
            let pod = json!({
                // A webhook added the other container.
                "spec": {"containers": [container(AFFINITY_ASSISTANT, "1"), container("proxy", "100m")]},
                "status": {"containerStatuses": [status]},
            });
            let pod = serde_json::from_value(pod).unwrap();
            assert_eq!(is_resizing(&pod), expect, "{more}");
            assert_eq!(asks(&pod).to_string(), "cpu 1");
        }
    }
}
