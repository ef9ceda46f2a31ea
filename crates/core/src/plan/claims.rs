//! The claims of a run's placeholders: claims from the templates pinned on the run (V2), claims that Tekton creates (V3), and
//! existing claims (V1).

use std::collections::BTreeSet;

use super::{ClaimTemplateSpec, Reason};
use crate::annotations::{self, VOLUME_CLAIM_TEMPLATES};
use crate::claim_template::Parts;
use crate::document::Faults;
use crate::event_texts;
use crate::labels;
use crate::names::{AssistantName, ClaimTemplateName, claim_name, label_value};
use crate::pinned::Pinned;
use crate::pipeline_run::{PipelineRun, WorkspaceBinding, WorkspaceSource, is_single_pod};
use crate::run_claims::contains;
use crate::subsets::of_workspace;

/// The claims of a run or of one placeholder, each once, in the order of the run's workspaces. Claims in `volumes` come last.
#[derive(Debug, Clone, Default)]
pub(super) struct Claims {
    /// Claims that are created together with the placeholder, and that it mounts.
    pub(super) templates: Vec<ClaimTemplateSpec>,
    /// Claims that the manager creates and the placeholder does not mount (V8).
    pub(super) single_pod: Vec<ClaimTemplateSpec>,
    /// Claims that exist, or that Tekton creates. The placeholder mounts them, except existing `ReadWriteOncePod` claims, which a
    /// plan cannot recognize ([`volumes`](crate::volumes)).
    pub(super) existing: Vec<String>,
    /// Claims that Tekton creates and the placeholder does not mount (V8).
    pub(super) unmounted: Vec<String>,
}

/// The claims of a subset of the run's tasks. For each claim that no placeholder mounts, `left_out` gets a reason.
pub(super) fn of(
    run: &PipelineRun,
    pinned: &Pinned,
    subset: &str,
    faults: &Faults,
    left_out: &mut Vec<Reason>,
) -> Claims {
    let assistant = pinned.naming(&run.name).of_subset(pinned.mode, subset);
    let is_own = |workspace: &str| of_workspace(&pinned.subsets, workspace) == subset;
    let templates = assistant.map(|assistant| {
        let templates = templates(run, pinned, &assistant, is_own, faults).into_iter();
        templates
            .map(|template| (claim_name(&template.name, &assistant), template))
            .collect::<Vec<_>>()
    });
    let mut claims = Claims::default();
    let mut seen = BTreeSet::new();
    for (name, template) in templates.into_iter().flatten() {
        if is_single_pod(&template.spec) {
            let workspace = Some(template.workspace.as_str());
            left_out.push(event_texts::claim_not_mounted(&name, workspace));
            claims.single_pod.push(template);
        } else {
            claims.templates.push(template);
        }
        seen.insert(name);
    }
    for binding in run.workspaces.iter().filter(|it| is_own(&it.name)) {
        let Some(known) = pinned.claims.get(&binding.name) else {
            let is_template = pinned.templates.contains_key(&binding.name);
            // If several workspaces of an adopted run have the same claim, only one of them is pinned.
            let name = binding.source.claim_name();
            let is_pinned = name.is_some_and(|name| contains(&pinned.claims, name, &run.uid));
            if !is_template && !is_pinned {
                left_out.extend(not_known(binding));
            }
            continue;
        };
        let name = known.name(&binding.name, &run.uid);
        if !seen.insert(name.clone()) {
            continue;
        }
        if known.shared {
            left_out.push(event_texts::claim_shared(&name, &binding.name));
            continue;
        }
        match &binding.source {
            WorkspaceSource::ClaimTemplate(own) if own.is_single_pod() => {
                left_out.push(event_texts::claim_not_mounted(&name, Some(&binding.name)));
                claims.unmounted.push(name);
            }
            WorkspaceSource::ClaimTemplate(_)
            | WorkspaceSource::Claim { .. }
            | WorkspaceSource::Other => claims.existing.push(name),
        }
    }
    let is_bound = |key: &str| run.workspaces.iter().any(|binding| binding.name == key);
    let of_volumes = pinned.claims.iter();
    let of_volumes = of_volumes.filter(|(key, _)| !is_bound(key) && is_own(key));
    let of_volumes = of_volumes.map(|(key, claim)| claim.name(key, &run.uid));
    let new = of_volumes.filter(|name| seen.insert(name.clone()));
    claims.existing.extend(new);
    claims
}

