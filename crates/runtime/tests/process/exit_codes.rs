//! Tests of exit codes 0, 1 and 2 and their logs, with a real process: the binary `skeleton`.

use std::process::{Output, Stdio};

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::net::TcpListener;
use tokio::process::{Child, ChildStderr, Command};

use super::within;

fn skeleton(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_skeleton"));
    command
        .args(args)
        .env_clear()
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    command
}

async fn output(args: &[&str]) -> Output {
    within(skeleton(args).stdout(Stdio::piped()).output())
        .await
        .unwrap()
}

const LOOPBACK: [&str; 4] = [
    "--grpc-address",
    "127.0.0.1:0",
    "--http-address",
    "127.0.0.1:0",
];

/// A running skeleton, and the part of its log that was not read yet.
struct Up {
    child: Child,
    log: Lines<BufReader<ChildStderr>>,
}

impl Up {
    async fn start(args: &[&str]) -> Up {
        let mut child = skeleton(&[&LOOPBACK, args].concat()).spawn().unwrap();
        let log = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut up = Up { child, log };
        up.logged("started").await;
        up
    }

    /// Waits for a log line with this message.
    async fn logged(&mut self, message: &str) {
        loop {
            let line = within(self.log.next_line()).await.unwrap();
            let line = line.unwrap_or_else(|| panic!("the log ended before {message:?}"));
            let line: Value = serde_json::from_str(&line).unwrap();
            if line["message"] == message {
                return;
            }
        }
    }

    async fn signal(&self, signal: &str) {
        let pid = self.child.id().unwrap().to_string();
        let sent = Command::new("kill")
            .args(["-s", signal, &pid])
            .status()
            .await
            .unwrap();
        assert!(sent.success());
    }

    async fn exit_code(mut self) -> Option<i32> {
        within(self.child.wait()).await.unwrap().code()
    }
}

/// The error lines of a JSON log.
fn errors(stderr: &[u8]) -> Vec<String> {
    let lines = std::str::from_utf8(stderr).unwrap().lines();
    let lines = lines.map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines
        .filter(|line| line["level"] == "ERROR")
        .map(|line| line["error"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn a_signal_ends_it_with_0() {
    for signal in ["TERM", "INT"] {
        let mut up = Up::start(&[]).await;
        up.signal(signal).await;
        up.logged("stopped").await;
        assert_eq!(up.exit_code().await, Some(0), "{signal}");
    }
}

#[tokio::test]
async fn a_second_signal_ends_it_at_once_with_1() {
    let mut up = Up::start(&["--task", "hangs"]).await;
    up.signal("TERM").await;
    up.logged("stopping").await;
    up.signal("INT").await;
    up.logged("skeleton cannot go on").await;
    assert_eq!(up.exit_code().await, Some(1));
}

#[tokio::test]
async fn a_task_that_fails_ends_it_with_1_and_one_error_that_names_it() {
    let output = output(&[&LOOPBACK[..], &["--task", "fails"]].concat()).await;
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        errors(&output.stderr),
        [r#"task "example task" failed: --task is fails"#]
    );
}

#[tokio::test]
async fn an_address_in_use_ends_it_with_1() {
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for (flags, server) in [
        (
            ["--grpc-address", &address, "--http-address", "127.0.0.1:0"],
            "gRPC",
        ),
        (
            ["--http-address", &address, "--grpc-address", "127.0.0.1:0"],
            "HTTP",
        ),
    ] {
        let output = output(&flags).await;
        assert_eq!(output.status.code(), Some(1));
        let [error] = &errors(&output.stderr)[..] else {
            panic!("not one error: {output:?}")
        };
        assert!(
            error.contains(&format!("failed to bind {server} address {address}")),
            "{error}"
        );
    }
}

#[tokio::test]
async fn a_wrong_command_line_ends_it_with_2() {
    for args in [
        &["--no-such-flag"][..],
        &["--log-level", "loud=="],
        &["--task", "rests"],
        &["stray"],
    ] {
        let output = output(args).await;
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(
            output.stdout.is_empty() && !output.stderr.is_empty(),
            "{output:?}"
        );
    }
}

#[tokio::test]
async fn help_and_version_end_it_with_0() {
    for (flag, shown) in [
        ("--help", "GRPC_ADDRESS"),
        ("-h", "--task"),
        ("--version", env!("CARGO_PKG_VERSION")),
    ] {
        let output = output(&[flag]).await;
        assert_eq!(output.status.code(), Some(0), "{flag}");
        assert!(
            String::from_utf8(output.stdout).unwrap().contains(shown),
            "{flag}"
        );
        assert!(output.stderr.is_empty(), "{flag}");
    }
}

#[tokio::test]
async fn flags_can_be_set_by_the_environment() {
    let output = within(
        skeleton(&LOOPBACK)
            .env("TASK", "fails")
            .env("LOG_FORMAT", "text")
            .output(),
    )
    .await
    .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let log = String::from_utf8(output.stderr).unwrap();
    assert!(
        log.contains("ERROR") && log.contains("--task is fails"),
        "{log}"
    );
}
