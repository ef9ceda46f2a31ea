//! Admission of a new TaskRun or CustomRun, which is a child of a PipelineRun. Module `admit` has the admission of a
//! PipelineRun itself. Tekton has copied our annotations from the PipelineRun. Admission removes the reserved annotations,
//! except `pipeline.tekton.dev/affinity-assistant`, which Tekton's pod builder reads. Into this annotation, admission writes
//! the name of the placeholder that the run's pinned mode requires, even if Tekton wrote another name (M9). In mode
//! `workspaces`, admission makes a TaskRun with more than one claim fail (M2). A claim that several nodes can mount at once
//! does not count if `coschedule-claims` was `node-bound` when the run was created (V8).

mod bindings;

use std::collections::{BTreeMap, BTreeSet};

use crate::admit::reserved::present;
use crate::admit::template_name;
use crate::admit::warnings::reserved_in_child;
use crate::admit::{awaits_pipeline, joins_owner};
use crate::annotations::{AWAITS_PIPELINE, GROUP, TEKTON_AFFINITY_ASSISTANT};
use crate::event_texts::{self, Reason};
use crate::mode::Mode;
use crate::names::{AssistantName, ClaimTemplateName, claim_name};
use crate::naming::Naming;
use crate::params::{Params, has_param, has_variable};
use crate::pinned::{HandedOn, carried_templates, handed_on, unknown_schema};
use crate::pipeline_run::{OwnerReference, PipelineRun};
use crate::run_claims::{self, RunClaims};
use crate::subsets::{self, MAIN, Subsets};
use crate::words::words;

use bindings::{completed, of_assistant, pinned_for, renamed};

words! {
    /// The kinds of object that Tekton creates for a task.
    pub enum ChildKind: "a kind of run" {
        /// Tekton creates one pod for it.
        TaskRun = "TaskRun",
        /// A custom task: its own controller decides what to create for it.
        CustomRun = "CustomRun",
    }
}

/// A workspace that is bound to a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BoundClaim {
    /// `spec.workspaces[].name`.
    pub workspace: String,
    /// `spec.workspaces[].persistentVolumeClaim.claimName`. Variables are not replaced yet.
    pub claim_name: String,
}

/// A new TaskRun or CustomRun.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChildRun {
    /// `kind`.
    pub kind: ChildKind,
    /// `metadata.name`. Empty if the API server has not generated the name yet.
    pub name: String,
    /// The task of the Pipeline, from label `tekton.dev/pipelineTask`. Empty if there is no such label.
    pub pipeline_task: String,
    /// `metadata.annotations`.
    pub annotations: BTreeMap<String, String>,
    /// The entry of `metadata.ownerReferences` that has `controller: true`.
    pub controller: Option<OwnerReference>,
    /// The stored annotation [`GROUP`] of the controller. `None` in three cases: the controller is not a PipelineRun, the
    /// controller has no group annotation, or the object itself has no group annotation.
    pub owner_group: Option<String>,
    /// The user who creates the object.
    pub created_by: String,
    /// The workspaces that are bound to claims, in the order of `spec.workspaces`.
    pub claims: Vec<BoundClaim>,
    /// `spec.params`, and the defaults of the Task.
    pub params: Params,
    /// The stored PipelineRun that is the controller. Needed only if [`ChildRun::names_claims_by_variables`] or
    /// [`ChildRun::has_late_settings`] is true.
    pub pipeline_run: Option<PipelineRun>,
}

impl ChildRun {
    /// True if Tekton's own controller creates the object for a PipelineRun. Only such an object can use that PipelineRun's
    /// placeholder.
    pub fn joins_owner(&self, tekton_controller: &str) -> bool {
        let controller = self.controller.as_ref();
        joins_owner(controller, &self.created_by, tekton_controller)
    }

