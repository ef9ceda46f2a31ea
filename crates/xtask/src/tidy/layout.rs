//! Checks that required files exist, and that no source file of a crate is too long: a file with more than 400 lines normally
//! contains two ideas.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt as _;

use testbed::services::Service;

use super::Finding;
use crate::source::without_tests;
use crate::workspace::{Files, Workspace};

/// The maximum number of lines of a source file, without its tests.
const LINES: usize = 400;

const REQUIRED: &[&str] = &[
    ".cargo/config.toml",
    ".ci/run",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE",
    "README.md",
    "buf.yaml",
    "clippy.toml",
    "crates/core/src/lib.rs",
    "crates/kubernetes/src/lib.rs",
    "crates/proto/src/lib.rs",
    "crates/runtime/src/lib.rs",
    "crates/testbed/src/lib.rs",
    "crates/xtask/src/main.rs",
    "deny.toml",
    "examples/two-volumes.yaml",
    "integration-tests/testbed/kubernetes/go.mod",
    "integration-tests/testbed/kwok/go.mod",
    "integration-tests/testbed/tekton/go.mod",
    "rust-toolchain.toml",
    "rustfmt.toml",
];

/// The files that every service has.
const SERVICE_FILES: [&str; 4] = ["Cargo.toml", "src/main.rs", "src/lib.rs", "src/args.rs"];

/// The folder of the tests on the control plane. Each file is a topic, and all files are one binary.
const TOPICS: &str = "integration-tests/tests/";

const CONTRACTS: [&str; 3] = ["config", "planner", "placeholder"];

pub(super) fn required(workspace: &Workspace, files: &Files) -> Vec<Finding> {
    let mut findings = missing(files);
    let run = workspace.root.join(".ci/run");
    if run
        .metadata()
        .is_ok_and(|metadata| metadata.permissions().mode() & 0o100 == 0)
    {
        findings.push(Finding::new(
            ".ci/run is not executable",
            "chmod +x .ci/run",
        ));
    }
    findings
}

fn missing(tracked: &Files) -> Vec<Finding> {
    let services = Service::ALL.into_iter().flat_map(|service| {
        SERVICE_FILES
            .into_iter()
            .map(move |file| format!("crates/{service}/{file}"))
    });
    let files = REQUIRED.iter().map(|&file| file.to_owned()).chain(services);
    let files = files
        .filter(|file| !tracked.contains_key(file))
        .map(|file| {
            Finding::new(
                format!("{file} is missing"),
                format!("write {file}, or git add it if it is ignored"),
            )
        });
    let contracts = CONTRACTS
        .into_iter()
        .map(|name| format!("proto/coscheduler/{name}/v1/"))
        .filter(|folder| {
            !tracked
                .keys()
                .any(|file| file.starts_with(folder) && file.ends_with(".proto"))
        })
        .map(|folder| {
            Finding::new(
                format!("{folder} holds no contract"),
                format!("write the contract in {folder}"),
            )
        });
    files.chain(contracts).chain(unlinked(tracked)).collect()
}

/// Reports test files that are part of no binary.
fn unlinked(tracked: &Files) -> Vec<Finding> {
    let main = format!("{TOPICS}main.rs");
    let linked: BTreeSet<_> = tracked
        .get(&main)
        .into_iter()
        .flat_map(|text| text.lines())
        .collect();
    let topics = tracked
        .keys()
        .filter_map(|file| file.strip_prefix(TOPICS)?.strip_suffix(".rs"));
    topics
        .filter(|topic| *topic != "main" && !linked.contains(format!("mod {topic};").as_str()))
        .map(|topic| {
            Finding::new(
                format!("no test of {TOPICS}{topic}.rs is ever run"),
                format!("add `mod {topic};` to {main}"),
            )
        })
        .collect()
}

pub(super) fn sizes(files: &Files) -> Vec<Finding> {
    let sources = files.iter().filter(|(file, _)| is_source(file));
    sources
        .filter_map(|(file, text)| oversize(file, text))
        .collect()
}

fn is_source(file: &str) -> bool {
    file.starts_with("crates/") && file.contains("/src/") && file.ends_with(".rs")
}

fn oversize(file: &str, text: &str) -> Option<Finding> {
    let lines = without_tests(file, text).len();
    (lines > LINES).then(|| {
        Finding::new(
            format!("{file} has {lines} lines without its tests; {LINES} are allowed"),
            "split it: move one of its ideas to a file of its own, named for what it holds",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_file_and_an_empty_contract_are_named() {
        let mut all: Vec<_> = REQUIRED.iter().map(|&file| file.to_owned()).collect();
        for service in Service::ALL {
            all.extend(SERVICE_FILES.map(|file| format!("crates/{service}/{file}")));
        }
        all.extend(CONTRACTS.map(|name| format!("proto/coscheduler/{name}/v1/{name}.proto")));
        let mut all: Files = all.into_iter().map(|file| (file, String::new())).collect();
        assert_eq!(missing(&all), []);

        all.remove("crates/watcher/src/args.rs");
        all.remove("proto/coscheduler/planner/v1/planner.proto");
        let whats: Vec<String> = missing(&all)
            .into_iter()
            .map(|finding| finding.what)
            .collect();
        assert_eq!(
            whats,
            [
                "crates/watcher/src/args.rs is missing",
                "proto/coscheduler/planner/v1/ holds no contract"
            ]
        );
    }

    #[test]
    fn a_file_of_tests_that_is_not_linked_is_named() {
        let files = [
            ("main.rs", "mod drain;\n"),
            ("drain.rs", ""),
            ("sizes.rs", ""),
        ];
        let files = files.map(|(file, text)| (format!("{TOPICS}{file}"), text.to_owned()));
        let whats: Vec<String> = unlinked(&files.into())
            .into_iter()
            .map(|finding| finding.what)
            .collect();
        let expected = format!("no test of {TOPICS}sizes.rs is ever run");
        assert_eq!(whats, [expected]);
    }

    #[test]
    fn tests_do_not_count_towards_the_size() {
        let code = "line\n".repeat(LINES);
        let tested = format!("{code}#[cfg(test)]\nmod tests {{\n{code}}}\n");
        assert_eq!(oversize("a.rs", &tested), None);
        assert!(oversize("a.rs", &format!("{code}one more\n")).is_some());
    }

    #[test]
    fn only_sources_of_crates_have_a_size() {
        let cases = [
            ("crates/watcher/src/lib.rs", true),
            ("crates/proto/build.rs", false),
            ("integration-tests/tests/two_volumes.rs", false),
        ];
        for (file, expected) in cases {
            assert_eq!(is_source(file), expected, "{file}");
        }
    }
}
