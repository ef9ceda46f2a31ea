//! The claims of a run's placeholders: those made from the templates pinned on the run (V2), those that Tekton makes (V3),
//! and those that somebody brought (V1).

use std::collections::BTreeSet;

use super::{ClaimTemplateSpec, Reason};
use crate::annotations::{self, VOLUME_CLAIM_TEMPLATES};
use crate::claim_template::Parts;
use crate::labels;
use crate::names::{AssistantName, ClaimTemplateName, claim_name, label_value};
use crate::pinned::Pinned;
use crate::pipeline_run::{PipelineRun, WorkspaceBinding, WorkspaceSource, is_single_pod};
use crate::reasons;
use crate::violation::Violation;

/// The claims of a run, or of one placeholder, in the order of the run's workspaces, each once.
#[derive(Debug, Clone, Default)]
pub(super) struct Claims {
    /// To be made by the StatefulSet.
    pub(super) templates: Vec<ClaimTemplateSpec>,
    /// To be made beside it (V8).
    pub(super) single_pod: Vec<ClaimTemplateSpec>,
    /// Made by others, and mounted.
    pub(super) existing: Vec<String>,
    /// Made by others, and not mounted (V8).
    pub(super) unmounted: Vec<String>,
}

pub(super) fn of(
    run: &PipelineRun,
    pinned: &Pinned,
    faults: &mut Vec<Violation>,
    left_out: &mut Vec<Reason>,
) -> Claims {
    let assistant = AssistantName::of(&pinned.group);
    let mut claims = Claims::default();
    let mut seen = BTreeSet::new();
    for template in templates(run, pinned, &assistant, faults) {
        let name = claim_name(&template.name, &assistant);
        if is_single_pod(&template.spec) {
            let workspace = Some(template.workspace.as_str());
            left_out.push(reasons::claim_not_mounted(&name, workspace));
            claims.single_pod.push(template);
        } else {
            claims.templates.push(template);
        }
        seen.insert(name);
    }
    for binding in &run.workspaces {
        let Some(known) = pinned.claims.get(&binding.name) else {
            if !pinned.templates.contains_key(&binding.name) {
                left_out.extend(not_known(binding));
            }
            continue;
        };
        let name = known.name(&binding.name, &run.uid);
        if !seen.insert(name.clone()) {
            continue;
        }
        match &binding.source {
            WorkspaceSource::ClaimTemplate(own) if own.is_single_pod() => {
                left_out.push(reasons::claim_not_mounted(&name, Some(&binding.name)));
                claims.unmounted.push(name);
            }
            WorkspaceSource::ClaimTemplate(_)
            | WorkspaceSource::Claim { .. }
            | WorkspaceSource::Other => claims.existing.push(name),
        }
    }
    claims
}

/// The pinned templates in the order of the run's workspaces. Each must be bound to the claim it
/// becomes, so that no claim is made that no task uses, and none is used that nobody makes.
fn templates(
    run: &PipelineRun,
    pinned: &Pinned,
    assistant: &AssistantName,
    faults: &mut Vec<Violation>,
) -> Vec<ClaimTemplateSpec> {
    let bound: BTreeSet<&str> = run
        .workspaces
        .iter()
        .map(|binding| binding.name.as_str())
        .collect();
    for workspace in pinned
        .templates
        .keys()
        .filter(|name| !bound.contains(name.as_str()))
    {
        faults.push(Violation::new(
            template_field(workspace),
            format!("workspace {workspace:?} is not bound; allowed: workspaces of the run"),
        ));
    }
    let mut specs = Vec::new();
    for (index, binding) in run.workspaces.iter().enumerate() {
        let Some(template) = pinned.templates.get(&binding.name) else {
            continue;
        };
        let parts = Parts::read(template_field(&binding.name), template, faults);
        let name = ClaimTemplateName::derive(&pinned.group, &binding.name, parts.name.as_deref());
        let derived = claim_name(&name, assistant);
        if !is_bound_to(binding, &derived) {
            faults.push(Violation::new(
                format!("spec.workspaces[{index}]"),
                format!(
                    "workspace {:?} is not bound to the claim of its pinned template; allowed: \
                     persistentVolumeClaim.claimName {derived:?}",
                    binding.name
                ),
            ));
        }
        specs.push(claim_template(run, binding, name, parts));
    }
    specs
}

fn claim_template(
    run: &PipelineRun,
    binding: &WorkspaceBinding,
    name: ClaimTemplateName,
    parts: Parts,
) -> ClaimTemplateSpec {
    let mut labels = parts.labels;
    labels.insert(labels::WORKSPACE.to_owned(), label_value(&binding.name));
    labels.insert(labels::PIPELINE_RUN.to_owned(), label_value(&run.name));
    ClaimTemplateSpec {
        name,
        workspace: binding.name.clone(),
        spec: parts.spec,
        labels,
        annotations: parts.annotations,
    }
}

fn template_field(workspace: &str) -> String {
    format!(
        "{}[{workspace}]",
        annotations::field(VOLUME_CLAIM_TEMPLATES)
    )
}

fn is_bound_to(binding: &WorkspaceBinding, derived: &str) -> bool {
    match &binding.source {
        WorkspaceSource::Claim { claim_name } => claim_name == derived,
        WorkspaceSource::ClaimTemplate(_) | WorkspaceSource::Other => false,
    }
}

/// Why the claim of a workspace is left out, if it has one: so that no placeholder waits for a literal `$(…)` (V9).
fn not_known(binding: &WorkspaceBinding) -> Option<Reason> {
    let workspace = &binding.name;
    match &binding.source {
        WorkspaceSource::Claim { claim_name } if claim_name.is_empty() => {
            Some(reasons::claim_name_empty(workspace))
        }
        WorkspaceSource::Claim { claim_name } => {
            Some(reasons::claim_name_variable(workspace, claim_name))
        }
        WorkspaceSource::ClaimTemplate(_) => Some(reasons::claim_template_not_replaced(workspace)),
        WorkspaceSource::Other => None,
    }
}
