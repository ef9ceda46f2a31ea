//! What admission writes on a run when it is created: the mode in force, the run's own group, the claims that are known,
//! and, where one placeholder serves the whole run, claims of that group in place of its `volumeClaimTemplate`s. A run
//! that Tekton makes as a part of another joins that one; whatever else carries our annotations is a new run.
//!
//! What becomes of TaskRuns and CustomRuns is in [`admit_run`](crate::admit_run).

mod copied;
mod multiple_claims;
mod overrides;
pub(crate) mod pinned_by_others;

use std::collections::BTreeMap;

use serde_json::Value;

use crate::annotations::{BLOCKED, HANDED_ON, PART_OF, TEKTON_AFFINITY_ASSISTANT, TRACEPARENT};
use crate::config::Configuration;
use crate::mode::Mode;
use crate::names::{ClaimTemplateName, Group, claim_name};
use crate::pinned::{Pinned, handed_on, unknown_schema, whole_run};
use crate::pipeline_run::{ClaimTemplate, OwnerReference, PipelineRun, WorkspaceSource};
use crate::run_claims;
use crate::violation::Violation;

use copied::Copied;
use pinned_by_others::{forged, of_tasks, present};

/// The username of Tekton's controller in an ordinary installation.
pub const TEKTON_CONTROLLER: &str =
    "system:serviceaccount:tekton-pipelines:tekton-pipelines-controller";

/// The only `spec.managedBy` that is coscheduled, beside none at all (M5).
pub const MANAGED_BY_TEKTON: &str = "tekton.dev/pipeline";

/// A PipelineRun that is being created, and what has to be known beside it.
#[derive(Debug, Clone, Copy)]
pub struct Question<'a> {
    /// The run.
    pub run: &'a PipelineRun,
    /// The uid of the admission request; the run's group is drawn from it.
    pub request_uid: &'a str,
    /// The username that creates the run.
    pub created_by: &'a str,
    /// Annotation [`OVERRIDE`](crate::annotations::OVERRIDE) of the Pipeline that `spec.pipelineRef` names in the run's
    /// own namespace (B1).
    pub pipeline_override: Option<&'a str>,
    /// The same annotation of the run's Namespace (B1).
    pub namespace_override: Option<&'a str>,
    /// Annotation [`GROUP`](crate::annotations::GROUP) of the PipelineRun that is the run's controller, as it is stored.
    pub owner_group: Option<&'a str>,
}

/// The configuration in force, or why there is none.
pub type InForce<'a> = Result<&'a Configuration, &'a [Violation]>;

/// What admission changes on a new PipelineRun.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Admission {
    /// Annotations to set, over whatever the author put there.
    pub set_annotations: BTreeMap<String, String>,
    /// Pinned annotations the author put there and that are not set again, in the order of
    /// [`PINNED`](crate::annotations::PINNED).
    pub remove_annotations: Vec<String>,
    /// Pinned annotations in `spec.taskRunSpecs[].metadata`, where they would win over the run's own.
    pub remove_task_annotations: Vec<TaskAnnotation>,
    /// Workspaces whose source becomes another one, in the run's order. Everything else about a binding
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

/// A workspace whose source becomes another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RewrittenBinding {
    /// The workspace.
    pub workspace: String,
    /// What backs it from now on.
    pub source: RewrittenSource,
}

/// What backs a workspace instead of what its author wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RewrittenSource {
    /// `persistentVolumeClaim`: the placeholder's claim of this name (V2).
    Claim(String),
    /// `volumeClaimTemplate`: the one that the run this is a copy of was created with (V2a).
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

