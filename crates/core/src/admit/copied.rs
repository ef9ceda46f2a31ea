//! Copies of runs (V2a). A user may create a run from the stored object of another run, for example with `kubectl get -o yaml |
//! kubectl create`, with *rerun* in the Dashboard, or with `tkn pipeline start --last`. The workspaces of the copy are then bound
//! to claims of the other run's placeholder. If the annotations were copied too, they contain the templates of these claims.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::names::{AssistantName, ClaimTemplateName, Group, assistant_of, claim_name};
use crate::pinned::carried_templates;
use crate::pipeline_run::{PipelineRun, WorkspaceBinding};

use super::template_name;

/// The group and the templates of the run that was copied. `None` if the new run is not a copy, or if it does not have the other
/// run's annotations.
pub(super) struct Copied(Option<(Group, BTreeMap<String, Value>)>);

impl Copied {
    pub(super) fn of(run: &PipelineRun) -> Self {
        Self(carried_templates(&run.annotations))
    }

    /// True if the new run has the annotations of a stored run.
    pub(super) fn is_one(&self) -> bool {
        self.0.is_some()
    }

    /// The template and the claim of a workspace, if the workspace is bound to the claim that the other run had for this
    /// workspace.
    pub(super) fn restored<'a>(
        &'a self,
        binding: &'a WorkspaceBinding,
    ) -> Option<(&'a Value, &'a str)> {
        let (group, templates) = self.0.as_ref()?;
        let template = templates.get(&binding.name)?;
        let name = ClaimTemplateName::derive(group, &binding.name, template_name(template));
        let derived = claim_name(&name, &AssistantName::of(group));
        let claim_name = binding.source.claim_name()?;
        (*claim_name == derived).then_some((template, claim_name))
    }
}

/// The name of a workspace's claim, if it has the form of a name that a placeholder's controller gives.
pub(crate) fn claim_of_another_run(binding: &WorkspaceBinding) -> Option<&str> {
    let claim_name = binding.source.claim_name()?;
    assistant_of(claim_name).map(|_| claim_name.as_str())
}
