//! The parts of a PipelineRun that decisions depend on, read from Kubernetes JSON. Everything else is ignored.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::claim_template::Parts;
use crate::document::{Faults, Object};
use crate::params::Params;
use crate::pipeline::{self, PipelineTask};
use crate::sizes::PodSettings;
use crate::violation::Violation;

/// The parts of a PipelineRun that decisions depend on.
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
    /// The controller among `metadata.ownerReferences`: the parent, if the run is a child of another run.
    pub controller: Option<OwnerReference>,
    /// `spec.managedBy`. `None` and `tekton.dev/pipeline` mean Tekton (M5).
    pub managed_by: Option<String>,
    /// `spec.workspaces`, in order.
    pub workspaces: Vec<WorkspaceBinding>,
    /// `spec.params`. The defaults of a Pipeline's parameters do not count (V9, [`params`](crate::params)).
    pub params: Params,
    /// `spec.pipelineRef.name`: the Pipeline in the run's namespace.
    pub pipeline_name: Option<String>,
    /// The tasks of `spec.pipelineSpec`; empty where the Pipeline is not embedded.
    pub pipeline_tasks: Vec<PipelineTask>,
    /// `spec.taskRunSpecs`.
    pub task_run_specs: Vec<TaskRunSpec>,
    /// `spec.taskRunTemplate.serviceAccountName`.
    pub service_account_name: Option<String>,
    /// `spec.taskRunTemplate.podTemplate`, an object.
    pub pod_template: Option<Value>,
    /// Whether the run is pending, active or done.
    pub state: RunState,
    /// The TaskRuns among `status.childReferences`, by name, with their tasks.
    pub task_runs: BTreeMap<String, String>,
    /// The tasks among `status.skippedTasks`.
    pub skipped_tasks: Vec<String>,
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
    /// Whether the owner is a PipelineRun of Tekton, in any API version.
    pub fn is_pipeline_run(&self) -> bool {
        self.kind == "PipelineRun" && self.api_version.starts_with("tekton.dev/")
    }
}

/// The progress of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RunState {
    /// `spec.status` is `PipelineRunPending`: it has not started (P9).
    Pending,
    /// Neither pending nor done.
    #[default]
    Active,
    /// Condition `Succeeded` is `True` or `False`: completed, failed, cancelled, stopped or timed out (P6).
    Done,
}

/// The author's settings for the TaskRuns of one task.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TaskRunSpec {
    /// `pipelineTaskName`.
    pub task: String,
    /// `metadata.annotations`; Tekton lets them win over the run's own.
    pub annotations: BTreeMap<String, String>,
    /// The settings of its pods.
    pub pods: PodSettings,
}

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

/// A workspace binding has exactly one of these (Tekton, "Specifying VolumeSources in Workspaces").
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
    /// `persistentVolumeClaim.claimName`; `None` for every other source.
    pub(crate) fn claim_name(&self) -> Option<&String> {
        match self {
            Self::Claim { claim_name } => Some(claim_name),
            Self::ClaimTemplate(_) | Self::Other => None,
        }
    }
}

impl ClaimTemplate {
    /// Whether only one pod at a time may use the claim, so that the placeholder may not mount it (V8).
    pub fn is_single_pod(&self) -> bool {
        is_single_pod(&self.template["spec"])
    }
}

/// Whether the `spec` of a claim asks for `ReadWriteOncePod`. Kubernetes allows no other access mode beside it.
pub(crate) fn is_single_pod(claim_spec: &Value) -> bool {
    let modes = claim_spec["accessModes"].as_array();
    modes
        .into_iter()
        .flatten()
        .any(|mode| mode == "ReadWriteOncePod")
}

impl PipelineRun {
    /// Reads a PipelineRun from Kubernetes JSON. Unknown fields are ignored, and `null` is the same as absent.
    ///
    /// # Errors
    /// Every violation at once: a wrong type, a workspace that is bound twice, an API version or kind that is set and not
    /// `tekton.dev/v1` and `PipelineRun`. The field is the JSON path, such as `spec.workspaces[1].volumeClaimTemplate`.
    pub fn parse(document: &Value) -> Result<Self, Vec<Violation>> {
        let faults = Faults::default();
        let run = Self::read(&Object::at("", document, &faults), &faults);
        faults.unless_any(run)
    }

