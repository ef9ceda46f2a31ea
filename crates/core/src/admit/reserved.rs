//! Finds and removes reserved annotations that an author wrote. Only tekton-coscheduler may write them. They can be in the
//! run's metadata, and in the metadata of single tasks, where Tekton prefers them to the run's.

use std::collections::BTreeMap;

use crate::annotations::{OVERRIDE, PREFIX, RESERVED};
use crate::pipeline_run::PipelineRun;

use super::{Admission, TaskAnnotation, warnings};

/// An admission that removes the reserved annotations of a run that `unwanted` names, and all of its single tasks.
pub(super) fn without(run: &PipelineRun, unwanted: impl Fn(&str) -> bool) -> Admission {
    Admission {
        remove_annotations: present(&run.annotations, unwanted),
        remove_task_annotations: of_tasks(run),
        ..Admission::default()
    }
}

/// Warnings about reserved annotations, unless they came with a copy of another run, and about unknown annotations with our
/// prefix: a typing error would choose nothing.
pub(super) fn warnings(run: &PipelineRun, is_copy: bool) -> Vec<String> {
    let mut warnings = in_tasks(run);
    let keys = present(&run.annotations, |_| true);
    if !keys.is_empty() && !is_copy {
        warnings.push(warnings::reserved(&keys));
    }
    let unknown = run.annotations.keys().filter(|key| {
        key.starts_with(PREFIX) && *key != OVERRIDE && !RESERVED.contains(&key.as_str())
    });
    warnings.extend(unknown.map(|key| warnings::unknown_annotation(key)));
    warnings
}

/// The reserved annotations of single tasks.
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

/// The reserved annotations that are there and that `unwanted` names.
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
