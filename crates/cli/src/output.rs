//! Writes an answer. All formats come from one struct. JSON and YAML show all facts; the other formats show a part of them.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{ErrorKind, Write as _};

use anyhow::Context as _;
use comfy_table::{Table, presets};
use serde::Serialize;

use crate::args::Format;

/// The answer of a command.
pub(crate) trait Answer: Serialize {
    /// The answer as text for people.
    fn text(&self, wide: bool) -> String;

    /// The objects of the answer, such as `pod/example`.
    fn names(&self) -> Vec<String>;
}

/// Writes an answer to standard output. Returns false if the reader has closed the pipe.
pub(crate) fn write(answer: &impl Answer, format: Option<&Format>) -> anyhow::Result<bool> {
    let mut text = match format {
        None => answer.text(false),
        Some(Format::Wide) => answer.text(true),
        Some(Format::Json) => {
            serde_json::to_string_pretty(answer).context("failed to write JSON")?
        }
        Some(Format::Yaml) => {
            let yaml = serde_saphyr::to_string(answer).context("failed to write YAML")?;
            // An answer may be one of many: a watch writes each change.
            format!("---\n{yaml}")
        }
        Some(Format::Name) => answer.names().join("\n"),
        Some(Format::JsonPath(template)) => {
            template.text(&serde_json::to_value(answer).context("failed to write JSON")?)?
        }
    };
    let is_exact = matches!(format, Some(Format::JsonPath(_)));
    if !is_exact && !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    let mut stdout = std::io::stdout();
    // Without the flush, the end of a text without a final newline would stay in the buffer.
    let written = stdout.write_all(text.as_bytes());
    match written.and_then(|()| stdout.flush()) {
        // The reader, such as `head`, has read enough.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        written => written
            .map(|()| true)
            .context("failed to write to standard output"),
    }
}

/// kubectl's word for an empty cell.
pub(crate) const NONE: &str = "<none>";

/// The words in alphabetical order, each of them once, separated by commas.
pub(crate) fn words<'a>(all: impl IntoIterator<Item = &'a str>) -> String {
    let all: BTreeSet<_> = all.into_iter().collect();
    match all.is_empty() {
        true => NONE.to_owned(),
        false => all.into_iter().collect::<Vec<_>>().join(","),
    }
}

/// Writes warnings to standard error.
pub(crate) fn warn(warnings: &[String]) {
    for warning in warnings {
        eprintln!("warning: {warning}");
    }
}

/// The spaces between two columns.
pub(crate) const GAP: u16 = 3;

/// The width of the terminal in columns. `None` if standard output is no terminal, or if the terminal's size is not known.
pub(crate) fn terminal_width() -> Option<usize> {
    let width = Table::new().width().map(usize::from);
    width.filter(|columns| *columns > 0)
}

/// A table in kubectl's style. `headers` is `None` for a table without headers.
pub(crate) fn table(
    headers: Option<Vec<&str>>,
    rows: impl IntoIterator<Item = Vec<String>>,
) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    if let Some(headers) = headers {
        table.set_header(headers);
    }
    table.add_rows(rows);
    for column in table.column_iter_mut() {
        column.set_padding((0, GAP));
    }
    // Without rows, kubectl writes nothing to standard output either.
    match table.is_empty() {
        true => String::new(),
        false => table.trim_fmt(),
    }
}

/// A line of a tree, with the lines below it.
#[derive(Debug, Default)]
pub(crate) struct Branch {
    pub(crate) line: String,
    pub(crate) below: Vec<Branch>,
}

impl From<String> for Branch {
    fn from(line: String) -> Self {
        Self {
            line,
            below: Vec::new(),
        }
    }
}

impl Branch {
    /// The branch with these lines below it.
    pub(crate) fn new(line: String, below: impl IntoIterator<Item = String>) -> Self {
        let below = below.into_iter().map(Self::from).collect();
        Self { line, below }
    }

    /// The tree as text.
    pub(crate) fn text(&self) -> String {
        let mut text = format!("{}\n", self.line);
        self.write_below(&mut text, "");
        text
    }

    fn write_below(&self, text: &mut String, stem: &str) {
        for (index, branch) in self.below.iter().enumerate() {
            let (fork, next) = match index + 1 == self.below.len() {
                true => ("└─", "   "),
                false => ("├─", "│  "),
            };
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{stem}{fork} {}", branch.line);
            branch.write_below(text, &format!("{stem}{next}"));
        }
    }
}