/// Decides about a PipelineRun that is being created.
///
/// - A part of another run, made by Tekton itself, has the placeholders of that run and none of its own.
/// - `disabled`, managed by another controller than Tekton's (M5), or while Tekton's own flag is on (M9): nothing is set,
///   and annotations that only admission may write are removed.
/// - `workspaces`: mode, a group drawn from the request, placeholder defaults and claims are pinned (M1, M8).
/// - `pipelineruns`, `isolate-pipelinerun`: the same, and the templates that claims replace (M3, M4, V2).
/// - A run created from a copy of another run's stored object gets its templates back, and claims of its own (V2a).
///
/// `tekton_controller` is the username of Tekton's controller, ordinarily [`TEKTON_CONTROLLER`].
///
/// # Errors
/// Why the run is refused: an override that is no mode or not allowed, with who allows what (B1), and claims of another
/// run's placeholder whose templates are not known (V2a).
pub fn admit(
    in_force: InForce<'_>,
    tekton_controller: &str,
    question: &Question<'_>,
) -> Result<Admission, Vec<Violation>> {
    let run = question.run;
    if joins_owner(
        run.controller.as_ref(),
        question.created_by,
        tekton_controller,
    ) {
        return Ok(join(run, question.owner_group));
    }
    let managed_by_tekton = run
        .managed_by
        .as_deref()
        .is_none_or(|manager| manager == MANAGED_BY_TEKTON);
    if !managed_by_tekton {
        return Ok(leave_alone(run, None));
    }
    let configuration = match in_force {
        Ok(configuration) => configuration,
        Err(reasons) => return Ok(leave_alone(run, Some(off(reasons)))),
    };
    if let Some(flag) = &configuration.tekton_coschedule {
        return Ok(leave_alone(run, Some(left_to_tekton(flag))));
    }
    let mode = overrides::mode(configuration, question).map_err(|violation| vec![violation])?;
    match mode {
        Mode::Disabled => Ok(leave_alone(run, None)),
        Mode::Workspaces | Mode::PipelineRuns | Mode::IsolatePipelineRun => {
            let group = Group::from_request_uid(question.request_uid);
            coschedule(configuration, run, mode, group)
        }
    }
}

/// Whether Tekton's own controller makes an object for a PipelineRun. Both are needed, as anybody can write an owner
/// reference.
pub(crate) fn joins_owner(
    controller: Option<&OwnerReference>,
    created_by: &str,
    tekton_controller: &str,
) -> bool {
    created_by == tekton_controller && controller.is_some_and(OwnerReference::is_pipeline_run)
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
                    binding.source = rewritten.source.to_source();
                }
            }
        }
        run
    }
}

/// A part of another run keeps what its own TaskRuns need of what Tekton copied from its parent. Where that is not all
/// there, or not the parent's own, the parent is not coscheduled, and neither is its part.
fn join(run: &PipelineRun, parents_group: Option<&str>) -> Admission {
    let assistant = match handed_on(&run.annotations, parents_group) {
        Some((mode, group, _)) => whole_run(mode, &group).map(|name| name.to_string()),
        // Another version pinned the parent: the child keeps what Tekton copied, for that version to read.
        None if parents_group.is_some() && unknown_schema(&run.annotations).is_some() => {
            run.annotations.get(TEKTON_AFFINITY_ASSISTANT).cloned()
        }
        None => {
            return Admission {
                remove_annotations: present(&run.annotations, |_| true),
                remove_task_annotations: of_tasks(run),
                ..Admission::default()
            };
        }
    };
    let parent = run.controller.as_ref().map(|owner| owner.name.clone());
    let set_annotations = BTreeMap::from([
        (PART_OF.to_owned(), parent.unwrap_or_default()),
        (
            TEKTON_AFFINITY_ASSISTANT.to_owned(),
            assistant.unwrap_or_default(),
        ),
    ]);
    Admission {
        remove_annotations: present(&run.annotations, |key| {
            !set_annotations.contains_key(key) && !HANDED_ON.contains(&key)
        }),
        set_annotations,
        remove_task_annotations: of_tasks(run),
        ..Admission::default()
    }
}

/// No good configuration was ever seen: bad flags never stop CI, they switch coscheduling off and say so (M7).
fn off(reasons: &[Violation]) -> String {
    let reasons: Vec<_> = reasons.iter().map(ToString::to_string).collect();
    format!(
        "coscheduling is off: the ConfigMap of tekton-coscheduler is not valid ({})",
        reasons.join("; ")
    )
}