    /// True if the name of a claim contains a parameter (V9). Then admission needs the PipelineRun, even if Tekton can replace
    /// the parameter. When the PipelineRun was created, admission perhaps did not know the name of the claim. If so, only the
    /// Pipeline in the PipelineRun's `status` shows whether the claim has a placeholder.
    pub fn names_claims_by_variables(&self) -> bool {
        self.claims.iter().any(|it| has_param(&it.claim_name))
    }

    /// True if the Pipeline may have chosen settings of the PipelineRun (B1). Then admission needs the PipelineRun, because the
    /// annotations of the object may be older than this choice.
    pub fn has_late_settings(&self) -> bool {
        self.annotations.contains_key(AWAITS_PIPELINE)
    }

    /// True if the settings of the PipelineRun, or the name of a claim, depend on a Pipeline that Tekton has not stored in
    /// `status.pipelineSpec` of the PipelineRun. Then admission must deny the object. After the denial, Tekton stores the
    /// Pipeline, and creates the object again later.
    pub fn awaits_pipeline(&self) -> bool {
        let Some(pipeline_run) = &self.pipeline_run else {
            return false;
        };
        if awaits_pipeline(pipeline_run) {
            return true;
        }
        let Some(pinned) = self.pinned() else {
            return false;
        };
        let claims = pinned.claims;
        let mut by_variable = self.claims.iter().filter(|it| has_param(&it.claim_name));
        pipeline_run.defaults.is_none()
            && by_variable.any(|bound| pinned_for(bound, pipeline_run, &claims).is_none())
    }

    /// The pinned annotations of the PipelineRun, and its group.
    fn of_owner(&self) -> (&BTreeMap<String, String>, Option<&str>) {
        match &self.pipeline_run {
            Some(owner) if self.has_late_settings() => {
                let group = owner.annotations.get(GROUP);
                (&owner.annotations, group.map(String::as_str))
            }
            _ => (&self.annotations, self.owner_group.as_deref()),
        }
    }

    fn pinned(&self) -> Option<HandedOn> {
        let (annotations, group) = self.of_owner();
        handed_on(annotations, group)
    }

    /// The claims whose names have a parameter that the object does not set. The second part of each item is the claim's name, in
    /// which the object's own parameters are replaced by their values.
    fn unresolved(&self) -> impl Iterator<Item = (&BoundClaim, String)> {
        let names = self.claims.iter();
        names
            .map(|bound| (bound, self.params.resolve(&bound.claim_name)))
            .filter(|(_, name)| has_param(name))
    }

    /// The workspaces with claims, and the names of the claims. If `renamed` has an entry for a workspace, the claim name in
    /// this entry replaces the claim name in `self.claims`.
    fn claims_with<'a>(
        &'a self,
        renamed: &'a [BoundClaim],
    ) -> impl Iterator<Item = (&'a str, String)> {
        self.claims.iter().map(|bound| {
            let renamed = renamed.iter().find(|to| to.workspace == bound.workspace);
            let claim = self.params.resolve(&renamed.unwrap_or(bound).claim_name);
            (bound.workspace.as_str(), claim)
        })
    }

    /// True if the object's controller is a PipelineRun, and both have annotation [`GROUP`].
    fn is_of_pinned_run(&self) -> bool {
        let controller = self.controller.as_ref();
        self.owner_group.is_some() && controller.is_some_and(OwnerReference::is_pipeline_run)
    }
}

/// The changes that admission makes on a TaskRun or CustomRun.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChildAdmission {
    /// Annotations to set.
    pub set_annotations: BTreeMap<String, String>,
    /// Annotations to remove.
    pub remove_annotations: Vec<String>,
    /// The reason why the TaskRun must not run. Such a TaskRun is created with workspaces that Tekton refuses, so Tekton fails
    /// the TaskRun with this text. Then Tekton runs `finally`, and ends the PipelineRun with reason `Failed`. (If the TaskRun
    /// were not created, `finally` would not run.)
    pub refusal: Option<String>,
    /// Workspaces that get a claim with another name, in the order of `spec.workspaces` (B7, M9, V9).
    pub bindings: Vec<BoundClaim>,
    /// Warnings for the user who creates the object.
    pub warnings: Vec<String>,
    /// Events on the PipelineRun that is the object's controller. They inform the author of the PipelineRun, who does not see the
    /// warnings.
    pub events: Vec<Reason>,
}

