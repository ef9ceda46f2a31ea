//! The sizes of a run: the requests of each task's pods, and the order of the tasks (B3). Admission estimates the sizes when the
//! run is created, and pins them. They only determine the requests of placeholders. The pods of the tasks are never changed.
//!
//! Some things are not known when the run is created: Tasks and Pipelines that a resolver fetches, child Pipelines, the number of
//! pods of a task whose matrix uses results, and whether a task with `when` will run.

pub mod catalog;
mod peak;
mod pod;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use crate::admit::Admission;
use crate::annotations::{MODE, SIZES, field};
use crate::document::{Faults, Object};
use crate::mode::Mode;
use crate::pipeline::{PipelineTask, Work};
use crate::pipeline_run::PipelineRun;
use crate::quantity::Quantity;
use crate::requests::{self, Amounts, ResourceList, in_words};
use crate::subsets::{self, Subsets};
use crate::violation::Violation;

pub use catalog::Catalog;
pub use peak::{Demand, Progress};
pub use pod::{PodSettings, TaskSpec, resource_list};

/// The greatest length of the annotation. Kubernetes allows 256 KiB for all annotations of an object together.
const LONGEST: usize = 64 << 10;

/// The greatest number of pods of one task that the sizes can have. By default, Tekton allows 256 combinations of a matrix.
const MOST_PODS: u32 = 100_000;

/// The sizes of a run's tasks. The key is the task's name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sizes(pub BTreeMap<String, TaskSize>);

/// The size of a task.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TaskSize {
    /// The requests of one pod of the task. `None` if the requests are not known, or if they must not count. They must not count
    /// if the task has `when`, or if `taskRunSpecs` gives it an affinity, or a node selector that the placeholder does not have.
    pub requests: Option<Amounts>,
    /// The number of pods of the task: one, or one for each combination of its matrix.
    pub pods: u32,
    /// The tasks that this task waits for. All of them belong to the same run.
    pub after: BTreeSet<String>,
    /// True if it is a task of `finally`. Such a task waits for all tasks outside `finally`.
    pub finally: bool,
    /// True if it is a custom task. Tekton creates no pod for it, and the task may wait for a person's approval.
    pub custom: bool,
    /// The run's workspaces that the task uses. In [`Mode::Workspaces`], their claims show which placeholder serves the task. In
    /// other modes, they show which tasks must run on a node that reaches these claims.
    pub workspaces: BTreeSet<String>,
}

/// The sizes of a run's tasks. `catalog` has the Pipeline, Tasks and LimitRanges that the estimate needs. Without `catalog`, the
/// requests of all tasks are `None`.
pub fn of_run(run: &PipelineRun, mode: Mode, catalog: Option<&Catalog>) -> Sizes {
    let tasks = tasks(run, catalog);
    let subsets = subsets::of_run(run, mode, catalog);
    let names: BTreeSet<_> = tasks.iter().map(|task| &task.name).collect();
    let sizes = tasks.iter().map(|task| {
        let pods = task.matrix.combinations(&run.params);
        let size = TaskSize {
            requests: catalog.and_then(|catalog| request(run, task, &subsets, catalog)),
            pods: u32::try_from(pods).map_or(MOST_PODS, |pods| pods.min(MOST_PODS)),
            after: (task.after.iter())
                .filter(|name| names.contains(name) && **name != task.name)
                .cloned()
                .collect(),
            finally: task.finally,
            custom: task.work == Work::Custom,
            workspaces: task.workspaces.clone(),
        };
        (task.name.clone(), size)
    });
    Sizes(sizes.collect())
}

/// The tasks of the run's Pipeline. Empty if the Pipeline is not known.
pub(crate) fn tasks<'a>(run: &'a PipelineRun, catalog: Option<&'a Catalog>) -> &'a [PipelineTask] {
    match catalog {
        Some(catalog) if run.pipeline_tasks.is_empty() => &catalog.pipeline,
        Some(_) | None => &run.pipeline_tasks,
    }
}

fn request(
    run: &PipelineRun,
    task: &PipelineTask,
    subsets: &Subsets,
    catalog: &Catalog,
) -> Option<Amounts> {
    let spec = match &task.work {
        Work::Embedded(spec) => spec,
        Work::Task(name) => catalog.tasks.get(name)?,
        Work::Custom | Work::Pipeline | Work::Elsewhere => return None,
    };
    // If several items name the task, Tekton uses the last one (`pkg/apis/pipeline/v1/pipelinerun_types.go`, `GetTaskRunSpec`).
    let mut settings = run.task_run_specs.iter();
    let settings = settings.rfind(|settings| settings.task == task.name);
    let subset = subsets.get(subsets::of_task(subsets, &task.name));
    let selector = settings.and_then(|settings| settings.node_selector.as_ref());
    // If the placeholder of the task's subset has the same node selector, the selector does not count here.
    let is_selected = selector.is_some() && selector != subset.map(|it| &it.node_selector);
    let settings = settings
        .map(|settings| settings.pods.clone())
        .unwrap_or_default();
    // The placeholder must not wait for room for a task that may be skipped, or that needs other nodes than the run's other
    // tasks.
    if is_selected || settings.has_affinity || task.is_conditional {
        return None;
    }
    let template = run.pod_template.as_ref();
    let runtime_class = template.and_then(|template| template["runtimeClassName"].as_str());
    Some(pod::requests(spec, &settings, runtime_class, catalog))
}

