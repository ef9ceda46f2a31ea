//! What admission writes on a TaskRun or CustomRun that is being created. Of what Tekton copied from the PipelineRun only
//! the one annotation stays that Tekton's pod builder reads, with the placeholder that the run's pinned mode gives this
//! pod, whatever Tekton itself stamped there (M9). A TaskRun that no node could serve is not let run (M2).

use std::collections::{BTreeMap, BTreeSet};

use crate::admit::joins_owner;
use crate::admit::pinned_by_others::present;
use crate::annotations::TEKTON_AFFINITY_ASSISTANT;
use crate::mode::Mode;
use crate::names::{AssistantName, Group, claim_before_tekton_renamed_it};
use crate::params::{Params, has_variable};
use crate::pinned::{handed_on, unknown_schema, whole_run};
use crate::pipeline_run::OwnerReference;
use crate::reasons::task_run_refused;
use crate::run_claims::{self, RunClaims};

/// What kind of run it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChildKind {
    /// A TaskRun: one pod, made by Tekton.
    TaskRun,
    /// A CustomRun: whatever its own controller makes of it.
    CustomRun,
}

impl ChildKind {
    /// The kind as Kubernetes writes it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::TaskRun => "TaskRun",
            Self::CustomRun => "CustomRun",
        }
    }
}

/// A workspace that a claim backs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BoundClaim {
    /// `spec.workspaces[].name`.
    pub workspace: String,
    /// `spec.workspaces[].persistentVolumeClaim.claimName`, as it stands there.
    pub claim_name: String,
}

/// A TaskRun or CustomRun that is being created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChildRun {
    /// `kind`.
    pub kind: ChildKind,
    /// `metadata.name`; may be empty.
    pub name: String,
    /// `metadata.annotations`.
    pub annotations: BTreeMap<String, String>,
    /// The one of `metadata.ownerReferences` that is the controller.
    pub controller: Option<OwnerReference>,
    /// Annotation [`GROUP`](crate::annotations::GROUP) of that controller as it is stored, where it is a PipelineRun.
    pub owner_group: Option<String>,
    /// The username that creates it.
    pub created_by: String,
    /// The workspaces that claims back, in order.
    pub claims: Vec<BoundClaim>,
    /// `spec.params`.
    pub params: Params,
}

impl ChildRun {
    /// Whether it joins its owner's group: Tekton's own controller makes it for a PipelineRun. Both
    /// are needed, as anybody can write an owner reference.
    pub fn joins_owner(&self, tekton_controller: &str) -> bool {
        joins_owner(
            self.controller.as_ref(),
            &self.created_by,
            tekton_controller,
        )
    }
}

/// What admission changes on a TaskRun or CustomRun.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChildAdmission {
    /// Annotations to set.
    pub set_annotations: BTreeMap<String, String>,
    /// Annotations to remove, in the order of [`PINNED`](crate::annotations::PINNED).
    pub remove_annotations: Vec<String>,
    /// Where the TaskRun may not run: why. It is let in as cancelled, `spec.status: TaskRunCancelled` with this as
    /// `spec.statusMessage`, so that Tekton ends the PipelineRun as after any failed task.
    pub cancel: Option<String>,
    /// Workspaces whose claim becomes another one, in the run's order (M9).
    pub bindings: Vec<BoundClaim>,
    /// What the author should know.
    pub warnings: Vec<String>,
}

