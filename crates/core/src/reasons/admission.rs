//! Texts about a TaskRun that admission cancels.

use crate::mode::Mode;

use super::{Reason, ReasonCode};

/// A TaskRun uses `claims` different claims, but its mode allows only one (M2). `used` has the workspace and the name of each.
pub fn task_run_refused(task_run: &str, used: &[(&str, String)], claims: usize) -> Reason {
    let used: Vec<_> = used
        .iter()
        .map(|(workspace, claim)| format!("workspace {workspace:?}: claim {claim:?}"))
        .collect();
    let message = multiple_claims(&format!("TaskRun {task_run} does not run"), &used, claims);
    Reason::new(ReasonCode::TaskRunRefused, message)
}

/// The text about a TaskRun or task that uses `claims` claims. `fact` is the consequence: "TaskRun build does not run".
pub(crate) fn multiple_claims(fact: &str, used: &[String], claims: usize) -> String {
    let used = used.join(", ");
    let (mode, other) = (Mode::Workspaces, Mode::PipelineRuns);
    format!(
        "{fact}, because it uses {claims} persistent volume claims: {used}. In coschedule mode {mode}, a task may use only one \
         claim. Use subPaths of one claim, or choose mode {other}."
    )
}
