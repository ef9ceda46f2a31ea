//! Several test binaries at a time. Most of the time a test on the control plane takes is waiting, which `cargo test`, one
//! binary after the other, would do without a use for the processors.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use futures::StreamExt as _;
use serde::Deserialize;
use tokio::process::Command;

use crate::foreground::Foreground;
use crate::progress::seconds;

/// What is read of a line that cargo writes about what it builds.
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
    /// Its package, where cargo would run it.
    folder: PathBuf,
}

struct Ended {
    name: String,
    passed: bool,
    output: String,
    took: Duration,
}

/// Builds all test binaries with `cargo_test`, runs them, and answers the names of those that failed. What one writes is
/// shown when it has ended.
pub(super) async fn run(
    cargo_test: impl Fn() -> Command,
    bin_dir: &Path,
) -> anyhow::Result<Vec<String>> {
    let binaries = build(cargo_test()).await?;
    let at_a_time = std::thread::available_parallelism().map_or(1, usize::from) + 1;
    println!("{} test binaries, {at_a_time} at a time", binaries.len());
    let mut running = futures::stream::iter(binaries)
        .map(|binary| run_one(binary, bin_dir))
        .buffer_unordered(at_a_time);
    let mut failed = Vec::new();
    while let Some(ended) = running.next().await {
        let Ended {
            name,
            passed,
            output,
            took,
        } = ended?;
        let verdict = if passed { "passed" } else { "FAILED" };
        println!(
            "\n-- {name}: {verdict} ({})\n{}",
            seconds(took),
            output.trim()
        );
        if !passed {
            failed.push(name);
        }
    }
    Ok(failed)
}

async fn build(mut cargo_test: Command) -> anyhow::Result<Vec<TestBinary>> {
    cargo_test
        .args(["--no-run", "--message-format=json-render-diagnostics"])
        .stdout(Stdio::piped());
    let (status, messages) = Foreground::start(&mut cargo_test)?.output().await?;
    if !status.success() {
        bail!("the tests do not build ({status})");
    }
    let mut binaries = Vec::new();
    for line in messages.lines() {
        let message = serde_json::from_str(line)
            .with_context(|| format!("failed to understand cargo's message {line}"))?;
        binaries.extend(test_binary(message));
    }
    // The tests on the control plane take the longest.
    binaries.sort_by_key(|binary| !binary.name.starts_with("integration-tests"));
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

async fn run_one(binary: TestBinary, bin_dir: &Path) -> anyhow::Result<Ended> {
    let TestBinary {
        name,
        executable,
        folder,
    } = binary;
    let began = Instant::now();
    // Both streams into one, in the order in which they are written.
    let mut command = Command::new("sh");
    command
        .args(["-c", "exec \"$0\" 2>&1"])
        .arg(executable)
        .env("COSCHEDULER_BIN_DIR", bin_dir)
        .env("CARGO_MANIFEST_DIR", &folder)
        // A failure's message says what was waited for; frames of the async runtime would bury it.
        .env("RUST_BACKTRACE", "0")
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let (status, output) = Foreground::start(&mut command)?.output().await?;
    Ok(Ended {
        name,
        passed: status.success(),
        output,
        took: began.elapsed(),
    })
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
