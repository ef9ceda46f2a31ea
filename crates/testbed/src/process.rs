//! A group of processes that ends with its owner, however the owner ends: by return, panic, Ctrl-C or SIGKILL.
//!
//! A small shell process, the guardian, reads a pipe that only the owner can write to. When the pipe ends, the
//! guardian terminates, then kills the process group of the members and removes their folder. The members' group is led
//! by an idle process (the anchor) that reads from the guardian, so that the group's number stays taken while the
//! guardian lives.

mod member;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use member::{Member, pid, tail};

/// The guardian's script. `$1` is the members' process group, `$2` the folder to remove at the end. A line `stay` on
/// the pipe keeps the group beyond the end of the pipe, until there is a file `down` in the folder.
const GUARDIAN: &str = include_str!("guardian.sh");

/// How long the guardian may take to end the group before the owner does it itself.
const GUARDIAN_TIMEOUT: Duration = Duration::from_secs(10);

/// A group of processes that ends with its owner, however the owner ends.
///
/// Dropping the group ends it too and waits for that (a second or two at most).
#[derive(Debug)]
pub struct ProcessGroup {
    folder: PathBuf,
    group: Pid,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    pipe: Option<ChildStdin>,
    guardian: Child,
    anchor: Child,
    members: BTreeMap<String, Member>,
}

