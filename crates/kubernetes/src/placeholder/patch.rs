//! Patches of a placeholder's object. Each contains the record of earlier actions (N1, N2, N3).
//!
//! A move takes three steps:
//!
//! 1. [`send`] changes the pod template of the StatefulSet: a required node affinity allows only the target nodes. The update
//!    strategy `OnDelete` leaves the running pod alone.
//! 2. The manager deletes the pod. The StatefulSet controller creates a new pod, and the scheduler chooses one of the target
//!    nodes.
//! 3. When the new pod is bound, [`end`] restores the template.

use coscheduler_core::annotations::{MOVE, RECORD};
use coscheduler_core::observed::{Move, Placeholder, Record};
use coscheduler_core::volumes::{NodeRequirement, NodeTerm, Operator};
use k8s_openapi::api::core::v1::{NodeAffinity, NodeSelector};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};

use crate::affinity::both;

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";

/// The move under way.
pub(super) fn under_way(metadata: &ObjectMeta) -> Option<Move> {
    serde_json::from_str(metadata.annotations.as_ref()?.get(MOVE)?).ok()
}

/// The merge patch that writes this record.
pub fn record(own: &Placeholder, record: &Record) -> Value {
    json!({"metadata": {"uid": own.object.uid, "annotations": {RECORD: text(record)}}})
}

/// The merge patch that starts a move to these nodes. It applies to exactly this version of the placeholder.
pub fn send(own: &Placeholder, record: &Record, nodes: &[String]) -> Value {
    let before = match &own.moving {
        Some(again) => again.before.clone(),
        None => own.node_affinity.clone(),
    };
    let affinity = only(before.clone(), nodes);
    let nodes = nodes.to_vec();
    let moving = serde_json::to_string(&Move { nodes, before }).unwrap_or_default();
    patch(own, record, Value::String(moving), json!(affinity))
}

/// A node affinity that only these nodes meet, and only if they met it before.
pub(super) fn only(before: Value, nodes: &[String]) -> NodeAffinity {
    // One term for each node, because a field requirement allows one value only.
    let terms: Vec<_> = nodes.iter().map(|node| term(node)).collect();
    let mut affinity: NodeAffinity = serde_json::from_value(before).unwrap_or_default();
    let required = affinity
        .required_during_scheduling_ignored_during_execution
        .take();
    let required = required.map(|selector| selector.node_selector_terms);
    affinity.required_during_scheduling_ignored_during_execution = Some(NodeSelector {
        node_selector_terms: both(&required.unwrap_or_default(), &terms),
    });
    affinity
}

/// The merge patch that ends a move. It applies to exactly this version of the placeholder. `None` if there is no move.
pub fn end(own: &Placeholder, record: &Record) -> Option<Value> {
    let Move { before, .. } = own.moving.clone()?;
    Some(patch(own, record, Value::Null, restored(before)))
}

/// The node affinity as it was. A merge patch keeps a field that it does not name, so the nodes of the move are removed by name.
fn restored(mut before: Value) -> Value {
    if let Some(affinity) = before.as_object_mut() {
        affinity.entry(REQUIRED).or_insert(Value::Null);
    }
    before
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

fn patch(own: &Placeholder, record: &Record, moving: Value, affinity: Value) -> Value {
    json!({
        "metadata": {
            "uid": own.object.uid,
            "resourceVersion": own.object.resource_version,
            "annotations": {MOVE: moving, RECORD: text(record)},
        },
        "spec": {"template": {"spec": {"affinity": {"nodeAffinity": affinity}}}},
    })
}

fn text(record: &Record) -> String {
    serde_json::to_string(record).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use coscheduler_core::observed::Done;
    use k8s_openapi::jiff::Timestamp;

    use crate::placeholder::view;

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
            "metadata": {
                "name": "s", "uid": "u", "resourceVersion": "7", "annotations": {"a": "b"},
                "labels": {"app.kubernetes.io/managed-by": "tekton-coscheduler"},
                "ownerReferences": [{"apiVersion": "tekton.dev/v1", "kind": "PipelineRun", "name": "r", "uid": "run", "controller": true}],
            },
            "spec": {"selector": {}, "template": {"spec": {"containers": [], "affinity": affinity}}},
        })
    }

    fn read(set: &Value) -> Placeholder {
        view(serde_json::from_value(set.clone()).unwrap()).unwrap()
    }

    /// Takes the record from an object, and answers it.
    fn recorded(set: &mut Value) -> Record {
        let record = read(set).record;
        let annotations = &mut set["metadata"]["annotations"];
        annotations.as_object_mut().unwrap().remove(RECORD);
        record
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
            (
                json!({"podAntiAffinity": apart, "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
                    {"weight": 1, "preference": {"matchExpressions": [disk]}}]}}),
                json!([{"matchFields": field("n1")}, {"matchFields": field("n2")}]),
            ),
        ] {
            let original = set(before);
            let done = Record {
                moved: Done::again(None, Timestamp::UNIX_EPOCH, "no room"),
                ..Record::default()
            };
            assert_eq!(read(&original).moving, None);
            assert_eq!(end(&read(&original), &done), None);
            let mut moved = original.clone();
            apply(
                &mut moved,
                &send(&read(&original), &done, &nodes(&["n1", "n2"])),
            );
            assert_eq!(recorded(&mut moved), done, "in the same patch");
            assert_eq!(terms(&moved), expect);
            moved["metadata"]["generation"] = 2.into();
            moved["status"] = json!({"replicas": 1, "observedGeneration": 1});
            assert!(!read(&moved).observed);
            moved["status"]["observedGeneration"] = 2.into();
            assert!(read(&moved).observed);
            for key in ["generation", "status"] {
                let of = if key == "status" {
                    &mut moved
                } else {
                    &mut moved["metadata"]
                };
                of.as_object_mut().unwrap().remove(key);
            }
            let moving = read(&moved).moving.unwrap();
            assert_eq!(moving.nodes, ["n1", "n2"]);
            // Sent on before it has arrived.
            let mut again = moved.clone();
            apply(&mut again, &send(&read(&moved), &done, &nodes(&["n3"])));
            recorded(&mut again);
            assert_eq!(terms(&again).as_array().unwrap().len(), 1);
            for mut ended in [moved, again] {
                let patch = end(&read(&ended), &done).unwrap();
                assert_eq!(patch["metadata"]["resourceVersion"], "7");
                apply(&mut ended, &patch);
                assert_eq!(recorded(&mut ended), done);
                assert_eq!(ended, original);
            }
        }
    }

    #[test]
    fn a_record_is_written_whatever_the_version_but_on_the_same_object() {
        let mut object = set(json!({}));
        let done = Record {
            retried: Done::again(None, Timestamp::UNIX_EPOCH, ""),
            refused: [("n1".to_owned(), Timestamp::UNIX_EPOCH)].into(),
            ..Record::default()
        };
        let patch = record(&read(&object), &done);
        assert_eq!(patch["metadata"]["uid"], "u");
        assert_eq!(patch["metadata"].get("resourceVersion"), None);
        apply(&mut object, &patch);
        assert_eq!(recorded(&mut object), done);
        // A record that cannot be read is of another version.
        object["metadata"]["annotations"][RECORD] = "{".into();
        assert_eq!(read(&object).record, Record::default());
        assert_eq!(object["metadata"]["annotations"]["a"], "b");
    }
}
