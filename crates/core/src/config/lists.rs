//! Reads the keys whose values are lists of words, separated by commas or white space. A word that is not valid becomes a violation.

use std::collections::{BTreeMap, BTreeSet};

use super::EVERY_NAMESPACE;
use crate::names::is_dns_label;
use crate::overrides::{self, Override};
use crate::violation::Violation;
use crate::words::UnknownWord;

pub(super) fn read_overrides(
    data: &BTreeMap<String, String>,
    key: &str,
    violations: &mut Vec<Violation>,
) -> BTreeSet<Override> {
    let text = data.get(key).map_or("", String::as_str);
    let values = overrides::words(text).filter_map(|word| {
        word.parse()
            .map_err(|error: UnknownWord| violations.push(Violation::new(key, error.to_string())))
            .ok()
    });
    values.collect()
}

pub(super) fn read_namespaces(
    data: &BTreeMap<String, String>,
    key: &str,
    violations: &mut Vec<Violation>,
) -> BTreeSet<String> {
    let text = data.get(key).map_or("", String::as_str);
    let (names, faults): (BTreeSet<&str>, BTreeSet<&str>) =
        overrides::words(text).partition(|word| *word == EVERY_NAMESPACE || is_dns_label(word));
    violations.extend(faults.iter().map(|word| {
        let fault = format!(
            "{word:?} is not the name of a namespace; allowed: names of namespaces, separated by commas or white space, or \
             \"{EVERY_NAMESPACE}\""
        );
        Violation::new(key, fault)
    }));
    names.into_iter().map(str::to_owned).collect()
}
