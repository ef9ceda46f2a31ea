//! Runs several test programs at the same time, because a test on the control plane mostly waits. If the programs ran one after
//! the other, the processors would be idle most of the time.

use std::fmt;
use std::io::Write as _;
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::bail;
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use tokio::process::Command;
use tokio::time::interval_at;

use crate::foreground::Foreground;
use crate::progress::seconds;

/// How long a program may take: several times the time of the slowest program on two cores. It is longer than the limit of one
/// test, so that the output names a test that hangs.
const TIMEOUT: Duration = Duration::from_secs(60 * 60);

/// The time between two measurements of the processors' load.
const PERIOD: Duration = Duration::from_secs(5);

/// The most programs that run at the same time, for each processor. On a slow machine, with three programs for each
/// processor, API servers gave no answer for seven seconds, and pods waited for minutes, also without coscheduling.
const MOST_PER_CORE: usize = 2;

/// A program with tests.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) name: String,
    pub(super) command: Command,
    /// True if no other program may run at the same time.
    pub(super) is_alone: bool,
}

/// A program that runs or has ended, with its output so far. If it is dropped before its end, because of an interrupt, it
/// prints this output.
struct Running {
    name: String,
    began: Instant,
    output: Vec<u8>,
    ended: Option<(Verdict, Duration)>,
    /// True if the output is printed as it comes.
    is_live: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum Verdict {
    Passed,
    Failed,
    TimedOut,
}

impl fmt::Display for Verdict {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Passed => "passed",
            Self::Failed => "FAILED",
            Self::TimedOut => "FAILED: it did not end, and was terminated",
        })
    }
}

impl fmt::Display for Running {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.name;
        match self.ended {
            Some((verdict, took)) => {
                write!(formatter, "\n-- {name}: {verdict} ({})", seconds(took))?
            }
            None => write!(
                formatter,
                "\n-- {name}: interrupted ({})",
                seconds(self.began.elapsed())
            )?,
        }
        if self.is_live {
            return Ok(());
        }
        write!(
            formatter,
            "\n{}",
            String::from_utf8_lossy(&self.output).trim()
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

/// Runs all `jobs`. Jobs that must be alone run first, one after the other. The others start in the given order: as many as
/// there are processors, and one more each time the processors are partly idle, up to [`MOST_PER_CORE`] times as many. When a
/// job has ended, prints its output, except if the job had no selected test. At the end, prints a table of the times, again the
/// output of failed jobs, and the cause of each failed test.
///
/// # Errors
/// A job failed (the error names all failed jobs), or no test ran.
pub(super) async fn run(jobs: Vec<Job>) -> anyhow::Result<()> {
    let failed = failed(jobs).await?;
    if !failed.is_empty() {
        bail!("tests failed: {}", failed.join(", "));
    }
    Ok(())
}

/// As [`run`], but returns the names of failed jobs.
///
/// # Errors
/// A test binary cannot be started, or no test ran.
pub(super) async fn failed(jobs: Vec<Job>) -> anyhow::Result<Vec<String>> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let is_live = jobs.len() == 1;
    println!("test binaries to run: {}", jobs.len());
    let began = Instant::now();
    let (alone, jobs): (Vec<_>, Vec<_>) = jobs.into_iter().partition(|job| job.is_alone);
    let mut waiting = jobs.into_iter();
    let mut running = FuturesUnordered::new();
    let mut processors = Processors::default();
    let mut ended = Vec::new();
    let start = |job| run_one(job, TIMEOUT, is_live);
    for job in alone {
        let binary = start(job).await?;
        println!("{binary}");
        ended.push(binary);
    }
    // The ends of programs must not delay the measurements: at the end of a test run, programs end every few seconds.
    let mut measurements = interval_at(tokio::time::Instant::now() + PERIOD, PERIOD);
    loop {
        running.extend(
            waiting
                .by_ref()
                .take(cores.saturating_sub(running.len()))
                .map(start),
        );
        tokio::select! {
            binary = running.next() => match binary.transpose()? {
                Some(binary) => {
                    if !binary.had_no_test() {
                        println!("{binary}");
                    }
                    ended.push(binary);
                }
                None => break,
            },
            _ = measurements.tick() => {
                if processors.are_partly_idle() && running.len() < MOST_PER_CORE * cores {
                    running.extend(waiting.next().map(start));
                }
            }
        }
    }

    println!("\n{}", table(&ended, began.elapsed()));
    let failed = || {
        ended
            .iter()
            .filter(|binary| binary.verdict() != Verdict::Passed)
    };
    failed().for_each(|binary| println!("{binary}"));
    let causes = failed().flat_map(|binary| causes(&binary.output));
    causes.for_each(|cause| println!("{cause}"));
    let names: Vec<_> = failed().map(|binary| binary.name.clone()).collect();
    let (passed, broken) = ended.iter().fold((0, 0), |(passed, failed), binary| {
        let (more_passed, more_failed) = tests_run(&binary.output);
        (passed + more_passed, failed + more_failed)
    });
    println!("\n{passed} passed, {broken} failed");
    if ended.iter().all(Running::had_no_test) {
        bail!("no test was run: none has that name");
    }
    Ok(names)
}

impl Running {
    fn verdict(&self) -> Verdict {
        self.ended.map_or(Verdict::TimedOut, |(verdict, _)| verdict)
    }

