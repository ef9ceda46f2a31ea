//! `docs/tests.md`: which tests show which requirement, read off their names. A test's name begins with the ids of what it
//! shows (`p6_v4_from_any_state_everything_goes`), so the table is written from the sources and cannot name a test that is
//! not there.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context as _;

use crate::workspace::Workspace;

/// Where the table is.
pub(crate) const PATH: &str = "docs/tests.md";

/// Where the tests are that run on the real control plane.
const CONTROL_PLANE: &str = "integration-tests/tests/";

/// The requirements that have to be shown on the real control plane.
pub(crate) const REQUIRED: [&str; 29] = [
    "M1", "M2", "M3", "M4", "M5", "M6", "M7", "M8", "M9", "P1", "P2", "P3", "P4", "P5", "P6", "P7",
    "P8", "P9", "V1", "V2", "V2a", "V3", "V4", "V5", "V6", "V7", "V8", "V9", "B1",
];

const HEAD: &str = "\
# Tests

Which tests show which requirement. The name of a test begins with the ids of what it shows. Files under
`integration-tests/tests` run on the real control plane (see [CONTRIBUTING](../CONTRIBUTING.md)) and come first; the others
hold a crate's part alone.

`cargo xtask test-table` writes this file from the names; `cargo xtask tidy` asks that it is up to date, and that each of
the rows M1 to M9, P1 to P9, V1 to V9, V2a and B1 has a test on the control plane.

| id | file | tests |
|---|---|---|
";

/// The names of tests by requirement and file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Table(BTreeMap<Id, BTreeMap<File, Vec<String>>>);

/// Ids in the order of the requirements: modes, placeholder, volumes, what is beyond; `V2` before `V2a` before `V3`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Id {
    row: usize,
    number: u32,
    letter: String,
    text: String,
}

/// Files on the control plane first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct File {
    crate_alone: bool,
    path: String,
}

/// Writes the file.
pub(crate) async fn write(workspace: &Workspace) -> anyhow::Result<()> {
    let tracked = crate::tidy::tracked_files(workspace).await?;
    let text = Table::read(workspace, &tracked)?.to_text();
    std::fs::write(workspace.root.join(PATH), text)
        .with_context(|| format!("failed to write {PATH}"))
}

impl Table {
    /// Reads every source file of the workspace.
    pub(crate) fn read(workspace: &Workspace, tracked: &BTreeSet<String>) -> anyhow::Result<Self> {
        let mut table = Self::default();
        for file in tracked.iter().filter(|file| file.ends_with(".rs")) {
            let text = std::fs::read_to_string(workspace.root.join(file))
                .with_context(|| format!("failed to read {file}"))?;
            table.add(file, &text);
        }
        Ok(table)
    }

    fn add(&mut self, path: &str, source: &str) {
        let file = File {
            crate_alone: !path.starts_with(CONTROL_PLANE),
            path: path.to_owned(),
        };
        for test in tests(source) {
            for id in ids(test) {
                let files = self.0.entry(id).or_default();
                let names = files.entry(file.clone()).or_default();
                names.push(test.to_owned());
            }
        }
    }

    /// The file as it should be.
    pub(crate) fn to_text(&self) -> String {
        let rows = self.0.iter().flat_map(|(id, files)| {
            files.iter().map(move |(file, names)| {
                let names: Vec<_> = names.iter().map(|name| format!("`{name}`")).collect();
                format!("| {} | `{}` | {} |\n", id.text, file.path, names.join(", "))
            })
        });
        HEAD.to_owned() + &rows.collect::<String>()
    }

    /// The requirements that no test shows on the control plane.
    pub(crate) fn missing(&self) -> Vec<&'static str> {
        let shown: BTreeSet<_> = self
            .0
            .iter()
            .filter(|(_, files)| files.keys().any(|file| !file.crate_alone))
            .map(|(id, _)| id.text.as_str())
            .collect();
        let missing = REQUIRED.into_iter().filter(|id| !shown.contains(id));
        missing.collect()
    }
}

/// The names of the tests in a source file.
fn tests(source: &str) -> impl Iterator<Item = &str> {
    let mut marked = false;
    source.lines().filter_map(move |line| {
        let line = line.trim();
        if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
            marked = true;
            return None;
        }
        let (_, after) = line.split_once("fn ").filter(|_| marked)?;
        marked = false;
        let end = after.find(|character: char| !character.is_alphanumeric() && character != '_');
        Some(end.map_or(after, |end| &after[..end]))
    })
}

/// The ids that a test's name begins with.
fn ids(test: &str) -> impl Iterator<Item = Id> {
    test.split('_').map_while(id)
}

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

    const SOURCE: &str = "\
        fn v9_no_test() {}\n\
        #[test]\nfn p6_v2a_everything_goes() -> Outcome {\n\
        #[tokio::test(start_paused = true)]\nasync fn v10_late() {}\n\
        #[test]\nfn page_one_is_no_requirement() {}\n\
        proptest! {\n    #[test]\n    fn v2_any(\n        claim in \"x\") {}\n}\n";

    fn table(path: &str) -> Table {
        let mut table = Table::default();
        table.add(path, SOURCE);
        table
    }

    #[test]
    fn a_test_stands_in_the_row_of_each_id_its_name_begins_with() {
        let text = table("crates/x/src/y.rs").to_text();
        let rows: Vec<_> = text
            .lines()
            .skip_while(|line| *line != "|---|---|---|")
            .skip(1)
            .collect();
        assert_eq!(
            rows,
            [
                "| P6 | `crates/x/src/y.rs` | `p6_v2a_everything_goes` |",
                "| V2 | `crates/x/src/y.rs` | `v2_any` |",
                "| V2a | `crates/x/src/y.rs` | `p6_v2a_everything_goes` |",
                "| V10 | `crates/x/src/y.rs` | `v10_late` |",
            ]
        );
    }

    #[test]
    fn only_a_test_on_the_control_plane_shows_a_requirement() {
        assert_eq!(table("crates/x/src/y.rs").missing(), REQUIRED);
        let missing = table("integration-tests/tests/y.rs").missing();
        assert!(
            !["P6", "V2", "V2a"].iter().any(|id| missing.contains(id)),
            "{missing:?}"
        );
        assert_eq!(missing.len(), REQUIRED.len() - 3);
    }
}
