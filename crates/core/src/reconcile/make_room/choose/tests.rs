mod oracle;

use std::collections::BTreeSet;
use std::sync::Arc;

use super::*;
use crate::mode::IsolationScope;
use crate::observed::{Done, ObjectRef, Observed, Placeholder};
use crate::plan::ReasonCode;
use crate::reconcile::evacuate::{Node, Taint, Toleration};
use crate::reconcile::make_room::Resident;
use crate::reconcile::requests::Amounts;
use crate::reconcile::room::{Keeping, Needs};
use crate::volumes::{NodeRequirement, NodeTerm, Operator, SeenClaim, SeenVolume};
use oracle::{Tried, fits_an_empty_node, tried};
use proptest::prelude::*;

fn cpu(milli_cpu: i128) -> Amounts {
    Amounts {
        milli_cpu,
        ..Amounts::default()
    }
}

/// A node with this much CPU, of which so much is taken.
fn room(name: &str, allocatable: i128, requested: i128) -> Room {
    Room {
        node: Node {
            name: name.to_owned(),
            labels: [("host".to_owned(), name.to_owned())].into(),
            ..Node::default()
        },
        allocatable: cpu(allocatable),
        pods_allowed: 110,
        requested: cpu(requested),
        pods: 1,
        ..Room::default()
    }
}

fn claim(name: &str, only_on: Option<&str>) -> SeenClaim {
    let terms = only_on.map(|node| NodeTerm {
        expressions: vec![NodeRequirement {
            key: "host".to_owned(),
            operator: Operator::In,
            values: vec![node.to_owned()],
        }],
        ..NodeTerm::default()
    });
    SeenClaim {
        name: name.to_owned(),
        single_pod: false,
        volume: Some(SeenVolume {
            terms: terms.into_iter().collect(),
        }),
    }
}

/// A case: a pod that asks for 2 CPU, and its placeholder with 50m on node-1, which holds claim "data".
#[derive(Debug)]
struct Case {
    pod: Pod,
    placeholder: Placeholder,
    separation: Separation,
    node: String,
    also_waiting: Vec<Needs>,
    residents: Vec<Resident>,
    rooms: Vec<Room>,
    scale_up: ScaleUp,
    moves: u32,
}

impl Case {
    fn observed(&self) -> Observed {
        let rooms = self.rooms.iter().cloned();
        let rooms = rooms.map(|room| (room.node.name.clone(), Arc::new(room)));
        let mut own = self.placeholder.clone();
        own.record.moved = Some(Done {
            times: self.moves,
            last: jiff::Timestamp::UNIX_EPOCH,
            why: String::new(),
        });
        Observed {
            nodes: Arc::new(rooms.collect()),
            placeholders: [(own.object.name.clone(), Arc::new(own))].into(),
            ..Observed::default()
        }
    }

    fn decided(&self) -> Choice {
        let observed = self.observed();
        self.contention(&observed).choose(&self.pod, self.scale_up)
    }

    fn contention<'a>(&'a self, observed: &'a Observed) -> Contention<'a> {
        let others = self.also_waiting.iter().enumerate();
        let others = others.map(|(index, needs)| named(&format!("other-{index}"), needs.clone()));
        Contention {
            observed,
            own: self.placeholder.clone(),
            pod: ObjectRef::default(),
            node: &self.node,
            separation: self.separation,
            waiting: others.chain([self.pod.clone()]).collect(),
            residents: self.residents.clone(),
        }
    }
}

fn named(name: &str, needs: Needs) -> Pod {
    Pod {
        object: object(name),
        needs,
        ..Pod::default()
    }
}

fn object(name: &str) -> ObjectRef {
    ObjectRef {
        name: name.to_owned(),
        ..ObjectRef::default()
    }
}

