//! What the planner is told beside the object under review: the mode that its Pipeline and its Namespace choose (B1), and
//! the group of the PipelineRun that it is made for, which copied annotations alone do not prove.

use std::time::Duration;

use coscheduler_core::annotations::{GROUP, OVERRIDE};
use coscheduler_core::pipeline_run::OwnerReference;
use coscheduler_kubernetes::child_run;
use coscheduler_kubernetes::tekton::{Pipeline, PipelineRun};
use coscheduler_runtime::Process;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Client;
use serde_json::Value;

use crate::known::Known;

/// How long an object that was created a moment ago may take to arrive.
const PATIENCE: Duration = Duration::from_secs(2);

/// The objects around those under review.
#[derive(Clone, Debug, Default)]
pub(crate) struct Surroundings {
    pipelines: Known<Option<String>>,
    namespaces: Known<Option<String>>,
    pipeline_runs: Known<Owner>,
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
    /// What the author should know.
    pub(crate) warning: Option<String>,
}

/// An object that must exist, as the API server asks about something in it or of it, and has not arrived in time. To go on
/// without it would be to guess.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind} {name:?} has not arrived by the watch of its kind in time")]
pub(crate) struct Unknown {
    kind: &'static str,
    name: String,
}

impl Surroundings {
    /// Follows the Pipelines, Namespaces and PipelineRuns of the cluster, their metadata alone.
    pub(crate) fn follow(process: &Process, client: &Client) -> Self {
        Self {
            pipelines: Known::follow::<Pipeline>(process, client, chosen),
            namespaces: Known::follow::<Namespace>(process, client, chosen),
            pipeline_runs: Known::follow::<PipelineRun>(process, client, owner),
        }
    }

    /// The modes that Pipeline and Namespace choose for a new PipelineRun. Where the run itself does, they are of no
    /// interest, and neither is the Namespace where the Pipeline does.
    ///
    /// A Pipeline that is not known in time may never have existed, and Tekton says so; the run is not held up for it.
    ///
    /// # Errors
    /// The Namespace is not known.
    pub(crate) async fn choices(
        &self,
        namespace: &str,
        pipeline_run: &Value,
        patience: Duration,
    ) -> Result<Choices, Unknown> {
        let patience = patience.min(PATIENCE);
        let mut choices = Choices::default();
        if !pipeline_run["metadata"]["annotations"][OVERRIDE].is_null() {
            return Ok(choices);
        }
        // With an address instead of a name, a resolver finds it.
        if let Some(name) = pipeline_run["spec"]["pipelineRef"]["name"].as_str()
            && !name.is_empty()
            && !name.contains("://")
        {
            let known = self.pipelines.get(namespace, name, patience, |_| true);
            match known.await {
                Some(chosen) => choices.pipeline = chosen,
                None => choices.warning = Some(unknown_pipeline(namespace, name)),
            }
        }
        if choices.pipeline.is_none() {
            let known = self.namespaces.get("", namespace, patience, |_| true);
            choices.namespace = known.await.ok_or_else(|| Unknown {
                kind: "Namespace",
                name: namespace.to_owned(),
            })?;
        }
        Ok(choices)
    }

    /// The group of the PipelineRun that is an object's controller; `None` where that has none, where the controller is
    /// nothing of the kind, and where the object names no group, so that it does not matter.
    ///
    /// # Errors
    /// The PipelineRun is not known.
    pub(crate) async fn owner_group(
        &self,
        namespace: &str,
        metadata: &ObjectMeta,
        patience: Duration,
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
        let patience = patience.min(PATIENCE);
        let owner = self.pipeline_runs.get(namespace, &name, patience, same);
        match owner.await {
            Some(owner) => Ok(owner.group),
            None => Err(Unknown {
                kind: "PipelineRun",
                name,
            }),
        }
    }
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
        "there is no Pipeline {name:?} in namespace {namespace:?} yet, so annotation {OVERRIDE} of it does not count for this \
         run; create the Pipeline first, or annotate the run"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const SHORT: Duration = Duration::from_millis(10);

    fn known<T: Clone + Send + Sync + 'static>(objects: &[(&str, &str, T)]) -> Known<T> {
        let known = Known::default();
        for (namespace, name, object) in objects {
            known.set(
                ((*namespace).to_owned(), (*name).to_owned()),
                object.clone(),
            );
        }
        known
    }

    fn surroundings() -> Surroundings {
        let mode = |mode: &str| Some(mode.to_owned());
        Surroundings {
            pipelines: known(&[
                ("ci", "plain", None),
                ("ci", "annotated", mode("disabled")),
                ("chosen", "plain", None),
            ]),
            namespaces: known(&[("", "ci", None), ("", "chosen", mode("workspaces"))]),
            pipeline_runs: known(&[
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

    /// The choices of Pipeline and Namespace, and whether the author is told that there is no such Pipeline.
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
    async fn what_must_exist_is_not_guessed() {
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
