//! Replaces names of claims in the bindings of a new TaskRun or CustomRun (B7, M9, V9).

use std::collections::BTreeMap;

use super::{BoundClaim, ChildRun};
use crate::admit::template_name;
use crate::names::{
    AssistantName, ClaimTemplateName, claim_name, renamed_by_tekton, tekton_claim_name,
};
use crate::params::has_variable;
use crate::pinned::carried_templates;
use crate::pipeline_run::PipelineRun;
use crate::run_claims::{RunClaim, RunClaims};

/// Completes the claim names in which Tekton leaves variables (V9). The workspace of such a claim gets the claim name pinned on
/// the PipelineRun. If no name is pinned, the workspace gets the name that results from the defaults of the Pipeline.
pub(super) fn completed(run: &ChildRun, claims: &RunClaims) -> Vec<BoundClaim> {
    let Some(owner) = &run.pipeline_run else {
        return Vec::new();
    };
    let completed = run.unresolved().filter_map(|(bound, name)| {
        let claim_name = match pinned_for(bound, owner, claims) {
            Some(claim) => claim.name(&bound.workspace, &owner.uid),
            None => (owner.params.or(owner.defaults.as_ref()?)).resolve(&name),
        };
        (!has_variable(&claim_name)).then(|| BoundClaim {
            workspace: bound.workspace.clone(),
            claim_name,
        })
    });
    completed.collect()
}

/// Finds the PipelineRun's workspace with the same claim name as `bound`, and returns the claim of this workspace in `claims`.
/// In the claim name of `bound`, Tekton has already replaced the PipelineRun's own parameters.
pub(super) fn pinned_for<'a>(
    bound: &BoundClaim,
    owner: &PipelineRun,
    claims: &'a RunClaims,
) -> Option<&'a RunClaim> {
    let mut bindings = owner.workspaces.iter();
    let binding = bindings.find(|binding| {
        let claim_name = binding.source.claim_name();
        claim_name.is_some_and(|it| owner.params.resolve(it) == bound.claim_name)
    });
    claims.get(&binding?.name)
}

/// The workspaces that Tekton bound to a claim name that does not exist, each with the right name.
pub(super) fn renamed(run: &ChildRun, claims: &RunClaims) -> Vec<BoundClaim> {
    let Some(owner) = &run.controller else {
        return Vec::new();
    };
    let mut renamed = Vec::new();
    for BoundClaim {
        workspace,
        claim_name,
    } in &run.claims
    {
        let mut names = claims
            .iter()
            .map(|(workspace, claim)| claim.name(workspace, &owner.uid));
        let is_this = |made: &String| renamed_by_tekton(made, &owner.name).contains(claim_name);
        if let Some(made) = names.find(is_this) {
            renamed.push(BoundClaim {
                workspace: workspace.clone(),
                claim_name: made,
            });
        }
    }
    renamed
}

/// For a TaskRun of an adopted run: the workspaces whose claims Tekton's assistant made, each with the name of its claim. Once
/// Tekton's flag is off, Tekton writes other names into the TaskRun, and no claims with these names exist (B7).
pub(super) fn of_assistant(run: &ChildRun, assistant: &AssistantName) -> Vec<BoundClaim> {
    let templates = carried_templates(&run.annotations);
    let (Some(owner), Some((_, templates))) = (&run.controller, templates) else {
        return Vec::new();
    };
    let names: BTreeMap<_, _> = templates
        .iter()
        .filter_map(|(workspace, template)| {
            let template = template_name(template);
            let made = ClaimTemplateName::of_tekton(workspace, template, &owner.uid).ok()?;
            let other = tekton_claim_name(workspace, template, &owner.uid);
            Some((other, claim_name(&made, assistant)))
        })
        .collect();
    let renamed = run.claims.iter().filter_map(|bound| {
        Some(BoundClaim {
            workspace: bound.workspace.clone(),
            claim_name: names.get(&bound.claim_name)?.clone(),
        })
    });
    renamed.collect()
}
