//! Warns about the tasks of an embedded Pipeline that use more than one claim, when the run is created. Mode `workspaces` denies
//! their TaskRuns later (M2).

use std::collections::{BTreeMap, BTreeSet};

use crate::pipeline_run::PipelineRun;
use crate::run_claims::{RunClaim, RunClaims};

use super::warnings::task_will_not_run;

/// A warning for each such task.
pub(super) fn warnings(run: &PipelineRun, claims: &RunClaims) -> Vec<String> {
    let mut warnings = Vec::new();
    for task in &run.pipeline_tasks {
        let used: BTreeMap<&String, String> = task
            .workspaces
            .iter()
            .filter_map(|workspace| Some((workspace, shown(workspace, claims.get(workspace)?))))
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

/// A claim as its author knows it: a template's claim has no name before the run exists.
fn shown(workspace: &str, claim: &RunClaim) -> String {
    match claim {
        RunClaim::Name(name) => format!("claim {name:?}"),
        RunClaim::Template(_) => format!("a claim from the volumeClaimTemplate of {workspace:?}"),
    }
}
