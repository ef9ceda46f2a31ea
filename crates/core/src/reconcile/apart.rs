//! Finds out if one node can reach the volumes of all claims of a placeholder (V7). If no node can, the placeholder leaves out
//! some of the claims. A pod that uses only left-out claims then runs without the placeholder. The placeholder cannot leave out
//! claims if one pod needs both a claim that would be left out and a claim that would stay, or needs claims whose volumes no
//! node can reach together.
//!
//! The Pipeline may be unknown, because a resolver may fetch it. So this module learns from the run's pods which claims a task
//! needs.

use std::collections::BTreeSet;

use crate::observed::Observed;
use crate::plan::PlaceholderSpec;
use crate::volumes::{Conflict, conflict};

/// Says if one node can reach the volumes of all claims of a placeholder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fit {
    /// One node can reach the volumes of all claims.
    Together,
    /// No node can reach all these volumes, so the placeholder leaves out the claims in `left_out`. So far, no pod needs both
    /// one of these claims and a claim that stays.
    Apart {
        conflict: Conflict,
        left_out: BTreeSet<String>,
    },
    /// No node can reach all these volumes. The placeholder does not exist yet, and no pod shows yet which claims tasks need.
    Undecided(Conflict),
    /// No node can reach all these volumes, and the placeholder cannot leave out claims. There are three possible causes. One
    /// pod needs both a claim that would be left out and a claim that would stay, or needs claims whose volumes no node can
    /// reach together. Or the placeholder is isolated, so all its pods must share a node. Or the placeholder already has claims
    /// whose volumes no node can reach together.
    Never(Conflict),
}

/// Finds out if one node can reach the volumes of all claims of the placeholder.
pub(super) fn fit(observed: &Observed, spec: &PlaceholderSpec) -> Fit {
    let clash = |claims: &BTreeSet<String>| conflict(&observed.seen(claims), &observed.nodes);
    let all: BTreeSet<String> = spec.claims().collect();
    let Some(conflict) = clash(&all) else {
        return Fit::Together;
    };
    let name = spec.name.as_str();
    let followers = observed.pods.values().filter(|pod| {
        pod.placeholder.is_none() && pod.follows.iter().any(|followed| followed == name)
    });
    let needed: Vec<BTreeSet<String>> = followers
        .map(|pod| pod.claims.iter().cloned().collect())
        .map(|claims: BTreeSet<String>| &claims & &all)
        .collect();
    let own = observed.placeholders.get(name);
    if own.is_none() && needed.is_empty() {
        return Fit::Undecided(conflict);
    }
    let mut held: BTreeSet<String> = own
        .map(|own| own.claims.iter().cloned().collect())
        .unwrap_or_default();
    if spec.is_isolated() || clash(&held).is_some() {
        return Fit::Never(conflict);
    }
    // The claims that one pod needs stay together.
    let others = all
        .iter()
        .filter(|claim| !needed.iter().any(|it| it.contains(*claim)));
    let each = others.map(|claim| BTreeSet::from([claim.clone()]));
    for claims in needed.iter().cloned().chain(each) {
        let both = &held | &claims;
        if clash(&both).is_none() {
            held = both;
        }
    }
    let left_out = &all - &held;
    let torn = needed.iter().any(|claims| {
        let of_both = !claims.is_disjoint(&held) && !claims.is_disjoint(&left_out);
        of_both || clash(claims).is_some()
    });
    match torn {
        true => Fit::Never(conflict),
        false => Fit::Apart { conflict, left_out },
    }
}

/// The claims that the placeholder leaves out.
pub(crate) fn left_out(observed: &Observed, spec: &PlaceholderSpec) -> BTreeSet<String> {
    match fit(observed, spec) {
        Fit::Apart { left_out, .. } => left_out,
        Fit::Together | Fit::Undecided(_) | Fit::Never(_) => BTreeSet::new(),
    }
}
