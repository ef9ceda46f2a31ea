//! Runs programs whose output the user sees, such as cargo and test binaries. Each program runs in its own process group, with
//! all programs that it starts. If the future that waits for a program is dropped, the whole group gets SIGTERM.

use std::process::ExitStatus;

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::AsyncReadExt as _;
use tokio::process::{Child, Command};

/// A running program and all processes that it started.
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

    /// The stderr of the program. It must be piped.
    pub(crate) fn take_stderr(&mut self) -> anyhow::Result<tokio::process::ChildStderr> {
        self.child.stderr.take().context("its stderr is not piped")
    }

    /// Passes the stdout of the program, which must be piped, to `take` until the program ends.
    pub(crate) async fn output(
        mut self,
        mut take: impl FnMut(&[u8]),
    ) -> anyhow::Result<ExitStatus> {
        let mut stdout = self
            .child
            .stdout
            .take()
            .context("its stdout is not piped")?;
        let mut buffer = Vec::with_capacity(8 * 1024);
        while stdout
            .read_buf(&mut buffer)
            .await
            .context("failed to read the output of a program")?
            > 0
        {
            take(&buffer);
            buffer.clear();
        }
        self.wait().await
    }

    /// Waits until the program ends by itself.
    pub(crate) async fn wait(mut self) -> anyhow::Result<ExitStatus> {
        let status = self
            .child
            .wait()
            .await
            .context("failed to wait for the end of a program")?;
        self.group = None;
        Ok(status)
    }
}

impl Drop for Foreground {
    fn drop(&mut self) {
        if let Some(group) = self.group {
            // An error means that the group has just ended.
            let _ = kill_process_group(group, Signal::TERM);
        }
    }
}

/// Runs `command` until it ends.
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
        // The pipe ends only when all processes that could write to it have ended, also the grandchild.
        let mut said = Vec::new();
        let read = tokio::time::timeout(Duration::from_secs(20), stderr.read_to_end(&mut said));
        read.await.expect("the grandchild still runs").unwrap();
    }
}
