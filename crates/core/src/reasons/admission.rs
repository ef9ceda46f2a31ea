//! Texts about a TaskRun that admission does not let run.

use crate::mode::Mode;

use super::{Reason, ReasonCode};

/// A TaskRun uses `claims` different claims, by workspace and name in `used`, and its mode allows one (M2).
pub fn task_run_refused(task_run: &str, used: &[(&str, String)], claims: usize) -> Reason {
    let used: Vec<_> = used
        .iter()
        .map(|(workspace, claim)| format!("workspace {workspace:?}: claim {claim:?}"))
        .collect();
    let problem = multiple_claims(&format!("TaskRun {task_run}"), &used, claims);
    let mode = Mode::PipelineRuns;
    let message = format!("{problem}. Use subPaths of one claim, or mode {mode}.");
    Reason::new(ReasonCode::TaskRunRefused, message)
}

/// The part that TaskRuns and tasks have in common.
pub(crate) fn multiple_claims(subject: &str, used: &[String], claims: usize) -> String {
    let used = used.join(", ");
    let mode = Mode::Workspaces;
    format!(
        "{subject} uses {claims} persistent volume claims ({used}), and coschedule mode {mode} allows one"
    )
}