fn case(rooms: &[Room], change: impl FnOnce(&mut Case)) -> Case {
    let mut case = Case {
        pod: named(
            "build-pod",
            Needs {
                requests: cpu(2000),
                claims: vec![claim("data", None)],
                ..Needs::default()
            },
        ),
        placeholder: Placeholder {
            object: object("affinity-assistant-1"),
            namespace: "ci".to_owned(),
            needs: Needs {
                requests: cpu(50),
                claims: vec![claim("data", None)],
                ..Needs::default()
            },
            ..Placeholder::default()
        },
        separation: Separation::Spread,
        node: "node-1".to_owned(),
        also_waiting: Vec::new(),
        residents: Vec::new(),
        rooms: rooms.to_vec(),
        scale_up: ScaleUp::default(),
        moves: 0,
    };
    change(&mut case);
    case
}

fn to(nodes: &[&str]) -> Action {
    Action::Move(nodes.iter().map(ToString::to_string).collect())
}

#[track_caller]
fn check(case: &Case, action: &Action, code: ReasonCode, said: &str) {
    let (chosen, reason) = case.decided();
    let message = reason.message;
    assert_eq!((&chosen, reason.code), (action, code), "{message}");
    assert!(message.contains(said), "{message}");
}

#[test]
fn n2_a_pod_that_has_room_waits_for_the_scheduler_which_has_the_last_word() {
    let rooms = [room("node-1", 4000, 2000), room("node-2", 4000, 0)];
    let fits = case(&rooms, |_| ());
    check(&fits, &Action::Wait, ReasonCode::RoomOnNode, "has room");
    let refused = case(&rooms, |case| {
        case.pod.needs.refused = ["node-1".to_owned()].into();
    });
    let moved = ReasonCode::PlaceholderMoved;
    check(&refused, &to(&["node-2"]), moved, "leaves node node-1");
    let everywhere = case(&rooms, |case| {
        case.pod.needs.refused = ["node-1".to_owned(), "node-2".to_owned()].into();
    });
    let code = ReasonCode::PodUnschedulable;
    check(&everywhere, &Action::Report, code, "rejected every node");
    let not_the_placeholder = case(&rooms, |case| {
        case.rooms[0] = room("node-1", 1000, 50);
        case.placeholder.needs.refused = ["node-2".to_owned()].into();
    });
    check(&not_the_placeholder, &Action::Report, code, "build-pod");
}

#[test]
fn n2_the_runs_own_pods_are_waited_for_and_those_of_others_are_not() {
    let rooms = [room("node-1", 4000, 3000), room("node-2", 4000, 0)];
    let resident = |own: bool, keeps: bool, milli: i128| {
        case(&rooms, |case| {
            case.residents = vec![Resident {
                requests: cpu(milli),
                own,
                keeps,
            }];
        })
    };
    let (wait, holds) = (Action::Wait, ReasonCode::RunHoldsRoom);
    let away = to(&["node-2"]);
    let moved = ReasonCode::PlaceholderMoved;
    check(&resident(true, true, 1000), &wait, holds, "use that room");
    check(&resident(true, false, 1000), &wait, holds, "use that room");
    // Their end would not help, but they are not left behind, nor are claims that are in use.
    check(&resident(true, true, 900), &wait, holds, "stays there");
    check(&resident(false, true, 1000), &wait, holds, "stays there");
    check(&resident(true, false, 900), &away, moved, "");
    check(&resident(false, false, 1000), &away, moved, "");
}

