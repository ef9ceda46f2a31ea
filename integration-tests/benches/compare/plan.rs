//! The options of the benchmark, and the loads that follow from them: which runs are created, how fast, and on how many nodes.

use std::fmt;
use std::path::PathBuf;

use integration_tests::runs::{Run, run};
use serde::{Deserialize, Serialize};
use serde_json::json;
use testbed::{DURATION_ANNOTATION, MOVABLE_STORAGE_CLASS};

/// The number of tasks that start per second, if no rate is chosen. These tasks use about a third of two cores.
const TASKS_PER_SECOND: f64 = 3.0;
/// How long runs are created at a rate, if `--seconds` is not given.
const SECONDS: f64 = 10.0;
/// The number of runs that are measured one after the other.
const ALONE: usize = 3;

/// The options of `cargo xtask bench compare`. A list is empty, and an option is unset, if its flag is not given.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Options {
    pub(crate) workloads: Vec<Workload>,
    pub(crate) nodes: Vec<usize>,
    /// Runs per second.
    pub(crate) rate: Option<f64>,
    pub(crate) seconds: Option<f64>,
    /// The number of runs that are created at once.
    pub(crate) burst: Option<usize>,
    pub(crate) alone: bool,
    pub(crate) rounds: Option<usize>,
    /// No round begins that would probably end later than this.
    pub(crate) minutes: u64,
    /// The modes of our services, and values of Tekton's own flag.
    pub(crate) modes: Vec<String>,
    pub(crate) quick: bool,
    /// The build of the services: `debug` or `release`.
    pub(crate) build: String,
    /// The version of the services.
    pub(crate) version: String,
    /// The commit of this project, as `git describe` names it. Empty without git.
    pub(crate) commit: String,
    /// The command line that repeats this measurement.
    pub(crate) command: String,
    /// The folder for the page, the figures and the plots.
    #[serde(skip_serializing)]
    pub(crate) folder: PathBuf,
}

/// The shape of the runs. Each task takes a second and requests 100m CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Workload {
    /// Two tasks, one after the other, with the same claim.
    OneClaim,
    /// As `OneClaim`, but the volume takes two seconds to create.
    SlowVolume,
    /// Two parallel tasks with a claim each, and a last task with the first claim.
    TwoClaims,
    /// Ten parallel tasks with the same claim.
    TenWide,
    /// Ten steps of five parallel tasks with the same claim.
    Fifty,
    /// A task with a matrix of six values, with one claim.
    Matrix,
}

impl Workload {
    /// The number of pods of a run.
    fn tasks(self) -> usize {
        match self {
            Self::OneClaim | Self::SlowVolume => 2,
            Self::TwoClaims => 3,
            Self::TenWide => 10,
            Self::Fifty => 50,
            Self::Matrix => 6,
        }
    }

    /// A run of this shape. No task has two claims, because such a task fails in mode `workspaces`.
    pub(crate) fn run(self, number: usize) -> Run {
        let task = |run: Run, name: &str, workspace: &str, after: &[&str]| {
            run.task(name, &[workspace], after).asking("100m")
        };
        let one_claim = |run: Run| {
            let one = task(run, "one", "source", &[]);
            task(one, "two", "source", &["one"])
        };
        let empty = run(&format!("run-{number}"));
        let one = template(empty, "source");
        match self {
            Self::OneClaim => one_claim(one),
            Self::SlowVolume => one_claim(one.annotate_claims(DURATION_ANNOTATION, "2s")),
            Self::TwoClaims => {
                let two = template(one, "cache");
                let two = task(two, "one", "source", &[]);
                let two = task(two, "two", "cache", &[]);
                task(two, "last", "source", &["one", "two"])
            }
            Self::TenWide => (0..10).fold(one, |run, wide| {
                task(run, &format!("task-{wide}"), "source", &[])
            }),
            Self::Fifty => (0..50_usize).fold(one, |run, index| {
                let name = |step: usize, wide: usize| format!("task-{step}-{wide}");
                let (step, wide) = (index / 5, index % 5);
                let before: Vec<_> = match step.checked_sub(1) {
                    Some(before) => (0..5).map(|wide| name(before, wide)).collect(),
                    None => Vec::new(),
                };
                let before: Vec<_> = before.iter().map(String::as_str).collect();
                task(run, &name(step, wide), "source", &before)
            }),
            Self::Matrix => {
                let values = json!(["1", "2", "3", "4", "5", "6"]);
                one.task("each", &["source"], &[])
                    .with(
                        "taskSpec",
                        json!({
                            "params": [{"name": "value"}],
                            "workspaces": [{"name": "source"}],
                            "steps": [{"name": "step", "image": "example/image", "command": ["true"]}],
                        }),
                    )
                    .asking("100m")
                    .with("matrix", json!({"params": [{"name": "value", "value": values}]}))
            }
        }
    }
}