fn left_to_tekton(flag: &str) -> String {
    format!(
        "tekton-coscheduler leaves this run to Tekton, whose own flag coschedule is {flag:?}; set it to \"disabled\" in \
         Tekton's ConfigMap feature-flags"
    )
}

fn leave_alone(run: &PipelineRun, why: Option<String>) -> Admission {
    let copied = Copied::of(run);
    let mut warnings: Vec<_> = why.into_iter().collect();
    warnings.extend(forged(run, &copied));
    let mut bindings = Vec::new();
    for binding in &run.workspaces {
        if let Some(restored) = copied.template(binding) {
            warnings.push(restored.warning(&binding.name));
            bindings.push(RewrittenBinding {
                workspace: binding.name.clone(),
                source: RewrittenSource::Template(restored.template.clone()),
            });
        } else if let Some(claim_name) = copied::of_another_run(binding) {
            warnings.push(format!(
                "workspace {:?} is bound to claim {claim_name:?} of another run, which goes away with that run; \
                 bind a volumeClaimTemplate instead",
                binding.name
            ));
        }
    }
    Admission {
        remove_annotations: present(&run.annotations, |_| true),
        remove_task_annotations: of_tasks(run),
        bindings,
        warnings,
        ..Admission::default()
    }
}

fn coschedule(
    configuration: &Configuration,
    run: &PipelineRun,
    mode: Mode,
    group: Group,
) -> Result<Admission, Vec<Violation>> {
    let copied = Copied::of(run);
    let assistant = whole_run(mode, &group);
    let mut warnings = forged(run, &copied);
    let mut refusals = Vec::new();
    let mut templates = BTreeMap::new();
    let mut bindings = Vec::new();
    for (index, binding) in run.workspaces.iter().enumerate() {
        let (template, from_copy) = match &binding.source {
            WorkspaceSource::ClaimTemplate(own) => (&own.template, false),
            WorkspaceSource::Claim { .. } => match copied.template(binding) {
                Some(restored) => {
                    warnings.push(restored.warning(&binding.name));
                    (restored.template, true)
                }
                None => {
                    refusals.extend(copied::refusal(index, binding));
                    continue;
                }
            },
            WorkspaceSource::Other => continue,
        };
        let source = match &assistant {
            Some(assistant) => {
                templates.insert(binding.name.clone(), template.clone());
                let name =
                    ClaimTemplateName::derive(&group, &binding.name, template_name(template));
                RewrittenSource::Claim(claim_name(&name, assistant))
            }
            // Tekton makes the claim (V3): only a copy's binding has to become a template again.
            None if from_copy => RewrittenSource::Template(template.clone()),
            None => continue,
        };
        bindings.push(RewrittenBinding {
            workspace: binding.name.clone(),
            source,
        });
    }
    if !refusals.is_empty() {
        return Err(refusals);
    }
    let mut admission = Admission {
        // The only ones that are not set again. They are another run's, or forged.
        remove_annotations: present(&run.annotations, |key| {
            [PART_OF, TRACEPARENT, BLOCKED].contains(&key)
        }),
        remove_task_annotations: of_tasks(run),
        bindings,
        warnings,
        ..Admission::default()
    };
    let stored = admission.apply(run);
    let mut claims = run_claims::of_run(&stored);
    claims.retain(|workspace, _| !templates.contains_key(workspace));
    if mode == Mode::Workspaces {
        admission
            .warnings
            .extend(multiple_claims::warnings(&stored, &claims));
    }
    let pinned = Pinned {
        mode,
        isolation_scope: configuration.isolation_scope,
        group,
        placeholder: configuration.placeholder.clone(),
        templates,
        claims,
    };
    admission.set_annotations = pinned.to_annotations();
    Ok(admission)
}

/// What the author called a template.
pub(crate) fn template_name(template: &Value) -> Option<&str> {
    template.pointer("/metadata/name").and_then(Value::as_str)
}

#[cfg(test)]
mod tests;