#[test]
fn n2_a_full_node_is_left_for_one_that_takes_placeholder_and_pod() {
    let moved = ReasonCode::PlaceholderMoved;
    let small = room("node-1", 1000, 50);
    let of = |others: &[Room]| {
        let rooms: Vec<_> = [&small].into_iter().chain(others).cloned().collect();
        case(&rooms, |_| ())
    };
    // 50m are missing for the placeholder.
    let enough = room("node-2", 2050, 0);
    check(
        &of(std::slice::from_ref(&enough)),
        &to(&["node-2"]),
        moved,
        "build-pod",
    );
    let short = of(&[room("node-2", 2049, 0)]);
    check(
        &short,
        &Action::Report,
        ReasonCode::PodFitsNoNode,
        "cpu 2049m",
    );
    // Both need a place.
    let pods = |allowed: i128| {
        of(&[Room {
            pods_allowed: allowed,
            ..enough.clone()
        }])
    };
    check(&pods(3), &to(&["node-2"]), moved, "");
    check(&pods(2), &Action::Report, ReasonCode::NodesFull, "full");
    let cordoned = Room {
        node: Node {
            unschedulable: true,
            ..enough.node.clone()
        },
        ..enough.clone()
    };
    let fits_none = ReasonCode::PodFitsNoNode;
    check(
        &of(std::slice::from_ref(&cordoned)),
        &Action::Report,
        fits_none,
        "cordoned",
    );
    // Nodes that would not help are not told of, whatever becomes of them.
    let told = |rooms: &[Room]| of(rooms).decided().1.message;
    let other = Room {
        node: Node {
            name: "node-3".to_owned(),
            ..cordoned.node.clone()
        },
        ..room("node-3", 500, 0)
    };
    assert_eq!(told(&[cordoned.clone(), other]), told(&[cordoned]));
}

#[test]
fn n2_the_number_of_pods_counts_where_nothing_is_asked_for() {
    let full = |name: &str, pods: i128| Room {
        pods_allowed: 3,
        pods,
        ..room(name, 1000, 5000)
    };
    let nothing = |rooms: &[Room]| {
        case(rooms, |case| {
            case.pod.needs.requests = Amounts::default();
            case.placeholder.needs.requests = Amounts::default();
        })
    };
    let moved = ReasonCode::PlaceholderMoved;
    let rooms = [full("node-1", 3), full("node-2", 2), full("node-3", 1)];
    check(&nothing(&rooms), &to(&["node-3"]), moved, "");
    check(
        &nothing(&rooms[..2]),
        &Action::Report,
        ReasonCode::NodesFull,
        "full",
    );
    // The end of one of the run's own pods is enough.
    let mut own = nothing(&rooms);
    own.residents = vec![Resident {
        own: true,
        ..Resident::default()
    }];
    let holds = ReasonCode::RunHoldsRoom;
    check(&own, &Action::Wait, holds, "use that room");
    // Overcommitted, and asked for nothing.
    let rooms = [full("node-1", 2)];
    check(
        &nothing(&rooms),
        &Action::Wait,
        ReasonCode::RoomOnNode,
        "has room",
    );
}

#[test]
fn n2_claims_go_only_where_they_are_reached() {
    let rooms = [
        room("node-1", 1000, 50),
        room("node-2", 4000, 0),
        room("node-3", 4000, 0),
    ];
    let held_on = |node: &str| {
        case(&rooms, |case| {
            case.placeholder.needs.claims = vec![claim("data", Some(node))];
            case.pod.needs.claims = case.placeholder.needs.claims.clone();
        })
    };
    let moved = ReasonCode::PlaceholderMoved;
    check(&held_on("node-3"), &to(&["node-3"]), moved, "");
    let pinned = held_on("node-1");
    let code = ReasonCode::PodFitsNoNode;
    check(&pinned, &Action::Report, code, "does not reach claims data");
    let only_the_placeholders = case(&rooms, |case| {
        case.placeholder
            .needs
            .claims
            .push(claim("cache", Some("node-1")));
    });
    let code = ReasonCode::ClaimsNotMovable;
    check(
        &only_the_placeholders,
        &Action::Report,
        code,
        "does not reach claims cache",
    );
}

