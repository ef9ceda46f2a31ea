//! Patches of a placeholder's pod. They change its requests or remove its scheduling gate (B3).

use std::collections::BTreeMap;

use coscheduler_core::annotations::LIMITED_BY;
use coscheduler_core::labels::AFFINITY_ASSISTANT;
use coscheduler_core::observed::ObjectRef;
use coscheduler_core::reconcile::evacuate;
use coscheduler_core::reconcile::requests::{Amounts, in_words};
use coscheduler_core::reconcile::reserve::{GATE, Place};
use coscheduler_core::volumes::{NodeRequirement, NodeTerm, Operator};
use k8s_openapi::api::core::v1::{NodeSelector, Pod, PreferredSchedulingTerm, Toleration};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde_json::{Value, json};

use crate::affinity::{WEIGHT, both};
use crate::{needs, objects, pods};

/// The limits of a pod with these requests: one percent more. If the limits were equal to the requests, the pod would have QoS
/// class Guaranteed, and Kubernetes does not allow a resize that changes the QoS class. With whole CPUs, such a pod could also
/// get exclusive CPUs.
pub fn limits(requests: &Amounts) -> BTreeMap<String, Quantity> {
    let more = |amount: i128| amount + (amount / 100).max(1);
    list(more(requests.milli_cpu), more(requests.memory))
}

/// The strategic merge patch for subresource `resize`. It sets the requests of exactly this version of the pod to `size`, and the
/// limits in `limits`.
pub fn resize(pod: &ObjectRef, size: &Amounts, limits: &BTreeMap<String, Quantity>) -> Value {
    json!({
        "metadata": {"uid": pod.uid, "resourceVersion": pod.resource_version},
        "spec": {"containers": [{
            "name": AFFINITY_ASSISTANT,
            "resources": {
                "requests": list(size.milli_cpu, size.memory),
                "limits": limits,
            },
        }]},
    })
}

fn list(cpu: i128, memory: i128) -> BTreeMap<String, Quantity> {
    let amounts = [("cpu", cpu), ("memory", memory)];
    amounts
        .map(|(name, amount)| (name.to_owned(), Quantity(in_words(name, amount))))
        .into()
}

/// The strategic merge patch that removes the gate of a placeholder's pod.
pub fn open(pod: &ObjectRef) -> Value {
    json!({
        "metadata": {"uid": pod.uid},
        "spec": {"schedulingGates": [{"name": GATE, "$patch": "delete"}]},
    })
}

/// As [`open`], and lets only the nodes of `place` take the pod.
///
/// The API server lets a gated pod add keys to its node selector, and requirements to each term of its required node affinity.
/// Preferences and tolerations may be added at any time. Source: Kubernetes 1.35, `pkg/apis/core/validation/validation.go`,
/// `ValidatePodUpdate`.
pub fn open_at(pod: Pod, place: &Place) -> Value {
    let reference = objects::reference(pod.metadata);
    let spec = pod.spec.unwrap_or_default();
    let affinity = spec.affinity.and_then(|it| it.node_affinity);
    let mut affinity = affinity.unwrap_or_default();
    let required = affinity.required_during_scheduling_ignored_during_execution;
    let mut terms = required.map_or_else(Vec::new, |it| it.node_selector_terms);
    let with = place.with.clone().unwrap_or_default();
    let wanted = with.terms.unwrap_or_default();
    let can_add = terms.is_empty() || wanted.len() == 1;
    if can_add && !wanted.is_empty() && needs::terms(&terms) != wanted {
        terms = both(&terms, &wanted);
    }
    if let Some(node) = &place.only {
        terms = both(&terms, &[named(Operator::In, node)]);
    }
    affinity.required_during_scheduling_ignored_during_execution =
        (!terms.is_empty()).then_some(NodeSelector {
            node_selector_terms: terms,
        });
    let avoid = place.avoid.as_ref();
    let prefer = place.prefer.iter().filter(|it| avoid != Some(*it));
    let prefer = prefer.map(|node| named(Operator::In, node));
    let avoid = avoid.map(|node| named(Operator::NotIn, node));
    let wishes: Vec<_> = avoid.into_iter().chain(prefer).collect();
    let wishes = both(&[], &wishes).into_iter();
    let wishes = wishes.map(|preference| PreferredSchedulingTerm {
        preference,
        weight: WEIGHT,
    });
    let preferred = &mut affinity.preferred_during_scheduling_ignored_during_execution;
    preferred.get_or_insert_default().extend(wishes);
    let known = spec.node_selector.unwrap_or_default();
    let mut selector = with.selector;
    selector.retain(|key, _| !known.contains_key(key));
    let mut tolerations = spec.tolerations.unwrap_or_default();
    for wanted in with.tolerations {
        let known = tolerations.iter().any(|it| pods::toleration(it) == wanted);
        if !known && !wanted.for_a_while {
            tolerations.push(written(wanted));
        }
    }
    let mut patch = open(&reference);
    if let Some(limit) = &place.limited_by {
        patch["metadata"]["annotations"] = json!({LIMITED_BY: limit});
    }
    let spec = &mut patch["spec"];
    spec["affinity"] = json!({"nodeAffinity": affinity});
    spec["nodeSelector"] = json!(selector);
    spec["tolerations"] = json!(tolerations);
    patch
}

