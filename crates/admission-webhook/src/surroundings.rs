//! The facts that the planner needs in addition to the reviewed object: the mode that the object's Pipeline and Namespace choose
//! (B1), and the group of the owning PipelineRun. The object's own annotations do not prove this group, because they may be
//! copied from another object.

use std::fmt::Debug;
use std::time::Duration;

use coscheduler_core::annotations::{GROUP, OVERRIDE};
use coscheduler_core::pipeline_run::OwnerReference;
use coscheduler_kubernetes::child_run;
use coscheduler_kubernetes::tekton::{Pipeline, PipelineRun};
use coscheduler_runtime::Process;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher;
use kube::{Api, Client, Resource};
use serde_json::Value;

use crate::cache::Cache;

/// How long a new object may take to reach the cache.
const TIMEOUT: Duration = Duration::from_secs(2);

/// The objects around those under review.
#[derive(Clone, Debug, Default)]
pub(crate) struct Surroundings {
    pipelines: Cache<Option<String>>,
    namespaces: Cache<Option<String>>,
    pipeline_runs: Cache<Owner>,
}

/// A PipelineRun that others are made for.
#[derive(Clone, Debug)]
struct Owner {
    uid: String,
    group: Option<String>,
}

/// The modes chosen for a run that chooses none itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Choices {
    pub(crate) pipeline: Option<String>,
    pub(crate) namespace: Option<String>,
    /// For the author of the run.
    pub(crate) warning: Option<String>,
}

/// An object is not in the cache, although it must exist: the object under review is in it, or belongs to it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the cache does not have {kind} {name:?} yet")]
pub(crate) struct Unknown {
    kind: &'static str,
    name: String,
}

impl Surroundings {
    /// Follows the metadata of all Pipelines, Namespaces and PipelineRuns. The process is not ready before it was listed once.
    pub(crate) fn follow(process: &Process, client: &Client) -> Self {
        Self {
            pipelines: metadata::<Pipeline, _>("Pipeline", process, client, |it| {
                chosen(it.metadata)
            }),
            namespaces: metadata::<Namespace, _>("Namespace", process, client, |it| {
                chosen(it.metadata)
            }),
            pipeline_runs: metadata::<PipelineRun, _>("PipelineRun", process, client, |it| {
                owner(it.metadata)
            }),
        }
    }

    /// The modes that Pipeline and Namespace choose for a new PipelineRun. The run's own choice counts before the Pipeline's
    /// choice, and the Pipeline's choice before the Namespace's. If one object has a choice, the next objects are not read.
    ///
    /// If the Pipeline is not in the cache in time, it may not exist. Tekton reports this, so the run is admitted.
    ///
    /// # Errors
    /// The Namespace is not in the cache.
    pub(crate) async fn choices(
        &self,
        namespace: &str,
        pipeline_run: &Value,
        timeout: Duration,
    ) -> Result<Choices, Unknown> {
        let timeout = timeout.min(TIMEOUT);
        let mut choices = Choices::default();
        if !pipeline_run["metadata"]["annotations"][OVERRIDE].is_null() {
            return Ok(choices);
        }
        // A resolver finds a Pipeline with an address instead of a name.
        if let Some(name) = pipeline_run["spec"]["pipelineRef"]["name"].as_str()
            && !name.is_empty()
            && !name.contains("://")
        {
            let pipeline = self.pipelines.get(namespace, name, timeout, |_| true);
            match pipeline.await {
                Some(mode) => choices.pipeline = mode,
                None => choices.warning = Some(unknown_pipeline(namespace, name)),
            }
        }
        if choices.pipeline.is_none() {
            let found = self.namespaces.get("", namespace, timeout, |_| true);
            choices.namespace = found.await.ok_or_else(|| Unknown {
                kind: "Namespace",
                name: namespace.to_owned(),
            })?;
        }
        Ok(choices)
    }

    /// The group of the PipelineRun that is an object's controller. `None` if the PipelineRun has no group, or if the controller is
    /// not a PipelineRun. Also `None` if the object itself names no group, because then nobody needs the owner's group.
    ///
    /// # Errors
    /// The PipelineRun is not in the cache.
    pub(crate) async fn owner_group(
        &self,
        namespace: &str,
        metadata: &ObjectMeta,
        timeout: Duration,
    ) -> Result<Option<String>, Unknown> {
        let annotations = metadata.annotations.as_ref();
        let names_a_group = annotations.is_some_and(|annotations| annotations.contains_key(GROUP));
        let controller = child_run::controller(metadata);
        let Some(OwnerReference { name, uid, .. }) =
            controller.filter(|owner| names_a_group && owner.is_pipeline_run())
        else {
            return Ok(None);
        };
        let same = |owner: &Owner| owner.uid == uid;
        let timeout = timeout.min(TIMEOUT);
        let owner = self.pipeline_runs.get(namespace, &name, timeout, same);
        let kind = "PipelineRun";
        let owner = owner.await.ok_or(Unknown { kind, name })?;
        Ok(owner.group)
    }
}

fn metadata<K, T>(
    kind: &'static str,
    process: &Process,
    client: &Client,
    read: fn(PartialObjectMeta<K>) -> T,
) -> Cache<T>
where
    K: Resource<DynamicType = ()> + Clone + Debug + Send + 'static,
    T: Clone + Send + Sync + 'static,
{
    let all = (Api::all(client.clone()), watcher::Config::default());
    Cache::follow(kind, process, process.health(), all, read)
}