#[test]
fn n2_a_pod_is_let_go_only_without_shared_claims_and_outside_isolation() {
    let rooms = [room("node-1", 1000, 50), room("node-2", 4000, 0)];
    let pinned = |change: fn(&mut Case)| {
        case(&rooms, |case| {
            case.placeholder.needs.claims = vec![claim("data", Some("node-1"))];
            case.pod.needs.claims = Vec::new();
            change(case);
        })
    };
    let code = ReasonCode::PodLetGo;
    check(&pinned(|_| ()), &Action::LetGo, code, "on another node");
    let own = pinned(|case| case.pod.needs.claims = vec![claim("own", Some("node-2"))]);
    check(&own, &Action::LetGo, code, "");
    let shared = pinned(|case| case.pod.needs.claims = vec![claim("data", None)]);
    let stays = ReasonCode::ClaimsNotMovable;
    check(&shared, &Action::Report, stays, "data");
    for scope in IsolationScope::ALL {
        let mut isolated = pinned(|_| ());
        isolated.separation = Separation::Isolate(scope);
        check(&isolated, &Action::Report, stays, "data");
    }
    let nowhere = pinned(|case| case.rooms[1].requested = cpu(3000));
    check(&nowhere, &Action::Report, stays, "data");
    let too_large = pinned(|case| case.pod.needs.requests = cpu(64_000));
    let none = ReasonCode::PodFitsNoNode;
    check(
        &too_large,
        &Action::Report,
        none,
        "No node can run pod build-pod (cpu 64). Problems: a node has cpu 4 in total, but no room for a request of 64. \
         Change the task's requests or its podTemplate, or add a node that can run the pod.",
    );
}

#[test]
fn n2_isolated_placeholders_keep_to_themselves_when_they_move() {
    let cluster = Separation::Isolate(IsolationScope::Cluster);
    let namespace = Separation::Isolate(IsolationScope::Namespace);
    let spread = Separation::Spread;
    let check_case = |own: Separation, other: Separation, from: &str, moves: bool| {
        let mut there = room("node-2", 4000, 0);
        there.placeholders = vec![Keeping {
            namespace: from.to_owned(),
            separation: other,
        }];
        let case = case(&[room("node-1", 1000, 50), there], |case| {
            case.separation = own;
        });
        if moves {
            check(&case, &to(&["node-2"]), ReasonCode::PlaceholderMoved, "");
        } else {
            check(&case, &Action::Report, ReasonCode::NodesFull, "isolated");
        }
    };
    check_case(spread, spread, "ci", true);
    check_case(spread, cluster, "other", false);
    check_case(spread, namespace, "ci", false);
    check_case(spread, namespace, "other", true);
    check_case(cluster, spread, "other", false);
    check_case(namespace, spread, "other", true);
    check_case(namespace, spread, "ci", false);
}

#[test]
fn n2_the_best_nodes_come_first_and_are_few() {
    let full = room("node-1", 1000, 50);
    let moved = ReasonCode::PlaceholderMoved;
    let rooms = [
        full.clone(),
        room("node-2", 4000, 1000),
        room("node-3", 4000, 0),
        room("node-4", 4000, 1000),
        room("node-5", 8000, 0),
    ];
    let by_room = case(&rooms, |_| ());
    let order = to(&["node-5", "node-3", "node-2", "node-4"]);
    check(&by_room, &order, moved, "");
    // Only the last takes two pods of 3 CPU each beside the first.
    let others = case(&rooms, |case| {
        case.rooms[4] = room("node-5", 80_000, 71_000);
        let third = Needs {
            requests: cpu(3000),
            ..Needs::default()
        };
        case.also_waiting = vec![third.clone(), third];
    });
    let order = to(&["node-5", "node-3", "node-2", "node-4"]);
    check(&others, &order, moved, "");
    let crowded = case(&rooms, |case| {
        case.rooms[4].placeholders = vec![Keeping {
            namespace: "other".to_owned(),
            separation: Separation::Spread,
        }];
    });
    let order = to(&["node-3", "node-2", "node-4", "node-5"]);
    check(&crowded, &order, moved, "");
    let many: Vec<_> = (1..60)
        .map(|number| {
            room(
                &format!("node-{number}"),
                4000 - (number == 1) as i128 * 3000,
                0,
            )
        })
        .collect();
    let Action::Move(nodes) = case(&many, |_| ()).decided().0 else {
        panic!("it does not move");
    };
    assert_eq!(nodes.len(), NODES);
}

