//! The parts of a PipelineRun that decisions depend on, read from Kubernetes JSON. Other parts are ignored.

mod workspaces;

use std::collections::BTreeMap;

use serde_json::Value;

use crate::annotations::{BLOCKED, MODE, PART_OF, TEKTON_AUTO_CLEANUP_PVC, TRACEPARENT};
use crate::document::{Faults, Object};
use crate::params::Params;
use crate::pipeline::{self, PipelineTask};
use crate::sizes::PodSettings;
use crate::subsets::node_selector;
use crate::violation::Violation;

use workspaces::workspaces;

pub(crate) use workspaces::is_single_pod;
pub use workspaces::{ClaimTemplate, WorkspaceBinding, WorkspaceSource};

/// The parts of a PipelineRun that decisions depend on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PipelineRun {
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`. It may be empty while the run is being created.
    pub name: String,
    /// `metadata.generateName`. Empty if it is not set.
    pub generate_name: String,
    /// `metadata.uid`. Empty while the run is being created.
    pub uid: String,
    /// `metadata.resourceVersion`. Empty while the run is being created.
    pub resource_version: String,
    /// True if `metadata.deletionTimestamp` is set.
    pub deletion: bool,
    /// `metadata.labels`.
    pub labels: BTreeMap<String, String>,
    /// `metadata.annotations`.
    pub annotations: BTreeMap<String, String>,
    /// The owner with `controller: true` in `metadata.ownerReferences`. For a child run, it is the parent.
    pub controller: Option<OwnerReference>,
    /// `spec.managedBy`. Tekton manages a run with `None` or `tekton.dev/pipeline` (M5).
    pub managed_by: Option<String>,
    /// `spec.workspaces`, in order.
    pub workspaces: Vec<WorkspaceBinding>,
    /// `spec.params`.
    pub params: Params,
    /// The defaults of the Pipeline's parameters (V9). `None` if the run has neither `spec.pipelineSpec` nor
    /// `status.pipelineSpec`.
    pub defaults: Option<Params>,
    /// `spec.pipelineRef.name`: a Pipeline in the run's namespace.
    pub pipeline_name: Option<String>,
    /// True if a resolver fetches the Pipeline: `spec.pipelineRef` names a resolver or an address, or names nothing. If it names
    /// nothing, Tekton uses its default resolver.
    pub has_resolver: bool,
    /// The tasks of `spec.pipelineSpec`, or else of `status.pipelineSpec`, where Tekton stores the Pipeline. Empty if the run has
    /// neither.
    pub pipeline_tasks: Vec<PipelineTask>,
    /// `spec.taskRunSpecs`.
    pub task_run_specs: Vec<TaskRunSpec>,
    /// `spec.taskRunTemplate.serviceAccountName`.
    pub service_account_name: Option<String>,
    /// `spec.taskRunTemplate.podTemplate`.
    pub pod_template: Option<Value>,
    /// The progress of the run.
    pub state: RunState,
    /// True if Tekton has created the first child: `status.childReferences` is not empty.
    pub has_begun: bool,
    /// The TaskRuns in `status.childReferences`. The key is the TaskRun's name, and the value is the name of its task.
    pub task_runs: BTreeMap<String, String>,
    /// The names of the tasks in `status.skippedTasks`.
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
    /// The reference to this PipelineRun.
    pub fn to_pipeline_run(run: &PipelineRun) -> Self {
        Self {
            api_version: "tekton.dev/v1".to_owned(),
            kind: "PipelineRun".to_owned(),
            name: run.name.clone(),
            uid: run.uid.clone(),
        }
    }

    /// True if the owner is a PipelineRun of Tekton, in any API version.
    pub fn is_pipeline_run(&self) -> bool {
        self.kind == "PipelineRun" && self.api_version.starts_with("tekton.dev/")
    }
}

/// The progress of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RunState {
    /// The run has not started, because `spec.status` is `PipelineRunPending` (P9).
    Pending,
    /// The run is neither pending nor done.
    #[default]
    Active,
    /// Condition `Succeeded` is `True` or `False`: the run completed, failed, timed out, or was cancelled or stopped (P6).
    Done,
}

/// The author's settings for the TaskRuns of one task.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TaskRunSpec {
    /// `pipelineTaskName`.
    pub task: String,
    /// `metadata.annotations`. Tekton prefers these annotations to the run's own.
    pub annotations: BTreeMap<String, String>,
    /// The settings of the task's pods.
    pub pods: PodSettings,
    /// `podTemplate.nodeSelector`.
    pub node_selector: Option<BTreeMap<String, String>>,
    /// `podTemplate.tolerations`.
    pub tolerations: Option<Vec<Value>>,
}

/// The annotations that this product may read after a run is done.
const OF_DONE_RUN: [&str; 5] = [BLOCKED, MODE, PART_OF, TEKTON_AUTO_CLEANUP_PVC, TRACEPARENT];

impl PipelineRun {
    /// Reads a PipelineRun from Kubernetes JSON. Unknown fields are ignored, and `null` is the same as absent.
    ///
    /// # Errors
    /// All violations at once. The field of a violation is the JSON path, such as `spec.workspaces[1].volumeClaimTemplate`. These
    /// are violations:
    ///
    /// - a value of a wrong type;
    /// - a workspace that has no name, has more than one volume source, or is bound twice;
    /// - a `volumeClaimTemplate` without a valid `spec`;
    /// - an API version other than `tekton.dev/v1`, or a kind other than `PipelineRun`.
    pub fn parse(document: &Value) -> Result<Self, Vec<Violation>> {
        let faults = Faults::default();
        let run = Self::read(&Object::at("", document, &faults), &faults);
        faults.unless_any(run)
    }

    /// Drops the parts of a run that this product does not read once the run is done, because caches may have thousands of such
    /// runs.
    pub fn reduced(self) -> Self {
        let mut annotations = self.annotations;
        annotations.retain(|key, _| OF_DONE_RUN.contains(&key.as_str()));
        let templates = |mut binding: WorkspaceBinding| match &mut binding.source {
            WorkspaceSource::ClaimTemplate(claim) => {
                claim.template = Value::Null;
                Some(binding)
            }
            WorkspaceSource::Claim { .. } | WorkspaceSource::Other => None,
        };
        let mut workspaces: Vec<_> = self.workspaces.into_iter().filter_map(templates).collect();
        // `collect` may reuse the memory of the longer source list.
        workspaces.shrink_to_fit();
        Self {
            namespace: self.namespace,
            name: self.name,
            uid: self.uid,
            resource_version: self.resource_version,
            deletion: self.deletion,
            annotations,
            controller: self.controller,
            workspaces,
            state: self.state,
            ..Self::default()
        }
    }

    fn read(root: &Object<'_>, faults: &Faults) -> Self {
        check_type(root, faults);
        let metadata = root.object("metadata");
        let spec = root.object("spec");
        let status = root.object("status");
        let template = spec.object("taskRunTemplate");
        let _ = template.object("podTemplate");
        let task_run_specs = spec.objects("taskRunSpecs");
        let pipeline = spec
            .get("pipelineSpec")
            .or_else(|| status.get("pipelineSpec"));
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
            has_begun: !status.objects("childReferences").is_empty(),
            task_runs: task_runs(&status),
            skipped_tasks: status
                .objects("skippedTasks")
                .iter()
                .map(|task| task.string("name"))
                .collect(),
            workspaces: workspaces(&spec, faults),
            params: spec.get("params").map(Params::read).unwrap_or_default(),
            pipeline_name: spec.object("pipelineRef").text("name").map(str::to_owned),
            has_resolver: has_resolver(&spec),
            defaults: pipeline.map(|pipeline| Params::defaults(&pipeline["params"])),
            pipeline_tasks: pipeline.map(pipeline::tasks).unwrap_or_default(),
            task_run_specs: task_run_specs.iter().map(task_run_spec).collect(),
            service_account_name: template.text("serviceAccountName").map(str::to_owned),
            pod_template: template.get("podTemplate").cloned(),
        }
    }
}

fn has_resolver(spec: &Object<'_>) -> bool {
    let reference = spec.object("pipelineRef");
    let is_local = |name: &str| !name.is_empty() && !name.contains("://");
    let names_local = reference.text("name").is_some_and(is_local);
    spec.get("pipelineRef").is_some() && (reference.text("resolver").is_some() || !names_local)
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
    // This code reads every condition, so that a wrong type in any condition is reported.
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

fn task_run_spec(item: &Object<'_>) -> TaskRunSpec {
    let template = item.get("podTemplate").unwrap_or(&Value::Null);
    TaskRunSpec {
        task: item.string("pipelineTaskName"),
        annotations: item.object("metadata").texts("annotations"),
        pods: PodSettings::read(item),
        node_selector: template.get("nodeSelector").map(node_selector),
        tolerations: template["tolerations"].as_array().cloned(),
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

#[cfg(test)]
mod tests;
