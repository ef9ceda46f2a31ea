//! Tests with claims in zones and on nodes. A slow, simple search for a node checks the results.

use super::*;
use proptest::prelude::*;

const ZONE: &str = "topology.kubernetes.io/zone";

fn requirement(key: &str, operator: Operator, values: &[&str]) -> NodeRequirement {
    NodeRequirement {
        key: key.to_owned(),
        operator,
        values: values.iter().map(|value| (*value).to_owned()).collect(),
    }
}

fn term(requirements: &[NodeRequirement]) -> NodeTerm {
    NodeTerm {
        expressions: requirements.to_vec(),
        fields: Vec::new(),
    }
}

fn zones(values: &[&str]) -> Vec<NodeTerm> {
    vec![term(&[requirement(ZONE, Operator::In, values)])]
}

fn on_node(name: &str) -> Vec<NodeTerm> {
    vec![NodeTerm {
        expressions: Vec::new(),
        fields: vec![requirement("metadata.name", Operator::In, &[name])],
    }]
}

fn claim(name: &str, terms: Vec<NodeTerm>) -> SeenClaim {
    SeenClaim {
        name: name.to_owned(),
        single_pod: false,
        volume: Some(SeenVolume { terms }),
    }
}

#[track_caller]
fn check(claims: &[SeenClaim], in_conflict: Option<&[&str]>) {
    let found = conflict(claims, &Nodes::new());
    let names = found.as_ref().map(|conflict| {
        conflict
            .claims
            .iter()
            .map(|(name, _)| name.as_str())
            .collect::<Vec<_>>()
    });
    assert_eq!(names.as_deref(), in_conflict, "{found:?}");
}

#[test]
fn v7_claims_in_different_zones_are_named_with_their_topologies() {
    let claims = [
        claim("everywhere", vec![]),
        claim("source", zones(&["a"])),
        claim("cache", zones(&["b", "c"])),
    ];
    let found = conflict(&claims, &Nodes::new()).unwrap();
    assert_eq!(
        found.to_string(),
        "\"source\" (topology.kubernetes.io/zone In a); \
         \"cache\" (topology.kubernetes.io/zone In b, c)"
    );
}

#[test]
fn v7_claims_that_share_a_zone_or_have_no_volume_are_no_conflict() {
    check(&[], None);
    check(&[claim("a", zones(&["a"]))], None);
    check(
        &[
            claim("a", zones(&["a", "b"])),
            claim("b", zones(&["b", "c"])),
        ],
        None,
    );
    check(&[claim("a", zones(&["a"])), claim("b", vec![])], None);
    let unbound = SeenClaim {
        volume: None,
        ..claim("b", vec![])
    };
    check(&[claim("a", zones(&["a"])), unbound], None);
}

#[test]
fn v7_local_volumes_on_two_nodes_are_a_conflict() {
    check(
        &[claim("a", on_node("n1")), claim("b", on_node("n1"))],
        None,
    );
    check(
        &[claim("a", on_node("n1")), claim("b", on_node("n2"))],
        Some(&["a", "b"]),
    );
    // A label with this name is not the same as the field.
    let label = vec![term(&[requirement("metadata.name", Operator::In, &["n2"])])];
    check(&[claim("a", on_node("n1")), claim("b", label)], None);
}

#[test]
fn v7_a_node_that_exists_counts_with_the_zone_it_is_in() {
    let hostname = |name: &str| {
        vec![term(&[requirement(
            "kubernetes.io/hostname",
            Operator::In,
            &[name],
        )])]
    };
    let node = |name: &str, zone: &str| {
        let labels = [(ZONE, zone), ("kubernetes.io/hostname", name)];
        let node = Node {
            name: name.to_owned(),
            labels: labels
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
            ..Node::default()
        };
        (name.to_owned(), Arc::new(node))
    };
    let nodes = Nodes::from([node("n1", "a"), node("n2", "b")]);
    for (on, zone, apart) in [
        (hostname("n1"), "a", false),
        (hostname("n1"), "b", true),
        (on_node("n1"), "b", true),
        // A node with this name may be added later, or may come back.
        (hostname("n3"), "b", false),
        // No node is in this zone yet.
        (zones(&["c"]), "c", false),
        // One of two nodes is in the zone.
        ([hostname("n1"), hostname("n2")].concat(), "b", false),
    ] {
        let claims = [claim("source", on), claim("cache", zones(&[zone]))];
        assert_eq!(conflict(&claims, &nodes).is_some(), apart, "{claims:?}");
    }
}