#[test]
fn n2_moves_are_bounded() {
    let rooms = [room("node-1", 1000, 50), room("node-2", 4000, 0)];
    let after = |moves: u32, claims: bool| {
        case(&rooms, |case| {
            case.moves = moves;
            if !claims {
                case.pod.needs.claims = Vec::new();
            }
        })
    };
    let moved = ReasonCode::PlaceholderMoved;
    check(&after(MOVES - 1, true), &to(&["node-2"]), moved, "");
    let exhausted = ReasonCode::MovesExhausted;
    check(&after(MOVES, true), &Action::Report, exhausted, "5 times");
    check(
        &after(MOVES, false),
        &Action::LetGo,
        ReasonCode::PodLetGo,
        "",
    );
}

#[test]
fn n4_nothing_is_moved_while_a_node_is_about_to_be_added() {
    let rooms = [room("node-1", 1000, 50), room("node-2", 4000, 0)];
    let second = Duration::from_secs(1);
    let with = |triggered: Option<u32>, node_added: Option<u32>| {
        case(&rooms, |case| {
            case.scale_up = ScaleUp {
                triggered: triggered.map(|ago| second * ago),
                node_added: node_added.map(|ago| second * ago),
                hold: second * 60,
            };
        })
    };
    let in_flight = ReasonCode::ScaleUpInFlight;
    let moved = ReasonCode::PlaceholderMoved;
    check(
        &with(Some(59), None),
        &Action::Wait,
        in_flight,
        "autoscaler",
    );
    check(&with(None, Some(0)), &Action::Wait, in_flight, "was added");
    check(&with(Some(60), Some(61)), &to(&["node-2"]), moved, "");
    check(&with(None, None), &to(&["node-2"]), moved, "");
    // What would be let go stays as well.
    let mut alone = with(Some(1), None);
    alone.pod.needs.claims = Vec::new();
    alone.placeholder.needs.claims = vec![claim("data", Some("node-1"))];
    check(&alone, &Action::Wait, in_flight, "");
    // The scheduler needs nobody's help.
    alone.rooms[0].allocatable = cpu(4000);
    check(&alone, &Action::Wait, ReasonCode::RoomOnNode, "");
}

#[test]
fn n2_a_placeholder_that_is_being_evacuated_is_left_to_that() {
    let rooms = [room("node-1", 1000, 50), room("node-2", 4000, 0)];
    let code = ReasonCode::PlaceholderLeaves;
    let gone = case(&rooms[1..], |_| ());
    check(&gone, &Action::Wait, code, "has left node node-1");
    let cordoned = case(&rooms, |case| case.rooms[0].node.unschedulable = true);
    check(&cordoned, &Action::Wait, code, "has left node node-1");
    // Labels may change after a pod was bound: then it stays.
    let selects = case(&rooms, |case| {
        case.placeholder.needs.selector = [("host".to_owned(), "node-2".to_owned())].into();
    });
    let moved = ReasonCode::PlaceholderMoved;
    check(&selects, &to(&["node-2"]), moved, "");
}

