//! Which configuration is in force: a reducer over the states of the ConfigMap.

use std::collections::BTreeMap;

use coscheduler_core::config::{self, Configuration};
use coscheduler_core::violation::Violation;

/// A ConfigMap as it was read.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Read {
    /// `data`.
    pub data: BTreeMap<String, String>,
    /// `metadata.resourceVersion`.
    pub resource_version: String,
}

/// The configuration in force, and what is wrong with the ConfigMap as it is now.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct State {
    /// Whether the ConfigMap, or its absence, was read at all.
    pub read: bool,
    /// Counts changes of `configuration`, from 1.
    pub generation: i64,
    /// The last valid configuration.
    pub configuration: Option<Configuration>,
    /// The ConfigMap's version that `configuration` was read from.
    pub resource_version: String,
    /// What is wrong with the ConfigMap now.
    pub violations: Vec<Violation>,
    /// What is allowed but probably not meant.
    pub warnings: Vec<String>,
}

impl State {
    /// Takes in the ConfigMap as it is now; `None` where there is none.
    pub(crate) fn apply(&mut self, name: &str, read: Option<Read>) {
        self.read = true;
        let checked = match &read {
            Some(read) => config::check(&read.data),
            None => Err(vec![Violation::new(name, "there is no such ConfigMap")]),
        };
        match checked {
            Ok(checked) => {
                if self.configuration.as_ref() != Some(&checked.configuration) {
                    self.generation += 1;
                    self.configuration = Some(checked.configuration);
                }
                self.resource_version = read.map(|read| read.resource_version).unwrap_or_default();
                self.violations = Vec::new();
                self.warnings = checked.warnings;
            }
            Err(violations) => {
                self.violations = violations;
                self.warnings = Vec::new();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coscheduler_core::mode::Mode;

    fn read(mode: &str, resource_version: &str) -> Option<Read> {
        Some(Read {
            data: [("coschedule".to_owned(), mode.to_owned())].into(),
            resource_version: resource_version.to_owned(),
        })
    }

    #[test]
    fn a_bad_config_map_leaves_the_last_good_configuration_in_force() {
        let mut state = State::default();
        state.apply("c", read("pipelineruns", "1"));
        state.apply("c", read("sideways", "2"));
        assert_eq!(state.generation, 1);
        assert_eq!(state.resource_version, "1");
        assert_eq!(
            state.configuration.as_ref().unwrap().mode,
            Mode::PipelineRuns
        );
        assert_eq!(state.violations[0].field, "coschedule");
        state.apply("c", read("disabled", "3"));
        assert_eq!(
            (state.generation, state.resource_version.as_str()),
            (2, "3")
        );
        assert!(state.violations.is_empty());
    }

    #[test]
    fn the_generation_counts_changes_of_meaning_only() {
        let mut state = State::default();
        state.apply("c", read("disabled", "1"));
        state.apply("c", read("disabled", "2"));
        assert_eq!(
            (state.generation, state.resource_version.as_str()),
            (1, "2")
        );
    }

    #[test]
    fn without_a_config_map_there_is_no_configuration_and_a_reason() {
        let mut state = State::default();
        state.apply("coscheduler-config", None);
        assert!(state.read && state.configuration.is_none());
        assert_eq!(state.violations[0].field, "coscheduler-config");
    }
}
