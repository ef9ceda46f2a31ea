//! Reads the keys whose values are lists of words, separated by commas or white space. A word that is not valid becomes a
//! violation.

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
    let parse = |word: &str| word.parse().map_err(|error: UnknownWord| error.to_string());
    read(data, key, violations, parse)
}

pub(super) fn read_namespaces(
    data: &BTreeMap<String, String>,
    key: &str,
    violations: &mut Vec<Violation>,
) -> BTreeSet<String> {
    read(data, key, violations, |word| {
        let is_valid = word == EVERY_NAMESPACE || is_dns_label(word);
        is_valid.then(|| word.to_owned()).ok_or_else(|| {
            format!(
                "{word:?} is not the name of a namespace; allowed: names of namespaces, separated by commas or white space, or \
                 \"{EVERY_NAMESPACE}\""
            )
        })
    })
}

fn read<T: Ord>(
    data: &BTreeMap<String, String>,
    key: &str,
    violations: &mut Vec<Violation>,
    parse: impl Fn(&str) -> Result<T, String>,
) -> BTreeSet<T> {
    let text = data.get(key).map_or("", String::as_str);
    let values = overrides::words(text).filter_map(|word| {
        let value = parse(word);
        value
            .map_err(|fault| violations.push(Violation::new(key, fault)))
            .ok()
    });
    values.collect()
}