#[test]
fn n2_selectors_taints_and_affinity_are_honoured_for_both() {
    let rooms = [
        room("node-1", 1000, 50),
        room("node-2", 4000, 0),
        room("node-3", 4000, 0),
    ];
    let changes: [fn(&mut Case); 5] = [
        |case| case.pod.needs.selector = [("host".to_owned(), "node-3".to_owned())].into(),
        |case| case.placeholder.needs.selector = [("host".to_owned(), "node-3".to_owned())].into(),
        |case| case.pod.needs.terms = Some(claim("", Some("node-3")).volume.unwrap().terms),
        |case| case.placeholder.needs.terms = Some(claim("", Some("node-3")).volume.unwrap().terms),
        |case| {
            case.rooms[1].node.taints = vec![Taint {
                key: "gpu".to_owned(),
                value: String::new(),
                effect: "NoSchedule".to_owned(),
            }];
            // That the pod bears it is not enough.
            case.pod.needs.tolerations = vec![Toleration {
                exists: true,
                ..Toleration::default()
            }];
        },
    ];
    for change in changes {
        let case = case(&rooms, change);
        check(&case, &to(&["node-3"]), ReasonCode::PlaceholderMoved, "");
    }
    // The least obstacle comes first.
    let mut far: Vec<_> = (1..9)
        .map(|number| room(&format!("node-{number}"), 9000, 50))
        .collect();
    far[7] = room("node-8", 1000, 50);
    far[7].node.labels.insert("size".to_owned(), "s".to_owned());
    let far = case(&far, |case| {
        case.pod.needs.selector = [("size".to_owned(), "s".to_owned())].into();
    });
    let code = ReasonCode::PodFitsNoNode;
    let nearest = "(cpu 2). Problems: a node has cpu 1 in total, but no room for a request of 2; a node does not match the \
                   nodeSelector or node affinity.";
    check(&far, &Action::Report, code, nearest);
    // An affinity without terms is met nowhere.
    let nowhere = case(&rooms, |case| case.pod.needs.terms = Some(Vec::new()));
    check(
        &nowhere,
        &Action::Report,
        code,
        "does not match the nodeSelector",
    );
}

const NODE_NAMES: [&str; 4] = ["a", "b", "c", "d"];

fn any_amounts() -> impl Strategy<Value = Amounts> {
    let some = || prop::sample::select(vec![0_i128, 0, 0, 1, 2, 3]);
    (some(), some(), some(), some()).prop_map(|(milli_cpu, memory, ephemeral_storage, gpu)| {
        Amounts {
            milli_cpu,
            memory,
            ephemeral_storage,
            others: (gpu > 0)
                .then(|| ("example.dev/gpu".to_owned(), gpu))
                .into_iter()
                .collect(),
        }
    })
}

fn seldom<T: Clone + std::fmt::Debug + 'static>(
    strategy: impl Strategy<Value = T> + 'static,
    otherwise: T,
) -> impl Strategy<Value = T> {
    prop_oneof![7 => Just(otherwise), 1 => strategy]
}

fn any_terms() -> impl Strategy<Value = Vec<NodeTerm>> {
    let operator = prop::sample::select(vec![
        Operator::In,
        Operator::NotIn,
        Operator::Exists,
        Operator::DoesNotExist,
        Operator::Gt,
        Operator::Lt,
    ]);
    let expression = (
        prop::sample::select(vec!["zone", "size"]),
        operator,
        0..4_u32,
    )
        .prop_map(|(key, operator, value)| NodeRequirement {
            key: key.to_owned(),
            operator,
            values: match operator {
                Operator::Exists | Operator::DoesNotExist => Vec::new(),
                Operator::In | Operator::NotIn | Operator::Gt | Operator::Lt => {
                    vec![value.to_string()]
                }
            },
        });
    let field =
        (any::<bool>(), prop::sample::select(NODE_NAMES.to_vec())).prop_map(|(is, name)| {
            NodeRequirement {
                key: "metadata.name".to_owned(),
                operator: if is { Operator::In } else { Operator::NotIn },
                values: vec![name.to_owned()],
            }
        });
    let term = (
        prop::collection::vec(expression, 0..3),
        prop::collection::vec(field, 0..2),
    )
        .prop_map(|(expressions, fields)| NodeTerm {
            expressions,
            fields,
        });
    prop::collection::vec(term, 0..3)
}

fn any_claims() -> impl Strategy<Value = Vec<SeenClaim>> {
    let terms = seldom(any_terms(), Vec::new());
    let volume = prop::option::of(terms.prop_map(|terms| SeenVolume { terms }));
    let claim =
        (prop::sample::select(vec!["data", "cache", "own"]), volume).prop_map(|(name, volume)| {
            SeenClaim {
                name: name.to_owned(),
                single_pod: false,
                volume,
            }
        });
    prop::collection::vec(claim, 0..2)
}

