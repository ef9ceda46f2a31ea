//! What we read of a PipelineRun, and how it is read from Kubernetes JSON.
//!
//! There is no crate of Tekton types, and none is wanted: these few fields are all that decisions
//! depend on, everything else is tolerated unread.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::claim_template::Parts;
use crate::document::Object;
use crate::params::Params;
use crate::pipeline::{self, PipelineTask};
use crate::violation::Violation;

/// The API group of Tekton.
pub(crate) const TEKTON_GROUP: &str = "tekton.dev";

/// What we read of a PipelineRun.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PipelineRun {
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`; may be empty while the run is being created.
    pub name: String,
    /// `metadata.generateName`; empty when unset.
    pub generate_name: String,
    /// `metadata.uid`; empty while the run is being created.
    pub uid: String,
    /// `metadata.resourceVersion`; empty while the run is being created.
    pub resource_version: String,
    /// Whether `metadata.deletionTimestamp` is set.
    pub deletion: bool,
    /// `metadata.labels`.
    pub labels: BTreeMap<String, String>,
    /// `metadata.annotations`.
    pub annotations: BTreeMap<String, String>,
    /// The one of `metadata.ownerReferences` that is the controller; set where the run is part of
    /// another one.
    pub controller: Option<OwnerReference>,
    /// `spec.managedBy`: who runs it. `None` and `tekton.dev/pipeline` are Tekton (M5).
    pub managed_by: Option<String>,
    /// `spec.status`: what the user has asked of the run, such as `Cancelled`.
    pub spec_status: Option<String>,
    /// `spec.workspaces`, in order.
    pub workspaces: Vec<WorkspaceBinding>,
    /// `spec.params`, and the defaults of `spec.pipelineSpec.params` for what is not among them.
    pub params: Params,
    /// `spec.pipelineRef.name`: the Pipeline in the run's namespace, unless a resolver finds it elsewhere.
    pub pipeline_name: Option<String>,
    /// The tasks of `spec.pipelineSpec`; empty where the Pipeline is not embedded.
    pub pipeline_tasks: Vec<PipelineTask>,
    /// `spec.taskRunSpecs`: what the author wants of single tasks.
    pub task_run_specs: Vec<TaskRunSpec>,
    /// `spec.taskRunTemplate.serviceAccountName`.
    pub service_account_name: Option<String>,
    /// `spec.taskRunTemplate.podTemplate`, an object.
    pub pod_template: Option<Value>,
    /// How far the run is.
    pub state: RunState,
}

/// An owner of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnerReference {
    /// `apiVersion`.
    pub api_version: String,
    /// `kind`.
    pub kind: String,
    /// `name`.
    pub name: String,
    /// `uid`.
    pub uid: String,
}

impl OwnerReference {
    /// Whether the owner is a PipelineRun of Tekton's, in any API version.
    pub fn is_pipeline_run(&self) -> bool {
        self.kind == "PipelineRun" && group_of(&self.api_version) == TEKTON_GROUP
    }
}

/// How far a run is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RunState {
    /// `spec.status` is `PipelineRunPending`: it has not started (P9).
    Pending,
    /// Neither pending nor done.
    #[default]
    Active,
    /// Condition `Succeeded` is `True` or `False`: completed, failed, cancelled, stopped or timed
    /// out (P6).
    Done,
}

/// What the author wants of the TaskRuns of one task.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TaskRunSpec {
    /// `pipelineTaskName`.
    pub pipeline_task_name: String,
    /// `metadata.annotations`; Tekton lets them win over the run's own.
    pub annotations: BTreeMap<String, String>,
}

/// A workspace and what backs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkspaceBinding {
    /// `name`, unique in the run.
    pub name: String,
    /// `subPath`.
    pub sub_path: Option<String>,
    /// What backs it.
    pub source: WorkspaceSource,
}

/// What backs a workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkspaceSource {
    /// `volumeClaimTemplate`: a claim of the run's own.
    ClaimTemplate(ClaimTemplate),
    /// `persistentVolumeClaim`: a claim that exists.
    Claim {
        /// `claimName`; empty when unset.
        claim_name: String,
    },
    /// secret, configMap, emptyDir, projected, csi, or nothing: left alone (V5).
    Other,
}

/// A `volumeClaimTemplate`: an object with a `spec` that is an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimTemplate {
    /// `metadata.name`.
    pub name: Option<String>,
    /// The whole template.
    pub template: Value,
}

/// The volume sources a workspace binding may have, exactly one of them (Tekton, "Specifying
/// VolumeSources in Workspaces").
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

impl ClaimTemplate {
    /// Whether its claim excludes every other pod that refers to it, and so may not be a volume of the placeholder (V8).
    pub fn is_single_pod(&self) -> bool {
        is_single_pod(&self.template["spec"])
    }
}

/// Whether the `spec` of a claim asks for `ReadWriteOncePod`, which Kubernetes lets no other access mode stand beside.
pub(crate) fn is_single_pod(claim_spec: &Value) -> bool {
    let modes = claim_spec["accessModes"].as_array();
    modes
        .into_iter()
        .flatten()
        .any(|mode| mode == "ReadWriteOncePod")
}

impl PipelineRun {
    /// Reads a PipelineRun from Kubernetes JSON. Unknown fields are tolerated, `null` is the same
    /// as absent.
    ///
    /// # Errors
    /// Every violation at once: a wrong type, a workspace name that occurs twice, an API version or
    /// kind that is set and not `tekton.dev/v1` and `PipelineRun`. The field is the JSON path, such
    /// as `spec.workspaces[1].volumeClaimTemplate`.
    pub fn parse(document: &Value) -> Result<Self, Vec<Violation>> {
        let faults = &mut Vec::new();
        let root = Object::at("", document, faults);
        check_type(&root, faults);
        let metadata = root.object("metadata", faults);
        let spec = root.object("spec", faults);
        let template = spec.object("taskRunTemplate", faults);
        let status = root.object("status", faults);

        let spec_status = owned(spec.text("status", faults));
        let run = Self {
            namespace: owned(metadata.text("namespace", faults)).unwrap_or_default(),
            name: owned(metadata.text("name", faults)).unwrap_or_default(),
            generate_name: owned(metadata.text("generateName", faults)).unwrap_or_default(),
            uid: owned(metadata.text("uid", faults)).unwrap_or_default(),
            resource_version: owned(metadata.text("resourceVersion", faults)).unwrap_or_default(),
            deletion: metadata.text("deletionTimestamp", faults).is_some(),
            labels: metadata.texts("labels", faults),
            annotations: metadata.texts("annotations", faults),
            controller: controller(&metadata, faults),
            managed_by: owned(spec.text("managedBy", faults)),
            state: state(spec_status.as_deref(), &status, faults),
            spec_status,
            workspaces: workspaces(&spec, faults),
            params: spec.get("params").map(Params::read).unwrap_or_default(),
            pipeline_name: owned(spec.object("pipelineRef", faults).text("name", faults)),
            pipeline_tasks: spec
                .get("pipelineSpec")
                .map(pipeline::tasks)
                .unwrap_or_default(),
            task_run_specs: task_run_specs(&spec, faults),
            service_account_name: owned(template.text("serviceAccountName", faults)),
            pod_template: pod_template(&template, faults),
        };
        if faults.is_empty() {
            Ok(run)
        } else {
            Err(std::mem::take(faults))
        }
    }
}

fn owned(text: Option<&str>) -> Option<String> {
    text.map(str::to_owned)
}

fn group_of(api_version: &str) -> &str {
    api_version.split_once('/').map_or("", |(group, _)| group)
}

fn check_type(root: &Object<'_>, faults: &mut Vec<Violation>) {
    let version = root.text("apiVersion", faults);
    if let Some(version) = version.filter(|version| *version != "tekton.dev/v1") {
        let hint = if version == "tekton.dev/v1beta1" {
            "tekton.dev/v1, in which Kubernetes serves v1beta1 objects too"
        } else {
            "tekton.dev/v1"
        };
        faults.push(Violation::new(
            "apiVersion",
            format!("is {version:?}; allowed: {hint}"),
        ));
    }
    let kind = root.text("kind", faults);
    if let Some(kind) = kind.filter(|kind| *kind != "PipelineRun") {
        faults.push(Violation::new(
            "kind",
            format!("is {kind:?}; allowed: PipelineRun"),
        ));
    }
}

fn controller(metadata: &Object<'_>, faults: &mut Vec<Violation>) -> Option<OwnerReference> {
    let mut found = None;
    for owner in metadata.objects("ownerReferences", faults) {
        let reference = OwnerReference {
            api_version: owned(owner.text("apiVersion", faults)).unwrap_or_default(),
            kind: owned(owner.text("kind", faults)).unwrap_or_default(),
            name: owned(owner.text("name", faults)).unwrap_or_default(),
            uid: owned(owner.text("uid", faults)).unwrap_or_default(),
        };
        if owner.flag("controller", faults) {
            found = Some(reference);
        }
    }
    found
}

fn state(spec_status: Option<&str>, status: &Object<'_>, faults: &mut Vec<Violation>) -> RunState {
    let mut done = false;
    for condition in status.objects("conditions", faults) {
        let succeeded = condition.text("type", faults) == Some("Succeeded");
        let decided = matches!(condition.text("status", faults), Some("True" | "False"));
        done |= succeeded && decided;
    }
    if done {
        RunState::Done
    } else if spec_status == Some("PipelineRunPending") {
        RunState::Pending
    } else {
        RunState::Active
    }
}

fn pod_template(template: &Object<'_>, faults: &mut Vec<Violation>) -> Option<Value> {
    template.object("podTemplate", faults);
    template.get("podTemplate").cloned()
}

fn workspaces(spec: &Object<'_>, faults: &mut Vec<Violation>) -> Vec<WorkspaceBinding> {
    let mut names = BTreeSet::new();
    let mut bindings = Vec::new();
    for binding in spec.objects("workspaces", faults) {
        let name = binding.text("name", faults).unwrap_or_default();
        let fault = if name.is_empty() {
            Some("is not set; allowed: the name of a workspace".to_owned())
        } else if !names.insert(name) {
            Some(format!(
                "{name:?} is bound twice; allowed: one binding for each workspace"
            ))
        } else {
            None
        };
        // A name of the wrong type has been reported as such.
        let reported = binding.get("name").is_some_and(|name| !name.is_string());
        faults.extend(
            fault
                .filter(|_| !reported)
                .map(|fault| Violation::new(binding.path("name"), fault)),
        );
        bindings.push(WorkspaceBinding {
            name: name.to_owned(),
            sub_path: owned(binding.text("subPath", faults)),
            source: source(&binding, faults),
        });
    }
    bindings
}

fn task_run_specs(spec: &Object<'_>, faults: &mut Vec<Violation>) -> Vec<TaskRunSpec> {
    spec.objects("taskRunSpecs", faults)
        .into_iter()
        .map(|item| TaskRunSpec {
            pipeline_task_name: owned(item.text("pipelineTaskName", faults)).unwrap_or_default(),
            annotations: item.object("metadata", faults).texts("annotations", faults),
        })
        .collect()
}

fn source(binding: &Object<'_>, faults: &mut Vec<Violation>) -> WorkspaceSource {
    let named: Vec<&str> = SOURCES
        .into_iter()
        .filter(|key| binding.get(key).is_some())
        .collect();
    if named.len() > 1 {
        // Replacing one of them would make a binding Tekton refuses into one it takes.
        let description = format!(
            "has {}; allowed: exactly one volume source",
            named.join(" and ")
        );
        faults.push(Violation::new(binding.own_path(), description));
    }
    if let Some(template) = binding.get(VOLUME_CLAIM_TEMPLATE) {
        let parts = Parts::read(binding.path(VOLUME_CLAIM_TEMPLATE), template, faults);
        WorkspaceSource::ClaimTemplate(ClaimTemplate {
            name: parts.name,
            template: template.clone(),
        })
    } else if binding.get(PERSISTENT_VOLUME_CLAIM).is_some() {
        let claim = binding.object(PERSISTENT_VOLUME_CLAIM, faults);
        WorkspaceSource::Claim {
            claim_name: owned(claim.text("claimName", faults)).unwrap_or_default(),
        }
    } else {
        WorkspaceSource::Other
    }
}

#[cfg(test)]
mod tests;
