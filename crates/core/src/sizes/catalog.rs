//! Data from objects other than the run. The data determine the requests of the run's pods, and contain the defaults of
//! parameters and the claims of Tasks.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::params::Params;
use crate::pipeline::PipelineTask;
use crate::quantity::Quantity;
use crate::requests::ResourceList;

use super::pod::{Resources, TaskSpec, resource_list};

/// The keys that are read from Tekton's ConfigMaps: two keys of `config-defaults`, and one key of `feature-flags` (Tekton
/// v1.12.0, `pkg/apis/config/{default,feature_flags}.go`).
pub const TEKTON_KEYS: [&str; 3] = [CONTAINERS, POD_TEMPLATE, RESULTS_FROM];
const CONTAINERS: &str = "default-container-resource-requirements";
const POD_TEMPLATE: &str = "default-pod-template";
const RESULTS_FROM: &str = "results-from";

/// Data from objects other than the run. The data determine the requests of the run's pods, and contain the defaults of
/// parameters (V9) and the claims in the `volumes` of Tasks (V1).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Catalog {
    /// The tasks of the Pipeline that `spec.pipelineRef` names. Empty if this Pipeline is not known.
    pub pipeline: Vec<PipelineTask>,
    /// The defaults of this Pipeline's parameters.
    pub defaults: Params,
    /// Tasks of the run's namespace, by name.
    pub tasks: BTreeMap<String, TaskSpec>,
    /// The LimitRanges of the run's namespace.
    pub limits: Limits,
    /// `overhead.podFixed` of RuntimeClasses, by name.
    pub overheads: BTreeMap<String, ResourceList>,
    pub(super) containers: BTreeMap<String, Resources>,
    pub(super) default_runtime_class: Option<String>,
    pub(super) results_sidecar: bool,
}

/// All LimitRanges of a namespace together.
///
/// If there are several LimitRanges, the default that Kubernetes sets depends on the order in which it reads them. This type
/// does not depend on the order. For a step, it has the smallest default, as in Tekton
/// (`pkg/internal/computeresources/limitrange/limitrange.go`). For any other container, it has the largest default, so that the
/// estimate is never too small.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Limits {
    pub(super) min: ResourceList,
    pub(super) step_default: ResourceList,
    pub(super) default: ResourceList,
}

impl Limits {
    /// Adds the `spec` of a LimitRange, as the API server stores it with its defaults.
    pub fn add(&mut self, spec: &Value) {
        let limits = spec["limits"].as_array().into_iter().flatten();
        for limit in limits.filter(|limit| limit["type"] == "Container") {
            let default = resource_list(&limit["defaultRequest"]);
            merge(&mut self.min, resource_list(&limit["min"]), Ord::max);
            merge(&mut self.step_default, default.clone(), Ord::min);
            merge(&mut self.default, default, Ord::max);
        }
    }
}

fn merge(into: &mut ResourceList, from: ResourceList, choose: fn(Quantity, Quantity) -> Quantity) {
    for (name, quantity) in from {
        let chosen = match into.remove(&name) {
            Some(known) => choose(known, quantity),
            None => quantity,
        };
        into.insert(name, chosen);
    }
}

impl Catalog {
    /// Reads the [`TEKTON_KEYS`] of Tekton's ConfigMaps. A malformed value counts as not set. (Tekton itself would keep its last
    /// valid configuration.)
    pub fn configure(&mut self, data: &BTreeMap<String, String>) {
        let read = |key: &str| {
            let text = data.get(key)?;
            serde_saphyr::from_str::<Value>(text).ok()
        };
        let containers = read(CONTAINERS).unwrap_or_default();
        let containers = containers.as_object().into_iter().flatten();
        self.containers = containers
            .map(|(name, value)| (name.clone(), Resources::read(value)))
            .collect();
        let template = read(POD_TEMPLATE).unwrap_or_default();
        let class = template["runtimeClassName"].as_str();
        self.default_runtime_class = class.map(str::to_owned);
        self.results_sidecar = data
            .get(RESULTS_FROM)
            .is_some_and(|from| from == "sidecar-logs");
    }
}
