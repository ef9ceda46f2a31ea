//! A placeholder, complete: what of the run and of what is pinned on it goes into the StatefulSet.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::labels;
use crate::mode::{IsolationScope, Mode};
use crate::names::{AssistantName, ClaimTemplateName, claim_name, label_value};
use crate::pinned::Pinned;
use crate::pipeline_run::PipelineRun;
use crate::pod_template::{self, Dropped};
use crate::reasons;

use super::Reason;
use super::claims::Claims;

/// A placeholder, complete: nothing about it is left to decide, except which of the claims that somebody brought turn out
/// to be `ReadWriteOncePod` ([`volumes`](crate::volumes)).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlaceholderSpec {
    /// Name of the StatefulSet (P1).
    pub name: AssistantName,
    /// Labels of the StatefulSet and its pod: the run's own except Kueue's, and ours, which win
    /// (P1).
    pub labels: BTreeMap<String, String>,
    /// Claims the StatefulSet makes (V2), in the order of the run's workspaces.
    pub claim_templates: Vec<ClaimTemplateSpec>,
    /// Claims that are made beside the StatefulSet, under the names it would give them, and are not mounted: one pod
    /// excludes every other (V8).
    pub single_pod_claims: Vec<ClaimTemplateSpec>,
    /// Claims that exist already, or that Tekton makes (V3), and are mounted too (V1), each once (V6), in the order of
    /// the run's workspaces.
    pub claim_names: Vec<String>,
    /// Claims that Tekton makes and that are not mounted (V8).
    pub unmounted_claim_names: Vec<String>,
    /// How it keeps away from other placeholders (M4, P4).
    pub separation: Separation,
    /// CPU request and limit, a Kubernetes quantity (P5).
    pub cpu: String,
    /// Memory request and limit, a Kubernetes quantity (P5).
    pub memory: String,
    /// Image reference.
    pub image: String,
    /// What the placeholder takes over of the run's `podTemplate` and the default's, as [`pod_template`] says (P3).
    pub pod_template: Map<String, Value>,
    /// The run's service account, else the default's; empty where neither names one (P3).
    pub service_account_name: String,
}

impl PlaceholderSpec {
    /// The names of all claims that the placeholder stands for, mounted or not.
    pub fn claims(&self) -> impl Iterator<Item = String> {
        let templates = self.claim_templates.iter().chain(&self.single_pod_claims);
        let made = templates.map(|template| claim_name(&template.name, &self.name));
        let others = self.claim_names.iter().chain(&self.unmounted_claim_names);
        made.chain(others.cloned())
    }
}

/// How a placeholder keeps away from others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Separation {
    /// It prefers a node without another one, so that runs spread (P4).
    Spread,
    /// It takes no node where another one is, and lets no other one come: the scheduler holds required anti-affinity of
    /// pods that run against those that come, too (M4).
    Isolate(IsolationScope),
}

/// A claim that is made for a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimTemplateSpec {
    /// Name of the template and of the pod's volume.
    pub name: ClaimTemplateName,
    /// The workspace it backs.
    pub workspace: String,
    /// `spec` of the template as the author wrote it, an object.
    pub spec: Value,
    /// Labels of the claim: the author's, and ours, which win (V2).
    pub labels: BTreeMap<String, String>,
    /// Annotations of the claim: the author's.
    pub annotations: BTreeMap<String, String>,
}

pub(super) fn spec(
    run: &PipelineRun,
    pinned: &Pinned,
    name: AssistantName,
    claims: Claims,
) -> PlaceholderSpec {
    let defaults = &pinned.placeholder;
    PlaceholderSpec {
        labels: placeholder_labels(run, &name),
        name,
        claim_templates: claims.templates,
        single_pod_claims: claims.single_pod,
        claim_names: claims.existing,
        unmounted_claim_names: claims.unmounted,
        separation: separation(pinned),
        cpu: defaults.cpu.clone(),
        memory: defaults.memory.clone(),
        image: defaults.image.clone(),
        pod_template: pod_template::merge(run.pod_template.as_ref(), &defaults.pod_template)
            .template,
        service_account_name: pod_template::service_account_name(
            run.service_account_name.as_deref(),
            &defaults.pod_template,
        ),
    }
}

/// A reason for each part of the run's `securityContext` that its placeholders go without (P3).
pub(super) fn dropped(run: &PipelineRun, pinned: &Pinned) -> Vec<Reason> {
    let merged = pod_template::merge(run.pod_template.as_ref(), &pinned.placeholder.pod_template);
    merged
        .dropped
        .iter()
        .map(|Dropped { field, value }| reasons::security_context_reduced(field, value))
        .collect()
}

fn separation(pinned: &Pinned) -> Separation {
    match pinned.mode {
        Mode::IsolatePipelineRun => Separation::Isolate(pinned.isolation_scope),
        Mode::Workspaces | Mode::PipelineRuns | Mode::Disabled => Separation::Spread,
    }
}

fn placeholder_labels(run: &PipelineRun, name: &AssistantName) -> BTreeMap<String, String> {
    let mut labels = labels::inherited(&run.labels);
    labels.extend(
        [
            (labels::COMPONENT, labels::AFFINITY_ASSISTANT.to_owned()),
            (labels::INSTANCE, name.to_string()),
            (labels::PIPELINE_RUN, label_value(&run.name)),
        ]
        .map(|(key, value)| (key.to_owned(), value)),
    );
    labels
}
