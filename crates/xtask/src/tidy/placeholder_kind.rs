//! Checks that only the files in [`ALLOWED`] know that a placeholder is a StatefulSet. The word StatefulSet must not occur in
//! code and comments of other product files, except their tests. It may occur in strings, because most of them are texts for
//! people.

use anyhow::Context as _;

use super::Finding;
use crate::source;
use crate::workspace::Files;

/// The sources that may contain the word. A path with a final slash is a folder.
const ALLOWED: &[&str] = &[
    "crates/kubernetes/src/placeholder.rs",
    "crates/kubernetes/src/placeholder/",
    "crates/placeholder-manager/src/placeholder.rs",
    "crates/placeholder-manager/src/placeholder/",
    // The value of key `placeholder-backend` on the wire.
    "crates/proto/src/convert/config.rs",
    // These crates are tools and no part of the product.
    "crates/run-table/",
    "crates/testbed/",
    "crates/xtask/",
];

/// The forms of the word in comments, types and modules, in lower case.
const NAMES: [&str; 2] = ["statefulset", "stateful_set"];

pub(super) fn check(files: &Files) -> anyhow::Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for (file, text) in files {
        if is_product(file) && !is_allowed(file) {
            let code = source::without_strings(text).with_context(|| format!("in {file}"))?;
            findings.extend(check_code(file, &code));
        }
    }
    Ok(findings)
}

fn is_product(file: &str) -> bool {
    file.starts_with("crates/") && file.ends_with(".rs")
}

fn is_allowed(file: &str) -> bool {
    ALLOWED
        .iter()
        .any(|allowed| match allowed.strip_suffix('/') {
            Some(_) => file.starts_with(allowed),
            None => file == *allowed,
        })
}

fn check_code(file: &str, code: &str) -> Option<Finding> {
    let lines = (1..).zip(source::without_tests(file, code));
    let numbers: Vec<_> = lines
        .filter(|(_, line)| {
            let line = line.to_lowercase();
            NAMES.iter().any(|name| line.contains(name))
        })
        .map(|(number, _)| u32::to_string(&number))
        .collect();
    (!numbers.is_empty()).then(|| {
        Finding::new(
            format!("{file} knows of StatefulSets: lines {}", numbers.join(", ")),
            "say placeholder, and leave its kind to the module `placeholder`; the files that may say it are listed in \
             crates/xtask/src/tidy/placeholder_kind.rs",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn found(file: &str, text: &str) -> Vec<String> {
        let files = Files::from([(file.to_owned(), text.to_owned())]);
        let findings = check(&files).unwrap();
        findings.into_iter().map(|finding| finding.what).collect()
    }

    #[test]
    fn code_and_comments_of_the_product_do_not_know_the_kind() {
        let text = "/// Its StatefulSet.\nfn f() {}\nuse crate::stateful_set::StatefulSets;\n";
        assert_eq!(
            found("crates/watcher/src/a.rs", text),
            ["crates/watcher/src/a.rs knows of StatefulSets: lines 1, 3"]
        );
    }

    #[test]
    fn strings_tests_and_the_module_that_knows_it_may_say_it() {
        let in_string = "const TEXT: &str = \"\n    a StatefulSet\";\n";
        let in_test = "#[cfg(test)]\nmod tests {\n    struct StatefulSet;\n}\n";
        let in_code = "struct StatefulSet;\n";
        for (file, text) in [
            ("crates/watcher/src/a.rs", in_string),
            ("crates/watcher/src/a.rs", in_test),
            ("crates/watcher/src/a/tests.rs", in_code),
            ("crates/placeholder-manager/src/placeholder.rs", in_code),
            (
                "crates/placeholder-manager/src/placeholder/read.rs",
                in_code,
            ),
            ("integration-tests/src/runs.rs", in_code),
        ] {
            assert_eq!(found(file, text), Vec::<String>::new(), "{file}");
        }
    }
}
