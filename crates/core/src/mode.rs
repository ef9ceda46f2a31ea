//! The coschedule mode of a cluster or a run: which pods of a PipelineRun share a node, and how far an isolated run
//! keeps others away. A new mode is a new variant; every `match` on [`Mode`] is exhaustive, so the compiler then lists
//! what it touches.

use std::fmt;
use std::str::FromStr;

/// Values of the flag `coschedule` (TEP-0135, "Configuration").
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Mode {
    /// The pods that use one claim of a PipelineRun run on one node (M1). What Tekton takes where nothing is set.
    #[default]
    Workspaces,
    /// All pods of a PipelineRun run on one node (M3).
    PipelineRuns,
    /// All pods of a PipelineRun run on one node, and no other run's placeholder is there (M4).
    IsolatePipelineRun,
    /// Nothing is created or changed (M5).
    Disabled,
}

impl Mode {
    /// Every mode, in the order in which messages list them.
    pub const ALL: [Self; 4] = [
        Self::Workspaces,
        Self::PipelineRuns,
        Self::IsolatePipelineRun,
        Self::Disabled,
    ];

    /// The mode as it is written in the ConfigMap and in annotations.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Workspaces => "workspaces",
            Self::PipelineRuns => "pipelineruns",
            Self::IsolatePipelineRun => "isolate-pipelinerun",
            Self::Disabled => "disabled",
        }
    }

    /// All modes as a list for messages: `workspaces, pipelineruns, isolate-pipelinerun, disabled`.
    pub(crate) fn allowed() -> String {
        Self::ALL.map(Self::as_str).join(", ")
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A text that is no mode.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a coschedule mode; allowed: {allowed}", allowed = Mode::allowed())]
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

/// How far an isolated run keeps other placeholders from its node (M4).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum IsolationScope {
    /// Those of every namespace.
    #[default]
    Cluster,
    /// Those of the run's own namespace, which is all that Tekton's built-in assistant does.
    Namespace,
}

impl IsolationScope {
    /// Every scope, in the order in which messages list them.
    pub const ALL: [Self; 2] = [Self::Cluster, Self::Namespace];

    /// The scope as it is written in the ConfigMap and in annotations.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Cluster => "cluster",
            Self::Namespace => "namespace",
        }
    }
}

impl fmt::Display for IsolationScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A text that is no isolation scope.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an isolation scope; allowed: cluster, namespace")]
pub struct UnknownScope(pub String);

impl FromStr for IsolationScope {
    type Err = UnknownScope;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|scope| scope.as_str() == text)
            .ok_or_else(|| UnknownScope(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mode_and_scope_reads_back_as_itself() {
        for mode in Mode::ALL {
            assert_eq!(mode.as_str().parse(), Ok(mode));
        }
        for scope in IsolationScope::ALL {
            assert_eq!(scope.as_str().parse(), Ok(scope));
        }
    }

    #[test]
    fn what_is_not_set_is_what_the_requirements_say() {
        assert_eq!(Mode::default(), Mode::Workspaces);
        assert_eq!(IsolationScope::default(), IsolationScope::Cluster);
    }

    #[test]
    fn an_unknown_mode_is_refused_by_name_with_the_modes_allowed() {
        for text in [
            "workspace",
            "isolate-pipelineruns",
            "Disabled",
            "",
            " pipelineruns",
        ] {
            let error = text.parse::<Mode>().unwrap_err().to_string();
            assert_eq!(
                error,
                format!(
                    "{text:?} is not a coschedule mode; allowed: workspaces, pipelineruns, isolate-pipelinerun, disabled"
                )
            );
            assert!(text.parse::<IsolationScope>().is_err());
        }
    }
}
