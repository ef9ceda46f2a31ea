//! `cargo xtask test`: the tests of the workspace, with all that they start built beforehand.

mod side_by_side;

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context as _, bail};
use serde::Deserialize;
use tokio::process::Command;

use self::side_by_side::Job;
use crate::args::TestArgs;
use crate::binaries;
use crate::foreground::Foreground;
use crate::workspace::Workspace;

/// The test binaries that take the longest, longest first. They start first, so that none of them runs alone at the end;
/// the closing table of a run shows where this is out of date.
const LONGEST: [&str; 12] = [
    "integration-tests hundred",
    "integration-tests random",
    "integration-tests evacuation",
    "integration-tests outages",
    "integration-tests faults",
    "integration-tests installation",
    "integration-tests reservation",
    "integration-tests placeholders",
    "integration-tests replicas",
    "integration-tests contention",
    "integration-tests leadership",
    "integration-tests rerun",
];

/// The test binary that asserts a time of two seconds on a cluster of 300 nodes. Other programs on the machine would be measured
/// too.
const ALONE: &str = "integration-tests crowd";

/// A line that cargo writes about what it builds.
#[derive(Debug, Deserialize)]
struct Message {
    reason: String,
    executable: Option<PathBuf>,
    manifest_path: Option<PathBuf>,
    target: Option<Target>,
    profile: Option<Profile>,
}

#[derive(Debug, Deserialize)]
struct Target {
    name: String,
}

#[derive(Debug, Deserialize)]
struct Profile {
    test: bool,
}

/// A binary with tests.
#[derive(Debug, PartialEq)]
struct TestBinary {
    /// Its package and target, as people know them.
    name: String,
    executable: PathBuf,
    /// The folder of its package, where cargo would run it.
    folder: PathBuf,
}

pub(crate) async fn run(workspace: &Workspace, args: &TestArgs) -> anyhow::Result<()> {
    let bin_dir = if args.package.is_empty() || args.package.iter().any(|name| boots(name)) {
        binaries::control_plane().await?;
        binaries::services(workspace).await?
    } else {
        workspace.target.join("debug")
    };
    let mut binaries = build(selection(workspace, args)).await?;
    binaries.sort_by_key(|binary| place(&binary.name));
    let jobs = binaries
        .into_iter()
        .map(|binary| job(binary, args, &bin_dir));
    let examples = is_everything(args).then(|| examples(workspace, &bin_dir));
    side_by_side::run(jobs.chain(examples).collect()).await
}

/// True for the packages with tests that boot a control plane.
fn boots(package: &str) -> bool {
    ["integration-tests", "testbed"].contains(&package)
}

/// Cargo, asked for the tests that are selected.
fn selection(workspace: &Workspace, args: &TestArgs) -> Command {
    let TestArgs {
        names: _,
        package,
        test,
        arguments: _,
    } = args;
    let mut cargo = workspace.cargo();
    cargo.args(["test", "--locked"]);
    if package.is_empty() {
        cargo.arg("--workspace");
    }
    for (flag, values) in [("--package", package), ("--test", test)] {
        cargo.args(values.iter().flat_map(|value| [flag, value]));
    }
    cargo
}

fn is_everything(args: &TestArgs) -> bool {
    let TestArgs {
        names,
        package,
        test,
        arguments,
    } = args;
    [names, package, test, arguments]
        .iter()
        .all(|list| list.is_empty())
}

/// Where in the order a binary starts: tests on the control plane take longer than the others.
fn place(name: &str) -> (usize, bool) {
    let longest = LONGEST.iter().position(|longest| *longest == name);
    (
        longest.unwrap_or(LONGEST.len()),
        !name.starts_with("integration-tests"),
    )
}

async fn build(mut cargo: Command) -> anyhow::Result<Vec<TestBinary>> {
    cargo
        .args(["--no-run", "--message-format=json-render-diagnostics"])
        .stdout(Stdio::piped());
    let mut messages = Vec::new();
    let status = Foreground::start(&mut cargo)?
        .output(|read| messages.extend_from_slice(read))
        .await?;
    if !status.success() {
        bail!("the tests do not build ({status})");
    }
    let messages = String::from_utf8_lossy(&messages);
    let mut binaries = Vec::new();
    for line in messages.lines() {
        let message = serde_json::from_str(line)
            .with_context(|| format!("failed to parse cargo's message {line}"))?;
        binaries.extend(test_binary(message));
    }
    Ok(binaries)
}

fn test_binary(message: Message) -> Option<TestBinary> {
    let is_test = message.reason == "compiler-artifact" && message.profile?.test;
    let folder = message.manifest_path?.parent()?.to_owned();
    let package = folder.file_name()?.display();
    is_test.then_some(TestBinary {
        name: format!("{package} {}", message.target?.name),
        executable: message.executable?,
        folder,
    })
}

fn job(binary: TestBinary, args: &TestArgs, bin_dir: &Path) -> Job {
    let TestBinary {
        name,
        executable,
        folder,
    } = binary;
    let mut command = Command::new(executable);
    command
        .args(&args.names)
        .args(&args.arguments)
        .env("COSCHEDULER_BIN_DIR", bin_dir)
        .env("CARGO_MANIFEST_DIR", &folder)
        // A failure's message says what was waited for; frames of the async runtime would bury it.
        .env("RUST_BACKTRACE", "0")
        .current_dir(folder);
    Job {
        is_alone: ALONE == name,
        name,
        command,
    }
}

/// The examples in documentation, which only cargo can run.
fn examples(workspace: &Workspace, bin_dir: &Path) -> Job {
    let mut command = workspace.cargo();
    command
        .args(["test", "--workspace", "--locked", "--quiet", "--doc"])
        .env("COSCHEDULER_BIN_DIR", bin_dir);
    Job {
        name: "examples in documentation".to_owned(),
        command,
        is_alone: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Option<TestBinary> {
        test_binary(serde_json::from_str(line).unwrap())
    }

    #[test]
    fn only_binaries_with_tests_are_run() {
        let artifact = |test: bool, executable: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"/w/crates/core/Cargo.toml",
                "target":{{"name":"volumes"}},"profile":{{"test":{test}}},"executable":{executable}}}"#
            )
        };
        let expected = TestBinary {
            name: "core volumes".to_owned(),
            executable: "/t/volumes-1".into(),
            folder: "/w/crates/core".into(),
        };
        assert_eq!(read(&artifact(true, "\"/t/volumes-1\"")), Some(expected));
        assert_eq!(read(&artifact(false, "\"/t/volumes\"")), None);
        assert_eq!(read(&artifact(true, "null")), None);
        assert_eq!(read(r#"{"reason":"build-finished","success":true}"#), None);
    }
}