fn named(operator: Operator, node: &str) -> NodeTerm {
    NodeTerm {
        expressions: Vec::new(),
        fields: vec![NodeRequirement {
            key: "metadata.name".to_owned(),
            operator,
            values: vec![node.to_owned()],
        }],
    }
}

fn written(toleration: evacuate::Toleration) -> Toleration {
    let given = |text: String| Some(text).filter(|text| !text.is_empty());
    Toleration {
        key: given(toleration.key),
        operator: toleration.exists.then(|| "Exists".to_owned()),
        value: given(toleration.value),
        effect: given(toleration.effect),
        toleration_seconds: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coscheduler_core::labels::{COMPONENT, PIPELINE_RUN_UID};
    use coscheduler_core::observed::Needs;

    /// The `spec` of the patch for a pod with this spec. Checks what every patch has: the uid, and the removal of the gate.
    fn opened(spec: Value, place: &Place) -> Value {
        let pod = json!({"metadata": {"name": "p", "uid": "u"}, "spec": spec});
        let mut patch = open_at(serde_json::from_value(pod).unwrap(), place);
        assert_eq!(patch["metadata"]["uid"], "u");
        let gates = patch["spec"]["schedulingGates"].take();
        assert_eq!(gates, json!([{"name": GATE, "$patch": "delete"}]));
        patch["spec"].take()
    }

    fn required(patch: &Value) -> &Value {
        let affinity = &patch["affinity"]["nodeAffinity"];
        &affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    }

    fn field(operator: &str, node: &str) -> Value {
        json!([{"key": "metadata.name", "operator": operator, "values": [node]}])
    }

    #[test]
    fn n2_a_placeholder_gets_what_the_waiting_pod_requires_of_a_node() {
        let disk = json!({"key": "disk", "operator": "In", "values": ["ssd"]});
        let arch = json!({"key": "arch", "operator": "Exists"});
        let pod = json!({
            "metadata": {"name": "waits"},
            "spec": {
                "containers": [],
                "nodeSelector": {"pool": "big", "zone": "b"},
                "tolerations": [
                    {"key": "gpu", "operator": "Exists", "effect": "NoSchedule"},
                    {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
                ],
                "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [arch]}]}}},
            },
        });
        let place = Place {
            with: Some(needs::needs(&serde_json::from_value(pod).unwrap())),
            ..Place::default()
        };
        let own = json!({
            "containers": [],
            "nodeSelector": {"zone": "a"},
            "tolerations": [{"key": "ci", "value": "yes"}],
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [disk]}]}}},
        });
        let patch = opened(own, &place);
        let both = json!([{"matchExpressions": [disk, arch]}]);
        assert_eq!(required(&patch), &both);
        // A gated pod's own keys cannot change.
        assert_eq!(patch["nodeSelector"], json!({"pool": "big"}));
        assert_eq!(
            patch["tolerations"],
            json!([
                {"key": "ci", "value": "yes"},
                {"key": "gpu", "operator": "Exists", "effect": "NoSchedule"},
            ])
        );
        let alone = opened(json!({"containers": []}), &place);
        assert_eq!(required(&alone), &json!([{"matchExpressions": [arch]}]));
    }

    #[test]
    fn n2_a_placeholder_prefers_other_nodes_and_returns_to_its_pods() {
        let place = Place {
            avoid: Some("n1".to_owned()),
            prefer: vec!["n1".to_owned(), "n2".to_owned()],
            ..Place::default()
        };
        let patch = opened(json!({"containers": []}), &place);
        let affinity = &patch["affinity"]["nodeAffinity"];
        let wishes = [("NotIn", "n1"), ("In", "n2")].map(|(operator, node)| {
            json!({"weight": 100, "preference": {"matchFields": field(operator, node)}})
        });
        assert_eq!(
            affinity["preferredDuringSchedulingIgnoredDuringExecution"],
            json!(wishes)
        );
        assert_eq!(required(&patch), &Value::Null);
        let home = Place {
            only: Some("n3".to_owned()),
            limited_by: Some("the pods on node n3".to_owned()),
            with: Some(Needs::default()),
            ..Place::default()
        };
        let patch = opened(json!({"containers": []}), &home);
        let only = json!([{"matchFields": field("In", "n3")}]);
        assert_eq!(required(&patch), &only);
    }

    #[test]
    fn n2_what_limits_a_placeholders_nodes_is_read_back() {
        let place = Place {
            limited_by: Some("pod a".to_owned()),
            ..Place::default()
        };
        let mut pod = json!({"metadata": {"name": "p", "uid": "u", "labels": {
            PIPELINE_RUN_UID: "run", COMPONENT: AFFINITY_ASSISTANT}}});
        let patch = open_at(serde_json::from_value(pod.clone()).unwrap(), &place);
        pod["metadata"]["annotations"] = patch["metadata"]["annotations"].clone();
        let seen = pods::view(serde_json::from_value(pod).unwrap()).unwrap();
        assert_eq!(seen.placeholder.unwrap().limited_by, place.limited_by);
    }
}
