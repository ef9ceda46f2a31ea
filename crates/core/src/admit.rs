//! Admission of a new PipelineRun. Admission *pins* the run's mode, its group, the placeholder defaults and the known claims: it
//! writes them into the run's annotations. The *group* is ten hex digits from which the names of the run's placeholders derive.
//! In modes `pipelineruns` and `isolate-pipelinerun`, admission also replaces each `volumeClaimTemplate` by a claim whose name
//! derives from the group.
//!
//! If Tekton creates the run as a child of another run, the child keeps the group of its parent. Every other run gets a new
//! group, even if its author copied annotations with a group from another run.
//!
//! [`admit_child`](crate::admit_child) admits TaskRuns and CustomRuns.

mod child;
pub(crate) mod copied;
pub(crate) mod denials;
mod late;
mod multiple_claims;
mod overrides;
mod pin;
pub(crate) mod reserved;
pub(crate) mod warnings;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::adopt::{adopt_new, adopts};
use crate::annotations::{AWAITS_PIPELINE, SCHEMA_VERSION};
use crate::config::Configuration;
use crate::mode::Mode;
use crate::names::{ClaimTemplateName, Group, claim_name};
use crate::naming::Naming;
use crate::pinned::NEWEST_SCHEMA;
use crate::pipeline_run::{ClaimTemplate, OwnerReference, PipelineRun, WorkspaceSource};
use crate::run_claims::AccessModes;
use crate::sizes::Catalog;
use crate::subsets;
use crate::violation::Violation;

pub use late::{awaits_pipeline, choose_late, is_late_choice};

use copied::{Copied, claim_of_another_run};
use overrides::Chosen;
use pin::{Drawn, pin};
use reserved::{present, without};

/// The username of Tekton's controller in an ordinary installation.
pub const TEKTON_CONTROLLER: &str =
    "system:serviceaccount:tekton-pipelines:tekton-pipelines-controller";

/// The value of `spec.managedBy` that names Tekton. If the field is not set, Tekton manages the run too. A run with any other
/// value is not coscheduled (M5).
pub const MANAGED_BY_TEKTON: &str = "tekton.dev/pipeline";

/// A new PipelineRun, and the facts about other objects that its admission needs.
#[derive(Debug, Clone, Copy)]
pub struct Question<'a> {
    /// The run.
    pub run: &'a PipelineRun,
    /// The uid of the admission request. The run's group is a hash of this uid.
    pub request_uid: &'a str,
    /// The user who creates the run.
    pub created_by: &'a str,
    /// The annotations of the Pipeline that `spec.pipelineRef` names in the run's own namespace. Only those of
    /// [`Setting`](crate::overrides::Setting) have an effect (B1).
    pub pipeline_annotations: Option<&'a BTreeMap<String, String>>,
    /// The annotations of the run's Namespace. Only those of [`Setting`](crate::overrides::Setting) and
    /// [`ALLOWED_OVERRIDES`](crate::annotations::ALLOWED_OVERRIDES) have an effect (B1).
    pub namespace_annotations: Option<&'a BTreeMap<String, String>>,
    /// The stored annotation [`GROUP`](crate::annotations::GROUP) of the PipelineRun that is the run's controller. `None` in
    /// three cases: no PipelineRun is the controller, the controller has no group annotation, or the run itself has no group
    /// annotation.
    pub owner_group: Option<&'a str>,
    /// If the run names claims of other runs in its namespace, this map has one entry for each of these other runs: the other
    /// run's group, and the value of its stored annotation
    /// [`VOLUME_CLAIM_TEMPLATES`](crate::annotations::VOLUME_CLAIM_TEMPLATES) (V2a).
    pub source_templates: Option<&'a BTreeMap<String, String>>,
    /// Other objects on which the names of claims depend (V9). `None` if they are not known.
    pub catalog: Option<&'a Catalog>,
    /// The access modes of claims in the run's namespace (V8). `None` if no claim was read.
    pub access_modes: Option<&'a AccessModes>,
}

impl<'a> Question<'a> {
    /// A question without facts about other objects.
    pub const fn about(run: &'a PipelineRun, request_uid: &'a str, created_by: &'a str) -> Self {
        Self {
            run,
            request_uid,
            created_by,
            pipeline_annotations: None,
            namespace_annotations: None,
            owner_group: None,
            source_templates: None,
            catalog: None,
            access_modes: None,
        }
    }
}

/// The configuration in force. If there has been no valid configuration yet: the violations in the ConfigMap.
pub type InForce<'a> = Result<&'a Configuration, &'a [Violation]>;

/// The changes that admission makes on a PipelineRun.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Admission {
    /// Annotations to set. They replace the author's values.
    pub set_annotations: BTreeMap<String, String>,
    /// Reserved annotations to remove.
    pub remove_annotations: Vec<String>,
    /// Reserved annotations to remove from `spec.taskRunSpecs[].metadata`. Tekton would prefer them to the run's own annotations.
    pub remove_task_annotations: Vec<TaskAnnotation>,
    /// Workspaces that get another volume source, in the run's order. All other fields of such a workspace stay as they are.
    pub bindings: Vec<RewrittenBinding>,
    /// Warnings for the author.
    pub warnings: Vec<String>,
    /// Claims that [`Question::access_modes`] lacks, although the decision depends on their access modes (V8). The decision
    /// treats each of them as a claim that one node at a time can mount. To improve the decision, read the claims and ask
    /// again.
    pub claims_to_read: BTreeSet<String>,
}

