//! Shows the rows on stderr. On a terminal, a table is redrawn in place. Otherwise, each change is one line.

// This module writes to the terminal.
#![allow(clippy::print_stderr)]

use std::io::IsTerminal as _;
use std::time::Duration;

use comfy_table::{Table, presets};
use indicatif::{ProgressBar, ProgressStyle};

use crate::rows::Row;

/// The terminal or log that shows the rows. When this value is dropped, the table is cleared.
#[derive(Debug)]
pub struct Screen {
    /// The table; `None` if stderr is no terminal.
    bar: Option<ProgressBar>,
    shown: Vec<Row>,
}

impl Default for Screen {
    fn default() -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template("{msg}\n{spinner} {elapsed}");
            let bar = ProgressBar::new_spinner();
            if let Ok(style) = style {
                bar.set_style(style);
            }
            bar.enable_steady_tick(Duration::from_millis(120));
            bar
        });
        Self {
            bar,
            shown: Vec::new(),
        }
    }
}

impl Screen {
    /// Shows `rows`. `at` is the time since the run was created.
    pub fn show(&mut self, rows: &[Row], at: Duration) {
        if rows == self.shown {
            return;
        }
        match &self.bar {
            Some(bar) => bar.set_message(table(rows)),
            None => {
                for line in differences(&self.shown, rows) {
                    eprintln!("{:6.1} s  {line}", at.as_secs_f64());
                }
            }
        }
        self.shown = rows.to_vec();
    }

    /// Prints a line above the table.
    pub fn note(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.println(text),
            None => eprintln!("{text}"),
        }
    }

    /// Stops redrawing. The last table stays on the screen.
    pub fn finish(self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
            eprintln!("{}", table(&self.shown));
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn table(rows: &[Row]) -> String {
    let mut table = Table::new();
    table
        .load_style(presets::UTF8_BORDERS_ONLY)
        .set_header(["", "name", "state", "node"]);
    for Row {
        kind,
        name,
        state,
        node,
    } in rows
    {
        table.add_row([*kind, name, state, node]);
    }
    table.to_string()
}

/// One line for each row that is new, changed or gone.
fn differences(before: &[Row], now: &[Row]) -> Vec<String> {
    let same = |one: &Row, other: &Row| one.kind == other.kind && one.name == other.name;
    let changed = now.iter().filter(|row| !before.contains(row)).map(
        |Row {
             kind,
             name,
             state,
             node,
         }| {
            let place = if node.is_empty() {
                String::new()
            } else {
                format!(" on {node}")
            };
            format!("{kind} {name}: {state}{place}")
        },
    );
    let gone = before
        .iter()
        .filter(|old| !now.iter().any(|row| same(row, old)))
        .map(|Row { kind, name, .. }| format!("{kind} {name}: gone"));
    changed.chain(gone).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, state: &str, node: &str) -> Row {
        Row {
            kind: "task",
            name: name.to_owned(),
            state: state.to_owned(),
            node: node.to_owned(),
        }
    }

    #[test]
    fn a_line_for_each_row_that_is_new_changed_or_gone() {
        let before = [
            row("same", "Running", "node-1"),
            row("moves", "Pending", ""),
            row("goes", "Running", ""),
        ];
        let now = [
            row("same", "Running", "node-1"),
            row("moves", "Running", "node-1"),
            row("comes", "Pending", ""),
        ];
        assert_eq!(
            differences(&before, &now),
            [
                "task moves: Running on node-1",
                "task comes: Pending",
                "task goes: gone"
            ]
        );
    }
}