fn annotation(metadata: ObjectMeta, key: &str) -> Option<String> {
    metadata.annotations?.remove(key)
}

fn chosen(metadata: ObjectMeta) -> Option<String> {
    annotation(metadata, OVERRIDE)
}

fn owner(metadata: ObjectMeta) -> Owner {
    Owner {
        uid: metadata.uid.clone().unwrap_or_default(),
        group: annotation(metadata, GROUP),
    }
}

fn unknown_pipeline(namespace: &str, name: &str) -> String {
    format!(
        "there is no Pipeline {name:?} in namespace {namespace:?} yet, so its annotation {OVERRIDE} does not count for this \
         run; create the Pipeline first, or annotate the run"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const SHORT: Duration = Duration::from_millis(10);

    fn cache<T: Clone + Send + Sync + 'static>(objects: &[(&str, &str, T)]) -> Cache<T> {
        let cache = Cache::default();
        for (namespace, name, object) in objects {
            cache.set(
                ((*namespace).to_owned(), (*name).to_owned()),
                object.clone(),
            );
        }
        cache
    }

    fn surroundings() -> Surroundings {
        let mode = |mode: &str| Some(mode.to_owned());
        Surroundings {
            pipelines: cache(&[
                ("ci", "plain", None),
                ("ci", "annotated", mode("disabled")),
                ("chosen", "plain", None),
            ]),
            namespaces: cache(&[("", "ci", None), ("", "chosen", mode("workspaces"))]),
            pipeline_runs: cache(&[
                (
                    "ci",
                    "ours",
                    Owner {
                        uid: "u1".to_owned(),
                        group: mode("0123456789"),
                    },
                ),
                (
                    "ci",
                    "left-alone",
                    Owner {
                        uid: "u2".to_owned(),
                        group: None,
                    },
                ),
            ]),
        }
    }

    /// The choices of Pipeline and Namespace, and whether there is a warning for the author.
    async fn choices(namespace: &str, run: Value) -> (Option<String>, Option<String>, bool) {
        let choices = surroundings()
            .choices(namespace, &run, SHORT)
            .await
            .unwrap();
        (
            choices.pipeline,
            choices.namespace,
            choices.warning.is_some(),
        )
    }

    #[tokio::test]
    async fn b1_the_pipeline_comes_before_the_namespace_and_the_run_before_both() {
        let refers = |name: &str| json!({"spec": {"pipelineRef": {"name": name}}});
        let mode = |mode: &str| Some(mode.to_owned());
        let embedded = json!({"spec": {"pipelineSpec": {}}});
        let remote = json!({"spec": {"pipelineRef": {"resolver": "git", "params": []}}});
        let address = refers("https://example.dev/build.yaml");
        assert_eq!(choices("ci", address).await, (None, None, false));
        assert_eq!(choices("ci", embedded.clone()).await, (None, None, false));
        assert_eq!(
            choices("chosen", embedded).await,
            (None, mode("workspaces"), false)
        );
        assert_eq!(
            choices("chosen", remote).await,
            (None, mode("workspaces"), false)
        );
        assert_eq!(choices("ci", refers("plain")).await, (None, None, false));
        assert_eq!(
            choices("ci", refers("annotated")).await,
            (mode("disabled"), None, false)
        );
        assert_eq!(
            choices("chosen", refers("plain")).await,
            (None, mode("workspaces"), false)
        );
        // A Pipeline of another namespace is no Pipeline of this one.
        assert_eq!(
            choices("chosen", refers("annotated")).await,
            (None, mode("workspaces"), true)
        );

        let mut own = refers("absent");
        own["metadata"] = json!({"annotations": {OVERRIDE: "disabled"}});
        assert_eq!(choices("nowhere", own).await, (None, None, false));
    }

    #[tokio::test]
    async fn a_namespace_and_an_owner_must_be_in_the_cache() {
        let unknown = surroundings().choices("nowhere", &json!({}), SHORT).await;
        assert_eq!(unknown.unwrap_err().kind, "Namespace");

        let named = async |api_version: &str, name: &str, uid: &str, annotations: Value| {
            let owner = json!({
                "apiVersion": api_version, "kind": "PipelineRun", "name": name, "uid": uid, "controller": true,
            });
            let metadata = json!({"ownerReferences": [owner], "annotations": annotations});
            let metadata = serde_json::from_value(metadata).unwrap();
            surroundings().owner_group("ci", &metadata, SHORT).await
        };
        let group = async |api_version: &str, name: &str, uid: &str| {
            named(api_version, name, uid, json!({GROUP: "forged"})).await
        };
        let ours = Ok(Some("0123456789".to_owned()));
        assert_eq!(group("tekton.dev/v1", "ours", "u1").await, ours);
        assert_eq!(group("tekton.dev/v1", "left-alone", "u2").await, Ok(None));
        assert_eq!(group("example.dev/v1", "ours", "u1").await, Ok(None));
        // Another run of that name.
        let other = group("tekton.dev/v1", "ours", "u3").await;
        assert_eq!(other.unwrap_err().kind, "PipelineRun");
        let silent = named("tekton.dev/v1", "ours", "u3", json!({})).await;
        assert_eq!(silent, Ok(None));
    }
}
