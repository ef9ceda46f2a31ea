//! Reads a PersistentVolume: the nodes that reach it, and its claim.

use coscheduler_core::volumes::{NodeRequirement, NodeTerm, SeenVolume};
use k8s_openapi::api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm, PersistentVolume};

/// Converts the volume. The second value has namespace and name of the claim in `spec.claimRef`.
pub fn view(volume: PersistentVolume) -> (SeenVolume, Option<(String, String)>) {
    let spec = volume.spec.unwrap_or_default();
    let required = spec.node_affinity.and_then(|affinity| affinity.required);
    let terms = required.map(|required| required.node_selector_terms.iter().map(term).collect());
    let claim = spec
        .claim_ref
        .and_then(|claim| claim.namespace.zip(claim.name));
    let terms = terms.unwrap_or_default();
    (SeenVolume { terms }, claim)
}

pub(crate) fn term(term: &NodeSelectorTerm) -> NodeTerm {
    NodeTerm {
        expressions: requirements(term.match_expressions.as_deref()),
        fields: requirements(term.match_fields.as_deref()),
    }
}

/// Requirements with an unknown operator are left out. Only the scheduler checks them.
fn requirements(requirements: Option<&[NodeSelectorRequirement]>) -> Vec<NodeRequirement> {
    requirements
        .into_iter()
        .flatten()
        .filter_map(|requirement| {
            Some(NodeRequirement {
                key: requirement.key.clone(),
                operator: requirement.operator.parse().ok()?,
                values: requirement.values.clone().unwrap_or_default(),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use coscheduler_core::volumes::Operator;
    use serde_json::json;

    #[test]
    fn v7_v8_a_volume_is_seen_with_its_nodes_and_its_claim() {
        let volume = serde_json::from_value(json!({
            "metadata": {"name": "pv-1"},
            "spec": {
                "capacity": {"storage": "1Gi"},
                "claimRef": {"namespace": "ci", "name": "c"},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [
                    {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]},
                    {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]},
                ]}},
            },
        }))
        .unwrap();
        let one = |key: &str, value: &str| {
            vec![NodeRequirement {
                key: key.to_owned(),
                operator: Operator::In,
                values: vec![value.to_owned()],
            }]
        };
        let terms = vec![
            NodeTerm {
                expressions: one("zone", "a"),
                fields: vec![],
            },
            NodeTerm {
                expressions: vec![],
                fields: one("metadata.name", "n1"),
            },
        ];
        let claim = Some(("ci".to_owned(), "c".to_owned()));
        assert_eq!(view(volume), (SeenVolume { terms }, claim));
    }

    #[test]
    fn a_volume_without_node_affinity_is_reached_from_everywhere() {
        let everywhere = view(PersistentVolume::default());
        assert_eq!(everywhere, (SeenVolume { terms: vec![] }, None));
    }
}
