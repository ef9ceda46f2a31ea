//! Patches of a placeholder's pod. They change its requests or remove its scheduling gate (B3).

use std::collections::BTreeMap;

use coscheduler_core::annotations::LIMITED_BY;
use coscheduler_core::labels::AFFINITY_ASSISTANT;
use coscheduler_core::observed::ObjectRef;
use coscheduler_core::reconcile::reserve::{GATE, Place};
use coscheduler_core::requests::{Amounts, in_words};
use coscheduler_core::volumes::{NodeRequirement, NodeTerm, Operator};
use k8s_openapi::api::core::v1::{NodeSelector, Pod, PreferredSchedulingTerm, Toleration};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde_json::{Value, json};

use crate::affinity::{WEIGHT, both};
use crate::{needs, objects};

/// The limits of a pod with these requests: one percent more, and at least one millicore and one byte more. If the limits were
/// equal to the requests, the pod would have QoS class Guaranteed, and Kubernetes does not allow a resize that changes the QoS
/// class. With whole CPUs, such a pod could also get exclusive CPUs.
pub fn limits(requests: &Amounts) -> BTreeMap<String, Quantity> {
    let more = |amount: i128| amount + (amount / 100).max(1);
    list(more(requests.milli_cpu), more(requests.memory))
}

/// The strategic merge patch for subresource `resize`. It sets the requests of the pod to `size`, and its limits to `limits`. If
/// `pod` names a version, the patch changes exactly this version.
pub fn resize(pod: &ObjectRef, size: &Amounts, limits: &BTreeMap<String, Quantity>) -> Value {
    let mut metadata = json!({"uid": pod.uid});
    if !pod.resource_version.is_empty() {
        metadata["resourceVersion"] = json!(pod.resource_version);
    }
    json!({
        "metadata": metadata,
        "spec": {"containers": [{
            "name": AFFINITY_ASSISTANT,
            "resources": {
                "requests": list(size.milli_cpu, size.memory),
                "limits": limits,
            },
        }]},
    })
}

