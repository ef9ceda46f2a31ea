//! Warns the author of a new run in mode `workspaces` about tasks of its embedded Pipeline that use more than one claim. The
//! TaskRuns of these tasks will fail (M2). With `coschedule-claims: node-bound`, claims that several nodes can mount at once do
//! not count (V8). Custom tasks and child Pipelines have no TaskRuns of their own.

use std::collections::{BTreeMap, BTreeSet};

use crate::pipeline::Work;
use crate::pipeline_run::PipelineRun;
use crate::run_claims::{ClaimSource, RunClaims};

use super::warnings::task_will_not_run;

/// One warning for each task that uses more than one claim.
pub(super) fn warnings(run: &PipelineRun, claims: &RunClaims) -> Vec<String> {
    let mut warnings = Vec::new();
    let has_task_run = |work: &Work| !matches!(work, Work::Custom | Work::Pipeline);
    let tasks = run.pipeline_tasks.iter();
    for task in tasks.filter(|task| has_task_run(&task.work)) {
        let used: BTreeMap<&String, String> = task
            .workspaces
            .iter()
            .filter_map(|workspace| {
                let claim = claims.get(workspace).filter(|claim| !claim.shared)?;
                Some((workspace, shown(workspace, &claim.source)))
            })
            .collect();
        let distinct: BTreeSet<&String> = used.values().collect();
        if distinct.len() > 1 {
            let used: Vec<_> = used
                .iter()
                .map(|(workspace, claim)| format!("workspace {workspace:?}: {claim}"))
                .collect();
            warnings.push(task_will_not_run(&task.name, &used, distinct.len()));
        }
    }
    warnings
}

/// A text about a claim for the run's author. The claim of a template has no name before the run exists.
fn shown(workspace: &str, claim: &ClaimSource) -> String {
    match claim {
        ClaimSource::Name(name) => format!("claim {name:?}"),
        ClaimSource::Template(_) => {
            format!("a claim from the volumeClaimTemplate of {workspace:?}")
        }
    }
}
