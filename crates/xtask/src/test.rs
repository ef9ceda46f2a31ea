//! `cargo xtask test`: builds the programs that the tests start, then runs the tests of the workspace.

mod matrix;
mod side_by_side;
mod topics;

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context as _, bail};
use serde::Deserialize;
use testbed::services::Service;
use tokio::process::Command;

use self::side_by_side::Job;
use crate::args::TestArgs;
use crate::binaries;
use crate::foreground::Foreground;
use crate::workspace::Workspace;

/// The jobs that take the longest time, the longest first: topics of `integration-tests`, and the benchmark. They start first,
/// so that none of them runs alone at the end. If this order is out of date, the table at the end of a test run shows it.
const LONGEST: [&str; 30] = [
    "integration-tests autoscaling",
    "integration-tests silence",
    "integration-tests evacuation",
    "integration-tests faults",
    "integration-tests outages",
    "integration-tests lifecycle",
    "integration-tests interruptions",
    "integration-tests random",
    "integration-tests leadership",
    "integration-tests placeholders",
    "integration-tests reservation",
    "integration-tests contention",
    "integration-tests installation",
    "integration-tests replicas",
    "integration-tests rerun",
    "integration-tests spread",
    BENCHMARK,
    "integration-tests volumes",
    "integration-tests bursts",
    "integration-tests memory",
    "integration-tests migration",
    "integration-tests requests",
    "integration-tests modes",
    "integration-tests drain",
    "integration-tests tekton_flag",
    "integration-tests explain",
    "integration-tests architectures",
    "integration-tests flags",
    "integration-tests refusals",
    "integration-tests plugin",
];

/// The jobs that must run alone, because other programs would make them slower. `crowd` checks a time limit of two seconds on a
/// cluster of 300 nodes. `width` compares times, and keeps the processors busy without other programs.
const ALONE: [&str; 2] = ["integration-tests crowd", "integration-tests width"];

/// The job that runs the benchmark once.
const BENCHMARK: &str = "cargo xtask bench compare --quick";

/// A line of JSON in which cargo reports a program that it has built.
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
    /// The names of its package and target.
    name: String,
    executable: PathBuf,
    /// The folder of its package. Cargo runs tests in this folder too.
    folder: PathBuf,
}

pub(crate) async fn run(workspace: &Workspace, args: &TestArgs) -> anyhow::Result<()> {
    if args.matrix {
        return matrix::run(workspace, args).await;
    }
    run_beside(workspace, args, None).await
}

/// Runs all tests, and beside them the benchmark.
pub(crate) async fn run_in_ci(workspace: &Workspace) -> anyhow::Result<()> {
    let benchmark = Some(benchmark(workspace));
    run_beside(workspace, &TestArgs::default(), benchmark).await
}

/// Runs the selected tests, and `other` beside them.
async fn run_beside(
    workspace: &Workspace,
    args: &TestArgs,
    other: Option<Job>,
) -> anyhow::Result<()> {
    let bin_dir = workspace.target.join("debug");
    let build = build(selection(workspace, args));
    // Both builds run at the same time, because much of Go's build keeps only one processor busy.
    let (built, ()) = tokio::try_join!(build, programs(workspace, args))?;
    let mut jobs = Vec::from_iter(other);
    for binary in built {
        if binary.name == topics::BINARY {
            jobs.extend(topics::jobs(&binary, args, &bin_dir).await?);
        } else {
            let mut command = command(&binary, &bin_dir);
            command.args(&args.names).args(&args.arguments);
            jobs.push(job(binary.name, command));
        }
    }
    jobs.sort_by_key(|job| place(&job.name));
    if is_everything(args) {
        jobs.push(examples(workspace, &bin_dir));
    }
    side_by_side::run(jobs).await
}

/// The benchmark in one mode, without a check of figures. Measurements in the other mode would show nothing new about the
/// benchmark.
fn benchmark(workspace: &Workspace) -> Job {
    let mut command = workspace.cargo();
    command.args(["xtask", "bench", "compare", "--quick"]);
    command.args(["--modes", "pipelineruns"]);
    job(BENCHMARK.to_owned(), command)
}

/// Builds the programs that the tests start and that [`selection`] does not build.
async fn programs(workspace: &Workspace, args: &TestArgs) -> anyhow::Result<()> {
    if args.package.is_empty() {
        return binaries::control_plane().await;
    }
    if args.package.iter().any(|name| boots(name)) {
        binaries::control_plane().await?;
        binaries::services(workspace).await?;
    }
    Ok(())
}

/// True for the packages with tests that boot a control plane.
fn boots(package: &str) -> bool {
    ["integration-tests", "testbed"].contains(&package)
}

/// The cargo command that builds the selected tests. It also builds the services and the plugin if no package is selected. If
/// another command built them, cargo could choose other features of their dependencies, and would then compile crates twice.
fn selection(workspace: &Workspace, args: &TestArgs) -> Command {
    let TestArgs {
        matrix: _,
        full_scale: _,
        names: _,
        package,
        test,
        arguments: _,
    } = args;
    let mut cargo = workspace.cargo();
    cargo.args(["build", "--locked", "--profile=test"]);
    if package.is_empty() {
        let programs = Service::ALL.into_iter().map(Service::name);
        let programs = programs.chain([binaries::PLUGIN]);
        cargo.arg("--workspace");
        cargo.args(programs.flat_map(|program| ["--bin", program]));
    }
    if test.is_empty() {
        cargo.arg("--tests");
    }
    let tests: Vec<_> = test
        .iter()
        .map(|test| topics::target(workspace, test))
        .collect();
    for (flag, values) in [
        ("--package", package.iter().map(String::as_str).collect()),
        ("--test", tests),
    ] {
        cargo.args(values.into_iter().flat_map(|value| [flag, value]));
    }
    cargo
}

fn is_everything(args: &TestArgs) -> bool {
    let TestArgs {
        matrix: _,
        full_scale: _,
        names,
        package,
        test,
        arguments,
    } = args;
    [names, package, test, arguments]
        .iter()
        .all(|list| list.is_empty())
}

/// The sort key for the order in which binaries start: first those in [`LONGEST`], then the other tests on the control plane,
/// then all others.
fn place(name: &str) -> (usize, bool) {
    let longest = LONGEST.iter().position(|longest| *longest == name);
    (
        longest.unwrap_or(LONGEST.len()),
        !name.starts_with("integration-tests"),
    )
}

async fn build(mut cargo: Command) -> anyhow::Result<Vec<TestBinary>> {
    cargo
        .arg("--message-format=json-render-diagnostics")
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

/// The command that runs a test binary.
fn command(binary: &TestBinary, bin_dir: &Path) -> Command {
    let mut command = Command::new(&binary.executable);
    command
        .env("COSCHEDULER_BIN_DIR", bin_dir)
        .env("CARGO_MANIFEST_DIR", &binary.folder)
        // A failed test prints what it waited for. A backtrace would only add frames of the async runtime.
        .env("RUST_BACKTRACE", "0")
        .current_dir(&binary.folder);
    command
}

fn job(name: String, command: Command) -> Job {
    Job {
        is_alone: ALONE.contains(&name.as_str()),
        name,
        command,
    }
}

/// The job that runs the examples in documentation, which only cargo can run.
fn examples(workspace: &Workspace, bin_dir: &Path) -> Job {
    let mut command = workspace.cargo();
    command
        .args(["test", "--workspace", "--locked", "--quiet", "--doc"])
        .env("COSCHEDULER_BIN_DIR", bin_dir);
    job("examples in documentation".to_owned(), command)
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