/// Decides about a new TaskRun or CustomRun. The object "gets a placeholder" if admission writes the placeholder's name into the
/// object's annotation `pipeline.tekton.dev/affinity-assistant`.
///
/// - If Tekton did not create the object for a PipelineRun, the object loses all reserved annotations.
/// - If the PipelineRun is not coscheduled, the object keeps the annotation of Tekton's own assistant, and loses all other
///   reserved annotations.
/// - In modes `pipelineruns` and `isolate-pipelinerun`, the object gets the placeholder that serves its task (M3).
/// - In mode `workspaces`, the object gets the placeholder of its claim. The object gets no placeholder if it uses no claim, or
///   if its claim has no placeholder (M1, V9). If the object uses more than one claim, the result depends on its kind: a TaskRun
///   fails (M2), and a CustomRun gets no placeholder. Shared claims do not count (V8).
/// - If Tekton's own assistant created the claims of the PipelineRun, and Tekton's own flag `coschedule` was set to `disabled`
///   later, Tekton expects claims with other names, which do not exist. Admission restores the right names (B7).
/// - If the mode is `workspaces` and Tekton's own flag has changed to `pipelineruns` or `isolate-pipelinerun`, Tekton expects
///   claims with other names, which do not exist. Admission restores the right names (M9).
///
/// `tekton_controller` is the username of Tekton's controller, normally [`TEKTON_CONTROLLER`](crate::admit::TEKTON_CONTROLLER).
pub fn admit_child(run: &ChildRun, tekton_controller: &str) -> ChildAdmission {
    if !run.joins_owner(tekton_controller) {
        let mut admission = without(run, |_| true);
        if !admission.remove_annotations.is_empty() {
            let warning = reserved_in_child(&admission.remove_annotations);
            admission.warnings.push(warning);
        }
        if run.is_of_pinned_run() {
            let account = run.created_by.as_str();
            let reason = event_texts::tekton_account_unknown(account, tekton_controller);
            admission.events.push(reason);
        }
        return admission;
    }
    let Some(HandedOn {
        mode,
        group,
        claims,
        adopted,
        subsets,
    }) = run.pinned()
    else {
        // If another version of this product pinned the run, keep the name of the placeholder that Tekton copied, because the
        // pods must follow that placeholder.
        let unknown = unknown_schema(&run.annotations).is_some();
        let was_pinned = run.owner_group.is_some() || run.has_late_settings();
        let coscheduled = was_pinned && !unknown;
        return without(run, |key| coscheduled || key != TEKTON_AFFINITY_ASSISTANT);
    };
    let pipeline_run = run.pipeline_run.as_ref();
    let claims = pipeline_run.map_or_else(|| claims.clone(), |it| run_claims::known(it, &claims));
    let owner = run.controller.as_ref();
    let owner_name = owner.map_or("", |owner| &owner.name);
    let naming = Naming::of(&group, adopted.as_deref(), owner_name);
    let mut bindings = completed(run, &claims);
    let (assistant, refused) = match mode {
        Mode::PipelineRuns | Mode::IsolatePipelineRun | Mode::Disabled => {
            let subset = subset(run, &bindings, mode, naming, &claims, &subsets);
            let assistant = naming.of_subset(mode, subset);
            if let (Some(assistant), Some(_)) = (&assistant, &adopted) {
                bindings.extend(of_assistant(run, assistant));
            }
            (assistant, None)
        }
        Mode::Workspaces => {
            bindings.extend(renamed(run, &claims));
            of_claim(run, &bindings, naming, &claims)
        }
    };
    // If there is no placeholder, the key gets an empty value. If the key were absent, Tekton would copy a Task's own annotation
    // with this key.
    let assistant = assistant.map(|name| name.to_string()).unwrap_or_default();
    ChildAdmission {
        set_annotations: [(TEKTON_AFFINITY_ASSISTANT.to_owned(), assistant)].into(),
        refusal: refused.as_ref().map(|reason| reason.message.clone()),
        events: refused.into_iter().collect(),
        bindings,
        ..without(run, |key| key != TEKTON_AFFINITY_ASSISTANT)
    }
}