/// Adds a workspace whose claim every node can reach. Each side deletes the claim, or keeps it, as its mode says.
fn template(run: Run, workspace: &str) -> Run {
    run.template_of_class(workspace, MOVABLE_STORAGE_CLASS)
        .metadata("annotations", json!({}))
}

impl fmt::Display for Workload {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::OneClaim => "one claim",
            Self::SlowVolume => "one slow volume",
            Self::TwoClaims => "two claims",
            Self::TenWide => "ten wide",
            Self::Fifty => "fifty tasks",
            Self::Matrix => "matrix of six",
        })
    }
}

/// How the runs are created.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Pace {
    /// One run after the other.
    Alone,
    /// This many runs a second.
    Rate(f64),
    /// All runs at once.
    Burst,
}

/// The runs of one trial.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
pub(crate) struct Load {
    pub(crate) workload: Workload,
    pub(crate) nodes: usize,
    pub(crate) pace: Pace,
    pub(crate) runs: usize,
}

impl fmt::Display for Load {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            workload,
            nodes,
            pace,
            runs,
        } = self;
        match pace {
            Pace::Alone => write!(formatter, "{workload}, {runs} runs one by one")?,
            Pace::Rate(rate) => write!(formatter, "{workload}, {runs} runs at {rate:.2} a second")?,
            Pace::Burst => write!(formatter, "{workload}, {runs} runs at once")?,
        }
        write!(formatter, ", {nodes} nodes")
    }
}

impl Options {
    /// The loads. They follow one another on one test bed, to which nodes are added but never taken away.
    pub(crate) fn loads(&self) -> Vec<Load> {
        let rate = |workload, nodes| self.at_rate(workload, nodes);
        let burst = |workload, nodes, runs| Load {
            workload,
            nodes,
            pace: Pace::Burst,
            runs,
        };
        if !self.chooses() {
            return match self.quick {
                true => vec![burst(Workload::OneClaim, 4, 6)],
                false => vec![
                    rate(Workload::OneClaim, 20),
                    rate(Workload::SlowVolume, 20),
                    rate(Workload::TwoClaims, 20),
                    rate(Workload::TenWide, 20),
                    burst(Workload::OneClaim, 20, 40),
                    rate(Workload::OneClaim, 200),
                ],
            };
        }
        let or = |given: &[_], default| match given {
            [] => vec![default],
            given => given.to_vec(),
        };
        let workloads = match self.workloads.as_slice() {
            [] => vec![Workload::OneClaim],
            given => given.to_vec(),
        };
        let mut sizes = or(&self.nodes, 20);
        sizes.sort_unstable();
        let of_size = |nodes| {
            let of = |workload: &Workload| {
                let (workload, paced) = (*workload, self.burst.is_some() || self.alone);
                let alone = self.alone.then_some(Load {
                    workload,
                    nodes,
                    pace: Pace::Alone,
                    runs: ALONE,
                });
                let at_rate = (self.rate.is_some() || !paced).then(|| rate(workload, nodes));
                let at_once = self.burst.map(|runs| burst(workload, nodes, runs));
                [alone, at_rate, at_once].into_iter().flatten()
            };
            workloads.iter().flat_map(of).collect::<Vec<_>>()
        };
        sizes.into_iter().flat_map(of_size).collect()
    }

    /// True if a flag chooses other loads than the default.
    fn chooses(&self) -> bool {
        !self.workloads.is_empty()
            || !self.nodes.is_empty()
            || self.rate.is_some()
            || self.seconds.is_some()
            || self.burst.is_some()
            || self.alone
    }

    fn at_rate(&self, workload: Workload, nodes: usize) -> Load {
        let slow = TASKS_PER_SECOND / workload.tasks() as f64;
        let rate = self.rate.unwrap_or(slow);
        let runs = (rate * self.seconds.unwrap_or(SECONDS)).round() as usize;
        Load {
            workload,
            nodes,
            pace: Pace::Rate(rate),
            runs: runs.max(1),
        }
    }
}
