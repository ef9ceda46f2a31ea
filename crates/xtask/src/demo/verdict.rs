//! The result of the demo. The demo is a success if the run succeeded on one node, and its placeholder and claims are gone.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::Duration;

use anyhow::bail;
use run_table::{Board, RunResult};

use crate::progress::seconds;

/// The facts at the end of a demo.
#[derive(Debug)]
pub(super) struct Verdict {
    result: RunResult,
    /// The time from the creation of the run to its end. `None` if it did not end in time.
    took: Option<Duration>,
    limit: Duration,
    children: usize,
    /// Task and node of each TaskRun pod.
    pods: Vec<(String, Option<String>)>,
    placeholder_nodes: BTreeSet<String>,
    /// Each object that was deleted, with the time from the run's end to its deletion.
    cleaned: Vec<(String, Duration)>,
    left: Vec<String>,
}

impl Verdict {
    /// The facts about the run on `board`. `took` is `None` if the run did not end within `limit`.
    pub(super) fn of(board: &Board, took: Option<Duration>, limit: Duration) -> Self {
        let cleaned = board.passing().iter().filter_map(|((kind, name), gone)| {
            let after = gone.as_ref()?.saturating_sub(took.unwrap_or_default());
            Some((format!("{} {name}", kind.name()), after))
        });
        Self {
            result: board.result(),
            took,
            limit,
            children: board.children(),
            pods: board
                .task_pods()
                .values()
                .map(|pod| (pod.task.clone(), pod.node.clone()))
                .collect(),
            placeholder_nodes: board.placeholder_nodes().clone(),
            cleaned: cleaned.collect(),
            left: board.left(),
        }
    }

    fn nodes(&self) -> BTreeSet<&str> {
        self.pods
            .iter()
            .filter_map(|(_, node)| node.as_deref())
            .collect()
    }

    /// A summary for people.
    pub(super) fn summary(&self) -> String {
        let mut text = String::new();
        let mut line = |name: &str, value: String| {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{name:<12} {value}");
        };
        let result = match &self.result {
            RunResult::Running(reason) => format!("not over: {reason}"),
            RunResult::Succeeded => "Succeeded".to_owned(),
            RunResult::Failed(why) => format!("Failed: {why}"),
            RunResult::Gone => "deleted".to_owned(),
        };
        line("result", result);
        line(
            "duration",
            self.took
                .map_or_else(|| format!("over {}", seconds(self.limit)), seconds),
        );
        line(
            "node",
            or_none(self.nodes().into_iter().map(str::to_owned).collect()),
        );
        let pods = self.pods.iter();
        let pods =
            pods.map(|(task, node)| format!("{task} on {}", node.as_deref().unwrap_or("no node")));
        line("task pods", or_none(pods.collect()));
        line(
            "placeholder",
            or_none(
                self.placeholder_nodes
                    .iter()
                    .map(|node| format!("on {node}"))
                    .collect(),
            ),
        );
        for (at, (name, after)) in self.cleaned.iter().enumerate() {
            let what = if at == 0 { "cleaned up" } else { "" };
            line(what, format!("{name} ({} after the run)", seconds(*after)));
        }
        line("left behind", or_none(self.left.clone()));
        text.trim_end().to_owned()
    }

    /// Fails if the demo is no success. The error lists all reasons.
    pub(super) fn judge(&self) -> anyhow::Result<()> {
        let mut wrong = Vec::new();
        match &self.result {
            RunResult::Succeeded => {}
            RunResult::Running(_) => wrong.push(format!(
                "the run did not end within {}",
                seconds(self.limit)
            )),
            RunResult::Failed(why) => wrong.push(format!("the run failed: {why}")),
            RunResult::Gone => wrong.push("the run was deleted".to_owned()),
        }
        let nodes = self.nodes();
        if self.pods.is_empty() || self.pods.len() < self.children {
            wrong.push(format!(
                "{} pods were seen for {} TaskRuns",
                self.pods.len(),
                self.children
            ));
        }
        if self.pods.iter().any(|(_, node)| node.is_none()) || nodes.len() > 1 {
            wrong.push("the TaskRun pods were not all on one node".to_owned());
        }
        if self.placeholder_nodes.is_empty() {
            wrong.push("no placeholder was seen: is `coschedule` set to pipelineruns?".to_owned());
        } else if nodes
            .iter()
            .any(|node| !self.placeholder_nodes.contains(*node))
        {
            wrong.push("the TaskRun pods were not on the placeholder's node".to_owned());
        }
        if !self.left.is_empty() {
            wrong.push(format!("left behind: {}", self.left.join(", ")));
        }
        if wrong.is_empty() {
            Ok(())
        } else {
            bail!("{}", wrong.join("; "))
        }
    }
}

fn or_none(parts: Vec<String>) -> String {
    if parts.is_empty() {
        "none".to_owned()
    } else {
        parts.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Verdict {
        let on = |task: &str| (task.to_owned(), Some("node-2".to_owned()));
        Verdict {
            result: RunResult::Succeeded,
            took: Some(Duration::from_secs(14)),
            limit: Duration::from_secs(600),
            children: 2,
            pods: vec![on("clone"), on("build")],
            placeholder_nodes: BTreeSet::from(["node-2".to_owned()]),
            cleaned: vec![(
                "StatefulSet affinity-assistant-1".to_owned(),
                Duration::from_millis(300),
            )],
            left: Vec::new(),
        }
    }

    #[track_caller]
    fn refused(verdict: &Verdict, expected: &str) {
        assert_eq!(verdict.judge().unwrap_err().to_string(), expected);
    }

    #[test]
    fn a_run_on_one_node_that_left_nothing_is_good() {
        good().judge().unwrap();
        assert_eq!(
            good().summary(),
            "result       Succeeded\n\
             duration     14 s\n\
             node         node-2\n\
             task pods    clone on node-2, build on node-2\n\
             placeholder  on node-2\n\
             cleaned up   StatefulSet affinity-assistant-1 (0.3 s after the run)\n\
             left behind  none"
        );
    }

    #[test]
    fn everything_else_is_not() {
        let failed = RunResult::Failed("Failed: a task".to_owned());
        refused(
            &Verdict {
                result: failed,
                ..good()
            },
            "the run failed: Failed: a task",
        );
        let running = RunResult::Running("Running".to_owned());
        refused(
            &Verdict {
                result: running,
                took: None,
                ..good()
            },
            "the run did not end within 10 min 0 s",
        );
        refused(
            &Verdict {
                pods: vec![("clone".to_owned(), Some("node-2".to_owned()))],
                ..good()
            },
            "1 pods were seen for 2 TaskRuns",
        );
        let mut apart = good();
        apart.pods[1].1 = Some("node-3".to_owned());
        refused(
            &apart,
            "the TaskRun pods were not all on one node; the TaskRun pods were not on the placeholder's node",
        );
        refused(
            &Verdict {
                placeholder_nodes: BTreeSet::new(),
                ..good()
            },
            "no placeholder was seen: is `coschedule` set to pipelineruns?",
        );
        refused(
            &Verdict {
                left: vec!["claim pvc-1".to_owned()],
                ..good()
            },
            "left behind: claim pvc-1",
        );
    }
}