/// Decides about a TaskRun or CustomRun that is being created.
///
/// - Not made by Tekton for a PipelineRun: it loses all annotations that only admission may write.
/// - Made for a run that is not coscheduled: it keeps what Tekton's own assistant gave it, and nothing else, whatever the
///   Pipeline or the task carries.
/// - `pipelineruns`, `isolate-pipelinerun`: the placeholder of the run (M3).
/// - `workspaces`: the placeholder of the one claim it uses; none where it uses none, or one that is not known when the
///   PipelineRun is created (M1, V9). A TaskRun with more than one claim is not let run (M2). Where Tekton's own flag has
///   become `pipelineruns` or `isolate-pipelinerun` meanwhile, Tekton looks for the claims of templates under names that
///   nobody has made: they are called what they were made as (M9).
///
/// `tekton_controller` is the username of Tekton's controller, ordinarily
/// [`TEKTON_CONTROLLER`](crate::admit::TEKTON_CONTROLLER).
pub fn admit_run(run: &ChildRun, tekton_controller: &str) -> ChildAdmission {
    if !run.joins_owner(tekton_controller) {
        return ignored(without(run, |_| true));
    }
    let Some((mode, group, claims)) = handed_on(&run.annotations, run.owner_group.as_deref())
    else {
        // Another version pinned the run: its pods wait for the placeholder that Tekton copied the name of.
        let unknown = unknown_schema(&run.annotations).is_some();
        let coscheduled = run.owner_group.is_some() && !unknown;
        return without(run, |key| coscheduled || key != TEKTON_AFFINITY_ASSISTANT);
    };
    let (assistant, cancel, bindings) = match mode {
        Mode::PipelineRuns | Mode::IsolatePipelineRun | Mode::Disabled => {
            (whole_run(mode, &group), None, Vec::new())
        }
        Mode::Workspaces => {
            let bindings = renamed(run, &claims);
            let (assistant, cancel) = of_claim(run, &bindings, &group, &claims);
            (assistant, cancel, bindings)
        }
    };
    // Empty rather than absent: a Task's own annotation would take the place.
    let assistant = assistant.map(|name| name.to_string()).unwrap_or_default();
    ChildAdmission {
        set_annotations: [(TEKTON_AFFINITY_ASSISTANT.to_owned(), assistant)].into(),
        cancel,
        bindings,
        ..without(run, |key| key != TEKTON_AFFINITY_ASSISTANT)
    }
}

/// The workspaces whose claim Tekton has given a name that it has not.
fn renamed(run: &ChildRun, claims: &RunClaims) -> Vec<BoundClaim> {
    let Some(owner) = &run.controller else {
        return Vec::new();
    };
    run.claims
        .iter()
        .filter_map(|bound| {
            let made = claim_before_tekton_renamed_it(&bound.claim_name, &owner.name)?;
            run_claims::contains(claims, made, &owner.uid).then(|| BoundClaim {
                workspace: bound.workspace.clone(),
                claim_name: made.to_owned(),
            })
        })
        .collect()
}

/// Tells whoever wrote annotations of ours; Tekton is told nothing about what it copied.
fn ignored(mut admission: ChildAdmission) -> ChildAdmission {
    if !admission.remove_annotations.is_empty() {
        admission.warnings.push(format!(
            "ignored what was given for {}: only what Tekton makes of a coscheduled PipelineRun carries it",
            admission.remove_annotations.join(", ")
        ));
    }
    admission
}

fn without(run: &ChildRun, unwanted: impl Fn(&str) -> bool) -> ChildAdmission {
    ChildAdmission {
        remove_annotations: present(&run.annotations, unwanted),
        ..ChildAdmission::default()
    }
}

/// The placeholder of the one claim that a run uses, and why it may not run where it uses more.
fn of_claim(
    run: &ChildRun,
    renamed: &[BoundClaim],
    group: &Group,
    claims: &RunClaims,
) -> (Option<AssistantName>, Option<String>) {
    let used: Vec<(&str, String)> = run
        .claims
        .iter()
        .map(|bound| {
            let renamed = renamed.iter().find(|to| to.workspace == bound.workspace);
            let claim_name = &renamed.unwrap_or(bound).claim_name;
            (bound.workspace.as_str(), run.params.resolve(claim_name))
        })
        .filter(|(_, claim)| !claim.is_empty() && !has_variable(claim))
        .collect();
    let distinct: BTreeSet<&str> = used.iter().map(|(_, claim)| claim.as_str()).collect();
    let one = (distinct.len() == 1)
        .then(|| distinct.first().copied())
        .flatten();
    let Some(claim) = one else {
        let refused = distinct.len() > 1 && run.kind == ChildKind::TaskRun;
        return (
            None,
            refused.then(|| task_run_refused(&run.name, &used, distinct.len()).message),
        );
    };
    let run_uid = run.controller.as_ref().map_or("", |owner| &owner.uid);
    let known = run_claims::contains(claims, claim, run_uid);
    (known.then(|| AssistantName::of_claim(group, claim)), None)
}

#[cfg(test)]
mod tests;
