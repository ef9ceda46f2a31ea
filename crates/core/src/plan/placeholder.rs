//! The specification of a placeholder, from the run and its pinned annotations.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::config::Reserves;
use crate::labels;
use crate::names::{AssistantName, ClaimTemplateName, claim_name, label_value};
use crate::pinned::Pinned;
use crate::pipeline_run::PipelineRun;
use crate::pod_template;
use crate::reasons;
use crate::separation::Separation;

use super::Reason;
use super::claims::Claims;

/// The specification of a placeholder. One thing is left to decide: which existing claims are `ReadWriteOncePod`
/// ([`volumes`](crate::volumes)).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlaceholderSpec {
    /// Its name (P1).
    pub name: AssistantName,
    /// Labels of the placeholder and its pod: the run's own except Kueue's, and ours, which win (P1).
    pub labels: BTreeMap<String, String>,
    /// Claims that its controller makes (V2), in the order of the run's workspaces.
    pub claim_templates: Vec<ClaimTemplateSpec>,
    /// Claims that are made beside it, under the names that it would give them. They are not mounted, because only
    /// one pod at a time may use them (V8).
    pub single_pod_claims: Vec<ClaimTemplateSpec>,
    /// Other claims to mount: those that exist already (V1), and those that Tekton makes (V3), each once (V6), in the order of
    /// the run's workspaces.
    pub claim_names: Vec<String>,
    /// Claims that Tekton makes and that are not mounted (V8).
    pub unmounted_claim_names: Vec<String>,
    /// What it asks of its node about other placeholders (M4, P4).
    pub separation: Separation,
    /// CPU request and limit, a Kubernetes quantity (P5).
    pub cpu: String,
    /// Memory request and limit, a Kubernetes quantity (P5).
    pub memory: String,
    /// The resources that it asks for beside `cpu` and `memory` (B3).
    pub reserves: Reserves,
    /// Image reference.
    pub image: String,
    /// The fields of the run's `podTemplate` and the default's that the placeholder has, by the rules of [`pod_template`] (P3).
    pub pod_template: Map<String, Value>,
    /// The run's service account, else the default's; empty if neither names one (P3).
    pub service_account_name: String,
}

impl PlaceholderSpec {
    /// The names of all claims of the placeholder, mounted or not.
    pub fn claims(&self) -> impl Iterator<Item = String> {
        let templates = self.claim_templates.iter().chain(&self.single_pod_claims);
        let made = templates.map(|template| claim_name(&template.name, &self.name));
        let others = self.claim_names.iter().chain(&self.unmounted_claim_names);
        made.chain(others.cloned())
    }
}

/// A claim to make for a run.
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
        separation: pinned.separation(),
        cpu: defaults.cpu.clone(),
        memory: defaults.memory.clone(),
        reserves: defaults.reserves,
        image: defaults.image.clone(),
        pod_template: pod_template::merge(run.pod_template.as_ref(), &defaults.pod_template)
            .allowed,
        service_account_name: pod_template::service_account_name(
            run.service_account_name.as_deref(),
            &defaults.pod_template,
        ),
    }
}

/// A reason for each part of the run's `securityContext` that its placeholders do not get (P3).
pub(super) fn dropped(run: &PipelineRun, pinned: &Pinned) -> Vec<Reason> {
    let merged = pod_template::merge(run.pod_template.as_ref(), &pinned.placeholder.pod_template);
    let dropped = merged.dropped.iter();
    dropped
        .map(|part| reasons::security_context_reduced(&part.field, &part.value))
        .collect()
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