/// The pinned templates in the order of the run's workspaces. A workspace with a pinned template must still be bound to the claim
/// of this template. Otherwise no task would use this claim, or tasks would wait for a claim that nobody creates.
fn templates(
    run: &PipelineRun,
    pinned: &Pinned,
    assistant: &AssistantName,
    is_own: impl Fn(&str) -> bool,
    faults: &Faults,
) -> Vec<ClaimTemplateSpec> {
    let bound = |name: &str| run.workspaces.iter().any(|binding| binding.name == name);
    for workspace in pinned.templates.keys().filter(|name| !bound(name)) {
        let fault =
            format!("the run has no workspace {workspace:?}; allowed: workspaces of the run");
        faults.add(template_field(workspace), fault);
    }
    let mut specs = Vec::new();
    let workspaces = run.workspaces.iter().enumerate();
    for (index, binding) in workspaces.filter(|(_, binding)| is_own(&binding.name)) {
        let workspace = &binding.name;
        let Some(template) = pinned.templates.get(workspace) else {
            continue;
        };
        let parts = Parts::read(template_field(workspace), template, faults);
        let template_name = parts.name.as_deref();
        let name = match pinned.adopted {
            None => ClaimTemplateName::derive(&pinned.group, workspace, template_name),
            Some(_) => match ClaimTemplateName::of_tekton(workspace, template_name, &run.uid) {
                Ok(name) => name,
                Err(error) => {
                    faults.add(template_field(workspace), error.to_string());
                    continue;
                }
            },
        };
        let derived = claim_name(&name, assistant);
        if pinned.adopted.is_none() && binding.source.claim_name() != Some(&derived) {
            let fault = format!(
                "workspace {workspace:?} is not bound to the claim that was made for it; allowed: \
                 persistentVolumeClaim.claimName {derived:?}"
            );
            faults.add(format!("spec.workspaces[{index}]"), fault);
        }
        let mut labels = parts.labels;
        labels.insert(labels::WORKSPACE.to_owned(), label_value(workspace));
        labels.extend(labels::pipeline(run));
        labels.insert(labels::PIPELINE_RUN.to_owned(), label_value(&run.name));
        specs.push(ClaimTemplateSpec {
            name,
            workspace: workspace.clone(),
            spec: parts.spec,
            labels,
            annotations: parts.annotations,
        });
    }
    specs
}

fn template_field(workspace: &str) -> String {
    let templates = annotations::field(VOLUME_CLAIM_TEMPLATES);
    format!("{templates}[{workspace}]")
}

/// The reason why no placeholder mounts the claim of a workspace. `None` if the workspace has no claim. If a placeholder mounted
/// a claim whose name has a variable, the placeholder would wait for ever, because no claim has a name with `$(` (V9).
fn not_known(binding: &WorkspaceBinding) -> Option<Reason> {
    let workspace = &binding.name;
    match &binding.source {
        WorkspaceSource::Claim { claim_name } if claim_name.is_empty() => {
            Some(event_texts::claim_name_empty(workspace))
        }
        WorkspaceSource::Claim { claim_name } => {
            Some(event_texts::claim_name_variable(workspace, claim_name))
        }
        WorkspaceSource::ClaimTemplate(_) => {
            Some(event_texts::claim_template_not_replaced(workspace))
        }
        WorkspaceSource::Other => None,
    }
}
