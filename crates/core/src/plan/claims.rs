//! The claims of a placeholder: those it makes from the templates pinned on the run (V2), and those that exist already
//! (V1).

use std::collections::BTreeSet;

use super::{ClaimTemplateSpec, Reason, ReasonCode};
use crate::annotations::{self, VOLUME_CLAIM_TEMPLATES};
use crate::claim_template::Parts;
use crate::labels;
use crate::names::{AssistantName, ClaimTemplateName, claim_name, label_value};
use crate::pinned::Pinned;
use crate::pipeline_run::{PipelineRun, WorkspaceBinding, WorkspaceSource};
use crate::violation::Violation;

/// The pinned templates in the order of the run's workspaces. Each must be bound to the claim it
/// becomes, so that no claim is made that no task uses, and none is used that nobody makes.
pub(super) fn templates(
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

/// The claims that exist already: each once, however many workspaces bind it with different
/// sub-paths (V6). A claim whose name is not known is left out and said, so that no placeholder
/// waits for a literal `$(…)` (V9).
pub(super) fn existing(
    run: &PipelineRun,
    templates: &[ClaimTemplateSpec],
    assistant: &AssistantName,
    reasons: &mut Vec<Reason>,
) -> Vec<String> {
    let mut seen: BTreeSet<String> = templates
        .iter()
        .map(|template| claim_name(&template.name, assistant))
        .collect();
    let mut names = Vec::new();
    for binding in &run.workspaces {
        let workspace = &binding.name;
        let claim = match &binding.source {
            WorkspaceSource::Claim { claim_name } => claim_name,
            WorkspaceSource::ClaimTemplate(_) => {
                let message = format!(
                    "workspace {workspace:?} has a volumeClaimTemplate that admission did not see; \
                     its claim is not mounted on the placeholder"
                );
                reasons.push(Reason::new(ReasonCode::ClaimTemplateNotReplaced, message));
                continue;
            }
            WorkspaceSource::Other => continue,
        };
        if claim.is_empty() {
            let message = format!(
                "workspace {workspace:?} is bound to a claim without a name; it is left out"
            );
            reasons.push(Reason::new(ReasonCode::ClaimNameEmpty, message));
        } else if claim.contains("$(") {
            let message = format!(
                "workspace {workspace:?} is bound to claim {claim:?}, whose name is not known yet; it is left out"
            );
            reasons.push(Reason::new(ReasonCode::ClaimNameVariable, message));
        } else if seen.insert(claim.clone()) {
            names.push(claim.clone());
        }
    }
    names
}