    /// True if the program passed, but contained no selected test.
    fn had_no_test(&self) -> bool {
        let output = String::from_utf8_lossy(&self.output);
        let passed = self.verdict() == Verdict::Passed;
        passed && output.contains("running 0 tests") && tests_run(&self.output) == (0, 0)
    }
}

async fn run_one(job: Job, timeout: Duration, is_live: bool) -> anyhow::Result<Running> {
    let Job { name, command, .. } = job;
    let mut running = Running {
        name,
        began: Instant::now(),
        output: Vec::new(),
        ended: None,
        is_live,
    };
    let started = Foreground::start(&mut with_both_streams_in_one(&command))?;
    let output = started.output(|read| {
        running.output.extend_from_slice(read);
        if is_live {
            let mut stdout = std::io::stdout();
            // An error does not matter: the output is kept, and if the terminal is gone, a signal ends this program.
            let _ = stdout.write_all(read).and_then(|()| stdout.flush());
        }
    });
    // At the timeout, the future is dropped. This ends the program and all processes that it started.
    let verdict = match tokio::time::timeout(timeout, output).await {
        Ok(status) if status.as_ref().is_ok_and(ExitStatus::success) => Verdict::Passed,
        Ok(status) => status.map(|_| Verdict::Failed)?,
        Err(_) => Verdict::TimedOut,
    };
    running.ended = Some((verdict, running.began.elapsed()));
    Ok(running)
}

/// The same command, with stdout and stderr in one pipe, so that the order of their lines is kept.
fn with_both_streams_in_one(command: &Command) -> Command {
    let command = command.as_std();
    let mut shell = Command::new("sh");
    shell
        .args(["-c", "exec \"$0\" \"$@\" 2>&1"])
        .arg(command.get_program())
        .args(command.get_args())
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    if let Some(folder) = command.get_current_dir() {
        shell.current_dir(folder);
    }
    shell
}

/// The time of all processors since boot, in the kernel's units.
#[derive(Debug, Default)]
struct Processors {
    idle: u64,
    total: u64,
}

impl Processors {
    /// True if the processors were idle for more than a tenth of the time since the last call. The first call counts the time
    /// since boot.
    fn are_partly_idle(&mut self) -> bool {
        // Without this file, the function returns false. Then fewer programs run at once, and the tests take longer.
        let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        let now = Self::read(&stat);
        let Self { idle, total } = std::mem::replace(self, now);
        let (idle, total) = (
            self.idle.saturating_sub(idle),
            self.total.saturating_sub(total),
        );
        total > 0 && idle * 10 > total
    }

