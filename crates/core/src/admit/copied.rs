//! A run created from the stored object of another one: `kubectl get -o yaml | kubectl create`, the Dashboard's *rerun*,
//! `tkn pipeline start --last` (V2a). Its workspaces are bound to claims of the other run's placeholder; the templates
//! they were made of are on the object where its annotations were copied too, and unknown where they were not.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::names::{AssistantName, ClaimTemplateName, Group, assistant_of, claim_name};
use crate::pinned::carried_templates;
use crate::pipeline_run::{PipelineRun, WorkspaceBinding, WorkspaceSource};
use crate::violation::Violation;

use super::template_name;

/// The group and templates of the run this one is a copy of, where it is one and says so.
pub(super) struct Copied(Option<(Group, BTreeMap<String, Value>)>);

/// A template that admission replaced in the run this one is a copy of.
pub(super) struct Restored<'a> {
    pub(super) template: &'a Value,
    claim_name: String,
}

impl Restored<'_> {
    /// What the author is told.
    pub(super) fn warning(&self, workspace: &str) -> String {
        format!(
            "workspace {workspace:?} was bound to claim {:?} of another run; this run gets a fresh claim from the same \
             volumeClaimTemplate",
            self.claim_name
        )
    }
}

impl Copied {
    pub(super) fn of(run: &PipelineRun) -> Self {
        Self(carried_templates(&run.annotations))
    }

    /// Whether the object carries what a stored run does.
    pub(super) fn is_one(&self) -> bool {
        self.0.is_some()
    }

    /// The template of a binding whose claim is exactly the one that the other run's group derives
    /// for its workspace. Any other claim is not that workspace's.
    pub(super) fn template(&self, binding: &WorkspaceBinding) -> Option<Restored<'_>> {
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

/// The claim of a binding, where it is called like one of a placeholder.
pub(super) fn of_another_run(binding: &WorkspaceBinding) -> Option<&str> {
    match &binding.source {
        WorkspaceSource::Claim { claim_name } => {
            assistant_of(claim_name).map(|_| claim_name.as_str())
        }
        WorkspaceSource::ClaimTemplate(_) | WorkspaceSource::Other => None,
    }
}

/// Why a binding to another run's claim is refused: nobody makes that claim for this run, and what it was made of is
/// not known.
pub(super) fn refusal(index: usize, binding: &WorkspaceBinding) -> Option<Violation> {
    let claim_name = of_another_run(binding)?;
    Some(Violation::new(
        format!("spec.workspaces[{index}].persistentVolumeClaim.claimName"),
        format!(
            "{claim_name:?} was made for another run and goes away with it, and the volumeClaimTemplate it was made of is \
             not known here; allowed for workspace {:?}: a volumeClaimTemplate, or a claim of your own",
            binding.name
        ),
    ))
}
