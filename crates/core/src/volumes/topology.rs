//! Finds out if one node could meet several node selectors at the same time. A node meets a selector if it meets at least one
//! term of the selector. A node meets a term if it meets all requirements of the term (Kubernetes, "Assigning Pods to Nodes").

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::Nodes;
use crate::labels::HOSTNAME;
use crate::words::words;

/// One of the `nodeSelectorTerms` of a node selector.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeTerm {
    /// `matchExpressions`: requirements on labels.
    pub expressions: Vec<NodeRequirement>,
    /// `matchFields`: requirements on fields. Kubernetes supports only field `metadata.name`.
    pub fields: Vec<NodeRequirement>,
}

impl NodeTerm {
    /// Returns the only node that can meet the term: its name, or the value of its label `kubernetes.io/hostname`. `None` if the
    /// term requires no certain name and no certain value of this label.
    pub fn one_node(&self) -> Option<&str> {
        let mut requirements = self.expressions.iter().chain(&self.fields);
        requirements.find_map(|it| {
            let names = [HOSTNAME, "metadata.name"].contains(&it.key.as_str());
            match &it.values[..] {
                [node] if names && it.operator == Operator::In => Some(node.as_str()),
                _ => None,
            }
        })
    }
}

/// One requirement of a term.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeRequirement {
    /// The key of the label, or the path of the field.
    pub key: String,
    /// The operator.
    pub operator: Operator,
    /// The listed values. Empty for `Exists` and `DoesNotExist`.
    pub values: Vec<String>,
}

words! {
    /// An operator of a requirement. It compares the value of a label or field with the listed values.
    pub enum Operator: "an operator of a node selector" {
        /// The value is one of the listed values.
        In = "In",
        /// The value is none of the listed values, or the label or field does not exist.
        NotIn = "NotIn",
        /// The label or field exists.
        Exists = "Exists",
        /// The label or field does not exist.
        DoesNotExist = "DoesNotExist",
        /// The value is a number greater than the listed number.
        Gt = "Gt",
        /// The value is a number less than the listed number.
        Lt = "Lt",
    }
}

impl fmt::Display for NodeRequirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            key,
            operator,
            values,
        } = self;
        write!(f, "{key} {}", operator.as_str())?;
        if values.is_empty() {
            Ok(())
        } else {
            write!(f, " {}", values.join(", "))
        }
    }
}

/// The terms as text, for example `topology.kubernetes.io/zone In a, b and disk Exists, or metadata.name In n1`.
pub(super) fn describe(terms: &[NodeTerm]) -> String {
    let term = |term: &NodeTerm| {
        let all = term.expressions.iter().chain(&term.fields);
        let all: Vec<_> = all.map(ToString::to_string).collect();
        all.join(" and ")
    };
    let terms: Vec<_> = terms.iter().map(term).collect();
    terms.join(", or ")
}

/// The greatest number of terms to try. If the search is not finished after this number, the result is that one node could meet
/// all lists. A false alarm would be worse than no alarm, because the scheduler still checks the real nodes.
const COMBINATIONS: usize = 100_000;

/// True if one of `nodes`, or a new node, could meet at least one term of each list. If a term names one of `nodes`, no new node
/// can meet the term: only the labels of the existing node count.
pub(super) fn can_meet(lists: &[&[NodeTerm]], nodes: &Nodes) -> bool {
    let known = |term: &&NodeTerm| {
        let name = term.one_node()?;
        let node = nodes.get(name)?;
        let hostname = node.labels.get(HOSTNAME);
        hostname.is_none_or(|it| it == name).then_some(node)
    };
    let terms = lists.iter().flat_map(|terms| terms.iter());
    let mut named = terms.filter_map(|term| known(&term));
    let others = lists.iter().map(|terms| {
        let others = terms.iter().filter(|term| known(term).is_none());
        others.cloned().collect()
    });
    let others: Vec<Vec<NodeTerm>> = others.collect();
    let others: Vec<&[NodeTerm]> = others.iter().map(Vec::as_slice).collect();
    named.any(|node| node_meets(&node.name, &node.labels, lists)) || some_node_meets(&others)
}

/// True if a node with a suitable name and suitable labels could meet at least one term of each list.
fn some_node_meets(lists: &[&[NodeTerm]]) -> bool {
    let distinct: BTreeSet<&[NodeTerm]> = lists.iter().copied().collect();
    let mut lists: Vec<_> = distinct.into_iter().collect();
    lists.sort_by_key(|list| list.len());
    search(&lists, &Required::default(), &mut 0)
}