    /// Reads the first line of `/proc/stat`. Its numbers are the times for user, nice, system, idle, iowait and others.
    fn read(stat: &str) -> Self {
        let line = stat.lines().next().unwrap_or_default();
        let times = line.split_whitespace().skip(1);
        let times: Vec<u64> = times.filter_map(|time| time.parse().ok()).collect();
        Self {
            idle: times.iter().skip(3).take(2).sum(),
            // Numbers after the eighth are the times of guests, which user and nice already include.
            total: times.iter().take(8).sum(),
        }
    }
}

/// The numbers of passed and of failed tests, from the lines `test result:` in `output`.
fn tests_run(output: &[u8]) -> (usize, usize) {
    let output = String::from_utf8_lossy(output);
    let closing = output
        .lines()
        .filter_map(|line| line.strip_prefix("test result: "));
    closing.fold((0, 0), |(passed, failed), line| {
        let count = |what: &str| {
            let part = line
                .split([';', '.'])
                .find_map(|part| part.trim().strip_suffix(what));
            part.and_then(|count| count.trim().parse::<usize>().ok())
                .unwrap_or(0)
        };
        (passed + count("passed"), failed + count("failed"))
    })
}

/// Each failed test with its error, in a few lines. The output of a failed test can have thousands of lines.
fn causes(output: &[u8]) -> Vec<String> {
    let output = String::from_utf8_lossy(output);
    let mut causes: Vec<String> = Vec::new();
    let mut lines = output.lines();
    while let Some(line) = lines.next() {
        let test = line.strip_prefix("---- ");
        if let Some(test) = test.and_then(|line| line.strip_suffix(" stdout ----")) {
            causes.push(format!("{test}:"));
        }
        let Some(cause) = causes.last_mut() else {
            continue;
        };
        // The lines of an error with its causes, and the line after "thread … panicked at …".
        let is_error = line.starts_with("Error: ") || is_cause(line);
        let is_panic = line.starts_with("thread '") && line.contains(" panicked at ");
        let panic = is_panic.then(|| lines.next());
        for line in [is_error.then_some(line), panic.flatten()]
            .into_iter()
            .flatten()
        {
            cause.push_str("\n    ");
            cause.push_str(line.trim());
        }
    }
    causes
}

/// True for a line like `    0: no answer` of an error with a chain of causes.
fn is_cause(line: &str) -> bool {
    let cause = line
        .strip_prefix("    ")
        .and_then(|line| line.split_once(": "));
    cause.is_some_and(|(number, _)| number.parse::<u8>().is_ok())
}

/// A table of the time of each program, the longest first.
fn table(ended: &[Running], took: Duration) -> String {
    let mut rows: Vec<_> = ended
        .iter()
        .filter_map(|binary| {
            binary
                .ended
                .map(|(verdict, took)| (took, &binary.name, verdict))
        })
        .collect();
    rows.sort_by_key(|(took, ..)| std::cmp::Reverse(*took));
    let sum = rows.iter().map(|(took, ..)| *took).sum();
    let rows = rows
        .into_iter()
        .map(|(took, name, verdict)| format!("{:>12}  {name}: {verdict}\n", seconds(took)));
    format!(
        "{}{:>12}  all of them, which took {} one after the other",
        rows.collect::<String>(),
        seconds(took),
        seconds(sum)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Job {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Job {
            name: "core x".to_owned(),
            command,
            is_alone: false,
        }
    }

    #[tokio::test]
    async fn a_binary_that_hangs_is_ended_and_says_how_far_it_got() {
        let hangs = shell("echo one test ... ok >&2; sleep 600");
        let ended = run_one(hangs, Duration::from_secs(5), false).await;
        let shown = ended.unwrap().to_string();
        assert!(shown.contains("core x: FAILED: it did not end"), "{shown}");
        assert!(shown.ends_with("one test ... ok"), "{shown}");
    }

    #[test]
    fn idle_time_is_what_no_program_used() {
        let Processors { idle, total } = Processors::read("cpu  10 1 5 70 4 2 3 1 8 0\ncpu0 1 1\n");
        assert_eq!((idle, total), (74, 96));
    }

    #[test]
    fn closing_lines_are_added_up() {
        let output = "running 3 tests\n\
                      test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s\n\
                      test result: FAILED. 10 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out\n";
        assert_eq!(tests_run(output.as_bytes()), (13, 2));
        assert_eq!(tests_run(b"running 0 tests"), (0, 0));
    }

    #[test]
    fn the_cause_of_each_failed_test_is_short() {
        let output = "test a::one ... FAILED\n\nfailures:\n\n---- a::one stdout ----\nprinted\nError: it failed\n\n\
                      Caused by:\n    0: in mode x\n    1: no answer\n       Pod one\n\n---- a::two stdout ----\n\n\
                      thread 'a::two' (7) panicked at a.rs:1:2:\nassertion failed\nnote: more\n\nfailures:\n    a::one\n";
        let expected = [
            "a::one:\n    Error: it failed\n    0: in mode x\n    1: no answer",
            "a::two:\n    assertion failed",
        ];
        assert_eq!(causes(output.as_bytes()), expected);
    }

    #[tokio::test]
    async fn a_selection_that_is_empty_and_one_that_fails_are_no_success() {
        let closing = "echo 'test result: ok. 1 passed; 0 failed; 0 ignored'";
        run(vec![shell(closing)]).await.unwrap();
        let empty = shell("echo running 0 tests");
        let error = run(vec![empty]).await.unwrap_err();
        assert_eq!(error.to_string(), "no test was run: none has that name");
        let failed = vec![shell(closing), shell("exit 3")];
        let error = run(failed).await.unwrap_err();
        assert_eq!(error.to_string(), "tests failed: core x");
    }

    #[tokio::test]
    async fn a_program_that_must_be_alone_ends_before_the_others_start() {
        let folder = tempfile::tempdir().unwrap();
        let mark = folder.path().join("ended").display().to_string();
        let passed = "echo 'test result: ok. 1 passed; 0 failed; 0 ignored'";
        let other = shell(&format!("test -e {mark} && {passed}"));
        let alone = Job {
            is_alone: true,
            ..shell(&format!("sleep 0.2 && touch {mark} && {passed}"))
        };
        run(vec![other, alone]).await.unwrap();
    }

    #[tokio::test]
    async fn the_table_begins_with_the_longest() {
        let mut ended = Vec::new();
        for (name, seconds) in [("a", 3), ("b", 700)] {
            let mut binary = run_one(shell("true"), TIMEOUT, false).await.unwrap();
            binary.name = name.to_owned();
            binary.ended = Some((Verdict::Passed, Duration::from_secs(seconds)));
            ended.push(binary);
        }
        assert_eq!(
            table(&ended, Duration::from_secs(701)),
            " 11 min 40 s  b: passed\n       3.0 s  a: passed\n 11 min 41 s  all of them, which took 11 min 43 s one after the other"
        );
    }
}
