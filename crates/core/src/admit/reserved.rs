//! Finds and removes *reserved* annotations: annotations that only tekton-coscheduler may write. An author may have written them
//! in the run's metadata, or in the metadata of an item of `spec.taskRunSpecs`. Tekton prefers the annotations of such an item to
//! the annotations of the run.

use std::collections::BTreeMap;

use crate::annotations::{PREFIX, RESERVED};
use crate::overrides::Setting;
use crate::pipeline_run::PipelineRun;

use super::{Admission, TaskAnnotation, warnings};

/// An admission that only removes annotations: from the run's metadata, the reserved annotations for which `unwanted` is true;
/// from `spec.taskRunSpecs`, all reserved annotations.
pub(super) fn without(run: &PipelineRun, unwanted: impl Fn(&str) -> bool) -> Admission {
    Admission {
        remove_annotations: present(&run.annotations, unwanted),
        remove_task_annotations: of_tasks(run),
        ..Admission::default()
    }
}

/// Warnings about reserved annotations, and about unknown annotations with our prefix, which may be typing errors. If the run is
/// a copy of another run, there is no warning about reserved annotations in its metadata.
pub(super) fn warnings(run: &PipelineRun, is_copy: bool) -> Vec<String> {
    let mut warnings = in_tasks(run);
    let keys = present(&run.annotations, |_| true);
    if !keys.is_empty() && !is_copy {
        warnings.push(warnings::reserved(&keys));
    }
    let unknown = run.annotations.keys().filter(|key| {
        let is_choice = Setting::ALL.iter().any(|it| it.annotation() == *key);
        key.starts_with(PREFIX) && !is_choice && !RESERVED.contains(&key.as_str())
    });
    warnings.extend(unknown.map(|key| warnings::unknown_annotation(key)));
    warnings
}

/// All reserved annotations in `spec.taskRunSpecs`.
pub(crate) fn of_tasks(run: &PipelineRun) -> Vec<TaskAnnotation> {
    let specs = run.task_run_specs.iter().enumerate();
    specs
        .flat_map(|(index, spec)| {
            let keys = present(&spec.annotations, |_| true).into_iter();
            keys.map(move |key| TaskAnnotation { index, key })
        })
        .collect()
}

/// A warning for each annotation of [`of_tasks`].
pub(crate) fn in_tasks(run: &PipelineRun) -> Vec<String> {
    let annotations = of_tasks(run);
    annotations.iter().map(warnings::reserved_in_task).collect()
}

/// The keys of the reserved annotations in `annotations` for which `unwanted` is true.
pub(crate) fn present(
    annotations: &BTreeMap<String, String>,
    unwanted: impl Fn(&str) -> bool,
) -> Vec<String> {
    let reserved = RESERVED.into_iter();
    reserved
        .filter(|key| annotations.contains_key(*key) && unwanted(key))
        .map(str::to_owned)
        .collect()
}