#[test]
fn v7_all_are_named_where_no_two_are_to_blame() {
    let any_two = [
        claim("ab", zones(&["a", "b"])),
        claim("bc", zones(&["b", "c"])),
        claim("ca", zones(&["c", "a"])),
    ];
    check(&any_two, Some(&["ab", "bc", "ca"]));
}

#[test]
fn v7_one_term_of_each_volume_is_enough() {
    let either = vec![zones(&["a"]).remove(0), on_node("n9").remove(0)];
    check(
        &[claim("a", either.clone()), claim("b", zones(&["b"]))],
        None,
    );
    check(
        &[
            claim("a", either),
            claim("b", zones(&["b"])),
            claim("c", on_node("n1")),
        ],
        Some(&["a", "b", "c"]),
    );
}

#[test]
fn v7_every_operator_counts() {
    use Operator::{DoesNotExist, Exists, Gt, In, Lt, NotIn};
    for (left, right, possible) in [
        (
            requirement("k", In, &["a"]),
            requirement("k", NotIn, &["a"]),
            false,
        ),
        (
            requirement("k", In, &["a", "b"]),
            requirement("k", NotIn, &["a"]),
            true,
        ),
        (
            requirement("k", Exists, &[]),
            requirement("k", DoesNotExist, &[]),
            false,
        ),
        (
            requirement("k", In, &["a"]),
            requirement("k", DoesNotExist, &[]),
            false,
        ),
        (
            requirement("k", NotIn, &["a"]),
            requirement("k", DoesNotExist, &[]),
            true,
        ),
        (
            requirement("k", Exists, &[]),
            requirement("k", NotIn, &["a"]),
            true,
        ),
        (
            requirement("k", Gt, &["3"]),
            requirement("k", Lt, &["4"]),
            false,
        ),
        (
            requirement("k", Gt, &["3"]),
            requirement("k", Lt, &["5"]),
            true,
        ),
        (
            requirement("k", Gt, &["3"]),
            requirement("k", NotIn, &["4", "5", "x"]),
            true,
        ),
        (
            requirement("k", Lt, &["3"]),
            requirement("k", NotIn, &["2", "1", "0"]),
            true,
        ),
        (
            requirement("k", Gt, &["3"]),
            requirement("k", In, &["3", "x"]),
            false,
        ),
        (
            requirement("k", Gt, &["3"]),
            requirement("k", In, &["4"]),
            true,
        ),
        (
            requirement("k", Lt, &["3"]),
            requirement("k", DoesNotExist, &[]),
            false,
        ),
    ] {
        let text = format!("{left} with {right}");
        for terms in [
            [
                vec![term(std::slice::from_ref(&left))],
                vec![term(std::slice::from_ref(&right))],
            ],
            [vec![term(&[right.clone(), left.clone()])], zones(&["z"])],
        ] {
            let [first, second] = terms;
            let found = conflict(&[claim("a", first), claim("b", second)], &Nodes::new());
            assert_eq!(found.is_none(), possible, "{text}");
        }
    }
}

#[test]
fn v7_an_empty_term_is_met_by_no_node() {
    check(&[claim("a", vec![NodeTerm::default()])], Some(&["a"]));
}

#[test]
fn v7_many_claims_of_few_zones_are_soon_decided() {
    let mut claims: Vec<_> = (0..200)
        .map(|index| claim(&format!("c{index}"), zones(&["a", "b"])))
        .collect();
    check(&claims, None);
    claims.push(claim("far", zones(&["z"])));
    check(&claims, Some(&["c0", "far"]));
}

