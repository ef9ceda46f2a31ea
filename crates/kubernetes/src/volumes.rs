//! What is read of a claim and its volume to know which nodes reach it.

use coscheduler_core::volumes::{NodeRequirement, NodeTerm, SeenClaim, SeenVolume};
use k8s_openapi::api::core::v1::{
    NodeSelectorRequirement, NodeSelectorTerm, PersistentVolume, PersistentVolumeClaim,
};

/// The claim as `core` sees it, with the volume it is bound to, if that is known.
pub fn seen(claim: &PersistentVolumeClaim, volume: Option<&PersistentVolume>) -> SeenClaim {
    SeenClaim {
        name: claim.metadata.name.clone().unwrap_or_default(),
        single_pod: is_single_pod(claim),
        volume: volume.map(|volume| SeenVolume {
            terms: terms(volume),
        }),
    }
}

/// The name of the volume that a claim is bound to.
pub fn volume_name(claim: &PersistentVolumeClaim) -> Option<&str> {
    let name = claim.spec.as_ref()?.volume_name.as_deref()?;
    (!name.is_empty()).then_some(name)
}

/// Namespace and name of the claim that a volume is bound to, or kept for.
pub fn claim_key(volume: &PersistentVolume) -> Option<(String, String)> {
    let claim = volume.spec.as_ref()?.claim_ref.as_ref()?;
    Some((claim.namespace.clone()?, claim.name.clone()?))
}

/// Drops what nobody here reads, before a volume goes into a cache.
pub fn trim(volume: &mut PersistentVolume) {
    volume.metadata.managed_fields = None;
    volume.metadata.annotations = None;
    volume.status = None;
    if let Some(spec) = &mut volume.spec {
        let node_affinity = spec.node_affinity.take();
        let claim_ref = spec.claim_ref.take();
        *spec = k8s_openapi::api::core::v1::PersistentVolumeSpec {
            node_affinity,
            claim_ref,
            ..Default::default()
        };
    }
}

fn is_single_pod(claim: &PersistentVolumeClaim) -> bool {
    let spec = claim.spec.as_ref();
    spec.and_then(|spec| spec.access_modes.as_ref())
        .into_iter()
        .flatten()
        .any(|mode| mode == "ReadWriteOncePod")
}

fn terms(volume: &PersistentVolume) -> Vec<NodeTerm> {
    let required = volume
        .spec
        .as_ref()
        .and_then(|spec| spec.node_affinity.as_ref()?.required.as_ref());
    required
        .map(|selector| selector.node_selector_terms.iter().map(term).collect())
        .unwrap_or_default()
}

pub(crate) fn term(term: &NodeSelectorTerm) -> NodeTerm {
    NodeTerm {
        expressions: requirements(term.match_expressions.as_deref()),
        fields: requirements(term.match_fields.as_deref()),
    }
}

/// An operator of a later version is left out: what is not understood is left to the scheduler.
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

    fn volume() -> PersistentVolume {
        serde_json::from_value(json!({
            "metadata": {"name": "pv-1", "annotations": {"a": "b"}},
            "spec": {
                "capacity": {"storage": "1Gi"},
                "claimRef": {"namespace": "ci", "name": "c"},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [
                    {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]},
                    {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]},
                ]}},
            },
        }))
        .unwrap()
    }

    fn claim(mode: &str) -> PersistentVolumeClaim {
        serde_json::from_value(json!({
            "metadata": {"name": "c"},
            "spec": {"accessModes": [mode], "volumeName": "pv-1"},
        }))
        .unwrap()
    }

    #[test]
    fn v7_v8_a_claim_is_seen_with_its_mode_and_its_volumes_nodes() {
        let one = |key: &str, value: &str| {
            vec![NodeRequirement {
                key: key.to_owned(),
                operator: Operator::In,
                values: vec![value.to_owned()],
            }]
        };
        let expect = SeenClaim {
            name: "c".to_owned(),
            single_pod: true,
            volume: Some(SeenVolume {
                terms: vec![
                    NodeTerm {
                        expressions: one("zone", "a"),
                        fields: vec![],
                    },
                    NodeTerm {
                        expressions: vec![],
                        fields: one("metadata.name", "n1"),
                    },
                ],
            }),
        };
        let mut trimmed = volume();
        trim(&mut trimmed);
        assert_eq!(seen(&claim("ReadWriteOncePod"), Some(&trimmed)), expect);
        assert_eq!(volume_name(&claim("ReadWriteOnce")), Some("pv-1"));
        let unbound = seen(&claim("ReadWriteOnce"), None);
        assert_eq!((unbound.single_pod, unbound.volume), (false, None));
        assert_eq!(volume_name(&PersistentVolumeClaim::default()), None);
        let key = claim_key(&trimmed);
        assert_eq!(key, Some(("ci".to_owned(), "c".to_owned())));
        assert_eq!(claim_key(&PersistentVolume::default()), None);
    }

    #[test]
    fn a_volume_without_node_affinity_is_reached_from_everywhere() {
        let everywhere = seen(&claim("ReadWriteMany"), Some(&PersistentVolume::default()));
        assert_eq!(everywhere.volume, Some(SeenVolume { terms: vec![] }));
    }
}
