//! Annotations that admission alone may write and that somebody else wrote: in the run's own metadata, or in that of
//! single tasks, where they would win over the run's.

use std::collections::BTreeMap;

use crate::annotations::{OVERRIDE, PREFIX, RESERVED};
use crate::pipeline_run::PipelineRun;

use super::TaskAnnotation;
use super::copied::Copied;

/// Warnings about pinned annotations the author wrote, copies of another run excepted, and about keys of ours that there
/// are none of: a typing error would choose nothing.
pub(super) fn forged(run: &PipelineRun, copied: &Copied) -> Vec<String> {
    let mut warnings = forged_in_tasks(run);
    let keys = present(&run.annotations, |_| true);
    if !keys.is_empty() && !copied.is_one() {
        warnings.push(format!(
            "ignored what was given for {}: admission alone writes it",
            keys.join(", ")
        ));
    }
    let unknown = run.annotations.keys().filter(|key| {
        key.starts_with(PREFIX) && *key != OVERRIDE && !RESERVED.contains(&key.as_str())
    });
    warnings.extend(unknown.map(|key| {
        format!("annotation {key} has no effect; of {PREFIX}* authors write {OVERRIDE} alone")
    }));
    warnings
}

/// The pinned annotations that the author gave single tasks.
pub(crate) fn of_tasks(run: &PipelineRun) -> Vec<TaskAnnotation> {
    let specs = run.task_run_specs.iter().enumerate();
    specs
        .flat_map(|(index, spec)| {
            let keys = present(&spec.annotations, |_| true);
            keys.into_iter()
                .map(move |key| TaskAnnotation { index, key })
        })
        .collect()
}

/// A warning for each annotation of [`of_tasks`].
pub(crate) fn forged_in_tasks(run: &PipelineRun) -> Vec<String> {
    of_tasks(run)
        .into_iter()
        .map(|TaskAnnotation { index, key }| {
            format!(
                "ignored spec.taskRunSpecs[{index}].metadata.annotations[{key}]: admission alone writes it"
            )
        })
        .collect()
}

/// The pinned annotations that are there and that `unwanted` names.
pub(crate) fn present(
    annotations: &BTreeMap<String, String>,
    unwanted: impl Fn(&str) -> bool,
) -> Vec<String> {
    RESERVED
        .into_iter()
        .filter(|key| annotations.contains_key(*key) && unwanted(key))
        .map(str::to_owned)
        .collect()
}
