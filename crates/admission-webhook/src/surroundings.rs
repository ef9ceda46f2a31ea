//! Facts from other objects that the planner needs for its decision about an object under review. For a new run, these are the
//! annotations of its Pipeline and its Namespace that choose settings (B1). For an object that a PipelineRun owns, it is the
//! group of this PipelineRun (annotation [`GROUP`]). The object's own annotation does not prove its group, because anybody can
//! copy annotations from another object.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::time::Duration;

use coscheduler_core::annotations::{ALLOWED_OVERRIDES, GROUP};
use coscheduler_core::names::{AssistantName, assistant_of};
use coscheduler_core::overrides::Setting;
use coscheduler_core::pipeline_run::OwnerReference;
use coscheduler_kubernetes::objects;
use coscheduler_kubernetes::tekton::{Pipeline, PipelineRun};
use coscheduler_runtime::Process;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher;
use kube::{Api, Client, Resource};
use serde_json::Value;

use crate::cache::Cache;

/// The longest wait for an object that is not in the cache yet, because it was created shortly before.
const TIMEOUT: Duration = Duration::from_secs(2);

/// A new run may name claims of other runs. At most this number of these other runs is read from the API server.
const SOURCES: usize = 16;

/// The annotations of a Pipeline or a Namespace that choose settings for its runs, and the annotation of a Namespace that limits
/// the choices ([`ALLOWED_OVERRIDES`]).
type Annotations = BTreeMap<String, String>;

/// The caches of other objects.
#[derive(Clone, Debug, Default)]
pub(crate) struct Surroundings {
    pipelines: Cache<Annotations>,
    namespaces: Cache<Annotations>,
    pipeline_runs: Cache<Owner>,
}

/// The fields of a PipelineRun that a review of its TaskRuns, CustomRuns and child PipelineRuns needs.
#[derive(Clone, Debug)]
struct Owner {
    uid: String,
    group: Option<String>,
}

/// The annotations of other objects that choose settings for a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Choices {
    pub(crate) pipeline: Annotations,
    pub(crate) namespace: Annotations,
    /// A warning for the run's author.
    pub(crate) warning: Option<String>,
}

/// The cache does not have an object that must exist: the Namespace of the object under review, or the PipelineRun that owns it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the cache does not have {kind} {name:?} yet")]
pub(crate) struct Unknown {
    kind: &'static str,
    name: String,
}

impl Surroundings {
    /// Follows the metadata of all Pipelines, Namespaces and PipelineRuns. The process is not ready until it has listed these
    /// objects once.
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

    /// The annotations of the Pipeline and the Namespace that choose settings for a new PipelineRun. The Pipeline is not read if
    /// the run itself chooses every setting. The Namespace is always read, because it can also limit the choices.
    ///
    /// If the cache does not get the Pipeline in time, the run is admitted with a warning. If the Pipeline does not exist, Tekton
    /// reports this.
    ///
    /// # Errors
    /// The cache does not have the Namespace.
    pub(crate) async fn choices(
        &self,
        namespace: &str,
        pipeline_run: &Value,
        timeout: Duration,
    ) -> Result<Choices, Unknown> {
        let timeout = timeout.min(TIMEOUT);
        let mut choices = Choices::default();
        let own = &pipeline_run["metadata"]["annotations"];
        let is_open = |setting: &Setting| own[setting.annotation()].is_null();
        // If the name is an address such as `https://…`, Tekton fetches the Pipeline, and the namespace has no Pipeline to wait
        // for.
        if let Some(name) = pipeline_run["spec"]["pipelineRef"]["name"].as_str()
            && !name.is_empty()
            && !name.contains("://")
            && Setting::ALL.iter().any(is_open)
        {
            let pipeline = self.pipelines.get(namespace, name, timeout, |_| true);
            match pipeline.await {
                Some(annotations) => choices.pipeline = annotations,
                None => choices.warning = Some(unknown_pipeline(namespace, name)),
            }
        }
        choices.namespace = self.of_namespace(namespace, timeout).await?;
        Ok(choices)
    }

