//! Makes the specification of a placeholder from the run and its pinned annotations.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::config::{Backend, Reserves};
use crate::event_texts;
use crate::labels;
use crate::names::{AssistantName, ClaimTemplateName, claim_name};
use crate::pinned::Pinned;
use crate::pipeline_run::PipelineRun;
use crate::pod_template;
use crate::requests::{Amounts, amounts};
use crate::separation::Separation;

use super::Reason;
use super::claims::Claims;

/// The specification of a placeholder. The specification does not show which existing claims are `ReadWriteOncePod`. Module
/// [`volumes`](crate::volumes) reads this from the claims themselves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlaceholderSpec {
    /// Its name (P1).
    pub name: AssistantName,
    /// The key of its [subset](crate::subsets) of the run's tasks. Empty for the main subset.
    pub subset: String,
    /// The labels of the placeholder and its pod: our labels, and the run's labels except Kueue's and `tekton.dev/taskRun`. If
    /// our labels and the run's labels have the same key, our value counts (P1).
    pub labels: BTreeMap<String, String>,
    /// Claims that are created together with the placeholder (V2), in the order of the run's workspaces.
    pub claim_templates: Vec<ClaimTemplateSpec>,
    /// Claims that the manager creates itself, under the names that the placeholder's controller would use. The placeholder does
    /// not mount them, because only one pod at a time may use them (V8).
    pub single_pod_claims: Vec<ClaimTemplateSpec>,
    /// The claims that exist (V1), and the claims that Tekton creates (V3). Each claim is listed once (V6), in the order of the
    /// run's workspaces. The placeholder mounts these claims, except existing `ReadWriteOncePod` claims (V8). A plan cannot
    /// recognize those, so this list contains them too.
    pub claim_names: Vec<String>,
    /// Claims that Tekton creates and that the placeholder does not mount (V8).
    pub unmounted_claim_names: Vec<String>,
    /// The rule for other placeholders on the same node (M4, P4).
    pub separation: Separation,
    /// CPU request, a Kubernetes quantity (P5). The limit derives from it.
    pub cpu: String,
    /// Memory request, a Kubernetes quantity (P5). The limit derives from it.
    pub memory: String,
    /// The resources that the placeholder requests in addition to `cpu` and `memory` (B3).
    pub reserves: Reserves,
    /// The Kubernetes objects that make up the placeholder (P1).
    pub backend: Backend,
    /// A container image reference.
    pub image: String,
    /// The fields that the placeholder takes from the run's `podTemplate` or from the default template, by the rules of
    /// [`pod_template`] (P3).
    pub pod_template: Map<String, Value>,
    /// The run's service account, or else that of the default template. Empty if neither names a service account (P3).
    pub service_account_name: String,
}

impl PlaceholderSpec {
    /// True if no other placeholder of the isolation scope is allowed on its node (M4).
    pub(crate) fn is_isolated(&self) -> bool {
        matches!(self.separation, Separation::Isolate(_))
    }

    /// The placeholder's own requests, without room for other pods.
    pub fn requests(&self) -> Amounts {
        let list = [("cpu", &self.cpu), ("memory", &self.memory)];
        let list = list.map(|(name, text)| Some((name.to_owned(), text.parse().ok()?)));
        amounts(&list.into_iter().flatten().collect())
    }

    /// The names of all claims of the placeholder, mounted or not mounted.
    pub fn claims(&self) -> impl Iterator<Item = String> {
        let templates = self.claim_templates.iter().chain(&self.single_pod_claims);
        let made = templates.map(|template| claim_name(&template.name, &self.name));
        let others = self.claim_names.iter().chain(&self.unmounted_claim_names);
        made.chain(others.cloned())
    }
}

/// A claim to create for a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimTemplateSpec {
    /// The name of the template and of the pod's volume.
    pub name: ClaimTemplateName,
    /// The workspace that uses the claim.
    pub workspace: String,
    /// `spec` of the template, as the author wrote it.
    pub spec: Value,
    /// The claim's labels: our labels and the author's labels. If both have the same key, our value counts (V2).
    pub labels: BTreeMap<String, String>,
    /// The claim's annotations: those that the author wrote.
    pub annotations: BTreeMap<String, String>,
}

pub(super) fn spec(
    run: &PipelineRun,
    pinned: &Pinned,
    subset: &str,
    name: AssistantName,
    claims: Claims,
) -> PlaceholderSpec {
    let defaults = &pinned.placeholder;
    let own = run.pod_template.as_ref();
    let own = (pinned.subsets.get(subset))
        .map_or_else(|| own.cloned(), |subset| Some(subset.pod_template(own)));
    PlaceholderSpec {
        labels: labels::of_placeholder(run, &name),
        subset: subset.to_owned(),
        name,
        claim_templates: claims.templates,
        single_pod_claims: claims.single_pod,
        claim_names: claims.existing,
        unmounted_claim_names: claims.unmounted,
        separation: pinned.separation(),
        cpu: defaults.cpu.clone(),
        memory: defaults.memory.clone(),
        reserves: defaults.reserves,
        backend: defaults.backend,
        image: defaults.image.clone(),
        pod_template: pod_template::merge(own.as_ref(), &defaults.pod_template).allowed,
        service_account_name: pod_template::service_account_name(
            run.service_account_name.as_deref(),
            &defaults.pod_template,
        ),
    }
}

/// One reason for each part of the run's `securityContext` that the run's placeholders do not get (P3).
pub(super) fn dropped(run: &PipelineRun, pinned: &Pinned) -> Vec<Reason> {
    let merged = pod_template::merge(run.pod_template.as_ref(), &pinned.placeholder.pod_template);
    let dropped = merged.dropped.iter();
    dropped
        .map(|part| event_texts::security_context_reduced(&part.field, &part.value))
        .collect()
}
