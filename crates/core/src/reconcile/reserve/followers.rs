//! The pods that follow a placeholder (they have an affinity to it), and the CPU and memory that these pods need.

use std::collections::{BTreeMap, BTreeSet};

use super::{Amounts, Decision, combined};
use crate::config::Reserves;
use crate::event_texts;
use crate::mode::Mode;
use crate::observed::{Observed, Pod};
use crate::pinned::Pinned;
use crate::pipeline_run::PipelineRun;
use crate::plan::PlaceholderSpec;
use crate::reconcile::apart::left_out;
use crate::sizes::{Demand, Progress, Sizes, TaskSize};
use crate::subsets;

impl Observed {
    /// The amounts of room to ask for, in this order, if no waiting pod needs certain nodes. If there are none because of a
    /// quota, adds an Event. `is_first` is false if the placeholder left a node that had no room for a pod.
    pub(super) fn room(
        &self,
        spec: &PlaceholderSpec,
        is_first: bool,
        decision: &mut Decision,
    ) -> Vec<Amounts> {
        let Demand { peak, need } = self.demand(spec, false);
        match spec.reserves {
            Reserves::Nothing => vec![need],
            // At the start of a run, the reservation would use up quota that the run's first pod needs.
            Reserves::Placement | Reserves::Peak if self.has_quota && is_first => {
                let reason = event_texts::reservation_under_quota(spec.name.as_str());
                decision.events.push(reason);
                Vec::new()
            }
            Reserves::Placement | Reserves::Peak => vec![peak, need],
        }
    }

    /// The pods that follow the placeholder, except pods about which the API server has answered that they belong to another run.
    pub(in crate::reconcile) fn followers<'a>(
        &'a self,
        spec: &'a PlaceholderSpec,
    ) -> impl Iterator<Item = &'a Pod> {
        let pods = self.pods.values().map(AsRef::as_ref);
        pods.filter(|pod| {
            let answer = self.answers.get(&pod.object.uid);
            let follows = pod.follows.iter().any(|it| it == spec.name.as_str());
            follows && answer.is_none_or(|answer| answer.own)
        })
    }

    /// The followers without a node, in the order of their names.
    pub(super) fn waiting<'a>(
        &'a self,
        spec: &'a PlaceholderSpec,
    ) -> impl Iterator<Item = &'a Pod> {
        self.followers(spec).filter(|pod| pod.node.is_none())
    }

    /// The requests of all followers together.
    pub(super) fn together(&self, spec: &PlaceholderSpec) -> Amounts {
        self.followers(spec).fold(Amounts::default(), |sum, pod| {
            combined(&sum, &pod.needs.requests, |sum, more| sum + more)
        })
    }

    /// The demand of the tasks whose pods share the placeholder's node, as admission estimated it. If existing followers
    /// request more than the estimate, their requests count instead: for `need`, the most CPU, and the most memory, that a
    /// single waiting follower requests; for `peak`, the sum of all followers. With `tied`, the estimate leaves out the tasks
    /// whose pods may run on other nodes.
    pub(super) fn demand(&self, spec: &PlaceholderSpec, tied: bool) -> Demand {
        let mut demand = Demand::default();
        if let Some((run, _)) = &self.run
            && spec.reserves != Reserves::Nothing
        {
            let sizes = Sizes::read(&run.annotations).unwrap_or_default();
            let pinned = Pinned::of(run).ok().flatten();
            let tied = tied && !spec.is_isolated();
            let mut held: BTreeSet<String> = spec.claims().collect();
            if tied {
                held = &held - &left_out(self, spec);
            }
            let uses_claim = |pinned: &Pinned, task: &TaskSize| {
                task.workspaces.iter().any(|workspace| {
                    let claim = pinned.claims.get(workspace);
                    claim.is_some_and(|it| held.contains(&it.name(workspace, &run.uid)))
                })
            };
            let progress = self.progress(run, &sizes);
            demand = sizes.demand(&progress, |name, task| match &pinned {
                Some(pinned) if pinned.mode == Mode::Workspaces => uses_claim(pinned, task),
                Some(pinned) => {
                    subsets::of_task(&pinned.subsets, name) == spec.subset
                        && (!tied || uses_claim(pinned, task))
                }
                None => true,
            });
        }
        for pod in self.waiting(spec) {
            demand.need = combined(&demand.need, &pod.needs.requests, i128::max);
        }
        demand.peak = combined(&demand.peak, &self.together(spec), i128::max);
        demand
    }

    /// The progress of the tasks that have TaskRuns, and of skipped tasks.
    fn progress<'a>(&self, run: &'a PipelineRun, sizes: &'a Sizes) -> BTreeMap<&'a str, Progress> {
        let task_runs = self.pods.values().filter_map(|pod| pod.task_run());
        let alive: BTreeSet<_> = task_runs.map(|it| &it.name).collect();
        let mut progress: BTreeMap<&str, Progress> = BTreeMap::new();
        for (task_run, task) in &run.task_runs {
            let state = if alive.contains(task_run) {
                Progress::Running
            } else if self.ended.contains(task_run) {
                Progress::Ended
            } else {
                Progress::Waiting
            };
            // A task with a matrix has several TaskRuns.
            let task = progress.entry(task).or_insert(state);
            *task = state.max(*task);
        }
        // A TaskRun can time out before it has a pod. If a later task has started, the task of this TaskRun has ended.
        for task in sizes.before(run.task_runs.values()) {
            if progress.get(task) == Some(&Progress::Waiting) {
                progress.insert(task, Progress::Ended);
            }
        }
        let skipped = run.skipped_tasks.iter();
        progress.extend(skipped.map(|task| (task.as_str(), Progress::Ended)));
        progress
    }
}