    fn read(root: &Object<'_>, faults: &Faults) -> Self {
        check_type(root, faults);
        let metadata = root.object("metadata");
        let spec = root.object("spec");
        let status = root.object("status");
        let template = spec.object("taskRunTemplate");
        let _ = template.object("podTemplate");
        let task_run_specs = spec.objects("taskRunSpecs");
        let tasks = spec.get("pipelineSpec").map(pipeline::tasks);
        Self {
            namespace: metadata.string("namespace"),
            name: metadata.string("name"),
            generate_name: metadata.string("generateName"),
            uid: metadata.string("uid"),
            resource_version: metadata.string("resourceVersion"),
            deletion: metadata.text("deletionTimestamp").is_some(),
            labels: metadata.texts("labels"),
            annotations: metadata.texts("annotations"),
            controller: controller(&metadata),
            managed_by: spec.text("managedBy").map(str::to_owned),
            state: state(spec.text("status"), &status),
            task_runs: task_runs(&status),
            skipped_tasks: status
                .objects("skippedTasks")
                .iter()
                .map(|task| task.string("name"))
                .collect(),
            workspaces: workspaces(&spec, faults),
            params: spec.get("params").map(Params::read).unwrap_or_default(),
            pipeline_name: spec.object("pipelineRef").text("name").map(str::to_owned),
            pipeline_tasks: tasks.unwrap_or_default(),
            task_run_specs: task_run_specs
                .iter()
                .map(|item| TaskRunSpec {
                    task: item.string("pipelineTaskName"),
                    annotations: item.object("metadata").texts("annotations"),
                    pods: PodSettings::read(item),
                })
                .collect(),
            service_account_name: template.text("serviceAccountName").map(str::to_owned),
            pod_template: template.get("podTemplate").cloned(),
        }
    }
}

fn check_type(root: &Object<'_>, faults: &Faults) {
    for (field, expected) in [("apiVersion", "tekton.dev/v1"), ("kind", "PipelineRun")] {
        if let Some(found) = root.text(field).filter(|found| *found != expected) {
            let hint = match found {
                "tekton.dev/v1beta1" => ", in which Kubernetes serves v1beta1 objects too",
                _ => "",
            };
            faults.add(field, format!("is {found:?}; allowed: {expected}{hint}"));
        }
    }
}

fn controller(metadata: &Object<'_>) -> Option<OwnerReference> {
    let owners = metadata.objects("ownerReferences");
    let controller = owners.iter().find(|owner| owner.flag("controller"));
    controller.map(|owner| OwnerReference {
        api_version: owner.string("apiVersion"),
        kind: owner.string("kind"),
        name: owner.string("name"),
        uid: owner.string("uid"),
    })
}

fn state(spec_status: Option<&str>, status: &Object<'_>) -> RunState {
    let is_done = |condition: &Object<'_>| {
        let decided = matches!(condition.text("status"), Some("True" | "False"));
        condition.text("type") == Some("Succeeded") && decided
    };
    // Each condition is read, so that each wrong type is reported.
    if status
        .objects("conditions")
        .iter()
        .filter(|it| is_done(it))
        .count()
        > 0
    {
        RunState::Done
    } else if spec_status == Some("PipelineRunPending") {
        RunState::Pending
    } else {
        RunState::Active
    }
}

fn task_runs(status: &Object<'_>) -> BTreeMap<String, String> {
    let children = status.objects("childReferences");
    let children = children.iter();
    let task_runs = children.filter(|child| child.text("kind") == Some("TaskRun"));
    task_runs
        .map(|child| (child.string("name"), child.string("pipelineTaskName")))
        .collect()
}

fn workspaces(spec: &Object<'_>, faults: &Faults) -> Vec<WorkspaceBinding> {
    let mut names = BTreeSet::new();
    let mut bindings = Vec::new();
    for binding in spec.objects("workspaces") {
        let name = binding.string("name");
        // A name of the wrong type has been reported as such.
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
        // Tekton refuses such a binding. If one source were replaced, Tekton would take it.
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

#[cfg(test)]
mod tests;
