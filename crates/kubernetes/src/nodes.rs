//! Reads a node: `spec.unschedulable`, taints, labels and allocatable resources.

use coscheduler_core::node::{self, Taint};
use k8s_openapi::api::core::v1::Node;

use crate::needs;

/// The fields of a node that decisions need.
pub fn view(node: &Node) -> node::Node {
    let (spec, status) = (node.spec.as_ref(), node.status.as_ref());
    node::Node {
        name: node.metadata.name.clone().unwrap_or_default(),
        unschedulable: spec.and_then(|spec| spec.unschedulable).unwrap_or(false),
        taints: spec
            .and_then(|spec| spec.taints.as_ref())
            .into_iter()
            .flatten()
            .map(|taint| Taint {
                key: taint.key.clone(),
                value: taint.value.clone().unwrap_or_default(),
                effect: taint.effect.clone(),
            })
            .collect(),
        labels: node.metadata.labels.clone().unwrap_or_default(),
        allocatable: needs::amounts(status.and_then(|status| status.allocatable.as_ref())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coscheduler_core::requests::Amounts;
    use serde_json::json;

    #[test]
    fn what_turns_pods_away_is_read() {
        let node: Node = serde_json::from_value(json!({
            "metadata": {"name": "n", "labels": {"zone": "a"}},
            "spec": {"unschedulable": true, "taints": [{"key": "spot", "effect": "NoExecute"}]},
            "status": {"allocatable": {"cpu": "3920m", "pods": "110"}, "capacity": {"cpu": "4"}},
        }))
        .unwrap();
        let taint = Taint {
            key: "spot".to_owned(),
            value: String::new(),
            effect: "NoExecute".to_owned(),
        };
        let expect = node::Node {
            name: "n".to_owned(),
            unschedulable: true,
            taints: vec![taint],
            labels: [("zone".to_owned(), "a".to_owned())].into(),
            allocatable: Amounts {
                milli_cpu: 3920,
                ..Amounts::default()
            },
        };
        assert_eq!(view(&node), expect);
    }
}