/// An annotation in `spec.taskRunSpecs[index].metadata.annotations`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskAnnotation {
    /// The index in `spec.taskRunSpecs`.
    pub index: usize,
    /// The annotation's key.
    pub key: String,
}

/// A workspace that gets another volume source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RewrittenBinding {
    /// The workspace.
    pub workspace: String,
    /// The new source.
    pub source: RewrittenSource,
}

/// A volume source that replaces the author's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RewrittenSource {
    /// `persistentVolumeClaim`: a claim with this name. The claim is created together with the placeholder (V2).
    Claim(String),
    /// `volumeClaimTemplate`: this template. Only a copy of another run gets a template: that of the other run (V2a).
    Template(Value),
}

impl RewrittenSource {
    fn to_source(&self) -> WorkspaceSource {
        match self {
            Self::Claim(claim_name) => WorkspaceSource::Claim {
                claim_name: claim_name.clone(),
            },
            Self::Template(template) => WorkspaceSource::ClaimTemplate(ClaimTemplate {
                name: template_name(template).map(str::to_owned),
                template: template.clone(),
            }),
        }
    }
}

/// Decides about a new PipelineRun.
///
/// - If Tekton creates the run as a child of a coscheduled run, the run uses the placeholders of its parent. A child never has a
///   placeholder of its own.
/// - While Tekton's own flag `coschedule` is on (not `disabled`), the run is adopted (B7) if four conditions hold: the flag's
///   value is a mode; key `adopt-runs-in` contains the run's namespace; no PipelineRun is the run's controller; and the run has
///   no label `tekton.dev/pipelineRunUID`.
/// - The run is not coscheduled in four cases: `spec.managedBy` names another controller (M5); there has been no valid
///   configuration yet (M7); Tekton's own flag is on and the run is not adopted (M9); or the mode is `disabled`. In these cases,
///   admission pins nothing, and removes reserved annotations. The next item has the only exception.
/// - If a Pipeline that a resolver fetches later may still choose another value for a setting, admission sets
///   [`AWAITS_PIPELINE`], even if the mode is `disabled` (B1).
/// - In mode `workspaces`, admission pins mode, group, placeholder defaults and claims (M1, M8).
/// - In modes `pipelineruns` and `isolate-pipelinerun`, admission also pins the `volumeClaimTemplate`s that it replaces by claims
///   (M3, M4, V2).
/// - The run may be a copy of another run's stored object. If the copy still has the other run's annotations, or the other run
///   still exists, admission knows the templates of the other run's claims. From these templates, the copy gets claims of its
///   own (V2a).
///
/// `tekton_controller` is the username of Tekton's controller, normally [`TEKTON_CONTROLLER`].
///
/// # Errors
/// Admission denies the run in two cases. First: an annotation chooses a value that does not exist or is not allowed (B1).
/// Second: the run names a claim that was created for another run, and the claim's template is not known (V2a). Admission looks
/// for the second case only in runs that it would coschedule, and in runs with mode `disabled`.
pub fn admit(
    in_force: InForce<'_>,
    tekton_controller: &str,
    question: &Question<'_>,
) -> Result<Admission, Vec<Violation>> {
    let run = question.run;
    let controller = run.controller.as_ref();
    if joins_owner(controller, question.created_by, tekton_controller) {
        return Ok(child::join(run, question.owner_group));
    }
    let manager = run.managed_by.as_deref();
    if manager.is_some_and(|manager| manager != MANAGED_BY_TEKTON) {
        return Ok(leave_alone(question, None));
    }
    let configuration = match in_force {
        Ok(configuration) => configuration,
        Err(violations) => {
            let why = warnings::coscheduling_off(violations);
            return Ok(leave_alone(question, Some(why)));
        }
    };
    if let Some(flag) = &configuration.tekton_coschedule {
        if let Ok(mode) = adopts(configuration, run) {
            return Ok(adopt_new(configuration, question, mode));
        }
        let why = warnings::left_to_tekton(flag);
        return Ok(leave_alone(question, Some(why)));
    }
    let Chosen {
        configuration,
        warning,
        is_open,
    } = overrides::choose(configuration, question)?;
    let mut admission = match configuration.mode {
        Mode::Disabled => {
            let admission = leave_alone(question, None);
            let denials = denials::claims_of_others(&admission.apply(run));
            if !denials.is_empty() {
                return Err(denials);
            }
            admission
        }
        Mode::Workspaces | Mode::PipelineRuns | Mode::IsolatePipelineRun => {
            let group = Group::from_request_uid(question.request_uid);
            coschedule(configuration, question, group)?
        }
    };
    if is_open {
        admission
            .remove_annotations
            .retain(|key| key != AWAITS_PIPELINE);
        let set = &mut admission.set_annotations;
        set.insert(AWAITS_PIPELINE.to_owned(), "true".to_owned());
        if let Some(schema) = set.get_mut(SCHEMA_VERSION) {
            NEWEST_SCHEMA.clone_into(schema);
        }
    }
    admission.warnings.extend(warning);
    Ok(admission)
}

