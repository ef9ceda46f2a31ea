//! How a placeholder is sent to other nodes (N2). Its StatefulSet's template is given a required node affinity to them, its pod is
//! deleted, and the StatefulSet makes it anew; once that is bound, the template becomes what it was. As pods are updated only
//! `OnDelete`, no other pod is touched, and the scheduler decides between the nodes.

use coscheduler_core::volumes::{NodeRequirement, NodeTerm, Operator};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{NodeAffinity, NodeSelector};
use serde_json::{Value, json};

use crate::affinity::both;

/// Annotation of a StatefulSet whose placeholder is being moved: to which nodes, and the node affinity that its template had.
const MOVE: &str = "coscheduler.dev/move";

/// Nodes that a placeholder is being moved to.
#[derive(Clone, Debug, PartialEq)]
pub struct Move {
    /// By name; at least one.
    pub nodes: Vec<String>,
    before: Value,
}

/// The move that is under way; `None` where none is.
pub fn under_way(set: &StatefulSet) -> Option<Move> {
    let text = set.metadata.annotations.as_ref()?.get(MOVE)?;
    let value: Value = serde_json::from_str(text).ok()?;
    Some(Move {
        nodes: serde_json::from_value(value.get("nodes")?.clone()).ok()?,
        before: value.get("before")?.clone(),
    })
}

/// The merge patch that sends the placeholder to these nodes, for exactly this version of its StatefulSet.
pub fn begin(set: &StatefulSet, nodes: &[String]) -> Value {
    let before = match under_way(set) {
        Some(again) => again.before,
        None => serde_json::to_value(affinity(set)).unwrap_or_default(),
    };
    // One term a node: a field is compared with one value.
    let terms: Vec<_> = nodes.iter().map(|node| term(node)).collect();
    let mut affinity: NodeAffinity = serde_json::from_value(before.clone()).unwrap_or_default();
    let required = affinity
        .required_during_scheduling_ignored_during_execution
        .take();
    let required = required.map(|selector| selector.node_selector_terms);
    affinity.required_during_scheduling_ignored_during_execution = Some(NodeSelector {
        node_selector_terms: both(&required.unwrap_or_default(), &terms),
    });
    let annotation = json!({"nodes": nodes, "before": before}).to_string();
    patch(set, Value::String(annotation), json!(affinity))
}

/// The merge patch that ends a move, wherever the placeholder is.
pub fn end(set: &StatefulSet) -> Option<Value> {
    let Move { before, .. } = under_way(set)?;
    Some(patch(set, Value::Null, before))
}

/// Whether the StatefulSet's controller has seen it as it is: the next pod is made from the template of now.
pub fn is_observed(set: &StatefulSet) -> bool {
    let observed = set
        .status
        .as_ref()
        .and_then(|status| status.observed_generation);
    observed >= set.metadata.generation
}

fn affinity(set: &StatefulSet) -> Option<NodeAffinity> {
    let pod = set.spec.as_ref()?.template.spec.as_ref()?;
    pod.affinity.as_ref()?.node_affinity.clone()
}

fn term(node: &str) -> NodeTerm {
    NodeTerm {
        expressions: Vec::new(),
        fields: vec![NodeRequirement {
            key: "metadata.name".to_owned(),
            operator: Operator::In,
            values: vec![node.to_owned()],
        }],
    }
}

fn patch(set: &StatefulSet, annotation: Value, affinity: Value) -> Value {
    json!({
        "metadata": {
            "uid": set.metadata.uid,
            "resourceVersion": set.metadata.resource_version,
            "annotations": {MOVE: annotation},
        },
        "spec": {"template": {"spec": {"affinity": {"nodeAffinity": affinity}}}},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A merge patch as the API server applies it (RFC 7386).
    fn apply(target: &mut Value, patch: &Value) {
        let Some(patch) = patch.as_object() else {
            *target = patch.clone();
            return;
        };
        if !target.is_object() {
            *target = json!({});
        }
        let target = target.as_object_mut().unwrap();
        for (key, value) in patch {
            if value.is_null() {
                target.remove(key);
            } else {
                apply(target.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
    }

    fn set(affinity: Value) -> Value {
        json!({
            "metadata": {"name": "s", "uid": "u", "resourceVersion": "7", "annotations": {"a": "b"}},
            "spec": {"selector": {}, "template": {"spec": {"containers": [], "affinity": affinity}}},
        })
    }

    fn read(set: &Value) -> StatefulSet {
        serde_json::from_value(set.clone()).unwrap()
    }

    fn nodes(names: &[&str]) -> Vec<String> {
        names.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn n2_a_moved_placeholder_may_take_one_of_the_nodes_where_its_author_wants_it() {
        let disk = json!({"key": "disk", "operator": "In", "values": ["ssd"]});
        let field =
            |node: &str| json!([{"key": "metadata.name", "operator": "In", "values": [node]}]);
        let required = |terms: Value| json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}});
        let terms = |object: &Value| {
            let affinity = &object["spec"]["template"]["spec"]["affinity"];
            let required =
                &affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
            required["nodeSelectorTerms"].clone()
        };
        let apart = json!({"preferredDuringSchedulingIgnoredDuringExecution": []});
        for (before, expect) in [
            (
                json!({"podAntiAffinity": apart}),
                json!([{"matchFields": field("n1")}, {"matchFields": field("n2")}]),
            ),
            (
                json!({"podAntiAffinity": apart, "nodeAffinity": required(json!([{"matchExpressions": [disk]}]))}),
                json!([
                    {"matchExpressions": [disk], "matchFields": field("n1")},
                    {"matchExpressions": [disk], "matchFields": field("n2")},
                ]),
            ),
        ] {
            let original = set(before);
            assert_eq!(under_way(&read(&original)), None);
            assert_eq!(end(&read(&original)), None);
            let mut moved = original.clone();
            apply(&mut moved, &begin(&read(&original), &nodes(&["n1", "n2"])));
            assert_eq!(terms(&moved), expect);
            moved["metadata"]["generation"] = 2.into();
            moved["status"] = json!({"replicas": 1, "observedGeneration": 1});
            assert!(!is_observed(&read(&moved)));
            moved["status"]["observedGeneration"] = 2.into();
            assert!(is_observed(&read(&moved)));
            for key in ["generation", "status"] {
                let of = if key == "status" {
                    &mut moved
                } else {
                    &mut moved["metadata"]
                };
                of.as_object_mut().unwrap().remove(key);
            }
            let moving = under_way(&read(&moved)).unwrap();
            assert_eq!(moving.nodes, ["n1", "n2"]);
            // Sent on before it has arrived.
            let mut again = moved.clone();
            apply(&mut again, &begin(&read(&moved), &nodes(&["n3"])));
            assert_eq!(terms(&again).as_array().unwrap().len(), 1);
            for mut ended in [moved, again] {
                let patch = end(&read(&ended)).unwrap();
                assert_eq!(patch["metadata"]["resourceVersion"], "7");
                apply(&mut ended, &patch);
                assert_eq!(ended, original);
            }
        }
    }
}