/// The names of the Tasks in the run's namespace to which these tasks refer.
pub fn named_tasks(tasks: &[PipelineTask]) -> BTreeSet<&str> {
    let names = tasks.iter().filter_map(|task| match &task.work {
        Work::Task(name) => Some(name.as_str()),
        Work::Embedded(_) | Work::Custom | Work::Pipeline | Work::Elsewhere => None,
    });
    names.collect()
}

/// Pins the sizes on a new run, if `admission` coschedules the run. If the annotation would be longer than 64 KiB, its value is
/// an object without tasks.
pub fn pin(admission: &mut Admission, run: &PipelineRun, catalog: Option<&Catalog>) {
    let mode = admission.set_annotations.get(MODE);
    let Some(mode) = mode.and_then(|mode| mode.parse().ok()) else {
        return;
    };
    let mut text = of_run(run, mode, catalog).to_annotation();
    if text.len() > LONGEST {
        text = Sizes::default().to_annotation();
    }
    admission.remove_annotations.retain(|key| key != SIZES);
    admission.set_annotations.insert(SIZES.to_owned(), text);
}

impl Sizes {
    /// Reads the sizes pinned on a run. If there is no annotation, no size is known.
    ///
    /// # Errors
    /// All violations at once. The field of a violation is, for example,
    /// `metadata.annotations[coscheduler.dev/sizes].build.requests[cpu]`.
    pub fn read(annotations: &BTreeMap<String, String>) -> Result<Self, Vec<Violation>> {
        let Some(text) = annotations.get(SIZES) else {
            return Ok(Self::default());
        };
        let value: Value = serde_json::from_str(text).map_err(|error| {
            let fault = format!("{error}; allowed: JSON, an object of sizes by task");
            vec![Violation::new(field(SIZES), fault)]
        })?;
        let faults = Faults::default();
        let sizes = Object::at(field(SIZES), &value, &faults);
        let names = value.as_object().into_iter().flat_map(Map::keys);
        let read = names.map(|name| {
            let task = sizes.object(name);
            (name.clone(), read(&task, &value, &faults))
        });
        let read = Self(read.collect());
        faults.unless_any(read)
    }

    fn to_annotation(&self) -> String {
        let tasks = self
            .0
            .iter()
            .map(|(name, size)| (name.clone(), write(size)));
        Value::Object(tasks.collect()).to_string()
    }
}

/// A task as JSON. Fields with their usual values are left out.
fn write(size: &TaskSize) -> Value {
    let TaskSize {
        requests,
        pods,
        after,
        finally,
        custom,
        workspaces,
    } = size;
    let requests = requests.as_ref().map(|requests| {
        let amounts = requests.resources();
        let amounts =
            amounts.map(|(name, amount)| (name.to_owned(), in_words(name, amount).into()));
        Value::Object(amounts.collect())
    });
    let fields = [
        ("requests", requests),
        ("pods", (*pods != 1).then(|| json!(pods))),
        ("after", (!after.is_empty()).then(|| json!(after))),
        ("finally", finally.then(|| json!(true))),
        ("custom", custom.then(|| json!(true))),
        (
            "workspaces",
            (!workspaces.is_empty()).then(|| json!(workspaces)),
        ),
    ];
    let fields = fields.into_iter();
    fields
        .filter_map(|(key, value)| Some((key.to_owned(), value?)))
        .collect()
}

fn read(task: &Object<'_>, tasks: &Value, faults: &Faults) -> TaskSize {
    let texts = |key: &str, is_allowed: &dyn Fn(&str) -> bool, allowed: &str| {
        let mut read = BTreeSet::new();
        for (path, item) in task.items(key) {
            match item.as_str().filter(|text| is_allowed(text)) {
                Some(text) => drop(read.insert(text.to_owned())),
                None => faults.add(path, format!("is {item}; allowed: {allowed}")),
            }
        }
        read
    };
    let is_task = |name: &str| tasks.get(name).is_some();
    TaskSize {
        requests: task.get("requests").map(|_| amounts(task, faults)),
        pods: task
            .get("pods")
            .map_or(1, |pods| pods_of(task, pods, faults)),
        after: texts("after", &is_task, "the name of a task in this annotation"),
        finally: task.flag("finally"),
        custom: task.flag("custom"),
        workspaces: texts("workspaces", &|_| true, "the name of a workspace"),
    }
}

fn pods_of(task: &Object<'_>, pods: &Value, faults: &Faults) -> u32 {
    let read = pods.as_u64().and_then(|pods| u32::try_from(pods).ok());
    read.filter(|pods| (1..=MOST_PODS).contains(pods))
        .unwrap_or_else(|| {
            let fault = format!("is {pods}; allowed: 1 to {MOST_PODS}");
            faults.add(task.path("pods"), fault);
            1
        })
}

fn amounts(task: &Object<'_>, faults: &Faults) -> Amounts {
    let mut list = ResourceList::new();
    for (name, text) in task.texts("requests") {
        let path = format!("{}[{name}]", task.path("requests"));
        match text.parse::<Quantity>() {
            Ok(quantity) if quantity.nano() >= 0 => drop(list.insert(name, quantity)),
            Ok(_) => faults.add(
                path,
                format!("is {text:?}; allowed: a quantity that is not negative"),
            ),
            Err(error) => faults.add(path, error.to_string()),
        }
    }
    requests::amounts(&list)
}

#[cfg(test)]
mod tests;
