//! The coschedule mode of a cluster or a run: which pods of a PipelineRun share a node. A new mode
//! is a new variant; every `match` on [`Mode`] is exhaustive, so the compiler then lists what it
//! touches.

use std::fmt;
use std::str::FromStr;

/// Values of the flag `coschedule` (TEP-0135, "Configuration").
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Mode {
    /// Nothing is created or changed (M5).
    Disabled,
    /// All pods of a PipelineRun run on one node (M3).
    PipelineRuns,
}

impl Mode {
    /// Every mode this version knows, in the order in which messages list them.
    pub const ALL: [Self; 2] = [Self::PipelineRuns, Self::Disabled];

    /// The mode as it is written in the ConfigMap and in annotations.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Disabled => "disabled",
            Self::PipelineRuns => "pipelineruns",
        }
    }

    /// All modes as a list for messages: `pipelineruns, disabled`.
    pub(crate) fn allowed() -> String {
        Self::ALL.map(Self::as_str).join(", ")
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A text that is no mode of this version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a coschedule mode of this version; allowed: {allowed}", allowed = Mode::allowed())]
pub struct UnknownMode(pub String);

impl FromStr for Mode {
    type Err = UnknownMode;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|mode| mode.as_str() == text)
            .ok_or_else(|| UnknownMode(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mode_reads_back_as_itself() {
        for mode in Mode::ALL {
            assert_eq!(mode.as_str().parse(), Ok(mode));
        }
    }

    #[test]
    fn an_unknown_mode_is_refused_by_name_with_the_modes_allowed() {
        for text in [
            "workspaces",
            "isolate-pipelinerun",
            "Disabled",
            "",
            " pipelineruns",
        ] {
            let error = text.parse::<Mode>().unwrap_err().to_string();
            assert_eq!(
                error,
                format!(
                    "{text:?} is not a coschedule mode of this version; allowed: pipelineruns, disabled"
                )
            );
        }
    }
}