    /// The annotations of a Namespace that choose settings for its runs, or limit the choices.
    ///
    /// # Errors
    /// The cache does not have the Namespace.
    pub(crate) async fn of_namespace(
        &self,
        namespace: &str,
        timeout: Duration,
    ) -> Result<Annotations, Unknown> {
        let timeout = timeout.min(TIMEOUT);
        let found = self.namespaces.get("", namespace, timeout, |_| true);
        found.await.ok_or_else(|| Unknown {
            kind: "Namespace",
            name: namespace.to_owned(),
        })
    }

    /// The group of the PipelineRun that is the controller of an object. `None` if the controller has no group or is not a
    /// PipelineRun. Also `None` if the object itself has no group annotation, because then the owner's group is not needed.
    ///
    /// # Errors
    /// The cache does not have the PipelineRun.
    pub(crate) async fn owner_group(
        &self,
        namespace: &str,
        metadata: &ObjectMeta,
        timeout: Duration,
    ) -> Result<Option<String>, Unknown> {
        let annotations = metadata.annotations.as_ref();
        let names_a_group = annotations.is_some_and(|annotations| annotations.contains_key(GROUP));
        let controller = objects::controller(metadata);
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

    /// A new run may name claims that were made for other PipelineRuns of its namespace (V2a). Returns at most [`SOURCES`] of
    /// these other PipelineRuns, if they are still stored. The key is the group of a PipelineRun, and the value is its name.
    pub(crate) fn sources(
        &self,
        namespace: &str,
        pipeline_run: &Value,
    ) -> BTreeMap<String, String> {
        let bindings = pipeline_run["spec"]["workspaces"].as_array();
        let claims = bindings.into_iter().flatten();
        let claims = claims.filter_map(|it| it["persistentVolumeClaim"]["claimName"].as_str());
        let assistants: BTreeSet<_> = claims.filter_map(assistant_of).collect();
        if assistants.is_empty() {
            return BTreeMap::new();
        }
        let runs = self.pipeline_runs.in_namespace(namespace).into_iter();
        let of_group = |group: &str| Some(AssistantName::of(&group.parse().ok()?));
        runs.filter_map(|(name, run)| Some((run.group?, name)))
            .filter(|(group, _)| of_group(group).is_some_and(|it| assistants.contains(&it)))
            .take(SOURCES)
            .collect()
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

fn chosen(metadata: ObjectMeta) -> Annotations {
    let mut annotations = metadata.annotations.unwrap_or_default();
    let is_choice = |key: &str| Setting::ALL.iter().any(|it| it.annotation() == key);
    annotations.retain(|key, _| key == ALLOWED_OVERRIDES || is_choice(key));
    annotations
}

fn owner(metadata: ObjectMeta) -> Owner {
    Owner {
        uid: metadata.uid.clone().unwrap_or_default(),
        group: metadata
            .annotations
            .and_then(|mut annotations| annotations.remove(GROUP)),
    }
}

fn unknown_pipeline(namespace: &str, name: &str) -> String {
    format!(
        "there is no Pipeline {name:?} in namespace {namespace:?} yet, so these annotations of this Pipeline have no effect on the \
         run: {}; create the Pipeline before the run, or set the annotations on the run itself",
        Setting::ALL.map(Setting::annotation).join(", ")
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

    /// The part of an object's annotations that a cache keeps.
    fn says(annotations: Value) -> Annotations {
        chosen(serde_json::from_value(json!({"annotations": annotations})).unwrap())
    }

    fn surroundings() -> Surroundings {
        let disabled = says(json!({"coscheduler.dev/coschedule": "disabled", "note": "mine"}));
        let limited = says(json!({
            "coscheduler.dev/coschedule": "workspaces",
            "coscheduler.dev/placement": "pack",
            "coscheduler.dev/placeholder-reserves": "nothing",
            "coscheduler.dev/allowed-overrides": "disabled",
            "coscheduler.dev/mode": "forged",
        }));
        Surroundings {
            pipelines: cache(&[
                ("ci", "plain", says(json!({}))),
                ("ci", "annotated", disabled),
                ("chosen", "plain", says(json!({}))),
            ]),
            namespaces: cache(&[("", "ci", says(json!({}))), ("", "chosen", limited)]),
            pipeline_runs: cache(&[
                (
                    "ci",
                    "ours",
                    Owner {
                        uid: "u1".to_owned(),
                        group: Some("0123456789".to_owned()),
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

    /// The choices of the Pipeline and of the Namespace, and `true` if the author gets a warning.
    async fn choices(namespace: &str, run: Value) -> (String, String, bool) {
        let choices = surroundings()
            .choices(namespace, &run, SHORT)
            .await
            .unwrap();
        let words = |annotations: Annotations| {
            let words: Vec<_> = annotations.into_values().collect();
            words.join(" ")
        };
        (
            words(choices.pipeline),
            words(choices.namespace),
            choices.warning.is_some(),
        )
    }

    #[tokio::test]
    async fn b1_a_pipeline_and_a_namespace_choose_by_their_own_annotations() {
        let refers = |name: &str| json!({"spec": {"pipelineRef": {"name": name}}});
        let check = async |namespace: &str, run: Value, pipeline: &str, warns: bool| {
            let limited = match namespace {
                "chosen" => "disabled workspaces nothing pack",
                _ => "",
            };
            let expect = (pipeline.to_owned(), limited.to_owned(), warns);
            assert_eq!(choices(namespace, run).await, expect);
        };
        let embedded = json!({"spec": {"pipelineSpec": {}}});
        let remote = json!({"spec": {"pipelineRef": {"resolver": "git", "params": []}}});
        let address = refers("https://example.dev/build.yaml");
        check("ci", address, "", false).await;
        check("ci", embedded.clone(), "", false).await;
        check("chosen", embedded, "", false).await;
        check("chosen", remote, "", false).await;
        check("ci", refers("plain"), "", false).await;
        check("ci", refers("annotated"), "disabled", false).await;
        check("chosen", refers("plain"), "", false).await;
        // Only a Pipeline in the run's own namespace counts.
        check("chosen", refers("annotated"), "", true).await;

        // The webhook waits for the Pipeline, unless the run itself chooses every setting.
        let mut own = refers("absent");
        own["metadata"] = json!({"annotations": {"coscheduler.dev/coschedule": "disabled"}});
        check("chosen", own.clone(), "", true).await;
        for setting in Setting::ALL {
            own["metadata"]["annotations"][setting.annotation()] = json!("any");
        }
        check("chosen", own, "", false).await;
    }

    #[test]
    fn v2a_the_run_whose_claims_a_new_run_names_is_found_by_their_group() {
        let known = surroundings();
        let group = |digits: &str| digits.parse().unwrap();
        let claim =
            |digits: &str| format!("pvc-0123456789-{}-0", AssistantName::of(&group(digits)));
        let sources = |namespace: &str, claims: &[&str]| {
            let bindings = claims
                .iter()
                .map(|name| json!({"persistentVolumeClaim": {"claimName": name}}));
            let run = json!({"spec": {"workspaces": bindings.collect::<Vec<_>>()}});
            known.sources(namespace, &run)
        };
        let ours = BTreeMap::from([("0123456789".to_owned(), "ours".to_owned())]);
        let (made, other) = (claim("0123456789"), claim("9876543210"));
        assert_eq!(sources("ci", &["mine", &other, &made]), ours);
        for (namespace, claims) in [("chosen", [&*made]), ("ci", [&*other]), ("ci", ["mine"])] {
            assert!(sources(namespace, &claims).is_empty());
        }
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
        // The owner is another run with the same name.
        let other = group("tekton.dev/v1", "ours", "u3").await;
        assert_eq!(other.unwrap_err().kind, "PipelineRun");
        let silent = named("tekton.dev/v1", "ours", "u3", json!({})).await;
        assert_eq!(silent, Ok(None));
    }
}
