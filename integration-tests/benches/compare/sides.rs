//! The sides of the comparison, and their names.

use std::collections::BTreeMap;

use coscheduler_core::config::{self, Backend, PLACEHOLDER_BACKEND};
use integration_tests::sides::Side;

use super::plan::Options;

/// The name of Tekton alone.
pub(crate) const DISABLED: &str = "disabled";

/// The name of Tekton's own affinity assistant in this mode.
pub(crate) fn built_in(mode: &str) -> String {
    format!("built-in {mode}")
}

/// The name of our services in this mode, with their default configuration: placeholders are StatefulSets.
pub(crate) fn ours(mode: &str) -> String {
    format!("ours {mode}")
}

/// The name of our services in this mode, with `placeholder-backend: pod`.
pub(crate) fn pods(mode: &str) -> String {
    format!("ours (pods) {mode}")
}

/// A kind of placeholders, and the name of its side in a mode.
pub(crate) type Kind = (&'static str, fn(&str) -> String);

pub(crate) const KINDS: [Kind; 2] = [("StatefulSets", ours), ("pods", pods)];

#[derive(Debug)]
pub(crate) struct OneSide {
    pub(crate) name: String,
    pub(crate) side: Side,
    /// True if this side deletes the claims of a run at its end.
    pub(crate) claims_go: bool,
}

impl Options {
    /// Tekton alone, and for each mode Tekton's assistant and our services with each kind of placeholder.
    pub(crate) fn sides(&self) -> anyhow::Result<Vec<OneSide>> {
        let mut sides = vec![OneSide {
            name: DISABLED.to_owned(),
            side: Side::Tekton(DISABLED.to_owned()),
            claims_go: false,
        }];
        for mode in &self.modes {
            let flags = BTreeMap::from([("coschedule".to_owned(), mode.clone())]);
            if let Err(violations) = config::check(&flags) {
                let violations = violations.iter().map(ToString::to_string);
                anyhow::bail!("{}", violations.collect::<Vec<_>>().join("; "));
            }
            let tektons = Side::Tekton(mode.clone());
            let sets: Vec<_> = flags.into_iter().collect();
            let backend = (PLACEHOLDER_BACKEND.to_owned(), Backend::Pod.to_string());
            let with_pods = sets.iter().cloned().chain([backend]).collect();
            for (name, side) in [
                (built_in(mode), tektons),
                (ours(mode), Side::Ours(sets)),
                (pods(mode), Side::Ours(with_pods)),
            ] {
                sides.push(OneSide {
                    name,
                    side,
                    claims_go: mode != "workspaces",
                });
            }
        }
        Ok(sides)
    }
}
