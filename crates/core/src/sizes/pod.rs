//! Computes the requests of a task's pod, as Tekton v1.12.0 and the API server of Kubernetes 1.35 set them. The order is:
//!
//! 1. `stepTemplate`: each step takes the values that it does not set itself (`pkg/apis/pipeline/v1/merge.go`,
//!    `MergeStepsWithStepTemplate`).
//! 2. `stepSpecs` and `sidecarSpecs` of the run's `taskRunSpecs`: their values replace those of the step or sidecar with the same
//!    name (`MergeStepsWithSpecs`, `MergeSidecarsWithSpecs`). A step that refers to a StepAction is like any other step, because
//!    a StepAction has no resources.
//! 3. `computeResources` of `taskRunSpecs`: Tekton divides the requests among the steps
//!    (`pkg/internal/computeresources/tasklevel/tasklevel.go`).
//! 4. The results sidecar and the init containers: Tekton adds them without resources (`pkg/pod/pod.go`, `Build`). Tekton adds
//!    the init containers `place-scripts` and `working-dir-initializer` only to some tasks. This module always adds both.
//!    Sidecars start after the init containers and run at the same time as all steps.
//! 5. Tekton's ConfigMap `config-defaults`: Tekton sets its defaults in each container without resources
//!    (`pkg/internal/defaultresourcerequirements/transformer.go`).
//! 6. LimitRanges: Tekton sets missing requests of the steps from the defaults and minimums
//!    (`pkg/internal/computeresources/transformer.go`).
//! 7. The API server: if a container has a limit but no request, the limit becomes the request
//!    (`k8s.io/kubernetes/pkg/apis/core/v1/defaults.go`, `SetDefaults_Pod`). Then the API server sets the defaults of the
//!    LimitRanges (`plugin/pkg/admission/limitranger/admission.go`) and the overhead of the RuntimeClass
//!    (`plugin/pkg/admission/runtimeclass/admission.go`).

use std::collections::BTreeMap;

use serde_json::Value;

use crate::document::Object;
use crate::params::Params;
use crate::quantity::Quantity;
use crate::requests::{self, Amounts, InitContainer, PodResources, ResourceList};
use crate::run_claims::in_volumes;

use super::catalog::Catalog;

/// The resources for which Tekton sets requests from LimitRanges. The number is the unit, in billionths, to which Tekton rounds a
/// step's part of the resource.
const DIVIDED: [(&str, i128); 3] = [
    ("cpu", MILLI),
    ("memory", WHOLE),
    ("ephemeral-storage", WHOLE),
];
const MILLI: i128 = 1_000_000;
const WHOLE: i128 = 1_000_000_000;

/// The init containers that Tekton adds (`pkg/pod/{pod,script,workingdir_init}.go`).
const INIT_CONTAINERS: [&str; 3] = ["prepare", "place-scripts", "working-dir-initializer"];

/// The key in `config-defaults` with the resources of those containers that no other key names (`pkg/apis/config/default.go`).
const DEFAULT: &str = "default";

/// The sidecar that reads results (`pkg/apis/pipeline/sidecarlogs.go`).
const RESULTS_SIDECAR: &str = "tekton-log-results";

/// A container's `requests` and `limits`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Resources {
    requests: ResourceList,
    limits: ResourceList,
}

/// A step or a sidecar of a Task, or an item of `stepSpecs` or `sidecarSpecs` of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Container {
    name: String,
    resources: Resources,
}

/// The parts of a Task's `spec` that determine the requests of its pod. Also the defaults of the Task's parameters, and the
/// claims in its `volumes`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TaskSpec {
    steps: Vec<Container>,
    sidecars: Vec<Container>,
    template: Resources,
    has_results: bool,
    /// The defaults of `params`.
    pub(crate) defaults: Params,
    /// The claims in `volumes`, by the name of the volume (V1).
    pub(crate) claims: BTreeMap<String, String>,
}

/// A run's settings for the pods of one task: an item of `spec.taskRunSpecs`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodSettings {
    steps: Vec<Container>,
    sidecars: Vec<Container>,
    resources: Resources,
    runtime_class: Option<String>,
    /// The claims in `podTemplate.volumes`, by the name of the volume (V1).
    pub(crate) claims: BTreeMap<String, String>,
    /// True if the pods may need other nodes than the run's other pods, because they have an affinity of their own.
    pub(super) has_affinity: bool,
}

