//! Tests that the tables of `docs/configuration.md` agree with this crate.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};

use coscheduler_core::config::{Configuration, KEYS, answer, check};
use coscheduler_core::mode::Mode;

const CONFIGURATION: &str = include_str!("../../../docs/configuration.md");

/// The rows of the table below a heading, without the table's head. A row is a list of cells.
fn table(heading: &str) -> Vec<Vec<String>> {
    let section = CONFIGURATION
        .split_once(&format!("\n## {heading}\n"))
        .unwrap_or_else(|| panic!("no heading {heading}"))
        .1;
    let section = section.split("\n## ").next().unwrap();
    section
        .lines()
        .filter(|line| line.starts_with('|'))
        .skip(2)
        .map(|line| {
            let cells = line.trim_matches('|').split('|');
            cells.map(|cell| cell.trim().to_owned()).collect()
        })
        .collect()
}

/// The text in the first pair of backquotes.
fn code(cell: &str) -> Option<&str> {
    cell.split('`').nth(1)
}

fn flags(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect()
}

#[test]
fn m6_the_eight_rows_are_those_in_force() {
    let rows = table("The two flags");
    let combinations: BTreeSet<_> = rows
        .iter()
        .map(|row| (code(&row[0]).unwrap(), code(&row[1]).unwrap()))
        .collect();
    assert_eq!((rows.len(), combinations.len()), (8, 8));
    for row in &rows {
        let answer = answer(&flags(&[
            ("disable-affinity-assistant", code(&row[0]).unwrap()),
            ("coschedule", code(&row[1]).unwrap()),
        ]));
        for (cell, mode) in [(&row[2], answer.during), (&row[3], answer.after)] {
            assert_eq!(code(cell), mode.map(Mode::as_str), "{row:?}");
            assert!(code(cell).is_some() || cell == "not valid", "{row:?}");
        }
    }
}

#[test]
fn every_key_is_there_with_the_default_that_it_has() {
    let rows = table("Keys");
    let documented: BTreeSet<_> = rows.iter().filter_map(|row| code(&row[0])).collect();
    assert_eq!(documented, BTreeSet::from(KEYS));
    for row in rows {
        let (key, default) = (code(&row[0]).unwrap(), code(&row[1]));
        // Setting a key to its default has the same effect as leaving it out.
        let Some(default) = default else {
            assert_eq!(row[1], "none", "{key}");
            continue;
        };
        let checked = check(&flags(&[(key, default)])).unwrap();
        assert_eq!(checked.configuration, Configuration::default(), "{key}");
    }
}
