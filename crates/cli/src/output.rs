//! Writes an answer. All formats come from one struct, so they have the same facts.

use std::io::{ErrorKind, Write as _};

use anyhow::Context as _;
use serde::Serialize;

use crate::args::Format;

/// The answer of a command.
pub(crate) trait Answer: Serialize {
    /// The answer as text for people.
    fn text(&self, wide: bool) -> String;

    /// The objects of the answer, such as `pod/example`.
    fn names(&self) -> Vec<String>;
}

/// Writes an answer to standard output.
pub(crate) fn write(answer: &impl Answer, format: Option<Format>) -> anyhow::Result<()> {
    let mut text = match format {
        None => answer.text(false),
        Some(Format::Wide) => answer.text(true),
        Some(Format::Json) => {
            serde_json::to_string_pretty(answer).context("failed to write JSON")?
        }
        Some(Format::Yaml) => serde_saphyr::to_string(answer).context("failed to write YAML")?,
        Some(Format::Name) => answer.names().join("\n"),
    };
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    match std::io::stdout().write_all(text.as_bytes()) {
        // The reader, such as `head`, has read enough.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.context("failed to write to standard output"),
    }
}
