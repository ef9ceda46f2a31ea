//! The objects, other than the run itself, on which the CPU and memory requests of a run's pods depend: Tasks, Pipelines,
//! LimitRanges, RuntimeClasses and Tekton's defaults. The names of claims depend on Tasks and Pipelines too (V9), and Tasks have
//! claims in their `volumes` (V1). The caches keep only the parts of the objects that are needed for this.
//!
//! A review never waits for these caches. (It may wait for the cache of Pipelines' annotations, `surroundings.rs`.) If a Task
//! or Pipeline is not in its cache, the requests of its pods are unknown. Other missing objects are ignored. A missing object
//! never prevents the coscheduling of a run.

use std::collections::{BTreeMap, BTreeSet};

use coscheduler_core::params::Params;
use coscheduler_core::pipeline;
use coscheduler_core::sizes::catalog::TEKTON_KEYS;
use coscheduler_core::sizes::named_tasks;
use coscheduler_kubernetes::pipeline_run::{pipeline_parts, task_parts};
use coscheduler_kubernetes::tekton::{Pipeline, Task};
use coscheduler_proto::{json, planner};
use coscheduler_runtime::{Health, Process};
use k8s_openapi::api::core::v1::{ConfigMap, LimitRange};
use k8s_openapi::api::node::v1::RuntimeClass;
use kube::runtime::watcher;
use kube::{Api, Client, Resource};
use prost_types::Struct;
use serde_json::{Value, json};

use crate::cache::Cache;

/// Tekton's ConfigMaps that contain the [`TEKTON_KEYS`].
const CONFIG_MAPS: [&str; 2] = ["config-defaults", "feature-flags"];

/// The caches of these objects.
#[derive(Clone, Debug, Default)]
pub(crate) struct Catalog {
    synced: Health,
    tekton_namespace: String,
    pipelines: Cache<Named>,
    tasks: Cache<Struct>,
    limit_ranges: Cache<Struct>,
    overheads: Cache<Option<Struct>>,
    tekton: [Cache<BTreeMap<String, String>>; 2],
}

/// The `spec` of a Pipeline, and the names of the Tasks to which it refers.
#[derive(Clone, Debug)]
struct Named {
    spec: Struct,
    tasks: BTreeSet<String>,
}

impl Catalog {
    /// Follows the objects of all namespaces, and two ConfigMaps of Tekton's namespace. The process can be ready before these
    /// caches are filled.
    pub(crate) fn follow(process: &Process, client: &Client, tekton_namespace: &str) -> Self {
        let synced = Health::new();
        let tekton = CONFIG_MAPS.map(|name| {
            let one = watcher::Config::default().fields(&format!("metadata.name={name}"));
            let api = Api::namespaced(client.clone(), tekton_namespace);
            Cache::follow(name, process, &synced, (api, one), tekton_keys)
        });
        Self {
            pipelines: Cache::follow("Pipeline spec", process, &synced, all(client), named),
            tasks: Cache::follow("Task", process, &synced, all(client), |task: Task| {
                json::object_to_struct(&task_parts(&task.spec))
            }),
            limit_ranges: Cache::follow("LimitRange", process, &synced, all(client), limits),
            overheads: Cache::follow("RuntimeClass", process, &synced, all(client), overhead),
            tekton,
            tekton_namespace: tekton_namespace.to_owned(),
            synced,
        }
    }

    /// The objects on which the requests of a new PipelineRun's pods depend. `None` until each cache was filled once.
    pub(crate) fn of_run(&self, namespace: &str, run: &Value) -> Option<planner::Catalog> {
        if !self.synced.is_ready() {
            return None;
        }
        let spec = &run["spec"];
        let (pipeline, names) = match spec["pipelineRef"]["name"].as_str() {
            Some(name) if spec["pipelineRef"]["resolver"].is_null() => {
                let named = self.pipelines.find(namespace, name);
                named.map_or_else(Default::default, |it| (Some(it.spec), it.tasks))
            }
            Some(_) | None => (None, tasks_of(&spec["pipelineSpec"])),
        };
        let found = |name: String| Some((name.clone(), self.tasks.find(namespace, &name)?));
        let overheads = self.overheads.in_namespace("").into_iter();
        let tekton = self
            .tekton
            .iter()
            .flat_map(|maps| maps.in_namespace(&self.tekton_namespace).into_values());
        Some(planner::Catalog {
            pipeline,
            tasks: names.into_iter().filter_map(found).collect(),
            limit_ranges: (self.limit_ranges.in_namespace(namespace).into_values()).collect(),
            overheads: overheads
                .filter_map(|(name, overhead)| Some((name, overhead?)))
                .collect(),
            tekton: tekton.flatten().collect(),
        })
    }

    /// The defaults of the parameters of the Task to which a TaskRun refers, as far as they are known (V9).
    pub(crate) fn task_defaults(&self, namespace: &str, task_run: &Value) -> Params {
        let reference = &task_run["spec"]["taskRef"];
        let name = reference["name"].as_str();
        let name = name.filter(|_| reference["resolver"].is_null());
        let task = name.and_then(|name| self.tasks.find(namespace, name));
        let spec = task.map(|task| Value::Object(json::from_struct(task)));
        Params::defaults(&spec.unwrap_or_default()["params"])
    }
}