impl Resources {
    /// Reads `computeResources`. Leaves out malformed parts, because Tekton denies them.
    pub(super) fn read(value: &Value) -> Self {
        Self {
            requests: resource_list(&value["requests"]),
            limits: resource_list(&value["limits"]),
        }
    }

    fn is_empty(&self) -> bool {
        self.requests.is_empty() && self.limits.is_empty()
    }

    fn overridden(mut self, by: &Self) -> Self {
        self.requests.extend(by.requests.clone());
        self.limits.extend(by.limits.clone());
        self
    }
}

impl TaskSpec {
    /// Reads a Task's `spec`, or a `taskSpec`.
    pub fn read(spec: &Value) -> Self {
        let results = spec["results"].as_array();
        Self {
            steps: containers(&spec["steps"]),
            sidecars: containers(&spec["sidecars"]),
            template: Resources::read(&spec["stepTemplate"]["computeResources"]),
            has_results: results.is_some_and(|results| !results.is_empty()),
            defaults: Params::defaults(&spec["params"]),
            claims: in_volumes(&spec["volumes"]),
        }
    }
}

impl PodSettings {
    /// Reads an item of `spec.taskRunSpecs`.
    pub(crate) fn read(item: &Object<'_>) -> Self {
        let field = |key| item.get(key).unwrap_or(&Value::Null);
        let template = field("podTemplate");
        let runtime_class = template["runtimeClassName"].as_str();
        Self {
            has_affinity: !template["affinity"].is_null(),
            steps: containers(field("stepSpecs")),
            sidecars: containers(field("sidecarSpecs")),
            resources: Resources::read(field("computeResources")),
            runtime_class: runtime_class.map(str::to_owned),
            claims: in_volumes(&template["volumes"]),
        }
    }
}

/// Reads a map from resources to quantities. Leaves out malformed quantities, and negative quantities, which Kubernetes refuses.
pub fn resource_list(value: &Value) -> ResourceList {
    let entries = value.as_object().into_iter().flatten();
    let read = |value: &Value| match value {
        Value::String(text) => text.parse().ok(),
        Value::Number(number) => number.to_string().parse().ok(),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    };
    entries
        .filter_map(|(name, value)| Some((name.clone(), read(value)?)))
        .filter(|(_, quantity): &(_, Quantity)| quantity.nano() >= 0)
        .collect()
}

fn containers(list: &Value) -> Vec<Container> {
    let items = list.as_array().into_iter().flatten();
    let containers = items.map(|item| Container {
        name: item["name"].as_str().unwrap_or_default().to_owned(),
        resources: Resources::read(&item["computeResources"]),
    });
    containers.collect()
}

/// The requests of a pod of `task`. `runtime_class` is the RuntimeClass in the run's own `podTemplate`.
pub(super) fn requests(
    task: &TaskSpec,
    settings: &PodSettings,
    runtime_class: Option<&str>,
    catalog: &Catalog,
) -> Amounts {
    let mut steps = steps(task, settings);
    for (name, resources) in &mut steps {
        catalog.fill(name, resources);
        step_limits(resources, task.steps.len(), catalog);
    }
    let mut sidecars = task.sidecars.clone();
    if catalog.results_sidecar && task.has_results {
        sidecars.push(Container {
            name: RESULTS_SIDECAR.to_owned(),
            resources: Resources::default(),
        });
    }
    let overridden = overridden(sidecars, &settings.sidecars);
    let sidecars = overridden.into_iter().map(|(name, mut resources)| {
        catalog.fill(&format!("sidecar-{name}"), &mut resources);
        resources
    });
    let init_containers = INIT_CONTAINERS.map(|name| {
        let mut resources = Resources::default();
        catalog.fill(name, &mut resources);
        InitContainer {
            requests: defaulted(resources, catalog),
            sidecar: false,
        }
    });
    let class = settings.runtime_class.as_deref().or(runtime_class);
    let class = class.or(catalog.default_runtime_class.as_deref());
    let overhead = class.and_then(|class| catalog.overheads.get(class));
    let containers = steps.into_iter().map(|(_, resources)| resources);
    requests::requests(&PodResources {
        init_containers: init_containers.into(),
        containers: containers
            .chain(sidecars)
            .map(|resources| defaulted(resources, catalog))
            .collect(),
        pod: ResourceList::new(),
        overhead: overhead.cloned().unwrap_or_default(),
    })
}