/// True if Tekton's own controller creates this object for a PipelineRun. The username must match, because anybody can write an
/// owner reference.
pub(crate) fn joins_owner(
    controller: Option<&OwnerReference>,
    created_by: &str,
    tekton_controller: &str,
) -> bool {
    created_by == tekton_controller && controller.is_some_and(OwnerReference::is_pipeline_run)
}

impl Admission {
    /// Returns the run as it is after these changes.
    pub fn apply(&self, run: &PipelineRun) -> PipelineRun {
        let mut run = run.clone();
        for key in &self.remove_annotations {
            run.annotations.remove(key);
        }
        run.annotations.extend(self.set_annotations.clone());
        for TaskAnnotation { index, key } in &self.remove_task_annotations {
            if let Some(spec) = run.task_run_specs.get_mut(*index) {
                spec.annotations.remove(key);
            }
        }
        for RewrittenBinding { workspace, source } in &self.bindings {
            let mut bindings = run.workspaces.iter_mut();
            if let Some(binding) = bindings.find(|binding| binding.name == *workspace) {
                binding.source = source.to_source();
            }
        }
        run
    }
}

pub(crate) fn leave_alone(question: &Question<'_>, why: Option<String>) -> Admission {
    let run = question.run;
    let copied = Copied::of(question);
    let mut admission = without(run, |_| true);
    admission.warnings.extend(why);
    admission
        .warnings
        .extend(reserved::warnings(run, copied.is_one()));
    for binding in &run.workspaces {
        let workspace = &binding.name;
        if let Some((template, claim_name)) = copied.restored(binding) {
            admission
                .warnings
                .push(warnings::fresh_claim(workspace, claim_name));
            admission.bindings.push(RewrittenBinding {
                workspace: workspace.clone(),
                source: RewrittenSource::Template(template.clone()),
            });
        } else if let Some(claim_name) = claim_of_another_run(binding) {
            let warning = warnings::claim_of_another_run(workspace, claim_name);
            admission.warnings.push(warning);
        }
    }
    admission
}

fn coschedule(
    configuration: Configuration,
    question: &Question<'_>,
    group: Group,
) -> Result<Admission, Vec<Violation>> {
    let run = question.run;
    let mode = configuration.mode;
    let copied = Copied::of(question);
    let subsets = subsets::of_run(run, mode, question.catalog);
    let mut warnings = reserved::warnings(run, copied.is_one());
    let mut denials = Vec::new();
    let mut templates = BTreeMap::new();
    let mut bindings = Vec::new();
    for (index, binding) in run.workspaces.iter().enumerate() {
        let workspace = &binding.name;
        let restored = copied.restored(binding);
        let template = match (&binding.source, restored) {
            (WorkspaceSource::ClaimTemplate(own), _) => &own.template,
            (WorkspaceSource::Claim { .. } | WorkspaceSource::Other, Some((template, claim))) => {
                warnings.push(warnings::fresh_claim(workspace, claim));
                template
            }
            (WorkspaceSource::Claim { .. } | WorkspaceSource::Other, None) => {
                denials.extend(denials::claim_of_another(index, binding));
                continue;
            }
        };
        let subset = subsets::of_workspace(&subsets, workspace);
        let source = match Naming::Group(&group).of_subset(mode, subset) {
            Some(assistant) => {
                templates.insert(workspace.clone(), template.clone());
                let name = ClaimTemplateName::derive(&group, workspace, template_name(template));
                RewrittenSource::Claim(claim_name(&name, &assistant))
            }
            // In mode `workspaces`, Tekton creates the claim (V3). Only a copy of another run needs a change: the template
            // replaces the other run's claim.
            None if restored.is_some() => RewrittenSource::Template(template.clone()),
            None => continue,
        };
        bindings.push(RewrittenBinding {
            workspace: workspace.clone(),
            source,
        });
    }
    if !denials.is_empty() {
        return Err(denials);
    }
    let mut admission = Admission {
        bindings,
        warnings,
        ..Admission::default()
    };
    let stored = admission.apply(run);
    let question = Question {
        run: &stored,
        ..*question
    };
    let drawn = Drawn {
        group,
        templates,
        subsets,
    };
    pin(configuration, &question, drawn, &mut admission);
    // Remove all other reserved annotations. They were copied from another run, or the author wrote them.
    let is_set = |key: &str| admission.set_annotations.contains_key(key);
    admission.remove_annotations = present(&run.annotations, |key| !is_set(key));
    admission.remove_task_annotations = reserved::of_tasks(run);
    Ok(admission)
}

/// `metadata.name` of a template.
pub(crate) fn template_name(template: &Value) -> Option<&str> {
    template.pointer("/metadata/name").and_then(Value::as_str)
}

#[cfg(test)]
mod tests;