fn all<K: Resource<DynamicType = ()>>(client: &Client) -> (Api<K>, watcher::Config) {
    (Api::all(client.clone()), watcher::Config::default())
}

fn named(pipeline: Pipeline) -> Named {
    let spec = pipeline_parts(&pipeline.spec);
    Named {
        tasks: tasks_of(&spec),
        spec: json::object_to_struct(&spec),
    }
}

fn tasks_of(pipeline: &Value) -> BTreeSet<String> {
    let tasks = pipeline::tasks(pipeline);
    named_tasks(&tasks).into_iter().map(str::to_owned).collect()
}

fn limits(range: LimitRange) -> Struct {
    json::object_to_struct(&json!(range.spec))
}

fn overhead(class: RuntimeClass) -> Option<Struct> {
    let fixed = class.overhead?.pod_fixed?;
    Some(json::object_to_struct(&json!(fixed)))
}

fn tekton_keys(map: ConfigMap) -> BTreeMap<String, String> {
    let mut data = map.data.unwrap_or_default();
    data.retain(|key, _| TEKTON_KEYS.contains(&key.as_str()));
    data
}

#[cfg(test)]
mod tests {
    use super::*;
    use coscheduler_proto::convert;

    fn read<T: serde::de::DeserializeOwned>(object: Value) -> T {
        serde_json::from_value(object).unwrap()
    }

    fn catalog() -> Catalog {
        let catalog = Catalog {
            tekton_namespace: "tekton-pipelines".to_owned(),
            ..Catalog::default()
        };
        let key = |namespace: &str, name: &str| (namespace.to_owned(), name.to_owned());
        let build = json!({"metadata": {}, "spec": {"tasks": [{"name": "b", "taskRef": {"name": "build"}}]}});
        catalog
            .pipelines
            .set(key("ci", "build"), named(read(build)));
        for (namespace, name) in [("ci", "build"), ("ci", "other"), ("elsewhere", "build")] {
            catalog.tasks.set(key(namespace, name), Struct::default());
        }
        let range = json!({"metadata": {}, "spec": {"limits": [
            {"type": "Container", "defaultRequest": {"cpu": "100m"}}]}});
        for namespace in ["ci", "elsewhere"] {
            catalog
                .limit_ranges
                .set(key(namespace, "range"), limits(read(range.clone())));
        }
        let class =
            json!({"metadata": {}, "handler": "h", "overhead": {"podFixed": {"cpu": "10m"}}});
        catalog
            .overheads
            .set(key("", "heavy"), overhead(read(class)));
        let class = json!({"metadata": {}, "handler": "h"});
        catalog
            .overheads
            .set(key("", "light"), overhead(read(class)));
        let defaults =
            json!({"metadata": {}, "data": {"results-from": "sidecar-logs", "_example": "long"}});
        catalog.tekton[1].set(
            key("tekton-pipelines", "feature-flags"),
            tekton_keys(read(defaults)),
        );
        catalog
    }

    fn names(catalog: &planner::Catalog) -> Vec<&str> {
        catalog.tasks.keys().map(String::as_str).collect()
    }

    #[test]
    fn b3_a_run_gets_the_objects_of_its_namespace_that_it_names() {
        let known = catalog();
        let of = |spec: Value| known.of_run("ci", &json!({"spec": spec})).unwrap();
        let by_name = of(json!({"pipelineRef": {"name": "build"}}));
        assert_eq!(names(&by_name), ["build"]);
        let range = json!({"limits": [{"type": "Container", "defaultRequest": {"cpu": "100m"}}]});
        assert_eq!(by_name.limit_ranges, [json::object_to_struct(&range)]);
        assert_eq!(by_name.overheads.keys().collect::<Vec<_>>(), ["heavy"]);
        assert_eq!(
            by_name.tekton,
            [("results-from".to_owned(), "sidecar-logs".to_owned())].into()
        );
        assert_eq!(convert::catalog(by_name).pipeline[0].name, "b");

        let embedded = of(json!({"pipelineSpec": {"tasks": [
            {"name": "o", "taskRef": {"name": "other"}}, {"name": "a", "taskRef": {"name": "absent"}}]}}));
        assert_eq!(
            (names(&embedded), &embedded.pipeline),
            (vec!["other"], &None)
        );
        let fetched = of(json!({"pipelineRef": {"name": "build", "resolver": "git"}}));
        assert_eq!((names(&fetched).len(), &fetched.pipeline), (0, &None));
    }

    #[test]
    fn b3_before_the_caches_are_synced_nothing_is_known() {
        let known = catalog();
        let synced = known.synced.condition("Task cache");
        assert_eq!(known.of_run("ci", &json!({})), None);
        synced.set(true);
        assert!(known.of_run("ci", &json!({})).is_some());
    }
}
