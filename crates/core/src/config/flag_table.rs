//! The table of TEP-0135, "Configuration" (M6). It gives the mode that follows from two flags together: `coschedule`, and the
//! deprecated `disable-affinity-assistant`. The table has one column for the time of the migration from the deprecated flag to
//! `coschedule`, and one column for the time after the migration.
//!
//! Both flags are keys of ConfigMap `coscheduler-config`. [`tekton_coschedule`] reads Tekton's own flag from Tekton's ConfigMap
//! `feature-flags`. (The only other key of Tekton's ConfigMap that counts, `results-from`, is read in `sizes/catalog.rs`.)
//! While Tekton's own flag is on (not `disabled`), the table does not apply to new runs: `admit.rs` leaves them to Tekton, or
//! adopts them (`adopt.rs`). Child runs always follow their parent.

use std::collections::BTreeMap;

use super::COSCHEDULE;
use crate::mode::Mode;
use crate::words::words;

words! {
    /// The value of key `migration-phase`: the column of the table that is in force.
    #[derive(Default)]
    pub enum MigrationPhase: "a migration phase" {
        /// Both flags together give the mode.
        During = "during",
        /// Flag `coschedule` alone gives the mode.
        #[default]
        After = "after",
    }
}

/// The mode that the two flags select in a phase. `None` if the phase does not allow this combination.
pub const fn behaviour(
    disable_affinity_assistant: bool,
    coschedule: Mode,
    phase: MigrationPhase,
) -> Option<Mode> {
    match (phase, disable_affinity_assistant, coschedule) {
        (MigrationPhase::After, _, mode) => Some(mode),
        (MigrationPhase::During, false, Mode::Workspaces) => Some(Mode::Workspaces),
        (
            MigrationPhase::During,
            false,
            Mode::PipelineRuns | Mode::IsolatePipelineRun | Mode::Disabled,
        ) => None,
        (MigrationPhase::During, true, Mode::Workspaces | Mode::Disabled) => Some(Mode::Disabled),
        (MigrationPhase::During, true, Mode::PipelineRuns) => Some(Mode::PipelineRuns),
        (MigrationPhase::During, true, Mode::IsolatePipelineRun) => Some(Mode::IsolatePipelineRun),
    }
}

/// Tekton's own flag `coschedule`, from the data of Tekton's ConfigMap `feature-flags`. `None` if the flag is `disabled` (M9). If
/// the flag is not set, Tekton uses `workspaces`. Tekton ignores case (Tekton v1.12.0, `pkg/apis/config/feature_flags.go`).
pub fn tekton_coschedule(feature_flags: &BTreeMap<String, String>) -> Option<String> {
    let value = feature_flags
        .get(COSCHEDULE)
        .map_or(Mode::Workspaces.as_str(), String::as_str);
    (!value.eq_ignore_ascii_case(Mode::Disabled.as_str())).then(|| value.to_owned())
}

/// A text that is not a truth value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a truth value; allowed: true, false (also 1, t, T, TRUE, True, 0, f, F, FALSE, False)"
)]
pub struct UnknownTruth(pub String);

/// Reads a truth value in the same way as Tekton reads its ConfigMaps: with Go's `strconv.ParseBool`.
///
/// # Errors
/// The text is not one of the twelve allowed values.
pub fn parse_bool(text: &str) -> Result<bool, UnknownTruth> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Ok(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Ok(false),
        _ => Err(UnknownTruth(text.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The eight rows of TEP-0135's table: `disable-affinity-assistant`, `coschedule`, mode during the migration, mode after it.
    const TABLE: [(bool, &str, &str, &str); 8] = [
        (false, "disabled", "N/A: invalid", "disabled"),
        (false, "workspaces", "workspaces", "workspaces"),
        (false, "pipelineruns", "N/A: invalid", "pipelineruns"),
        (
            false,
            "isolate-pipelinerun",
            "N/A: invalid",
            "isolate-pipelinerun",
        ),
        (true, "disabled", "disabled", "disabled"),
        (true, "workspaces", "disabled", "workspaces"),
        (true, "pipelineruns", "pipelineruns", "pipelineruns"),
        (
            true,
            "isolate-pipelinerun",
            "isolate-pipelinerun",
            "isolate-pipelinerun",
        ),
    ];

    #[test]
    fn m6_the_eight_rows_in_both_columns() {
        for (disable, coschedule, during, after) in TABLE {
            let mode = coschedule.parse().unwrap();
            let column =
                |phase| behaviour(disable, mode, phase).map_or("N/A: invalid", Mode::as_str);
            assert_eq!(
                (
                    column(MigrationPhase::During),
                    column(MigrationPhase::After)
                ),
                (during, after),
                "disable-affinity-assistant: {disable}, coschedule: {coschedule}"
            );
        }
    }

    #[test]
    fn truth_values_are_those_of_go() {
        for text in ["1", "t", "T", "TRUE", "true", "True"] {
            assert_eq!(parse_bool(text), Ok(true));
        }
        for text in ["0", "f", "F", "FALSE", "false", "False"] {
            assert_eq!(parse_bool(text), Ok(false));
        }
        for text in ["", "yes", "no", "on", "tRUE", " true", "true\n", "2"] {
            assert_eq!(parse_bool(text), Err(UnknownTruth(text.to_owned())));
        }
    }

    #[test]
    fn phases_read_back_and_others_are_refused() {
        for phase in MigrationPhase::ALL {
            assert_eq!(phase.as_str().parse(), Ok(phase));
        }
        assert!("before".parse::<MigrationPhase>().is_err());
        assert_eq!(MigrationPhase::default(), MigrationPhase::After);
    }
}
