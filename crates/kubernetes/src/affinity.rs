//! The affinity of a placeholder's pod. The first part is the affinity in the run's pod template, or else in the operator's
//! default template. The second part is the affinity or anti-affinity to other placeholders, if there is any (P4). In mode
//! `isolate-pipelinerun`, it is a required anti-affinity (M4; `pinned.rs` of crate `core` derives this from the mode). The third
//! part is the node affinity of volumes that the placeholder does not mount (V8). When the manager removes the scheduling gate,
//! `placeholder/size.rs` can add more node affinity. A placeholder that Tekton created keeps the affinity that Tekton gave it.

use coscheduler_core::labels::{AFFINITY_ASSISTANT, COMPONENT, HOSTNAME, TASK_RUN};
use coscheduler_core::mode::IsolationScope;
use coscheduler_core::separation::Separation;
use coscheduler_core::volumes::{NodeRequirement, NodeTerm};
use k8s_openapi::api::core::v1::{
    Affinity, NodeSelectorRequirement, NodeSelectorTerm, PodAffinityTerm, WeightedPodAffinityTerm,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};

/// The weight of a preference: the highest that Kubernetes allows.
pub(crate) const WEIGHT: i32 = 100;

/// The affinity of the pod template (`author`), with the placeholder's own terms added.
pub(crate) fn affinity(
    author: Option<Affinity>,
    separation: Separation,
    node_terms: &[Vec<NodeTerm>],
) -> Affinity {
    let mut affinity = author.unwrap_or_default();
    let preference = || WeightedPodAffinityTerm {
        weight: WEIGHT,
        pod_affinity_term: other_placeholders(true),
    };
    match separation {
        Separation::Spread => affinity
            .pod_anti_affinity
            .get_or_insert_default()
            .preferred_during_scheduling_ignored_during_execution
            .get_or_insert_default()
            .push(preference()),
        Separation::Pack => affinity
            .pod_affinity
            .get_or_insert_default()
            .preferred_during_scheduling_ignored_during_execution
            .get_or_insert_default()
            .push(preference()),
        Separation::None => {}
        Separation::Isolate(scope) => affinity
            .pod_anti_affinity
            .get_or_insert_default()
            .required_during_scheduling_ignored_during_execution
            .get_or_insert_default()
            .push(other_placeholders(scope == IsolationScope::Cluster)),
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
    let component = (COMPONENT.to_owned(), AFFINITY_ASSISTANT.to_owned());
    // Tekton copies the labels of a run to the pods of its TaskRuns, so an author can give them the label of a placeholder.
    let of_no_task = LabelSelectorRequirement {
        key: TASK_RUN.to_owned(),
        operator: "DoesNotExist".to_owned(),
        values: None,
    };
    PodAffinityTerm {
        label_selector: Some(LabelSelector {
            match_labels: Some([component].into()),
            match_expressions: Some(vec![of_no_task]),
        }),
        // An empty selector selects all namespaces. Without a selector, only the pod's own namespace counts.
        namespace_selector: every_namespace.then(LabelSelector::default),
        topology_key: HOSTNAME.to_owned(),
        ..PodAffinityTerm::default()
    }
}

/// Combines two lists of terms. A node meets the result if it meets at least one term of each list. A node meets a term if it
/// meets all of the term's requirements. If `left` is empty, every node meets `left`.
pub(crate) fn both(left: &[NodeSelectorTerm], right: &[NodeTerm]) -> Vec<NodeSelectorTerm> {
    let every = [NodeSelectorTerm::default()];
    let left = if left.is_empty() { &every } else { left };
    let pairs = left
        .iter()
        .flat_map(|left| right.iter().map(move |right| (left, right)));
    pairs
        .map(|(left, right)| NodeSelectorTerm {
            match_expressions: joined(&left.match_expressions, &right.expressions),
            match_fields: joined(&left.match_fields, &right.fields),
        })
        .collect()
}

fn joined(
    left: &Option<Vec<NodeSelectorRequirement>>,
    right: &[NodeRequirement],
) -> Option<Vec<NodeSelectorRequirement>> {
    let right = right.iter().map(|one| NodeSelectorRequirement {
        key: one.key.clone(),
        operator: one.operator.as_str().to_owned(),
        values: (!one.values.is_empty()).then(|| one.values.clone()),
    });
    let all: Vec<_> = left.iter().flatten().cloned().chain(right).collect();
    (!all.is_empty()).then_some(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use coscheduler_core::volumes::Operator;
    use serde_json::{Value, json};

    fn author() -> Affinity {
        serde_json::from_value(json!({
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]},
                {"matchExpressions": [{"key": "disk", "operator": "DoesNotExist"}]},
            ]}},
            "podAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone"}],
                "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": {"topologyKey": "rack"}}],
            },
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

    fn placeholders() -> Value {
        json!({
            "matchLabels": {"app.kubernetes.io/component": "affinity-assistant"},
            "matchExpressions": [{"key": "tekton.dev/taskRun", "operator": "DoesNotExist"}],
        })
    }

    #[test]
    fn p4_placeholders_prefer_nodes_by_the_placeholders_of_every_namespace_there() {
        let preferred = json!({"preferredDuringSchedulingIgnoredDuringExecution": [{
            "weight": 100,
            "podAffinityTerm": {
                "labelSelector": placeholders(),
                "namespaceSelector": {},
                "topologyKey": "kubernetes.io/hostname",
            },
        }]});
        for (separation, expect) in [
            (Separation::Spread, json!({"podAntiAffinity": preferred})),
            (Separation::Pack, json!({"podAffinity": preferred})),
            (Separation::None, json!({})),
        ] {
            assert_eq!(built(None, separation, &[]), expect);
        }
    }

    #[test]
    fn m4_an_isolated_placeholder_has_its_node_for_itself() {
        let selector = placeholders();
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
        let anti = "podAntiAffinity";
        for (separation, kind, list) in [
            (
                Separation::Spread,
                anti,
                "preferredDuringSchedulingIgnoredDuringExecution",
            ),
            (
                Separation::Pack,
                "podAffinity",
                "preferredDuringSchedulingIgnoredDuringExecution",
            ),
            (
                Separation::Isolate(IsolationScope::Cluster),
                anti,
                "requiredDuringSchedulingIgnoredDuringExecution",
            ),
        ] {
            let mut built = built(Some(author()), separation, &[]);
            let terms = built[kind][list].as_array_mut().unwrap();
            assert_eq!(terms.len(), 2);
            terms.pop();
            assert_eq!(built, plain);
        }
        assert_eq!(built(Some(author()), Separation::None, &[]), plain);
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
