//! What must be where, and how long a file may be: the layout of the design, and "a file over about 400 lines is two
//! ideas".

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anyhow::{Context as _, bail};
use testbed::services::Service;

use super::Finding;
use crate::workspace::Workspace;

/// Lines a source file may have, its unit tests not counted.
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

/// The skeleton every service shares.
const SERVICE_FILES: [&str; 4] = ["Cargo.toml", "src/main.rs", "src/lib.rs", "src/args.rs"];

const CONTRACTS: [&str; 3] = ["config", "planner", "placeholder"];

/// All files git knows or would add, relative to the root.
pub(crate) async fn tracked_files(workspace: &Workspace) -> anyhow::Result<BTreeSet<String>> {
    let output = workspace
        .command("git")
        .args([
            "ls-files",
            "--cached",
            "--others",
            "--exclude-standard",
            "-z",
        ])
        .output()
        .await
        .context("failed to start `git ls-files`")?;
    if !output.status.success() {
        bail!(
            "`git ls-files` failed: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    let names = output
        .stdout
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty());
    Ok(names
        .map(|name| String::from_utf8_lossy(name).into_owned())
        .filter(|name| workspace.root.join(name).is_file())
        .collect())
}

pub(super) fn check_required(workspace: &Workspace, tracked: &BTreeSet<String>) -> Vec<Finding> {
    let mut findings = missing(tracked);
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

fn missing(tracked: &BTreeSet<String>) -> Vec<Finding> {
    let services = Service::ALL.into_iter().flat_map(|service| {
        SERVICE_FILES
            .into_iter()
            .map(move |file| format!("crates/{service}/{file}"))
    });
    let files = REQUIRED.iter().map(|&file| file.to_owned()).chain(services);
    let files = files.filter(|file| !tracked.contains(file)).map(|file| {
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
                .iter()
                .any(|file| file.starts_with(folder) && file.ends_with(".proto"))
        })
        .map(|folder| {
            Finding::new(
                format!("{folder} holds no contract"),
                format!("write the contract in {folder}"),
            )
        });
    files.chain(contracts).collect()
}

pub(super) fn check_sizes(
    workspace: &Workspace,
    tracked: &BTreeSet<String>,
) -> anyhow::Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for file in tracked.iter().filter(|file| is_source(file)) {
        let path = workspace.root.join(file);
        let text =
            std::fs::read_to_string(&path).with_context(|| format!("failed to read {file}"))?;
        findings.extend(oversize(file, &text));
    }
    Ok(findings)
}

fn is_source(file: &str) -> bool {
    let path = Path::new(file);
    let in_sources =
        file.starts_with("crates/") && path.components().any(|part| part.as_os_str() == "src");
    let is_test =
        path.components().any(|part| part.as_os_str() == "tests") || file.ends_with("/tests.rs");
    in_sources && file.ends_with(".rs") && !is_test
}

fn oversize(file: &str, text: &str) -> Option<Finding> {
    // Unit tests come last in a file.
    let lines = text
        .lines()
        .take_while(|line| *line != "#[cfg(test)]")
        .count();
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
        let mut all: BTreeSet<String> = REQUIRED.iter().map(|&file| file.to_owned()).collect();
        for service in Service::ALL {
            all.extend(SERVICE_FILES.map(|file| format!("crates/{service}/{file}")));
        }
        all.extend(CONTRACTS.map(|name| format!("proto/coscheduler/{name}/v1/{name}.proto")));
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
    fn tests_do_not_count_towards_the_size() {
        let code = "line\n".repeat(LINES);
        assert_eq!(
            oversize("a.rs", &format!("{code}#[cfg(test)]\n{code}")),
            None
        );
        assert!(oversize("a.rs", &format!("{code}one more\n")).is_some());
    }

    #[test]
    fn only_sources_of_crates_have_a_size() {
        let cases = [
            ("crates/watcher/src/lib.rs", true),
            ("crates/proto/build.rs", false),
            ("crates/core/tests/plan.rs", false),
            ("crates/core/src/plan/tests.rs", false),
            ("integration-tests/tests/two_volumes.rs", false),
        ];
        for (file, expected) in cases {
            assert_eq!(is_source(file), expected, "{file}");
        }
    }
}
