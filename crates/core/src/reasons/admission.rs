//! Texts about what admission does not let run.

use crate::mode::Mode;

use super::{Reason, ReasonCode};

/// A TaskRun uses `claims` different claims, by workspace and name in `used`, and its mode allows one (M2).
pub fn task_run_refused(task_run: &str, used: &[(&str, String)], claims: usize) -> Reason {
    let used: Vec<_> = used
        .iter()
        .map(|(workspace, claim)| format!("workspace {workspace:?}: claim {claim:?}"))
        .collect();
    let message = format!(
        "TaskRun {task_run} uses {claims} persistent volume claims ({}), and coschedule mode {} allows one. Use subPaths of \
         one claim, or mode {}.",
        used.join(", "),
        Mode::Workspaces,
        Mode::PipelineRuns
    );
    Reason::new(ReasonCode::TaskRunRefused, message)
}