impl ProcessGroup {
    /// Starts the guardian of a new, empty group. `folder` must exist and is **removed** when the group has ended;
    /// the members' output goes to `<folder>/logs/<name>.log`.
    ///
    /// # Errors
    /// When the folder for logs or the guardian cannot be made.
    pub fn start(folder: &Path) -> Result<Self> {
        let folder = folder
            .canonicalize()
            .with_context(|| format!("failed to find folder {}", folder.display()))?;
        let logs = folder.join("logs");
        fs::create_dir_all(&logs)
            .with_context(|| format!("failed to create {}", logs.display()))?;

        let mut anchor = Command::new("cat")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .context("failed to start the leader of a process group (cat)")?;
        let group = pid(&anchor)?;
        let to_anchor = anchor
            .stdin
            .take()
            .context("the leader of a process group has no stdin")?;

        // If this process dies right here, the anchor's pipe ends and the anchor with it.
        let mut guardian = Command::new("sh")
            .args(["-c", GUARDIAN, "guardian"])
            .arg(group.as_raw_nonzero().to_string())
            .arg(&folder)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::from(to_anchor))
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .context("failed to start the guardian of a process group (sh)")?;
        let pipe = guardian.stdin.take();
        Ok(Self {
            folder,
            group,
            inner: Mutex::new(Inner {
                pipe,
                guardian,
                anchor,
                members: BTreeMap::new(),
            }),
        })
    }

    /// Starts `command` as the member `name`: no stdin, stdout and stderr appended to its log file.
    ///
    /// # Errors
    /// When the program cannot be started, or a living member has that name. The name of one that ended is free again.
    pub fn spawn(&self, name: &str, mut command: Command) -> Result<()> {
        let mut inner = self.lock();
        if let Some(member) = inner.members.get_mut(name)
            && member.poll(name)?.is_none()
        {
            bail!("failed to start {name}: it is running already");
        }
        let log = self.log(name);
        let out = File::options()
            .create(true)
            .append(true)
            .open(&log)
            .with_context(|| format!("failed to open log file {}", log.display()))?;
        let err = out
            .try_clone()
            .with_context(|| format!("failed to open log file {}", log.display()))?;
        command
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err)
            .process_group(self.group.as_raw_nonzero().get());
        let member = Member::start(name, command)?;
        inner.members.insert(name.to_owned(), member);
        Ok(())
    }

    /// Starts a member that has ended once more, by the command that it was started with.
    ///
    /// # Errors
    /// When there is no such member, it is running, or its program cannot be started.
    pub fn start_again(&self, name: &str) -> Result<()> {
        self.lock().member(name)?.start_again(name)
    }

    /// Checks that no member ended by itself.
    ///
    /// # Errors
    /// When one did; the error carries the last lines of its log.
    pub fn check(&self) -> Result<()> {
        for (name, member) in &mut self.lock().members {
            if let Some(status) = member.poll(name)?
                && !member.asked_to_end
            {
                let tail = tail(&self.log(name));
                bail!("{name} ended by itself ({status}); the end of its log:\n{tail}");
            }
        }
        Ok(())
    }

    /// True while the member `name` runs.
    ///
    /// # Errors
    /// When there never was such a member.
    pub fn is_running(&self, name: &str) -> Result<bool> {
        Ok(self.lock().member(name)?.poll(name)?.is_none())
    }

    /// Kills one member (SIGKILL) and waits for its end. It may be spawned again under the same name.
    ///
    /// # Errors
    /// When there is no such member.
    pub fn kill(&self, name: &str) -> Result<()> {
        self.lock().member(name)?.kill(name)
    }

    /// Kills all members at once.
    pub(crate) fn kill_all(&self) {
        for member in self.lock().members.values_mut() {
            member.asked_to_end = true;
            let _ = member.child.kill(); // an error means that it has ended
        }
    }

    /// Asks one member to end (SIGTERM) and waits for it; its exit code, or `None` if a signal ended it.
    ///
    /// # Errors
    /// When there is no such member, or it still runs after `timeout`.
    pub async fn terminate(&self, name: &str, timeout: Duration) -> Result<Option<i32>> {
        self.signal(name, Signal::TERM)?;
        self.ended(name, timeout).await.context("it got SIGTERM")
    }

    /// Waits for the end of one member, which [`ProcessGroup::check`] then accepts; its exit code, or `None` if a signal ended
    /// it.
    ///
    /// # Errors
    /// When there is no such member, or it still runs after `timeout`.
    pub async fn ended(&self, name: &str, timeout: Duration) -> Result<Option<i32>> {
        let end = Instant::now() + timeout;
        loop {
            {
                let mut inner = self.lock();
                let member = inner.member(name)?;
                if let Some(status) = member.poll(name)? {
                    member.asked_to_end = true;
                    return Ok(status.code());
                }
            }
            if Instant::now() >= end {
                bail!("{name} still runs after {timeout:?}");
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Stops one member where it is (SIGSTOP), as a node that hangs would, until [`ProcessGroup::resume`].
    ///
    /// # Errors
    /// When there is no such member.
    pub fn pause(&self, name: &str) -> Result<()> {
        self.signal(name, Signal::STOP)
    }

    /// Continues a member that was paused (SIGCONT).
    ///
    /// # Errors
    /// When there is no such member.
    pub fn resume(&self, name: &str) -> Result<()> {
        self.signal(name, Signal::CONT)
    }

    fn signal(&self, name: &str, signal: Signal) -> Result<()> {
        let mut inner = self.lock();
        let member = inner.member(name)?;
        member.asked_to_end |= signal == Signal::TERM;
        if member.poll(name)?.is_none() {
            kill_process(pid(&member.child)?, signal)
                .with_context(|| format!("failed to send {signal:?} to {name}"))?;
        }
        Ok(())
    }

    /// The log file of a member.
    pub fn log(&self, name: &str) -> PathBuf {
        self.logs_dir().join(format!("{name}.log"))
    }

    /// The folder of the members' log files.
    pub fn logs_dir(&self) -> PathBuf {
        self.folder.join("logs")
    }

    /// Process group id of the members.
    pub fn id(&self) -> u32 {
        self.group.as_raw_nonzero().get().unsigned_abs()
    }

    /// Process id of the guardian.
    pub fn guardian(&self) -> u32 {
        self.lock().guardian.id()
    }

    /// Ends all members and removes the folder.
    ///
    /// # Errors
    /// When a member had ended by itself before. Everything is ended in that case too.
    pub async fn stop(self) -> Result<()> {
        let checked = self.check();
        tokio::task::spawn_blocking(move || drop(self))
            .await
            .context("failed to wait for the end of a process group")?;
        checked
    }

    /// Leaves the members to the guardian, which from now on waits for a file `down` in the folder.
    ///
    /// # Errors
    /// When the guardian is gone; the group is ended then.
    pub(crate) fn detach(self) -> Result<()> {
        let mut inner = self.lock();
        let pipe = inner
            .pipe
            .as_mut()
            .context("the group has been left already")?;
        pipe.write_all(b"stay\n")
            .context("failed to make the guardian keep the group")?;
        inner.pipe = None;
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn member(&mut self, name: &str) -> Result<&mut Member> {
        self.members
            .get_mut(name)
            .with_context(|| format!("there is no process {name} in this group"))
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        let inner = self.inner.get_mut().unwrap_or_else(PoisonError::into_inner);
        if inner.pipe.take().is_none() {
            return; // detached: the guardian and the members live on
        }
        // Members have to be reaped all the while, or the guardian would wait for the dead among them.
        let end = Instant::now() + GUARDIAN_TIMEOUT;
        while Instant::now() < end {
            let _ = inner.anchor.try_wait();
            for (name, member) in &mut inner.members {
                let _ = member.poll(name);
            }
            if !matches!(inner.guardian.try_wait(), Ok(None)) {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        // The rest is needed only if the guardian was killed.
        if self.folder.exists() {
            let _ = kill_process_group(self.group, Signal::KILL);
            let _ = inner.guardian.kill();
            let _ = fs::remove_dir_all(&self.folder);
        }
        let _ = inner.guardian.wait();
        let _ = inner.anchor.wait();
        for member in inner.members.values_mut() {
            let _ = member.child.kill();
            let _ = member.child.wait();
        }
    }
}
