//! Writes `docs/tests.md`, the table of requirements with the tests of each. The name of a test begins with the ids of the
//! requirements that it tests (`p6_v4_from_any_state_everything_goes`). So the table can be written from the sources, and
//! contains only tests that exist.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context as _;

use crate::source;
use crate::workspace::{Files, Workspace};

/// The path of the table.
pub(crate) const PATH: &str = "docs/tests.md";

/// The path of the requirements. Each is a row of a table, with its id in the first column.
pub(crate) const REQUIREMENTS: &str = "docs/requirements.md";

/// The folder of the tests that run on the real control plane.
const CONTROL_PLANE: &str = "integration-tests/tests/";

/// The requirements that are not implemented yet, so that they need no test on the control plane.
const NOT_YET: [&str; 1] = ["B4"];

const HEAD: &str = "\
# Tests

This table lists the tests that show each [requirement](requirements.md). The name of a test begins with the ids of the
requirements that it shows. Files under `integration-tests/tests` run on the real control plane (see [CONTRIBUTING](../CONTRIBUTING.md)) and come
first; the others test a part of one crate.

`cargo xtask test-table` writes this file from the names. `cargo xtask tidy` checks that it is up to date, and that each
requirement has a test on the control plane or says \"not yet\" here.

| id | file | tests |
|---|---|---|
";

/// The names of tests by requirement and file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Table {
    required: BTreeSet<Id>,
    tests: BTreeMap<Id, BTreeMap<File, Vec<String>>>,
}

/// The id of a requirement. Ids are ordered as in the page of requirements: M, P, V, N, B; and `V2` before `V2a` before `V3`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Id {
    row: usize,
    number: u32,
    letter: String,
    text: String,
}

/// A source file with tests. In the derived order, files with tests on the control plane come first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct File {
    crate_alone: bool,
    path: String,
}

/// Writes `docs/tests.md`.
pub(crate) async fn write(workspace: &Workspace) -> anyhow::Result<()> {
    let text = Table::read(&workspace.files().await?)?.to_text();
    std::fs::write(workspace.root.join(PATH), text)
        .with_context(|| format!("failed to write {PATH}"))
}

impl Table {
    /// Reads the requirements and every source file.
    pub(crate) fn read(files: &Files) -> anyhow::Result<Self> {
        let requirements = files.get(REQUIREMENTS).map_or("", String::as_str);
        let cells = requirements.lines().filter_map(|line| {
            let (cell, _) = line.strip_prefix("| ")?.split_once(" |")?;
            id(&cell.to_lowercase())
        });
        let mut table = Self {
            required: cells.collect(),
            tests: BTreeMap::new(),
        };
        for (path, text) in files.iter().filter(|(path, _)| path.ends_with(".rs")) {
            let file = File {
                crate_alone: !path.starts_with(CONTROL_PLANE),
                path: path.to_owned(),
            };
            for test in source::tests(text).with_context(|| format!("in {path}"))? {
                for id in test.split('_').map_while(id) {
                    let files = table.tests.entry(id).or_default();
                    files.entry(file.clone()).or_default().push(test.clone());
                }
            }
        }
        Ok(table)
    }

    /// The text of `docs/tests.md`.
    pub(crate) fn to_text(&self) -> String {
        let mut text = HEAD.to_owned();
        let ids: BTreeSet<_> = self.required.iter().chain(self.tests.keys()).collect();
        for id in ids {
            if is_not_yet(id) && !self.is_shown(id) {
                text += &format!("| {} | not yet | |\n", id.text);
            }
            for (file, names) in self.tests.get(id).into_iter().flatten() {
                let names: Vec<_> = names.iter().map(|name| format!("`{name}`")).collect();
                text += &format!("| {} | `{}` | {} |\n", id.text, file.path, names.join(", "));
            }
        }
        text
    }

    /// The implemented requirements that have no test on the control plane.
    pub(crate) fn missing(&self) -> Vec<&str> {
        let required = self.required.iter();
        required
            .filter(|id| !is_not_yet(id) && !self.is_shown(id))
            .map(|id| id.text.as_str())
            .collect()
    }

    /// The requirements in [`NOT_YET`] that have a test on the control plane.
    pub(crate) fn early(&self) -> Vec<&str> {
        let tested = self.tests.keys();
        tested
            .filter(|id| is_not_yet(id) && self.is_shown(id))
            .map(|id| id.text.as_str())
            .collect()
    }

    fn is_shown(&self, id: &Id) -> bool {
        let files = self.tests.get(id);
        files.is_some_and(|files| files.keys().any(|file| !file.crate_alone))
    }
}

fn is_not_yet(id: &Id) -> bool {
    NOT_YET.contains(&id.text.as_str())
}

/// Parses a part of a test's name as an id. Returns `None` if it is no id.
fn id(part: &str) -> Option<Id> {
    let row = "mpvnb".find(part.chars().next()?)?;
    let rest = &part[1..];
    let digits = rest.find(|character: char| !character.is_ascii_digit());
    let (digits, letter) = rest.split_at(digits.unwrap_or(rest.len()));
    let number = digits.parse().ok()?;
    ["", "a"].contains(&letter).then(|| Id {
        row,
        number,
        letter: letter.to_owned(),
        text: format!("{}{rest}", part[..1].to_uppercase()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "
        fn v9_no_test() {}
        #[test] fn p6_v2a_everything_goes() {}
        #[test] fn v10_late() {}
        #[test] fn page_one_is_no_requirement() {}
        #[test] fn v2_any() {}
        #[test] fn b4_early() {}";

    fn table(path: &str) -> Table {
        let requirements = "| id | what |\n|---|---|\n| P6 | a |\n| V2 | b |\n| V2a | c |\n\
                            | B1 | d |\n| B4 | e |\n";
        Table::read(&Files::from([
            (REQUIREMENTS.to_owned(), requirements.to_owned()),
            (path.to_owned(), SOURCE.to_owned()),
        ]))
        .unwrap()
    }

    #[test]
    fn a_test_stands_in_the_row_of_each_id_its_name_begins_with() {
        let text = table("crates/x/src/y.rs").to_text();
        assert_eq!(
            text.strip_prefix(HEAD).unwrap(),
            "| P6 | `crates/x/src/y.rs` | `p6_v2a_everything_goes` |\n\
             | V2 | `crates/x/src/y.rs` | `v2_any` |\n\
             | V2a | `crates/x/src/y.rs` | `p6_v2a_everything_goes` |\n\
             | V10 | `crates/x/src/y.rs` | `v10_late` |\n\
             | B4 | not yet | |\n\
             | B4 | `crates/x/src/y.rs` | `b4_early` |\n"
        );
    }

    #[test]
    fn only_a_test_on_the_control_plane_shows_a_requirement() {
        let alone = table("crates/x/src/y.rs");
        assert_eq!(alone.missing(), ["P6", "V2", "V2a", "B1"]);
        assert_eq!(alone.early(), Vec::<&str>::new());
        let shown = table("integration-tests/tests/y.rs");
        assert_eq!(shown.missing(), ["B1"]);
        assert_eq!(shown.early(), ["B4"]);
    }
}
