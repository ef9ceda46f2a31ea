//! Programs that run in front of the user (cargo and what it starts), as a process group of their own: when the wait for
//! them is dropped, the whole group is told to end, not only the program at its top.

use std::process::ExitStatus;

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::AsyncReadExt as _;
use tokio::process::{Child, Command};

/// A running program and whatever it started.
#[derive(Debug)]
pub(crate) struct Foreground {
    child: Child,
    group: Option<Pid>,
}

impl Foreground {
    /// Starts `command`.
    pub(crate) fn start(command: &mut Command) -> anyhow::Result<Self> {
        let child = command.process_group(0).spawn().with_context(|| {
            format!(
                "failed to start {}",
                command.as_std().get_program().display()
            )
        })?;
        let group = child
            .id()
            .and_then(|id| i32::try_from(id).ok())
            .and_then(Pid::from_raw);
        Ok(Self { child, group })
    }

    /// What it says on stderr, if that is piped.
    pub(crate) fn take_stderr(&mut self) -> anyhow::Result<tokio::process::ChildStderr> {
        self.child.stderr.take().context("its stderr is not piped")
    }

    /// What it writes to stdout, which has to be piped, to its end. `output` has what it has written until then, also
    /// where nobody waits to the end.
    pub(crate) async fn output(mut self, output: &mut Vec<u8>) -> anyhow::Result<ExitStatus> {
        let mut stdout = self
            .child
            .stdout
            .take()
            .context("its stdout is not piped")?;
        loop {
            let read = stdout
                .read_buf(output)
                .await
                .context("failed to read what a program writes")?;
            if read == 0 {
                break;
            }
        }
        self.wait().await
    }

    /// Waits until it ends by itself.
    pub(crate) async fn wait(mut self) -> anyhow::Result<ExitStatus> {
        let status = self
            .child
            .wait()
            .await
            .context("failed to wait for a program")?;
        self.group = None;
        Ok(status)
    }
}

impl Drop for Foreground {
    fn drop(&mut self) {
        if let Some(group) = self.group {
            // It may just have ended.
            let _ = kill_process_group(group, Signal::TERM);
        }
    }
}

/// Runs `command` to its end.
pub(crate) async fn run(command: &mut Command) -> anyhow::Result<ExitStatus> {
    Foreground::start(command)?.wait().await
}

#[cfg(test)]
mod tests {
    use std::process::Stdio;
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn dropping_the_wait_ends_grandchildren_too() {
        let mut command = Command::new("sh");
        command
            .args(["-c", "sleep 600 & wait"])
            .stderr(Stdio::piped());
        let mut running = Foreground::start(&mut command).unwrap();
        let mut stderr = running.take_stderr().unwrap();
        drop(running);
        // The pipe ends when nobody holds its other end any more, the grandchild included.
        let mut said = Vec::new();
        let read = tokio::time::timeout(Duration::from_secs(20), stderr.read_to_end(&mut said));
        read.await.expect("the grandchild still runs").unwrap();
    }
}
