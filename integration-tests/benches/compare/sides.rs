//! The sides of the comparison, and their names.

use std::collections::BTreeMap;

use coscheduler_core::config;
use integration_tests::sides::Side;

use super::plan::Options;

/// The name of Tekton alone.
pub(crate) const DISABLED: &str = "disabled";

/// The name of Tekton's own affinity assistant in this mode.
pub(crate) fn built_in(mode: &str) -> String {
    format!("built-in {mode}")
}

/// The name of our services in this mode.
pub(crate) fn ours(mode: &str) -> String {
    format!("ours {mode}")
}

#[derive(Debug)]
pub(crate) struct OneSide {
    pub(crate) name: String,
    pub(crate) side: Side,
    /// True if this side deletes the claims of a run at its end.
    pub(crate) claims_go: bool,
}

impl Options {
    /// Tekton alone, and for each mode Tekton's assistant and our services with their default configuration.
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
            let side = Side::Ours(flags.into_iter().collect());
            for (name, side) in [(built_in(mode), tektons), (ours(mode), side)] {
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
