//! Texts about TaskRuns and CustomRuns under review.

use crate::annotations::OVERRIDE;
use crate::mode::Mode;

use super::{Reason, ReasonCode};

texts! {
    tekton_account_unknown(account: &str, expected: &str): TektonAccountUnknown =
        "Account {account} created a TaskRun or CustomRun of this run, but tekton-coscheduler expects account {expected} to do \
         this. So the pods of that TaskRun or CustomRun do not follow the run's placeholder, and may run on other nodes. If \
         {account} is the account of Tekton's controller, your operator has to set flag --tekton-controller-username of the \
         affinity-planner to {account}.";
}

/// The Event about a TaskRun that uses `claims` different claims in a mode that allows only one (M2). `used` has the name of each
/// workspace and of its claim.
pub fn task_run_refused(task_run: &str, used: &[(&str, String)], claims: usize) -> Reason {
    let used: Vec<_> = used
        .iter()
        .map(|(workspace, claim)| format!("claim {claim} (workspace {workspace})"))
        .collect();
    let message = multiple_claims(&format!("TaskRun {task_run} does not run"), &used, claims);
    Reason::new(ReasonCode::TaskRunRefused, message)
}

/// The text about a TaskRun or task that uses `claims` different claims. The text begins with `fact`, such as "TaskRun build does
/// not run". `used` has a text about each workspace and its claim. Admission puts this text into a TaskRun as the name of a
/// workspace, so that Tekton refuses the TaskRun. Tekton prints the name in quotation marks, so the text itself has none.
pub(crate) fn multiple_claims(fact: &str, used: &[String], claims: usize) -> String {
    let used = used.join(", ");
    let (mode, other) = (Mode::Workspaces, Mode::PipelineRuns);
    format!(
        "{fact}, because it uses {claims} persistent volume claims: {used}. In coschedule mode {mode}, a task may use only one \
         claim. Create the run again, and bind these workspaces to subPaths of one claim. Or, if your operator allows mode \
         {other}, create the run again with annotation {OVERRIDE}: {other}."
    )
}
