//! The workspaces of a run, with their volume sources.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::claim_template::Parts;
use crate::document::{Faults, Object};

/// A workspace and its volume source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkspaceBinding {
    /// `name`, unique in the run.
    pub name: String,
    /// Its volume source.
    pub source: WorkspaceSource,
}

/// The volume source of a workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkspaceSource {
    /// `volumeClaimTemplate`: a new claim for this run.
    ClaimTemplate(ClaimTemplate),
    /// `persistentVolumeClaim`: an existing claim.
    Claim {
        /// `claimName`. Empty if it is not set.
        claim_name: String,
    },
    /// Any other source (`secret`, `configMap`, `emptyDir`, `projected`, `csi`), or no source. This product does not change it
    /// (V5).
    Other,
}

/// A valid `volumeClaimTemplate`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimTemplate {
    /// `metadata.name`.
    pub name: Option<String>,
    /// The whole template.
    pub template: Value,
}

// A workspace binding has exactly one volume source (Tekton, "Specifying VolumeSources in Workspaces").
const VOLUME_CLAIM_TEMPLATE: &str = "volumeClaimTemplate";
const PERSISTENT_VOLUME_CLAIM: &str = "persistentVolumeClaim";
const SOURCES: [&str; 7] = [
    VOLUME_CLAIM_TEMPLATE,
    PERSISTENT_VOLUME_CLAIM,
    "emptyDir",
    "configMap",
    "secret",
    "projected",
    "csi",
];

impl WorkspaceSource {
    /// `persistentVolumeClaim.claimName`. `None` for every other volume source.
    pub(crate) fn claim_name(&self) -> Option<&String> {
        match self {
            Self::Claim { claim_name } => Some(claim_name),
            Self::ClaimTemplate(_) | Self::Other => None,
        }
    }
}

impl ClaimTemplate {
    /// True if only one pod at a time may use the claim. Then the placeholder does not mount the claim (V8).
    pub fn is_single_pod(&self) -> bool {
        is_single_pod(&self.template["spec"])
    }
}

/// True if the `spec` of a claim asks for `ReadWriteOncePod`. Kubernetes allows no other access mode in the same claim.
pub(crate) fn is_single_pod(claim_spec: &Value) -> bool {
    let modes = claim_spec["accessModes"].as_array();
    modes
        .into_iter()
        .flatten()
        .any(|mode| mode == "ReadWriteOncePod")
}

pub(super) fn workspaces(spec: &Object<'_>, faults: &Faults) -> Vec<WorkspaceBinding> {
    let mut names = BTreeSet::new();
    let mut bindings = Vec::new();
    for binding in spec.objects("workspaces") {
        let name = binding.string("name");
        // If the name has a wrong type, the violation is already reported.
        let reported = binding.get("name").is_some_and(|name| !name.is_string());
        let path = binding.path("name");
        if name.is_empty() && !reported {
            faults.add(path, "is not set; allowed: the name of a workspace");
        } else if !names.insert(name.clone()) && !reported {
            let fault = format!("{name:?} is bound twice; allowed: one binding for each workspace");
            faults.add(path, fault);
        }
        let source = source(&binding, faults);
        bindings.push(WorkspaceBinding { name, source });
    }
    bindings
}

fn source(binding: &Object<'_>, faults: &Faults) -> WorkspaceSource {
    let named: Vec<&str> = SOURCES
        .into_iter()
        .filter(|key| binding.get(key).is_some())
        .collect();
    if named.len() > 1 {
        // Tekton denies a binding with two sources. If admission replaced one of the sources, Tekton would not see the fault.
        let sources = named.join(" and ");
        let fault = format!("has {sources}; allowed: exactly one volume source");
        faults.add(binding.own_path(), fault);
    }
    if let Some(template) = binding.get(VOLUME_CLAIM_TEMPLATE) {
        let parts = Parts::read(binding.path(VOLUME_CLAIM_TEMPLATE), template, faults);
        WorkspaceSource::ClaimTemplate(ClaimTemplate {
            name: parts.name,
            template: template.clone(),
        })
    } else if binding.get(PERSISTENT_VOLUME_CLAIM).is_some() {
        let claim_name = binding.object(PERSISTENT_VOLUME_CLAIM).string("claimName");
        WorkspaceSource::Claim { claim_name }
    } else {
        WorkspaceSource::Other
    }
}
