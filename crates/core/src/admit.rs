//! What admission writes on a run when it is created: the mode in force, the run's own group, and
//! claims of that group in place of its `volumeClaimTemplate`s. TaskRuns and CustomRuns that Tekton
//! makes of a run join its group; whatever else carries our annotations is a new run.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::annotations::{PINNED, TEKTON_AFFINITY_ASSISTANT, TRACEPARENT};
use crate::config::Configuration;
use crate::mode::Mode;
use crate::names::{AssistantName, ClaimTemplateName, Group, claim_name};
use crate::pinned::{Pinned, carried_templates};
use crate::pipeline_run::{OwnerReference, PipelineRun, WorkspaceBinding, WorkspaceSource};

/// The username of Tekton's controller in an ordinary installation.
pub const TEKTON_CONTROLLER: &str =
    "system:serviceaccount:tekton-pipelines:tekton-pipelines-controller";

/// The only `spec.managedBy` that is coscheduled, beside none at all (M5).
pub const MANAGED_BY_TEKTON: &str = "tekton.dev/pipeline";

/// What admission changes on a new PipelineRun.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Admission {
    /// Annotations to set, over whatever the author put there.
    pub set_annotations: BTreeMap<String, String>,
    /// Pinned annotations the author put there and that are not set again, in the order of
    /// [`PINNED`].
    pub remove_annotations: Vec<String>,
    /// Pinned annotations in `spec.taskRunSpecs[].metadata`, where they would win over the run's own.
    pub remove_task_annotations: Vec<TaskAnnotation>,
    /// Workspaces whose source becomes a claim, in the run's order. Everything else about a binding
    /// stays.
    pub bindings: Vec<RewrittenBinding>,
    /// What the author should know.
    pub warnings: Vec<String>,
}

/// An annotation in `spec.taskRunSpecs[index].metadata.annotations`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskAnnotation {
    /// Which of `spec.taskRunSpecs`, from 0.
    pub index: usize,
    /// The annotation's key.
    pub key: String,
}

/// A workspace whose source becomes `persistentVolumeClaim: {claimName}` (V2).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RewrittenBinding {
    /// The workspace.
    pub workspace: String,
    /// The claim.
    pub claim_name: String,
}

/// Decides about a PipelineRun that is being created.
///
/// - `disabled`, or managed by another controller than Tekton's: nothing is set, and annotations
///   that only admission may write are removed (M5).
/// - `pipelineruns`: the mode, a group drawn from `request_uid`, the placeholder defaults and the
///   templates that claims replace are pinned (M3, M8, V2).
/// - A run created from a copy of another run's stored object gets its templates back and claims of
///   its own (V2a).
pub fn admit(configuration: &Configuration, run: &PipelineRun, request_uid: &str) -> Admission {
    let ours = run
        .managed_by
        .as_deref()
        .is_none_or(|manager| manager == MANAGED_BY_TEKTON);
    match configuration.mode {
        Mode::PipelineRuns if ours => {
            coschedule(configuration, run, Group::from_request_uid(request_uid))
        }
        Mode::Workspaces | Mode::PipelineRuns | Mode::IsolatePipelineRun | Mode::Disabled => {
            leave_alone(run)
        }
    }
}

impl Admission {
    /// The run as it is stored once the changes are made.
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
        for rewritten in &self.bindings {
            for binding in &mut run.workspaces {
                if binding.name == rewritten.workspace {
                    binding.source = WorkspaceSource::Claim {
                        claim_name: rewritten.claim_name.clone(),
                    };
                }
            }
        }
        run
    }
}

fn leave_alone(run: &PipelineRun) -> Admission {
    let copied = Copied::of(run);
    let mut warnings = forged(run, &copied);
    warnings.extend(run.workspaces.iter().filter_map(|binding| {
        let claim = copied.template(binding)?.claim_name;
        let name = &binding.name;
        Some(format!(
            "workspace {name:?} is bound to claim {claim:?} of another run, which goes away with that run; \
             bind a volumeClaimTemplate instead"
        ))
    }));
    Admission {
        remove_annotations: present(&run.annotations, |_| true),
        remove_task_annotations: of_tasks(run),
        warnings,
        ..Admission::default()
    }
}

fn coschedule(configuration: &Configuration, run: &PipelineRun, group: Group) -> Admission {
    let copied = Copied::of(run);
    let assistant = AssistantName::of(&group);
    let mut warnings = forged(run, &copied);
    let mut templates = BTreeMap::new();
    let mut bindings = Vec::new();
    for binding in &run.workspaces {
        let template = match &binding.source {
            WorkspaceSource::ClaimTemplate(own) => &own.template,
            WorkspaceSource::Claim { .. } => match copied.template(binding) {
                Some(restored) => {
                    warnings.push(format!(
                        "workspace {:?} was bound to claim {:?} of another run; this run gets a fresh claim from the \
                         same volumeClaimTemplate",
                        binding.name, restored.claim_name
                    ));
                    restored.template
                }
                None => continue,
            },
            WorkspaceSource::Other => continue,
        };
        let name = ClaimTemplateName::derive(&group, &binding.name, template_name(template));
        bindings.push(RewrittenBinding {
            workspace: binding.name.clone(),
            claim_name: claim_name(&name, &assistant),
        });
        templates.insert(binding.name.clone(), template.clone());
    }
    let pinned = Pinned {
        mode: configuration.mode,
        group,
        placeholder: configuration.placeholder.clone(),
        templates,
    };
    Admission {
        set_annotations: pinned.to_annotations(),
        // The only one that is not set again. It is another run's, or forged.
        remove_annotations: present(&run.annotations, |key| key == TRACEPARENT),
        remove_task_annotations: of_tasks(run),
        bindings,
        warnings,
    }
}

