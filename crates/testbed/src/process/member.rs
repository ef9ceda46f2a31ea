//! One process of a group.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};

use anyhow::{Context as _, Result, bail};
use rustix::process::Pid;

/// The number of lines of a member's log in an error.
pub(super) const LOG_TAIL: usize = 20;
/// The number of lines at the end of a member's log that may contain the reason why it ended. After the reason, the member can
/// write more lines until it has stopped.
pub(super) const REASON_TAIL: usize = 100;

#[derive(Debug)]
pub(super) struct Member {
    /// Kept so that the process can be started again.
    command: Command,
    pub(super) child: Child,
    ended: Option<ExitStatus>,
    pub(super) asked_to_end: bool,
}

impl Member {
    pub(super) fn start(name: &str, mut command: Command) -> Result<Self> {
        Ok(Self {
            child: spawn(name, &mut command)?,
            command,
            ended: None,
            asked_to_end: false,
        })
    }

    pub(super) fn start_again(&mut self, name: &str) -> Result<()> {
        if self.poll(name)?.is_none() {
            bail!("failed to start {name} again: it is running");
        }
        self.child = spawn(name, &mut self.command)?;
        self.ended = None;
        self.asked_to_end = false;
        Ok(())
    }

    /// The exit status, if the process has ended.
    pub(super) fn poll(&mut self, name: &str) -> Result<Option<ExitStatus>> {
        if self.ended.is_none() {
            self.ended = self
                .child
                .try_wait()
                .with_context(|| format!("failed to check on {name}"))?;
        }
        Ok(self.ended)
    }

    /// The exit status, if the process has ended and nobody asked it to.
    pub(super) fn ended_by_itself(&mut self, name: &str) -> Result<Option<ExitStatus>> {
        let ended = self.poll(name)?;
        Ok(ended.filter(|_| !self.asked_to_end))
    }

    /// Kills the process, and waits for its end.
    pub(super) fn kill(&mut self, name: &str) -> Result<()> {
        self.asked_to_end = true;
        self.child
            .kill()
            .with_context(|| format!("failed to kill {name}"))?;
        let status = self
            .child
            .wait()
            .with_context(|| format!("failed to wait for {name}"))?;
        self.ended = Some(status);
        Ok(())
    }
}

fn spawn(name: &str, command: &mut Command) -> Result<Child> {
    command.spawn().with_context(|| {
        let program = command.get_program().to_string_lossy();
        format!("failed to start {name} ({program})")
    })
}

pub(super) fn pid(child: &Child) -> Result<Pid> {
    i32::try_from(child.id())
        .ok()
        .and_then(Pid::from_raw)
        .with_context(|| format!("process id {} is out of range", child.id()))
}

/// The CPU time that a process has used, in seconds.
pub(super) fn cpu_seconds(pid: u32) -> Result<f64> {
    let file = format!("/proc/{pid}/stat");
    let stat = fs::read_to_string(&file).with_context(|| format!("failed to read {file}"))?;
    let (_, fields) = stat.rsplit_once(") ").context("no fields")?;
    // Fields 14 and 15 of proc(5), in hundredths of a second.
    let times = fields.split(' ').skip(11).take(2);
    let times: Result<Vec<f64>, _> = times.map(str::parse).collect();
    Ok(times?.iter().sum::<f64>() / 100.0)
}

/// The last lines of a log file, at most this many, indented.
pub(super) fn tail(log: &Path, most: usize) -> String {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    let from = lines.len().saturating_sub(most);
    let mut out = String::new();
    for line in &lines[from..] {
        let line: String = line.chars().take(400).collect();
        out.push_str("  ");
        out.push_str(&line);
        out.push('\n');
    }
    if out.is_empty() {
        "  (empty)\n".to_owned()
    } else {
        out
    }
}
