//! A group of processes that ends with its owner, however the owner ends: by return, panic, Ctrl-C or SIGKILL.
//!
//! The owner is the process that started the group; the members are the processes in it. A small shell process, the guardian,
//! reads a pipe that only the owner can write to. When the owner ends, the pipe ends. Then the guardian sends SIGKILL to the
//! process group of the members, and removes their folder. The leader of this process group is an idle process, the anchor. The
//! anchor runs as long as the guardian, so that Linux does not give the group's id to other processes.

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

use crate::files::create_folder;

use member::{LOG_TAIL, Member, REASON_TAIL, cpu_seconds, pid, tail};

/// The guardian's script. `$1` is the members' process group, and `$2` is the folder to remove at the end. If the owner writes
/// a line `stay` to the pipe, the guardian ends the group only when the folder contains a file `down`, and not at the end of
/// the pipe.
const GUARDIAN: &str = include_str!("guardian.sh");

/// How long the guardian may take to end the group. After this time, the owner ends the group itself.
const GUARDIAN_TIMEOUT: Duration = Duration::from_secs(10);

/// A group of processes that ends with its owner, however the owner ends.
///
/// Dropping the group ends it too, and waits for its end. This normally takes a moment, and at most about ten seconds.
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
    /// Starts the guardian of a new, empty group. `folder` must exist, and is **removed** when the group has ended. The
    /// members' output goes to `<folder>/logs/<name>.log`.
    ///
    /// # Errors
    /// The folder for logs cannot be made, or the anchor or the guardian cannot be started.
    pub fn start(folder: &Path) -> Result<Self> {
        let folder = folder
            .canonicalize()
            .with_context(|| format!("failed to find folder {}", folder.display()))?;
        let logs = folder.join("logs");
        create_folder(&logs)?;

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

        // If this process ends right here, the anchor's pipe ends, and so does the anchor.
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

    /// Starts `command` as the member `name`. It has no stdin. Its stdout and stderr are appended to its log file.
    ///
    /// # Errors
    /// The program cannot be started, or a running member has this name. The name of a member that has ended may be used again.
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

    /// Starts an ended member again, with the same command.
    ///
    /// # Errors
    /// There is no such member, it is running, or its program cannot be started.
    pub fn start_again(&self, name: &str) -> Result<()> {
        self.lock().member(name)?.start_again(name)
    }

    /// Starts each member again that has ended by itself, if the last lines of its log contain one of these texts. Returns the
    /// names of these members.
    ///
    /// # Errors
    /// The state of a member is unknown, or a program cannot be started.
    pub fn start_again_after(&self, words: &[&str]) -> Result<Vec<String>> {
        let mut again = Vec::new();
        for (name, member) in &mut self.lock().members {
            if member.ended_by_itself(name)?.is_none() {
                continue;
            }
            let tail = tail(&self.log(name), REASON_TAIL);
            if words.iter().any(|words| tail.contains(words)) {
                member.start_again(name)?;
                again.push(name.clone());
            }
        }
        Ok(again)
    }

    /// Checks that no member has ended by itself.
    ///
    /// # Errors
    /// A member has ended by itself. The error contains the last lines of its log.
    pub fn check(&self) -> Result<()> {
        for (name, member) in &mut self.lock().members {
            if let Some(status) = member.ended_by_itself(name)? {
                bail!("{name} ended by itself ({status}){}", self.log_tail(name));
            }
        }
        Ok(())
    }

    /// True while the member `name` runs.
    ///
    /// # Errors
    /// No member ever had this name.
    pub fn is_running(&self, name: &str) -> Result<bool> {
        Ok(self.lock().member(name)?.poll(name)?.is_none())
    }

    /// Kills one member (SIGKILL) and waits for its end. A member with the same name may be spawned afterwards.
    ///
    /// # Errors
    /// There is no such member.
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

    /// Asks one member to end (SIGTERM), and waits for its end. Returns its exit code, or `None` if a signal ended it.
    ///
    /// # Errors
    /// There is no such member, or it still runs after `timeout`.
    pub async fn terminate(&self, name: &str, timeout: Duration) -> Result<Option<i32>> {
        self.signal(name, Signal::TERM)?;
        self.ended(name, timeout).await.context("it got SIGTERM")
    }

    /// Waits for the end of one member. [`ProcessGroup::check`] does not report this end. Returns the exit code, or `None` if a
    /// signal ended the member.
    ///
    /// # Errors
    /// There is no such member, or it still runs after `timeout`.
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

    /// Suspends one member (SIGSTOP), as if its node hung, until [`ProcessGroup::resume`].
    ///
    /// # Errors
    /// There is no such member.
    pub fn pause(&self, name: &str) -> Result<()> {
        self.signal(name, Signal::STOP)
    }

    /// Continues a suspended member (SIGCONT).
    ///
    /// # Errors
    /// There is no such member.
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

    /// The last lines of a member's log, for the end of an error.
    pub(crate) fn log_tail(&self, name: &str) -> String {
        let tail = tail(&self.log(name), LOG_TAIL);
        format!("; the end of its log:\n{tail}")
    }

    /// The folder of the members' log files.
    pub fn logs_dir(&self) -> PathBuf {
        self.folder.join("logs")
    }

    /// Process id of the member `name`.
    ///
    /// # Errors
    /// No member ever had this name.
    pub fn pid(&self, name: &str) -> Result<u32> {
        Ok(self.lock().member(name)?.child.id())
    }

    /// The CPU time that the running members have used, in seconds, by name.
    ///
    /// # Errors
    /// The state of a member cannot be read.
    pub fn cpu_seconds(&self) -> Result<BTreeMap<String, f64>> {
        let mut used = BTreeMap::new();
        for (name, member) in &mut self.lock().members {
            if member.poll(name)?.is_none() {
                used.insert(name.clone(), cpu_seconds(member.child.id())?);
            }
        }
        Ok(used)
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
    /// A member had ended by itself before. In this case too, all members are ended and the folder is removed.
    pub async fn stop(self) -> Result<()> {
        let checked = self.check();
        tokio::task::spawn_blocking(move || drop(self))
            .await
            .context("failed to wait for the end of a process group")?;
        checked
    }

    /// Lets the members run after the owner has ended. The guardian ends them when the folder contains a file `down`.
    ///
    /// # Errors
    /// The guardian is gone. The group is then ended.
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
        // Reap members that have ended: the guardian waits until the process group is empty, and zombies count as processes of
        // the group.
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
        // If the guardian was killed or is too slow, the folder still exists. Then this process ends the group.
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
