//! The affinity of a placeholder's pod: the author's own terms, the term that keeps placeholders apart (M4, P4), and the
//! node affinity of volumes that the placeholder does not mount (V8).

use std::collections::BTreeMap;

use coscheduler_core::labels::{AFFINITY_ASSISTANT, COMPONENT};
use coscheduler_core::separation::{AntiAffinityTerm, Separation};
use coscheduler_core::volumes::{NodeRequirement, NodeTerm};
use k8s_openapi::api::core::v1::{
    Affinity, NodeSelectorRequirement, NodeSelectorTerm, PodAffinityTerm, WeightedPodAffinityTerm,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

/// Topology key of a single node.
const HOSTNAME: &str = "kubernetes.io/hostname";

/// The weight of a preference to stay away from other placeholders: the highest there is.
const WEIGHT: i32 = 100;

/// The author's affinity together with the placeholder's own terms.
pub(crate) fn affinity(
    author: Option<Affinity>,
    separation: Separation,
    node_terms: &[Vec<NodeTerm>],
) -> Affinity {
    let mut affinity = author.unwrap_or_default();
    let apart = affinity.pod_anti_affinity.get_or_insert_default();
    let AntiAffinityTerm {
        required,
        every_namespace,
    } = separation.anti_affinity();
    let term = other_placeholders(every_namespace);
    if required {
        apart
            .required_during_scheduling_ignored_during_execution
            .get_or_insert_default()
            .push(term);
    } else {
        apart
            .preferred_during_scheduling_ignored_during_execution
            .get_or_insert_default()
            .push(WeightedPodAffinityTerm {
                weight: WEIGHT,
                pod_affinity_term: term,
            });
    }
    if !node_terms.is_empty() {
        let required = affinity
            .node_affinity
            .get_or_insert_default()
            .required_during_scheduling_ignored_during_execution
            .get_or_insert_default();
        for terms in node_terms {
            required.node_selector_terms = both(&required.node_selector_terms, terms);
        }
    }
    affinity
}

fn other_placeholders(every_namespace: bool) -> PodAffinityTerm {
    PodAffinityTerm {
        label_selector: Some(LabelSelector {
            match_labels: Some(BTreeMap::from([(
                COMPONENT.to_owned(),
                AFFINITY_ASSISTANT.to_owned(),
            )])),
            ..LabelSelector::default()
        }),
        // An empty selector selects every namespace, none at all the pod's own.
        namespace_selector: every_namespace.then(LabelSelector::default),
        topology_key: HOSTNAME.to_owned(),
        ..PodAffinityTerm::default()
    }
}

/// Terms that a node meets if it meets a term of each side. A node meets a list if it meets one of its terms, and a term if it
/// meets all of its requirements. Every node meets an empty list.
pub(crate) fn both(left: &[NodeSelectorTerm], right: &[NodeTerm]) -> Vec<NodeSelectorTerm> {
    let right: Vec<_> = right.iter().map(selector_term).collect();
    if left.is_empty() {
        return right;
    }
    left.iter()
        .flat_map(|left| right.iter().map(move |right| joined(left, right)))
        .collect()
}

fn joined(left: &NodeSelectorTerm, right: &NodeSelectorTerm) -> NodeSelectorTerm {
    type List = Option<Vec<NodeSelectorRequirement>>;
    let lists = |left: &List, right: &List| {
        let all: Vec<_> = left.iter().chain(right).flatten().cloned().collect();
        (!all.is_empty()).then_some(all)
    };
    NodeSelectorTerm {
        match_expressions: lists(&left.match_expressions, &right.match_expressions),
        match_fields: lists(&left.match_fields, &right.match_fields),
    }
}

fn selector_term(term: &NodeTerm) -> NodeSelectorTerm {
    NodeSelectorTerm {
        match_expressions: requirements(&term.expressions),
        match_fields: requirements(&term.fields),
    }
}

fn requirements(requirements: &[NodeRequirement]) -> Option<Vec<NodeSelectorRequirement>> {
    let list: Vec<_> = requirements
        .iter()
        .map(|requirement| NodeSelectorRequirement {
            key: requirement.key.clone(),
            operator: requirement.operator.as_str().to_owned(),
            values: (!requirement.values.is_empty()).then(|| requirement.values.clone()),
        })
        .collect();
    (!list.is_empty()).then_some(list)
}

#[cfg(test)]
mod tests {
    use super::*;
    use coscheduler_core::mode::IsolationScope;
    use coscheduler_core::volumes::Operator;
    use serde_json::{Value, json};

    fn author() -> Affinity {
        serde_json::from_value(json!({
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]},
                {"matchExpressions": [{"key": "disk", "operator": "DoesNotExist"}]},
            ]}},
            "podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone"}]},
            "podAntiAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "rack"}],
                "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": {"topologyKey": "zone"}}],
            },
        }))
        .unwrap()
    }

    fn built(author: Option<Affinity>, separation: Separation, terms: &[Vec<NodeTerm>]) -> Value {
        serde_json::to_value(affinity(author, separation, terms)).unwrap()
    }

    #[test]
    fn p4_placeholders_prefer_a_node_of_their_own() {
        assert_eq!(
            built(None, Separation::Spread, &[]),
            json!({"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{
                "weight": 100,
                "podAffinityTerm": {
                    "labelSelector": {"matchLabels": {"app.kubernetes.io/component": "affinity-assistant"}},
                    "topologyKey": "kubernetes.io/hostname",
                },
            }]}})
        );
    }

    #[test]
    fn m4_an_isolated_placeholder_has_its_node_for_itself() {
        let selector =
            json!({"matchLabels": {"app.kubernetes.io/component": "affinity-assistant"}});
        let required = |term: Value| json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}});
        assert_eq!(
            built(None, Separation::Isolate(IsolationScope::Cluster), &[]),
            required(
                json!({"labelSelector": selector, "namespaceSelector": {}, "topologyKey": "kubernetes.io/hostname"})
            )
        );
        assert_eq!(
            built(None, Separation::Isolate(IsolationScope::Namespace), &[]),
            required(json!({"labelSelector": selector, "topologyKey": "kubernetes.io/hostname"}))
        );
    }

    #[test]
    fn p3_everything_the_author_wrote_stays_beside_our_terms() {
        let plain = serde_json::to_value(author()).unwrap();
        for (separation, list) in [
            (
                Separation::Spread,
                "preferredDuringSchedulingIgnoredDuringExecution",
            ),
            (
                Separation::Isolate(IsolationScope::Cluster),
                "requiredDuringSchedulingIgnoredDuringExecution",
            ),
        ] {
            let mut built = built(Some(author()), separation, &[]);
            let terms = built["podAntiAffinity"][list].as_array_mut().unwrap();
            assert_eq!(terms.len(), 2);
            terms.pop();
            assert_eq!(built, plain);
        }
    }

    #[test]
    fn v8_the_nodes_of_volumes_that_are_not_mounted_are_required_as_well() {
        let zone = |values: &[&str]| NodeTerm {
            expressions: vec![NodeRequirement {
                key: "zone".to_owned(),
                operator: Operator::In,
                values: values.iter().map(|value| (*value).to_owned()).collect(),
            }],
            fields: vec![],
        };
        let node = NodeTerm {
            expressions: vec![],
            fields: vec![NodeRequirement {
                key: "metadata.name".to_owned(),
                operator: Operator::In,
                values: vec!["n1".to_owned()],
            }],
        };
        let terms = [vec![zone(&["a"])], vec![zone(&["a", "b"]), node]];
        let zones = |values: &[&str]| json!({"key": "zone", "operator": "In", "values": values});
        let field = json!([{"key": "metadata.name", "operator": "In", "values": ["n1"]}]);
        let required = |value: &Value| {
            value["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"].clone()
        };
        assert_eq!(
            required(&built(None, Separation::Spread, &terms)),
            json!([
                {"matchExpressions": [zones(&["a"]), zones(&["a", "b"])]},
                {"matchExpressions": [zones(&["a"])], "matchFields": field},
            ])
        );
        let ssd = json!({"key": "disk", "operator": "In", "values": ["ssd"]});
        let none = json!({"key": "disk", "operator": "DoesNotExist"});
        assert_eq!(
            required(&built(Some(author()), Separation::Spread, &terms[..1])),
            json!([
                {"matchExpressions": [ssd, zones(&["a"])]},
                {"matchExpressions": [none, zones(&["a"])]},
            ])
        );
    }
}
