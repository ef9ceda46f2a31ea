//! What is read of a node: whether it turns pods away.

use coscheduler_core::evacuate::{self, Taint};
use k8s_openapi::api::core::v1::{Node, NodeSpec, NodeStatus};

/// The node as `core` sees it.
pub fn view(node: &Node) -> evacuate::Node {
    let spec = node.spec.as_ref();
    evacuate::Node {
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
    }
}

/// Drops what nobody here reads, before a node goes into a cache: a node reports its state every few seconds.
pub fn trim(node: &mut Node) {
    let spec = node.spec.take().unwrap_or_default();
    node.spec = Some(NodeSpec {
        unschedulable: spec.unschedulable,
        taints: spec.taints,
        ..NodeSpec::default()
    });
    node.status = None::<NodeStatus>;
    node.metadata.managed_fields = None;
    node.metadata.annotations = None;
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn trimming_keeps_what_is_read() {
        let mut node: Node = serde_json::from_value(json!({
            "metadata": {"name": "n", "annotations": {"a": "b"}},
            "spec": {"unschedulable": true, "podCIDR": "10.0.0.0/24",
                "taints": [{"key": "spot", "effect": "NoExecute"}]},
            "status": {"images": [{"names": ["i"]}]},
        }))
        .unwrap();
        let before = view(&node);
        trim(&mut node);
        assert_eq!(view(&node), before);
        assert!(before.unschedulable);
        assert_eq!(before.taints[0].key, "spot");
        assert!(node.status.is_none() && node.metadata.annotations.is_none());
    }
}
