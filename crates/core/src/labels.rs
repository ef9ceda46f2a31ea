//! The labels of placeholders and claims, and the labels of pods and nodes that other rules name. Function `with_owner` in
//! folder `placeholder` of crate `kubernetes` adds two labels to those of `of_placeholder`: the run's uid and [`MANAGED_BY`]. A
//! placeholder that Tekton created keeps its labels, and also gets these two, except a label that is in its selector
//! (`placeholder/adopt.rs` of the same crate). `plan/claims.rs` combines the labels of a claim with those in its author's
//! template.

use std::collections::BTreeMap;

use crate::names::{AssistantName, label_value};
use crate::pipeline_run::PipelineRun;

/// The kind of component. Placeholders, and the claims that are created for them, have the value [`AFFINITY_ASSISTANT`].
pub const COMPONENT: &str = "app.kubernetes.io/component";

/// The name of the placeholder.
pub const INSTANCE: &str = "app.kubernetes.io/instance";

/// The name of the Pipeline, shortened by [`names::label_value`](crate::names::label_value). Tekton sets this label on a run
/// shortly after the run was created (Tekton v1.12.0, `pkg/reconciler/pipelinerun/pipelinerun.go`,
/// `propagatePipelineNameLabelToPipelineRun`).
pub const PIPELINE: &str = "tekton.dev/pipeline";

/// The name of the PipelineRun, shortened by [`names::label_value`](crate::names::label_value).
pub const PIPELINE_RUN: &str = "tekton.dev/pipelineRun";

/// The name of the workspace that uses a claim, shortened by [`names::label_value`](crate::names::label_value).
pub const WORKSPACE: &str = "tekton.dev/workspace";

/// The run's uid. Tekton sets this label on TaskRuns and their pods (Tekton v1.12.0, `pkg/apis/pipeline/register.go`). This
/// product sets the label on placeholders and their pods, and on the claims that it creates.
pub const PIPELINE_RUN_UID: &str = "tekton.dev/pipelineRunUID";

/// The tool that manages an object.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";

/// The value of [`MANAGED_BY`] on all placeholders and claims that this product creates. If a run has this label value, Tekton
/// copies it to its own affinity assistants too.
pub const TEKTON_COSCHEDULER: &str = "tekton-coscheduler";

/// The value of [`COMPONENT`] (TEP-0135, "Placeholder pod + inter-pod affinity").
pub const AFFINITY_ASSISTANT: &str = "affinity-assistant";

/// The prefix of Kueue's labels. With some of these labels, Kueue keeps a pod from being scheduled, so placeholders copy none of
/// them (P1).
pub const KUEUE_PREFIX: &str = "kueue.x-k8s.io/";

/// The name of the TaskRun. Tekton sets this label on the pod of each TaskRun (Tekton v1.12.0, `pkg/pod/pod.go`, `makeLabels`).
/// So a pod with this label is never a placeholder's pod.
pub const TASK_RUN: &str = "tekton.dev/taskRun";

/// A label of nodes. A placeholder and the pods with an affinity to it run on nodes with the same value of this label.
pub const HOSTNAME: &str = "kubernetes.io/hostname";

/// The labels of a placeholder: the run's, and ours.
pub(crate) fn of_placeholder(run: &PipelineRun, name: &AssistantName) -> BTreeMap<String, String> {
    let mut labels = inherited(&run.labels);
    labels.extend(pipeline(run));
    let ours = [
        (COMPONENT, AFFINITY_ASSISTANT.to_owned()),
        (INSTANCE, name.to_string()),
        (PIPELINE_RUN, label_value(&run.name)),
    ];
    labels.extend(ours.map(|(key, value)| (key.to_owned(), value)));
    labels
}

/// Label [`PIPELINE`] as Tekton has set it, or will set it, on a run (V4). The value is the name of the Pipeline. If the run
/// embeds its Pipeline, the value is the name of the run. `None` if a resolver fetches the Pipeline and Tekton has not labelled
/// the run yet: the name is then unknown, and the placeholder must not wait for the name.
pub(crate) fn pipeline(run: &PipelineRun) -> Option<(String, String)> {
    let name = run.pipeline_name.as_ref().filter(|name| !name.is_empty());
    let later = || label_value(name.unwrap_or(&run.name));
    let known = run.labels.get(PIPELINE).cloned();
    let value = known.or_else(|| (!run.has_resolver).then(later))?;
    Some((PIPELINE.to_owned(), value))
}

/// The labels that a placeholder copies from its run (P1): all except Kueue's and [`TASK_RUN`].
pub(crate) fn inherited(run: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    run.iter()
        .filter(|(key, _)| !key.starts_with(KUEUE_PREFIX) && *key != TASK_RUN)
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}
