//! Several test binaries at a time. Most of the time a test on the control plane takes is waiting, which `cargo test`, one
//! binary after the other, would do without a use for the processors.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use futures::StreamExt as _;
use serde::Deserialize;
use tokio::process::Command;

use crate::foreground::Foreground;
use crate::progress::seconds;

/// How long a binary may take: several times what the slowest takes on two cores. What hangs is told by what it has
/// written until then.
const LIMIT: Duration = Duration::from_secs(30 * 60);

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

/// A binary that runs, with what it has written so far. One that nobody waits for any more, since the whole was
/// interrupted, says how far it got.
struct Running {
    name: String,
    began: Instant,
    output: Vec<u8>,
    /// What came of it, and how long it took.
    ended: Option<(Verdict, Duration)>,
}

#[derive(Clone, Copy, PartialEq)]
enum Verdict {
    Passed,
    Failed,
    TookTooLong,
}

impl fmt::Display for Running {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (verdict, took) = match self.ended {
            Some((Verdict::Passed, took)) => ("passed", took),
            Some((Verdict::Failed, took)) => ("FAILED", took),
            Some((Verdict::TookTooLong, took)) => {
                ("FAILED: it was ended, as it did not end by itself", took)
            }
            None => ("interrupted", self.began.elapsed()),
        };
        let (name, took) = (&self.name, seconds(took));
        let output = String::from_utf8_lossy(&self.output);
        write!(
            formatter,
            "\n-- {name}: {verdict} ({took})\n{}",
            output.trim()
        )
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.ended.is_none() {
            println!("{self}");
        }
    }
}

/// Builds all test binaries with `cargo_test`, runs them, and answers the names of those that failed. What one writes is
/// shown when it has ended.
pub(super) async fn run(
    cargo_test: impl Fn() -> Command,
    bin_dir: &Path,
) -> anyhow::Result<Vec<String>> {
    let binaries = build(cargo_test()).await?;
    let at_a_time = std::thread::available_parallelism().map_or(1, usize::from);
    println!("{} test binaries, {at_a_time} at a time", binaries.len());
    let mut running = futures::stream::iter(binaries)
        .map(|binary| run_one(binary, bin_dir, LIMIT))
        .buffer_unordered(at_a_time);
    let mut failed = Vec::new();
    while let Some(ended) = running.next().await {
        let binary = ended?;
        println!("{binary}");
        if !matches!(binary.ended, Some((Verdict::Passed, _))) {
            failed.push(binary);
        }
    }
    // Once more, at the end, where they are found.
    for binary in &failed {
        println!("{binary}");
    }
    Ok(failed.iter().map(|binary| binary.name.clone()).collect())
}

async fn build(mut cargo_test: Command) -> anyhow::Result<Vec<TestBinary>> {
    cargo_test
        .args(["--no-run", "--message-format=json-render-diagnostics"])
        .stdout(Stdio::piped());
    let mut messages = Vec::new();
    let status = Foreground::start(&mut cargo_test)?
        .output(&mut messages)
        .await?;
    if !status.success() {
        bail!("the tests do not build ({status})");
    }
    let messages = String::from_utf8_lossy(&messages);
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

async fn run_one(binary: TestBinary, bin_dir: &Path, limit: Duration) -> anyhow::Result<Running> {
    let TestBinary {
        name,
        executable,
        folder,
    } = binary;
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
    let started = Foreground::start(&mut command)?;
    let mut running = Running {
        name,
        began: Instant::now(),
        output: Vec::new(),
        ended: None,
    };
    // Where time is up the wait is dropped, and whatever the binary started ends with it.
    let ended = tokio::time::timeout(limit, started.output(&mut running.output)).await;
    let verdict = match ended.ok().transpose()? {
        Some(status) if status.success() => Verdict::Passed,
        Some(_) => Verdict::Failed,
        None => Verdict::TookTooLong,
    };
    running.ended = Some((verdict, running.began.elapsed()));
    Ok(running)
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

    #[tokio::test]
    async fn a_binary_that_hangs_is_ended_and_says_how_far_it_got() {
        let folder = tempfile::tempdir().unwrap();
        let executable = folder.path().join("hangs");
        std::fs::write(&executable, "#!/bin/sh\necho one test ... ok\nsleep 600\n").unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&executable, mode).unwrap();
        let binary = TestBinary {
            name: "core hangs".to_owned(),
            executable,
            folder: folder.path().to_owned(),
        };
        let ended = run_one(binary, folder.path(), Duration::from_secs(5)).await;
        let told = ended.unwrap().to_string();
        assert!(told.contains("core hangs: FAILED: it was ended"), "{told}");
        assert!(told.ends_with("one test ... ok"), "{told}");
    }
}