/// The key of the subset whose placeholder the object gets. This is the subset of the object's task, if all claims of the
/// object belong to that subset. Otherwise, it is the main subset. (When the run was created, admission perhaps did not know
/// all claims of the task.)
fn subset<'a>(
    run: &ChildRun,
    completed: &[BoundClaim],
    mode: Mode,
    naming: Naming<'_>,
    claims: &RunClaims,
    subsets: &'a Subsets,
) -> &'a str {
    let key = subsets::of_task(subsets, &run.pipeline_task);
    let (Some(subset), Naming::Group(group)) = (subsets.get(key), naming) else {
        return MAIN;
    };
    let owner = run.controller.as_ref();
    let uid = owner.map_or("", |owner| &owner.uid);
    let templates = carried_templates(run.of_owner().0);
    let templates = templates
        .map(|(_, templates)| templates)
        .unwrap_or_default();
    let names = subset.workspaces.iter().filter_map(|workspace| {
        if let Some(claim) = claims.get(workspace) {
            return Some(claim.name(workspace, uid));
        }
        let template = template_name(templates.get(workspace)?);
        let made = ClaimTemplateName::derive(group, workspace, template);
        Some(claim_name(&made, &naming.of_subset(mode, key)?))
    });
    let names: BTreeSet<String> = names.collect();
    let mut used = run.claims_with(completed).map(|(_, claim)| claim);
    match used.all(|claim| names.contains(&claim)) {
        true => key,
        false => MAIN,
    }
}

fn without(run: &ChildRun, unwanted: impl Fn(&str) -> bool) -> ChildAdmission {
    ChildAdmission {
        remove_annotations: present(&run.annotations, unwanted),
        ..ChildAdmission::default()
    }
}

/// The placeholder that the object gets in mode `workspaces`, or the reason why it must not run. Shared claims, and claims whose
/// names still have a variable, do not count. If the object uses exactly one claim, and this claim is among `claims`, returns the
/// placeholder of the claim. If the object is a TaskRun and uses more than one claim, returns the reason.
fn of_claim(
    run: &ChildRun,
    renamed: &[BoundClaim],
    naming: Naming<'_>,
    claims: &RunClaims,
) -> (Option<AssistantName>, Option<Reason>) {
    let run_uid = run.controller.as_ref().map_or("", |owner| &owner.uid);
    let is_shared = |claim: &str| run_claims::is_shared(claims, claim, run_uid);
    let mut used = Vec::new();
    for (workspace, claim) in run.claims_with(renamed) {
        if !claim.is_empty() && !has_variable(&claim) && !is_shared(&claim) {
            used.push((workspace, claim));
        }
    }
    let distinct: BTreeSet<&str> = used.iter().map(|(_, claim)| claim.as_str()).collect();
    match (distinct.len(), distinct.first()) {
        (1, Some(claim)) => {
            let known = run_claims::contains(claims, claim, run_uid);
            let placeholder = || naming.of_claim(claim, claims, run_uid);
            (known.then(placeholder), None)
        }
        (2.., _) if run.kind == ChildKind::TaskRun => {
            let refused = event_texts::task_run_refused(&run.name, &used, distinct.len());
            (None, Some(refused))
        }
        _ => (None, None),
    }
}

#[cfg(test)]
mod tests;
