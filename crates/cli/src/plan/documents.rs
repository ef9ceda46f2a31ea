//! The objects of a file: PipelineRuns, and the objects that their plans depend on. Objects of other kinds are ignored.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::path::Path;

use anyhow::{Context as _, anyhow};
use coscheduler_core::params::Params;
use coscheduler_core::pipeline;
use coscheduler_core::pipeline_run::PipelineRun;
use coscheduler_core::run_claims::AccessModes;
use coscheduler_core::sizes::{Catalog, TaskSpec, resource_list};
use coscheduler_core::violation::Violation;
use coscheduler_kubernetes::claims;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use serde_json::Value;

use crate::failure::Failure;

use super::denied;

pub(super) type Annotations = BTreeMap<String, String>;

/// The objects of a file.
#[derive(Debug, Default)]
pub(super) struct Documents {
    /// The PipelineRuns, at least one, each with its manifest.
    pub(super) runs: Vec<(PipelineRun, Value)>,
    others: Vec<Value>,
    namespace: String,
}

impl Documents {
    /// Reads a file. Objects without a namespace get `namespace`.
    pub(super) fn read(file: &Path, namespace: &str) -> Result<Self, Failure> {
        Self::parse(&text(file)?, &file.display().to_string(), namespace)
    }

    pub(super) fn parse(text: &str, file: &str, namespace: &str) -> Result<Self, Failure> {
        let mut documents = Self {
            namespace: namespace.to_owned(),
            ..Self::default()
        };
        for mut object in objects(text, file)? {
            if object["kind"] != "PipelineRun" {
                documents.others.push(object);
                continue;
            }
            if object["metadata"].is_object() && object["metadata"]["namespace"].is_null() {
                object["metadata"]["namespace"] = namespace.into();
            }
            if is_new(&object) {
                complete(&mut object);
            }
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            let not_valid = |violations: &[Violation]| {
                denied(
                    &format!("{file}: PipelineRun {name:?} is not valid"),
                    violations,
                )
            };
            let run = PipelineRun::parse(&object).map_err(|it| not_valid(&it))?;
            if run.name.is_empty() && run.generate_name.is_empty() {
                let fault = "is not set, and metadata.generateName neither; set one of them";
                return Err(not_valid(&[Violation::new("metadata.name", fault)]));
            }
            documents.runs.push((run, object));
        }
        if documents.runs.is_empty() {
            return Err(anyhow!("{file} has no PipelineRun").into());
        }
        Ok(documents)
    }

    /// The objects of a kind in a namespace.
    fn all<'a>(&'a self, kind: &'a str, namespace: &'a str) -> impl Iterator<Item = &'a Value> {
        self.others.iter().filter(move |object| {
            let own = object["metadata"]["namespace"].as_str();
            object["kind"] == kind && own.unwrap_or(&self.namespace) == namespace
        })
    }

    pub(super) fn pipeline_annotations(&self, run: &PipelineRun) -> Option<Annotations> {
        let name = run.pipeline_name.as_deref()?;
        let mut pipelines = self.all("Pipeline", &run.namespace);
        pipelines
            .find(|pipeline| pipeline["metadata"]["name"] == name)
            .map(annotations)
    }

    pub(super) fn namespace_annotations(&self, run: &PipelineRun) -> Option<Annotations> {
        let mut objects = self.others.iter();
        objects
            .find(|it| it["kind"] == "Namespace" && it["metadata"]["name"] == *run.namespace)
            .map(annotations)
    }

    /// The objects on which the requests of the run's pods depend.
    pub(super) fn catalog(&self, run: &PipelineRun) -> Catalog {
        let mut catalog = Catalog::default();
        if let Some(name) = &run.pipeline_name {
            let mut pipelines = self.all("Pipeline", &run.namespace);
            let own = pipelines.find(|pipeline| pipeline["metadata"]["name"] == **name);
            if let Some(own) = own {
                catalog.pipeline = pipeline::tasks(&own["spec"]);
                catalog.defaults = Params::defaults(&own["spec"]["params"]);
            }
        }
        for task in self.all("Task", &run.namespace) {
            let spec = TaskSpec::read(&task["spec"]);
            catalog.tasks.insert(name(task), spec);
        }
        for range in self.all("LimitRange", &run.namespace) {
            catalog.limits.add(&range["spec"]);
        }
        for class in self.others.iter().filter(|it| it["kind"] == "RuntimeClass") {
            let fixed = resource_list(&class["overhead"]["podFixed"]);
            catalog.overheads.insert(name(class), fixed);
        }
        catalog
    }

    /// The access modes of the claims in a namespace.
    pub(super) fn access_modes(&self, namespace: &str) -> AccessModes {
        let claims = self.all("PersistentVolumeClaim", namespace);
        claims
            .map(|claim| (name(claim), texts(&claim["spec"]["accessModes"])))
            .collect()
    }

    /// The claim of this name.
    pub(super) fn claim(&self, namespace: &str, claim: &str) -> Option<PersistentVolumeClaim> {
        let mut claims = self.all("PersistentVolumeClaim", namespace);
        let found = claims.find(|it| it["metadata"]["name"] == claim)?;
        serde_json::from_value(found.clone()).ok()
    }

    /// True if only one pod at a time may use the claim of this name.
    pub(super) fn is_single_pod(&self, namespace: &str, claim: &str) -> bool {
        self.claim(namespace, claim)
            .is_some_and(|claim| claims::view(claim).single_pod)
    }
}

