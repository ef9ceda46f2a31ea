//! The failures of a command, each with its exit code.

use std::fmt;
use std::process::ExitCode;

/// The failure of a command.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Exit code 1.
    Failed(anyhow::Error),
    /// The command line asks for something that does not exist. Exit code 2, as for clap's own errors.
    Usage(String),
}

impl Failure {
    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Self::Failed(_) => 1,
            Self::Usage(_) => 2,
        })
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(error) => write!(formatter, "{error:#}"),
            Self::Usage(message) => formatter.write_str(message),
        }
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::Failed(error)
    }
}