fn any_tolerations() -> impl Strategy<Value = Vec<Toleration>> {
    let key = prop::sample::select(vec!["", "gpu", "node.kubernetes.io/unschedulable"]);
    let effect = prop::sample::select(vec!["", "NoSchedule", "NoExecute"]);
    let toleration = (key, any::<bool>(), effect, any::<bool>()).prop_map(
        |(key, exists, effect, for_a_while)| Toleration {
            key: key.to_owned(),
            exists,
            value: String::new(),
            effect: effect.to_owned(),
            for_a_while,
        },
    );
    prop::collection::vec(toleration, 0..3)
}

fn any_refusals() -> impl Strategy<Value = BTreeSet<String>> {
    let name = prop::sample::select(NODE_NAMES.to_vec());
    let names = prop::collection::btree_set(name, 0..2);
    names.prop_map(|names| names.into_iter().map(str::to_owned).collect())
}

fn any_needs() -> impl Strategy<Value = Needs> {
    let zone = (0..3_u32).prop_map(|zone| [("zone".to_owned(), zone.to_string())].into());
    (
        any_amounts(),
        seldom(zone, [].into()),
        seldom(any_terms().prop_map(Some), None),
        any_tolerations(),
        any_claims(),
        seldom(any_refusals(), BTreeSet::new()),
    )
        .prop_map(
            |(requests, selector, terms, tolerations, claims, refused)| Needs {
                requests,
                selector,
                terms,
                tolerations,
                claims,
                refused,
            },
        )
}

fn any_separation() -> impl Strategy<Value = Separation> {
    prop::sample::select(vec![
        Separation::Spread,
        Separation::Spread,
        Separation::Isolate(IsolationScope::Cluster),
        Separation::Isolate(IsolationScope::Namespace),
    ])
}

fn any_room(name: &'static str) -> impl Strategy<Value = Room> {
    let effect = prop::sample::select(vec!["NoSchedule", "PreferNoSchedule", "NoExecute"]);
    let taint = effect.prop_map(|effect| {
        vec![Taint {
            key: "gpu".to_owned(),
            value: String::new(),
            effect: effect.to_owned(),
        }]
    });
    let label = |key: &'static str| {
        prop::option::of((0..4_u32).prop_map(move |value| (key.to_owned(), value.to_string())))
    };
    let other = (any::<bool>(), any_separation()).prop_map(|(near, separation)| Keeping {
        namespace: if near { "ci" } else { "other" }.to_owned(),
        separation,
    });
    (
        (label("zone"), label("size")),
        seldom(Just(true), false),
        seldom(taint, Vec::new()),
        (any_amounts(), any_amounts()),
        any_amounts(),
        (0..8_i128, 0..4_i128),
        seldom(prop::collection::vec(other, 0..2), Vec::new()),
    )
        .prop_map(
            move |(
                (zone, size),
                unschedulable,
                taints,
                (one, two),
                requested,
                (pods_allowed, pods),
                placeholders,
            )| {
                let mut allocatable = one.clone();
                for more in [&one, &two, &two] {
                    allocatable.add(more);
                }
                Room {
                    node: Node {
                        name: name.to_owned(),
                        unschedulable,
                        taints,
                        labels: zone.into_iter().chain(size).collect(),
                    },
                    allocatable,
                    pods_allowed,
                    requested,
                    pods,
                    placeholders,
                    ..Room::default()
                }
            },
        )
}