/// The name of each step's container, with the resources that the Task and the run set for the step.
fn steps(task: &TaskSpec, settings: &PodSettings) -> Vec<(String, Resources)> {
    let steps = task.steps.iter().map(|step| Container {
        name: step.name.clone(),
        resources: task.template.clone().overridden(&step.resources),
    });
    let mut steps = overridden(steps.collect(), &settings.steps);
    let count = steps.len();
    let level = &settings.resources;
    for (index, (name, resources)) in steps.iter_mut().enumerate() {
        *name = match name.as_str() {
            "" => format!("step-unnamed-{index}"),
            name => format!("step-{name}"),
        };
        if !level.is_empty() {
            let divided = if resources.requests.is_empty() && level.requests.is_empty() {
                &level.limits
            } else {
                &level.requests
            };
            resources.requests = shares(divided, count);
            resources.limits = level.limits.clone();
        }
    }
    steps
}

fn overridden(containers: Vec<Container>, by: &[Container]) -> Vec<(String, Resources)> {
    let overridden = containers.into_iter().map(|Container { name, resources }| {
        let over = by.iter().rfind(|over| over.name == name);
        let resources = match over {
            Some(over) => resources.overridden(&over.resources),
            None => resources,
        };
        (name, resources)
    });
    overridden.collect()
}

/// The part of the task's resources that each of `count` steps gets, rounded down (`computeAverageRequests`).
fn shares(list: &ResourceList, count: usize) -> ResourceList {
    let unit = |name: &str| match name {
        "memory" | "ephemeral-storage" => WHOLE,
        _ => MILLI,
    };
    let shares = list.iter();
    shares
        .map(|(name, quantity)| (name.clone(), quantity.share(count, unit(name))))
        .collect()
}

/// Sets the missing requests of a step: its part of the LimitRanges' default, but at least the LimitRanges' minimum. `count` is
/// the number of steps.
fn step_limits(resources: &mut Resources, count: usize, catalog: &Catalog) {
    for (name, unit) in DIVIDED {
        let asked = resources.requests.get(name);
        if asked.is_some_and(|asked| asked.nano() != 0) {
            continue;
        }
        let share = catalog.limits.step_default.get(name);
        let share = share.map(|default| default.share(count, unit));
        let least = catalog.limits.min.get(name).cloned();
        if let Some(request) = share.max(least).filter(|request| request.nano() != 0) {
            resources.requests.insert(name.to_owned(), request);
        }
    }
}

/// The requests of a container after the API server has added its defaults.
fn defaulted(resources: Resources, catalog: &Catalog) -> ResourceList {
    let Resources {
        mut requests,
        limits,
    } = resources;
    for (name, quantity) in limits.iter().chain(&catalog.limits.default) {
        requests
            .entry(name.clone())
            .or_insert_with(|| quantity.clone());
    }
    requests
}

impl Catalog {
    /// Sets the resources of a container without resources, from Tekton's ConfigMap. Uses the first of these keys that has
    /// resources: the container's name; `prefix-P`, if the container's name begins with `P-`; `default`.
    fn fill(&self, container: &str, resources: &mut Resources) {
        if !resources.is_empty() {
            return;
        }
        let given = |key: &str| self.containers.get(key).filter(|given| !given.is_empty());
        let prefixed = || {
            let mut all = self.containers.iter();
            let found = all.find(|(key, given)| {
                let prefix = key.strip_prefix("prefix-").unwrap_or_default();
                let rest = container.strip_prefix(prefix).unwrap_or_default();
                !prefix.is_empty() && rest.starts_with('-') && !given.is_empty()
            });
            found.map(|(_, given)| given)
        };
        if let Some(given) = given(container)
            .or_else(prefixed)
            .or_else(|| given(DEFAULT))
        {
            *resources = given.clone();
        }
    }
}

#[cfg(test)]
mod tests;
