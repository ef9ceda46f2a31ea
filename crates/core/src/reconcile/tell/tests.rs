use super::*;

#[test]
fn n1_a_claim_that_cannot_follow_is_reported_while_its_nodes_turn_pods_away() {
    use crate::volumes::{NodeRequirement, NodeTerm, Operator, SeenVolume};
    let zone = |value: &str, cordoned: bool| Node {
        name: format!("node-{value}"),
        unschedulable: cordoned,
        labels: [("zone".to_owned(), value.to_owned())].into(),
        ..Node::default()
    };
    let claim = |operator: Operator, values: &[&str]| SeenClaim {
        name: "data".to_owned(),
        volume: Some(SeenVolume {
            terms: vec![NodeTerm {
                expressions: vec![NodeRequirement {
                    key: "zone".to_owned(),
                    operator,
                    values: values.iter().map(ToString::to_string).collect(),
                }],
                ..NodeTerm::default()
            }],
        }),
        ..SeenClaim::default()
    };
    let check = |claim: &SeenClaim, nodes: &[Node], expect: Option<&str>| {
        let nodes: Vec<&Node> = nodes.iter().collect();
        let stranded = stranded(&[], std::slice::from_ref(claim), &nodes);
        let message = stranded.map(|reason| reason.message);
        match (&message, expect) {
            (None, None) => {}
            (Some(message), Some(part)) => assert!(message.contains(part), "{message}"),
            _ => panic!("{message:?} instead of {expect:?}"),
        }
    };
    let in_a = claim(Operator::In, &["a"]);
    let cordoned = "(node-a: the node is cordoned)";
    check(&in_a, &[zone("a", true), zone("b", false)], Some(cordoned));
    check(&in_a, &[zone("a", false), zone("b", true)], None);
    check(&in_a, &[zone("b", false)], Some("No node reaches"));
    check(&in_a, &[Node::default()], Some("No node reaches"));
    let two = [zone("a", true), zone("a", false)];
    check(&in_a, &two, None);
    let not_b = claim(Operator::NotIn, &["b"]);
    check(&not_b, &[Node::default()], None);
    check(&not_b, &[zone("b", false)], Some("No node reaches"));
    let movable = SeenClaim {
        name: "data".to_owned(),
        volume: Some(SeenVolume::default()),
        ..SeenClaim::default()
    };
    check(&movable, &[zone("a", true)], None);
}
