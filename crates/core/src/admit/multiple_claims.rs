//! The tasks of an embedded Pipeline that `workspaces` will not let run, because they use more than one claim (M2): said
//! when the run is created, though only their TaskRuns are refused.

use std::collections::{BTreeMap, BTreeSet};

use crate::mode::Mode;
use crate::pipeline_run::PipelineRun;
use crate::run_claims::{RunClaim, RunClaims};

/// A warning for each such task.
pub(super) fn warnings(run: &PipelineRun, claims: &RunClaims) -> Vec<String> {
    run.pipeline_tasks
        .iter()
        .filter_map(|task| {
            let used: BTreeMap<&str, String> = task
                .workspaces
                .iter()
                .filter_map(|workspace| {
                    Some((workspace.as_str(), shown(workspace, claims.get(workspace)?)))
                })
                .collect();
            let distinct: BTreeSet<&String> = used.values().collect();
            if distinct.len() < 2 {
                return None;
            }
            let used: Vec<_> = used
                .iter()
                .map(|(workspace, claim)| format!("workspace {workspace:?}: {claim}"))
                .collect();
            Some(format!(
                "task {:?} uses {} persistent volume claims ({}), and coschedule mode {} allows a TaskRun one: it will \
                 not run",
                task.name,
                distinct.len(),
                used.join(", "),
                Mode::Workspaces
            ))
        })
        .collect()
}

/// A claim as the author knows it: before the run exists, a template's claim has no name.
fn shown(workspace: &str, claim: &RunClaim) -> String {
    match claim {
        RunClaim::Name(name) => format!("claim {name:?}"),
        RunClaim::Template(_) => format!("a claim from the volumeClaimTemplate of {workspace:?}"),
    }
}