/// True if the node with this name and these labels meets at least one term of each list.
pub(super) fn node_meets(
    name: &str,
    labels: &BTreeMap<String, String>,
    lists: &[&[NodeTerm]],
) -> bool {
    let value = |is_field: bool, key: &str| match is_field {
        true => (key == "metadata.name").then_some(name),
        false => labels.get(key).map(String::as_str),
    };
    let meets = |term: &NodeTerm| {
        !term.is_empty()
            && term
                .requirements()
                .all(|((is_field, key), one)| one.is_met_by(value(is_field, key)))
    };
    lists.iter().all(|terms| terms.iter().any(meets))
}

fn search(lists: &[&[NodeTerm]], required: &Required<'_>, tried: &mut usize) -> bool {
    let Some((terms, rest)) = lists.split_first() else {
        return true;
    };
    terms.iter().any(|term| {
        *tried += 1;
        *tried > COMBINATIONS
            || with(required, term).is_some_and(|required| search(rest, &required, tried))
    })
}

/// The key of a requirement: `true` for a field or `false` for a label, and the name of the field or label.
type Key<'a> = (bool, &'a str);

/// The requirements that the node must meet so far.
type Required<'a> = BTreeMap<Key<'a>, Vec<&'a NodeRequirement>>;

/// The requirements so far together with those of `term`. `None` if no node can meet all of them.
fn with<'a>(required: &Required<'a>, term: &'a NodeTerm) -> Option<Required<'a>> {
    let mut both = required.clone();
    for (key, requirement) in term.requirements() {
        both.entry(key).or_default().push(requirement);
    }
    let mut keys = term.requirements().map(|(key, _)| key);
    let possible = !term.is_empty() && keys.all(|key| can_be_met(&both[&key]));
    possible.then_some(both)
}

/// True if some value of a label or field, or the absence of the label or field, meets all requirements. All `requirements` are
/// about the same label or field.
fn can_be_met(requirements: &[&NodeRequirement]) -> bool {
    let listed = || requirements.iter().flat_map(|one| &one.values);
    let unlisted: String = listed().map(String::as_str).chain(["x"]).collect();
    // For `Gt` and `Lt`, also try numbers beyond the bound. Try one more of them than there are listed values, so that `NotIn`
    // cannot exclude all of them.
    let count = listed().count() as i64 + 1;
    let beyond = requirements.iter().flat_map(|one| {
        let bound = one.bound().unwrap_or_default();
        let numbers = match one.operator {
            Operator::Gt => Some(bound.saturating_add(1)..=bound.saturating_add(count)),
            Operator::Lt => Some(bound.saturating_sub(count)..=bound.saturating_sub(1)),
            Operator::In | Operator::NotIn | Operator::Exists | Operator::DoesNotExist => None,
        };
        let numbers = numbers.into_iter().flatten();
        numbers.map(|number| number.to_string())
    });
    let values = listed().cloned().chain([unlisted]).chain(beyond);
    let mut candidates = values.map(Some).chain([None]);
    candidates.any(|value| {
        requirements
            .iter()
            .all(|one| one.is_met_by(value.as_deref()))
    })
}

impl NodeTerm {
    /// A term without requirements matches no node.
    fn is_empty(&self) -> bool {
        self.expressions.is_empty() && self.fields.is_empty()
    }

    fn requirements(&self) -> impl Iterator<Item = (Key<'_>, &NodeRequirement)> {
        let labels = self.expressions.iter().map(|one| (false, one));
        let fields = self.fields.iter().map(|one| (true, one));
        let all = labels.chain(fields);
        all.map(|(is_field, one)| ((is_field, one.key.as_str()), one))
    }
}

impl NodeRequirement {
    fn bound(&self) -> Option<i64> {
        self.values.first()?.parse().ok()
    }

    /// True if a label or field with this value meets the requirement. The value is `None` if the label or field does not exist.
    fn is_met_by(&self, value: Option<&str>) -> bool {
        let is_listed = || value.is_some_and(|value| self.values.iter().any(|one| one == value));
        let number = value.and_then(|value| value.parse::<i64>().ok());
        match self.operator {
            Operator::In => is_listed(),
            Operator::NotIn => !is_listed(),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
            Operator::Gt => number > self.bound() && self.bound().is_some(),
            Operator::Lt => number < self.bound() && number.is_some(),
        }
    }
}
