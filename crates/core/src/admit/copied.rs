//! A run created from the stored object of another run: `kubectl get -o yaml | kubectl create`, the Dashboard's *rerun*,
//! `tkn pipeline start --last` (V2a). The workspaces of the new run are bound to claims of the other run's placeholder. If the
//! annotations were copied too, they contain the templates of these claims.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::names::{AssistantName, ClaimTemplateName, Group, assistant_of, claim_name};
use crate::pinned::carried_templates;
use crate::pipeline_run::{PipelineRun, WorkspaceBinding};

use super::template_name;

/// Group and templates of the run that this one is a copy of; `None` if it is no copy, or its annotations were not copied.
pub(super) struct Copied(Option<(Group, BTreeMap<String, Value>)>);

impl Copied {
    pub(super) fn of(run: &PipelineRun) -> Self {
        Self(carried_templates(&run.annotations))
    }

    /// Whether the object has the annotations of a stored run.
    pub(super) fn is_one(&self) -> bool {
        self.0.is_some()
    }

    /// The template and the claim of a workspace that is bound to the claim which the other run made for it.
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

/// The claim of a workspace, if it has the name of a placeholder's claim.
pub(crate) fn claim_of_another_run(binding: &WorkspaceBinding) -> Option<&str> {
    let claim_name = binding.source.claim_name()?;
    assistant_of(claim_name).map(|_| claim_name.as_str())
}
