//! Whether a node could exist that meets several node selectors at once. Kubernetes, "Assigning Pods to Nodes": of the
//! terms of a selector one must be met, of the requirements of a term all.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::words::words;

/// One of the `nodeSelectorTerms` of a node selector.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeTerm {
    /// `matchExpressions`: about labels.
    pub expressions: Vec<NodeRequirement>,
    /// `matchFields`: about fields, of which Kubernetes knows `metadata.name`.
    pub fields: Vec<NodeRequirement>,
}

/// One requirement of a term.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeRequirement {
    /// The label, or the field.
    pub key: String,
    /// What is required of it.
    pub operator: Operator,
    /// What it is compared with.
    pub values: Vec<String>,
}

words! {
    /// What is required of a label or field.
    pub enum Operator: "an operator of a node selector" {
        /// It has one of the values.
        In = "In",
        /// It has none of the values, or does not exist.
        NotIn = "NotIn",
        /// It exists.
        Exists = "Exists",
        /// It does not exist.
        DoesNotExist = "DoesNotExist",
        /// It is a number greater than the one value.
        Gt = "Gt",
        /// It is a number less than the one value.
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

/// Terms in words: `topology.kubernetes.io/zone In a, b and disk Exists, or metadata.name In n1`.
pub(super) fn describe(terms: &[NodeTerm]) -> String {
    let term = |term: &NodeTerm| {
        let all = term.expressions.iter().chain(&term.fields);
        let all: Vec<_> = all.map(ToString::to_string).collect();
        all.join(" and ")
    };
    let terms: Vec<_> = terms.iter().map(term).collect();
    terms.join(", or ")
}

/// How many combinations of terms are looked at before the answer is taken to be yes: a false alarm is worse than none,
/// and the scheduler has the last word.
const COMBINATIONS: usize = 100_000;

/// Whether a node could exist that meets one term of each list.
pub(super) fn some_node_meets(lists: &[&[NodeTerm]]) -> bool {
    let distinct: BTreeSet<&[NodeTerm]> = lists.iter().copied().collect();
    let mut lists: Vec<_> = distinct.into_iter().collect();
    lists.sort_by_key(|list| list.len());
    search(&lists, &Node::default(), &mut 0)
}

/// Whether the node with this name and these labels meets one term of each list.
pub(super) fn node_meets(
    name: &str,
    labels: &BTreeMap<String, String>,
    lists: &[&[NodeTerm]],
) -> bool {
    let terms = lists.iter().copied().flatten();
    let keys: BTreeSet<&String> = terms
        .flat_map(|term| &term.expressions)
        .map(|requirement| &requirement.key)
        .collect();
    // What it is, said as a term of its own.
    let is = |key: &str, value: Option<&str>| NodeRequirement {
        key: key.to_owned(),
        operator: value.map_or(Operator::DoesNotExist, |_| Operator::In),
        values: value.map(str::to_owned).into_iter().collect(),
    };
    let itself = NodeTerm {
        expressions: keys
            .into_iter()
            .map(|key| is(key, labels.get(key).map(String::as_str)))
            .collect(),
        fields: vec![is("metadata.name", Some(name))],
    };
    let itself = std::slice::from_ref(&itself);
    let lists: Vec<_> = lists.iter().copied().chain([itself]).collect();
    some_node_meets(&lists)
}

fn search(lists: &[&[NodeTerm]], node: &Node<'_>, looked_at: &mut usize) -> bool {
    let Some((terms, rest)) = lists.split_first() else {
        return true;
    };
    terms.iter().any(|term| {
        *looked_at += 1;
        *looked_at > COMBINATIONS
            || node
                .with(term)
                .is_some_and(|node| search(rest, &node, looked_at))
    })
}

/// What has been required so far, by key; fields are told from labels.
#[derive(Clone, Default)]
struct Node<'a>(BTreeMap<(bool, &'a str), Required<'a>>);

/// What has been required of one label or field.
#[derive(Clone, Default)]
struct Required<'a> {
    present: bool,
    absent: bool,
    one_of: Option<BTreeSet<&'a str>>,
    none_of: BTreeSet<&'a str>,
    above: Option<i64>,
    below: Option<i64>,
}

impl<'a> Node<'a> {
    /// The requirements and those of `term`; `None` where no node can meet both. A term without requirements is met by
    /// no node.
    fn with(&self, term: &'a NodeTerm) -> Option<Self> {
        let expressions = term.expressions.iter().map(|one| (false, one));
        let fields = term.fields.iter().map(|one| (true, one));
        let mut node = self.clone();
        let mut any = false;
        for (field, requirement) in expressions.chain(fields) {
            any = true;
            let required = node.0.entry((field, &requirement.key)).or_default();
            required.add(requirement);
            if !required.can_be_met() {
                return None;
            }
        }
        any.then_some(node)
    }
}

impl<'a> Required<'a> {
    fn add(&mut self, requirement: &'a NodeRequirement) {
        let values = || requirement.values.iter().map(String::as_str);
        let number = || values().next().and_then(|value| value.parse().ok());
        match requirement.operator {
            Operator::In => {
                self.present = true;
                let values = values().collect();
                self.one_of = Some(match self.one_of.take() {
                    Some(before) => before.intersection(&values).copied().collect(),
                    None => values,
                });
            }
            Operator::NotIn => self.none_of.extend(values()),
            Operator::Exists => self.present = true,
            Operator::DoesNotExist => self.absent = true,
            Operator::Gt => {
                self.present = true;
                self.above = self.above.max(number());
            }
            Operator::Lt => {
                self.present = true;
                self.below = match (self.below, number()) {
                    (Some(before), Some(now)) => Some(before.min(now)),
                    (before, now) => before.or(now),
                };
            }
        }
    }

    fn can_be_met(&self) -> bool {
        if self.absent {
            return !self.present;
        }
        let bounded = self.above.is_some() || self.below.is_some();
        let fits = |number: i64| {
            self.above.is_none_or(|above| number > above)
                && self.below.is_none_or(|below| number < below)
        };
        match &self.one_of {
            Some(values) => values.iter().any(|value| {
                !self.none_of.contains(value) && (!bounded || value.parse().is_ok_and(fits))
            }),
            None => match (self.above, self.below) {
                (Some(above), Some(below)) => below.saturating_sub(above) > 1,
                (Some(_) | None, Some(_) | None) => true,
            },
        }
    }
}
