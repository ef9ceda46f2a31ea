//! Copies of runs (V2a). A user may create a run from the stored object of another run, for example with `kubectl get -o yaml |
//! kubectl create`, with *rerun* in the Dashboard, or with `tkn pipeline start --last`. The workspaces of the copy are then bound
//! to claims of the other run's placeholder. The annotations of the other run contain the templates of these claims. Admission
//! reads these annotations from the copy, and from the other run if that run is still stored.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::annotations::{GROUP, VOLUME_CLAIM_TEMPLATES};
use crate::names::{ClaimTemplateName, Group, assistant_of, claim_name};
use crate::pinned::carried_templates;
use crate::pipeline_run::WorkspaceBinding;

use super::{Question, template_name};

/// The groups and the templates of the runs that were copied. Empty if the new run is not a copy, or if the annotations of the
/// other runs are not known.
pub(super) struct Copied {
    has_annotations: bool,
    sources: Vec<(Group, BTreeMap<String, Value>)>,
}

impl Copied {
    pub(super) fn of(question: &Question<'_>) -> Self {
        let own = carried_templates(&question.run.annotations);
        let stored = question.source_templates.into_iter().flatten();
        let stored = stored.filter_map(|(group, templates)| {
            let annotations = [(GROUP, group), (VOLUME_CLAIM_TEMPLATES, templates)];
            let annotations = annotations.map(|(key, value)| (key.to_owned(), value.clone()));
            carried_templates(&annotations.into())
        });
        Self {
            has_annotations: own.is_some(),
            sources: own.into_iter().chain(stored).collect(),
        }
    }

    /// True if the new run has the annotations of a stored run.
    pub(super) fn is_one(&self) -> bool {
        self.has_annotations
    }

    /// The template and the claim of a workspace, if the workspace is bound to the claim that the other run had for this
    /// workspace.
    pub(super) fn restored<'a>(
        &'a self,
        binding: &'a WorkspaceBinding,
    ) -> Option<(&'a Value, &'a str)> {
        let bound = binding.source.claim_name()?;
        self.sources.iter().find_map(|(group, templates)| {
            let template = templates.get(&binding.name)?;
            let name = ClaimTemplateName::derive(group, &binding.name, template_name(template));
            // The name of the claim template contains a hash of group and workspace. So equal names prove that group and
            // workspace are the same.
            let derived = claim_name(&name, &assistant_of(bound)?);
            (*bound == derived).then_some((template, bound.as_str()))
        })
    }
}

/// The name of a workspace's claim, if the name has the form that [`claim_name`] gives to the claims of placeholders.
pub(crate) fn claim_of_another_run(binding: &WorkspaceBinding) -> Option<&str> {
    let claim_name = binding.source.claim_name()?;
    assistant_of(claim_name).map(|_| claim_name.as_str())
}