/// True if the run does not exist yet.
fn is_new(run: &Value) -> bool {
    let metadata = &run["metadata"];
    metadata["uid"].is_null() || metadata["name"].is_null()
}

/// Makes the changes that a cluster makes when the run is created. A copy of another run has a uid and a status, and the API
/// server ignores both. Tekton's admission sets the service account (Tekton v1.12.0,
/// `pkg/apis/pipeline/v1/pipelinerun_defaults.go`). This function always writes `default`, the default of Tekton's key
/// `default-service-account`. The placeholder uses the same account.
fn complete(run: &mut Value) {
    let ignored = [("/metadata", "uid"), ("", "status")];
    for (object, field) in ignored {
        if let Some(Value::Object(object)) = run.pointer_mut(object) {
            object.remove(field);
        }
    }
    let template = &run["spec"]["taskRunTemplate"];
    if run["spec"].is_object()
        && (template.is_null() || template.is_object())
        && template["serviceAccountName"].is_null()
    {
        run["spec"]["taskRunTemplate"]["serviceAccountName"] = "default".into();
    }
}

/// The data of ConfigMap `coscheduler-config` in a file.
pub(super) fn config_map(file: &Path) -> Result<Annotations, Failure> {
    let name = file.display().to_string();
    let maps = objects(&text(file)?, &name)?.into_iter();
    let mut maps = maps.filter(|object| object["kind"] == "ConfigMap");
    let map = maps
        .next()
        .with_context(|| format!("{name} has no ConfigMap"))?;
    let data = map.get("data").cloned().unwrap_or_default();
    let data: Option<Annotations> = serde_json::from_value(data)
        .with_context(|| format!("{name}: data of the ConfigMap is not a map of texts"))?;
    Ok(data.unwrap_or_default())
}

fn text(file: &Path) -> anyhow::Result<String> {
    if file == Path::new("-") {
        let mut text = String::new();
        let read = std::io::stdin().read_to_string(&mut text);
        read.context("failed to read standard input")?;
        return Ok(text);
    }
    fs::read_to_string(file).with_context(|| format!("failed to read {}", file.display()))
}

/// The objects of a text. The items of a List are objects of their own.
fn objects(text: &str, file: &str) -> anyhow::Result<Vec<Value>> {
    let parsed: Vec<Value> =
        serde_saphyr::from_multiple(text).with_context(|| format!("failed to parse {file}"))?;
    let objects =
        parsed.into_iter().flat_map(
            |mut object| match object.get_mut("items").map(Value::take) {
                Some(Value::Array(items)) if object["kind"] == "List" => items,
                Some(items) => {
                    object["items"] = items;
                    vec![object]
                }
                None => vec![object],
            },
        );
    Ok(objects.filter(|object| !object.is_null()).collect())
}

fn texts(list: &Value) -> Vec<String> {
    serde_json::from_value(list.clone()).unwrap_or_default()
}

fn name(object: &Value) -> String {
    let name = object["metadata"]["name"].as_str();
    name.unwrap_or_default().to_owned()
}

fn annotations(object: &Value) -> Annotations {
    let all = object["metadata"]["annotations"].as_object();
    let texts = all.into_iter().flatten();
    texts
        .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
        .collect()
}
