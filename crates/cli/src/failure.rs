//! The failures of a command, each with its exit code.

use std::fmt;
use std::process::ExitCode;

/// The failure of a command. Exit code 2, wrong usage, comes from clap.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Exit code 1.
    Failed(anyhow::Error),
    /// An object does not exist. Exit code 3.
    NotFound(anyhow::Error),
    /// The service or the cluster does not answer. Exit code 4.
    Unreachable(anyhow::Error),
}

impl Failure {
    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Self::Failed(_) => 1,
            Self::NotFound(_) => 3,
            Self::Unreachable(_) => 4,
        })
    }
}

/// The text about a server that does not answer. It has only the root cause, because each layer of a client repeats the cause in
/// its own words.
pub(crate) fn no_answer(server: &str, address: &str, error: &anyhow::Error) -> String {
    let cause = error.root_cause();
    format!("the {server} at {address} does not answer: {cause}")
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(error) | Self::NotFound(error) | Self::Unreachable(error) => {
                write!(formatter, "{error:#}")
            }
        }
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::Failed(error)
    }
}