#[test]
fn v8_a_claim_for_one_pod_is_not_mounted_but_keeps_its_nodes() {
    let spec = crate::plan::PlaceholderSpec {
        subset: String::new(),
        name: "affinity-assistant-0123456789".parse().unwrap(),
        labels: std::collections::BTreeMap::new(),
        claim_templates: Vec::new(),
        single_pod_claims: Vec::new(),
        claim_names: ["shared", "single", "unbound"].map(str::to_owned).to_vec(),
        unmounted_claim_names: vec!["tektons".to_owned()],
        separation: crate::plan::Separation::Spread,
        cpu: String::new(),
        memory: String::new(),
        reserves: crate::config::Reserves::Nothing,
        backend: crate::config::Backend::Controlled,
        image: String::new(),
        pod_template: serde_json::Map::new(),
        service_account_name: String::new(),
    };
    let single = |name, volume| SeenClaim {
        name: String::from(name),
        single_pod: true,
        volume,
    };
    let seen = [
        claim("shared", zones(&["a", "b"])),
        single(
            "single",
            Some(SeenVolume {
                terms: zones(&["a"]),
            }),
        ),
        single("unbound", None),
        single(
            "tektons",
            Some(SeenVolume {
                terms: zones(&["a", "c"]),
            }),
        ),
    ];
    let decided = volumes(&spec, &seen);
    assert_eq!(
        decided.unmounted,
        ["single", "unbound"].map(str::to_owned).into()
    );
    assert_eq!(decided.node_terms, [zones(&["a"]), zones(&["a", "c"])]);
}

#[test]
fn operators_read_back_and_others_are_not_known() {
    use Operator::{DoesNotExist, Exists, Gt, In, Lt, NotIn};
    for operator in [In, NotIn, Exists, DoesNotExist, Gt, Lt] {
        assert_eq!(operator.as_str().parse(), Ok(operator));
    }
    assert!("Matches".parse::<Operator>().is_err());
}

/// All nodes of the test: labels `x` and `y` are each absent or have one of a few values.
fn nodes() -> Vec<[Option<&'static str>; 2]> {
    let values = [None, Some("0"), Some("1"), Some("2"), Some("other")];
    values
        .into_iter()
        .flat_map(|x| values.into_iter().map(move |y| [x, y]))
        .collect()
}

fn meets(node: [Option<&str>; 2], term: &NodeTerm) -> bool {
    term.expressions.iter().all(|requirement| {
        let value = node[usize::from(requirement.key == "y")];
        let listed = value.is_some_and(|value| requirement.values.iter().any(|one| one == value));
        match requirement.operator {
            Operator::In => listed,
            Operator::NotIn => !listed,
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
            Operator::Gt | Operator::Lt => unreachable!("not among those tried"),
        }
    })
}

fn any_terms() -> impl Strategy<Value = Vec<NodeTerm>> {
    let operator = prop::sample::select(vec![
        Operator::In,
        Operator::NotIn,
        Operator::Exists,
        Operator::DoesNotExist,
    ]);
    let requirement = (
        "[xy]",
        operator,
        proptest::collection::btree_set("[012]", 1..3),
    )
        .prop_map(|(key, operator, values)| NodeRequirement {
            key,
            operator,
            values: values.into_iter().collect(),
        });
    let term = proptest::collection::vec(requirement, 1..3).prop_map(|expressions| NodeTerm {
        expressions,
        fields: Vec::new(),
    });
    proptest::collection::vec(term, 1..3)
}

proptest! {
    #[test]
    fn v7_there_is_a_conflict_exactly_where_no_node_meets_all(lists in proptest::collection::vec(any_terms(), 0..4)) {
        let possible = nodes()
            .into_iter()
            .any(|node| lists.iter().all(|terms| terms.iter().any(|term| meets(node, term))));
        let claims: Vec<_> = lists.into_iter().enumerate().map(|(index, terms)| claim(&format!("c{index}"), terms)).collect();
        prop_assert_eq!(conflict(&claims, &Nodes::new()).is_none(), possible);
    }
}