pub(super) fn list(cpu: i128, memory: i128) -> BTreeMap<String, Quantity> {
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

/// As [`open`]. The patch also adds to the pod what `place` requires and prefers: a node selector, a node affinity,
/// tolerations, and an annotation that says to which nodes the pod is restricted.
///
/// The API server lets a gated pod add keys to its node selector, and requirements to each term of its required node affinity.
/// It lets a gated pod change its preferences, and lets any pod add tolerations. Source: Kubernetes 1.35,
/// `pkg/apis/core/validation/validation.go`, `ValidatePodUpdate`.
pub fn open_at(pod: Pod, place: &Place) -> Value {
    let mut patch = open(&objects::reference(pod.metadata));
    if let Some(limit) = &place.limited_by {
        patch["metadata"]["annotations"] = json!({LIMITED_BY: limit});
    }
    let spec = pod.spec.unwrap_or_default();
    let with = place.with.clone().unwrap_or_default();
    let affinity = spec.affinity.and_then(|it| it.node_affinity);
    let mut affinity = affinity.unwrap_or_default();
    let required = &mut affinity.required_during_scheduling_ignored_during_execution;
    let mut terms = required.take().unwrap_or_default().node_selector_terms;
    let wanted = with.terms.unwrap_or_default();
    let can_add = terms.is_empty() || wanted.len() == 1;
    if can_add && !wanted.is_empty() && needs::terms(&terms) != wanted {
        terms = both(&terms, &wanted);
    }
    if let Some(node) = &place.only {
        terms = both(&terms, &[named(Operator::In, node)]);
    }
    *required = (!terms.is_empty()).then_some(NodeSelector {
        node_selector_terms: terms,
    });
    let avoid = place.avoid.iter().map(|node| named(Operator::NotIn, node));
    let prefer = place.prefer.iter().map(|node| named(Operator::In, node));
    let wishes: Vec<_> = avoid.chain(prefer).collect();
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
        let known = tolerations.iter().any(|it| needs::toleration(it) == wanted);
        if !known && !wanted.for_a_while {
            tolerations.push(Toleration {
                key: Some(wanted.key),
                operator: wanted.exists.then(|| "Exists".to_owned()),
                value: Some(wanted.value),
                effect: Some(wanted.effect),
                toleration_seconds: None,
            });
        }
    }
    patch["spec"]["affinity"] = json!({"nodeAffinity": affinity});
    patch["spec"]["nodeSelector"] = json!(selector);
    patch["spec"]["tolerations"] = json!(tolerations);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pods;
    use coscheduler_core::labels::{COMPONENT, PIPELINE_RUN_UID};
    use coscheduler_core::observed::Needs;

    /// The `spec` of the patch for a placeholder's pod with this spec. Checks three parts of the patch: the uid, the removal of
    /// the gate, and the annotation about the nodes, which [`pods::view`] reads.
    fn opened(spec: &Value, place: &Place) -> Value {
        let labels = json!({PIPELINE_RUN_UID: "run", COMPONENT: AFFINITY_ASSISTANT});
        let mut pod =
            json!({"metadata": {"name": "p", "uid": "u", "labels": labels}, "spec": spec});
        let mut patch = open_at(serde_json::from_value(pod.clone()).unwrap(), place);
        assert_eq!(patch["metadata"]["uid"], "u");
        let gates = patch["spec"]["schedulingGates"].take();
        assert_eq!(gates, json!([{"name": GATE, "$patch": "delete"}]));
        pod["metadata"]["annotations"] = patch["metadata"]["annotations"].take();
        let seen = pods::view(serde_json::from_value(pod).unwrap()).unwrap();
        assert_eq!(seen.placeholder.unwrap().limited_by, place.limited_by);
        patch["spec"].take()
    }

    fn required(patch: &Value) -> &Value {
        let affinity = &patch["affinity"]["nodeAffinity"];
        &affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    }

    /// The spec of a pod that requires nodes with this label.
    fn spec(label: &Value, selector: Value, tolerations: Value) -> Value {
        json!({
            "containers": [],
            "nodeSelector": selector,
            "tolerations": tolerations,
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [label]}]}}},
        })
    }

    #[test]
    fn n2_a_placeholder_gets_what_the_waiting_pod_requires_of_a_node() {
        let disk = json!({"key": "disk", "operator": "In", "values": ["ssd"]});
        let arch = json!({"key": "arch", "operator": "Exists"});
        let ci = json!({"key": "ci", "value": "yes"});
        let gpu = json!({"key": "gpu", "operator": "Exists", "value": "", "effect": ""});
        let for_a_while = json!({"key": "x", "operator": "Exists", "tolerationSeconds": 300});
        let waits = spec(
            &arch,
            json!({"pool": "big", "zone": "b"}),
            json!([gpu, for_a_while]),
        );
        let waits = serde_json::from_value(json!({"spec": waits})).unwrap();
        let place = Place {
            with: Some(needs::needs(&waits)),
            ..Place::default()
        };
        let patch = opened(&spec(&disk, json!({"zone": "a"}), json!([ci])), &place);
        let both = json!([{"matchExpressions": [disk, arch]}]);
        assert_eq!(required(&patch), &both);
        // A gated pod's existing keys of the node selector cannot change.
        assert_eq!(patch["nodeSelector"], json!({"pool": "big"}));
        assert_eq!(patch["tolerations"], json!([ci, gpu]));
        let alone = opened(&json!({"containers": []}), &place);
        assert_eq!(required(&alone), &json!([{"matchExpressions": [arch]}]));
    }

    #[test]
    fn n2_a_placeholder_prefers_other_nodes_and_returns_to_its_pods() {
        let field = |operator, node| json!({"matchFields": [{"key": "metadata.name", "operator": operator, "values": [node]}]});
        let place = Place {
            only: Some("n3".to_owned()),
            with: Some(Needs::default()),
            avoid: Some("n1".to_owned()),
            prefer: vec!["n2".to_owned()],
            limited_by: Some("the pods on node n3".to_owned()),
        };
        let patch = opened(&json!({"containers": []}), &place);
        let wishes = [("NotIn", "n1"), ("In", "n2")]
            .map(|(operator, node)| json!({"weight": 100, "preference": field(operator, node)}));
        let affinity = &patch["affinity"]["nodeAffinity"];
        let preferred = &affinity["preferredDuringSchedulingIgnoredDuringExecution"];
        assert_eq!(preferred, &json!(wishes));
        assert_eq!(required(&patch), &json!([field("In", "n3")]));
        let anywhere = opened(&json!({"containers": []}), &Place::default());
        assert_eq!(required(&anywhere), &Value::Null);
    }
}