/// What the author called a template.
pub(crate) fn template_name(template: &Value) -> Option<&str> {
    template.pointer("/metadata/name").and_then(Value::as_str)
}

/// The group and templates of the run this one is a copy of, where it is one (V2a).
struct Copied(Option<(Group, BTreeMap<String, Value>)>);

/// A template that admission replaced in the run this one is a copy of.
struct Restored<'a> {
    template: &'a Value,
    claim_name: String,
}

impl Copied {
    fn of(run: &PipelineRun) -> Self {
        // A run that is part of another one was given its parent's annotations and, on purpose, its
        // parent's claims.
        let child = run
            .controller
            .as_ref()
            .is_some_and(OwnerReference::is_pipeline_run);
        Self(carried_templates(&run.annotations).filter(|_| !child))
    }

    /// The template of a binding whose claim is exactly the one that the other run's group derives
    /// for its workspace. Any other claim is one the author brought.
    fn template(&self, binding: &WorkspaceBinding) -> Option<Restored<'_>> {
        let (group, templates) = self.0.as_ref()?;
        let template = templates.get(&binding.name)?;
        let name = ClaimTemplateName::derive(group, &binding.name, template_name(template));
        let derived = claim_name(&name, &AssistantName::of(group));
        match &binding.source {
            WorkspaceSource::Claim { claim_name } => (*claim_name == derived).then_some(Restored {
                template,
                claim_name: derived,
            }),
            WorkspaceSource::ClaimTemplate(_) | WorkspaceSource::Other => None,
        }
    }
}

/// A warning about pinned annotations the author wrote, copies of another run excepted.
fn forged(run: &PipelineRun, copied: &Copied) -> Vec<String> {
    let mut warnings = forged_in_tasks(run);
    let keys = present(&run.annotations, |_| true);
    if !keys.is_empty() && copied.0.is_none() {
        warnings.push(format!(
            "ignored what was given for {}: admission alone writes it",
            keys.join(", ")
        ));
    }
    warnings
}

/// The pinned annotations that the author gave single tasks.
pub(crate) fn of_tasks(run: &PipelineRun) -> Vec<TaskAnnotation> {
    let specs = run.task_run_specs.iter().enumerate();
    specs
        .flat_map(|(index, spec)| {
            let keys = present(&spec.annotations, |_| true);
            keys.into_iter()
                .map(move |key| TaskAnnotation { index, key })
        })
        .collect()
}

/// A warning for each annotation of [`of_tasks`].
pub(crate) fn forged_in_tasks(run: &PipelineRun) -> Vec<String> {
    of_tasks(run)
        .into_iter()
        .map(|TaskAnnotation { index, key }| {
            format!(
                "ignored spec.taskRunSpecs[{index}].metadata.annotations[{key}]: admission alone writes it"
            )
        })
        .collect()
}

/// The pinned annotations that are there and that `unwanted` names.
pub(crate) fn present(
    annotations: &BTreeMap<String, String>,
    unwanted: impl Fn(&str) -> bool,
) -> Vec<String> {
    PINNED
        .into_iter()
        .filter(|key| annotations.contains_key(*key) && unwanted(key))
        .map(str::to_owned)
        .collect()
}

/// A TaskRun, CustomRun or child PipelineRun that is being created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChildRun {
    /// `metadata.annotations`.
    pub annotations: BTreeMap<String, String>,
    /// The one of `metadata.ownerReferences` that is the controller.
    pub controller: Option<OwnerReference>,
    /// The username that creates it.
    pub created_by: String,
}

impl ChildRun {
    /// Whether it joins its owner's group: Tekton's own controller makes it for a PipelineRun. Both
    /// are needed, as anybody can write an owner reference.
    pub fn joins_owner(&self, tekton_controller: &str) -> bool {
        self.created_by == tekton_controller
            && self
                .controller
                .as_ref()
                .is_some_and(OwnerReference::is_pipeline_run)
    }
}

/// What admission changes on a child.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChildAdmission {
    /// Annotations to remove, in the order of [`PINNED`].
    pub remove_annotations: Vec<String>,
    /// What the author should know. Tekton is told nothing about what it copied.
    pub warnings: Vec<String>,
}

/// Decides about a TaskRun or CustomRun that is being created, or a PipelineRun that
/// [joins](ChildRun::joins_owner) its owner: of what Tekton copied from the run, a child keeps the
/// annotation the pod builder reads; anything else loses all annotations that only admission may
/// write (M3).
///
/// `tekton_controller` is the username of Tekton's controller, ordinarily [`TEKTON_CONTROLLER`].
pub fn admit_run(run: &ChildRun, tekton_controller: &str) -> ChildAdmission {
    let joins = run.joins_owner(tekton_controller);
    let remove_annotations = present(&run.annotations, |key| {
        !(joins && key == TEKTON_AFFINITY_ASSISTANT)
    });
    let mut warnings = Vec::new();
    if !joins && !remove_annotations.is_empty() {
        warnings.push(format!(
            "ignored what was given for {}: only what Tekton makes of a coscheduled PipelineRun carries it",
            remove_annotations.join(", ")
        ));
    }
    ChildAdmission {
        remove_annotations,
        warnings,
    }
}

#[cfg(test)]
mod tests;