fn any_case() -> impl Strategy<Value = Case> {
    let resident =
        (any_amounts(), any::<bool>(), any::<bool>()).prop_map(|(requests, own, keeps)| Resident {
            requests,
            own,
            keeps,
        });
    let seconds = || prop::option::weighted(0.05, (0..3_u64).prop_map(Duration::from_secs));
    (
        (any_needs(), any_needs(), any_separation()),
        prop::collection::vec(any_needs(), 0..2),
        prop::collection::vec(resident, 0..3),
        NODE_NAMES.map(any_room),
        (2..5_usize, 0..3_usize),
        (seconds(), seconds(), 0..MOVES + 1),
    )
        .prop_map(
            |((pod, needs, separation), also_waiting, residents, rooms, (count, on), late)| {
                let mut rooms = rooms.to_vec();
                // What is there is counted.
                for resident in &residents {
                    rooms[on].requested.add(&resident.requests);
                    rooms[on].pods += 1;
                }
                rooms.truncate(count);
                let (triggered, node_added, moves) = late;
                Case {
                    pod: named("pod", pod),
                    placeholder: Placeholder {
                        object: object("placeholder"),
                        namespace: "ci".to_owned(),
                        needs,
                        ..Placeholder::default()
                    },
                    separation,
                    node: NODE_NAMES[on].to_owned(),
                    also_waiting,
                    residents,
                    rooms,
                    scale_up: ScaleUp {
                        triggered,
                        node_added,
                        hold: Duration::from_secs(2),
                    },
                    moves,
                }
            },
        )
}

/// What was decided, in the words of the oracle.
fn said((action, reason): &Choice) -> Tried {
    match (action, reason.code) {
        (Action::Wait, ReasonCode::PlaceholderLeaves) => Tried::Leaves,
        (Action::Wait, ReasonCode::RoomOnNode) => Tried::Fits,
        (Action::Wait, ReasonCode::ScaleUpInFlight) => Tried::ScaleUp,
        (Action::Wait, ReasonCode::RunHoldsRoom) => Tried::Held,
        (Action::Move(nodes), ReasonCode::PlaceholderMoved) => {
            let mut nodes = nodes.clone();
            nodes.sort();
            Tried::Move(nodes)
        }
        (Action::LetGo, ReasonCode::PodLetGo) => Tried::LetGo,
        (Action::Report, _) => Tried::Nothing,
        other => panic!("{other:?}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2048))]

    #[test]
    fn n2_n4_what_is_decided_is_what_trying_everything_shows(case in any_case()) {
        let observed = case.observed();
        let tried = tried(&case.contention(&observed), &case.pod, case.scale_up, case.moves);
        let decided = case.decided();
        prop_assert_eq!(said(&decided), tried, "{}", decided.1.message);
    }

    #[test]
    fn n2_a_pod_that_uses_a_claim_of_its_placeholder_or_is_isolated_is_never_let_go(case in any_case()) {
        let shared = case.pod.needs.claims.iter().any(|claim| case.placeholder.needs.claims.iter().any(|held| held.name == claim.name));
        if shared || case.separation != Separation::Spread {
            prop_assert_ne!(case.decided().0, Action::LetGo);
        }
    }

    /// What is told is told in a closed list of codes, and that no node takes a pod only if that is so.
    #[test]
    fn n2_what_is_reported_has_its_cause(case in any_case()) {
        let (action, reason) = case.decided();
        let told = reason.code.told().is_some();
        prop_assert_eq!(told, action != Action::Wait);
        if action == Action::Report {
            let fits = fits_an_empty_node(&case.pod, &case.rooms);
            let message = reason.message;
            let no_node = message.starts_with("No node can run") && !message.contains(" and placeholder ");
            prop_assert_eq!(!fits, no_node, "{}", message);
        }
    }

    /// The scheduler may refuse every move: each refusal takes a node away, so that it ends.
    #[test]
    fn n2_a_wrong_guess_is_not_repeated(case in any_case()) {
        let mut case = case;
        let mut tried = BTreeSet::new();
        while let Action::Move(nodes) = case.decided().0 {
            case.moves += 1;
            prop_assert!(case.moves <= MOVES);
            prop_assert!(tried.insert(nodes[0].clone()), "{nodes:?}");
            case.placeholder.needs.refused.insert(nodes[0].clone());
        }
    }
}
