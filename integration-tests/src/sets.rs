//! The StatefulSets of placeholders. With environment variable `TESTBED_PLACEHOLDERS=pod`, placeholders are pods without a
//! StatefulSet; then a test sees the StatefulSets that they would have.

use std::sync::Arc;

use anyhow::Context as _;
use k8s_openapi::api::apps::v1::{StatefulSet, StatefulSetSpec};
use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{ApiResource, DynamicObject, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::json;
use testbed::services::backend;

use crate::Scene;
use crate::look::is_placeholder;

/// True if new placeholders are pods without a StatefulSet.
pub fn only_pods() -> bool {
    backend().is_some_and(|(_, value)| value == "pod")
}

/// The resource whose objects are new placeholders.
pub fn resource() -> &'static str {
    match only_pods() {
        true => "pods",
        false => "statefulsets",
    }
}

/// As [`only_pods`], for a test whose subject is a StatefulSet. If true, prints that the test is skipped.
#[allow(clippy::print_stdout, reason = "a skipped test must be seen")]
pub fn without_sets() -> bool {
    let skipped = only_pods();
    if skipped {
        println!("skipped: the subject of this test is a StatefulSet");
    }
    skipped
}

/// The name of a placeholder's object.
pub fn object_name(placeholder: &str) -> String {
    match only_pods() {
        true => format!("{placeholder}-0"),
        false => placeholder.to_owned(),
    }
}

/// True if the pod is a placeholder without a StatefulSet.
pub fn is_alone(pod: &Pod) -> bool {
    let mut owners = pod.owner_references().iter();
    is_placeholder(pod) && owners.any(|owner| owner.kind == "PipelineRun")
}

/// The StatefulSet that a placeholder would have. The placeholder is only this pod.
pub fn set_of(pod: &Pod) -> StatefulSet {
    let name = pod.name_any();
    let mut metadata = pod.metadata.clone();
    metadata.name = name.strip_suffix("-0").map(str::to_owned);
    let template = PodTemplateSpec {
        metadata: Some(ObjectMeta {
            labels: pod.metadata.labels.clone(),
            annotations: pod.metadata.annotations.clone(),
            ..ObjectMeta::default()
        }),
        spec: pod.spec.clone(),
    };
    StatefulSet {
        metadata,
        spec: Some(StatefulSetSpec {
            replicas: Some(1),
            template,
            ..StatefulSetSpec::default()
        }),
        status: None,
    }
}

impl Scene<'_> {
    /// Waits until `condition` holds for all placeholders in the namespace, and returns their StatefulSets.
    ///
    /// # Errors
    ///
    /// `condition` does not hold in time. The error describes the namespace.
    pub async fn until_sets(
        &self,
        what: &str,
        mut condition: impl FnMut(&[Arc<StatefulSet>]) -> bool,
    ) -> anyhow::Result<Vec<Arc<StatefulSet>>> {
        if !only_pods() {
            return self.until_all::<StatefulSet>(what, condition).await;
        }
        let sets = |pods: &[Arc<Pod>]| -> Vec<_> {
            let own = pods.iter().filter(|pod| is_placeholder(pod));
            own.map(|pod| Arc::new(set_of(pod))).collect()
        };
        let pods = self.until_all::<Pod>(what, |pods| condition(&sets(pods)));
        Ok(sets(&pods.await?))
    }

    /// The API of the resource whose objects are new placeholders.
    pub fn placeholder_objects(&self) -> Api<DynamicObject> {
        let kind = match only_pods() {
            true => ApiResource::erase::<Pod>(&()),
            false => ApiResource::erase::<StatefulSet>(&()),
        };
        Api::namespaced_with(self.client.clone(), &self.namespace, &kind)
    }

    /// Creates an object with the name of a placeholder's object, but without an owner.
    ///
    /// # Errors
    ///
    /// The API server refuses the object.
    pub async fn take_name(&self, placeholder: &str) -> anyhow::Result<DynamicObject> {
        let labels = json!({"mine": "yes"});
        let pod = json!({"containers": [{"name": "c", "image": "example/image"}]});
        let spec = match only_pods() {
            true => pod,
            false => json!({
                "replicas": 0,
                "serviceName": "",
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": pod},
            }),
        };
        let metadata = json!({"name": object_name(placeholder), "labels": labels});
        let object = serde_json::from_value(json!({"metadata": metadata, "spec": spec}))?;
        let objects = self.placeholder_objects();
        Ok(objects.create(&PostParams::default(), &object).await?)
    }

    /// The StatefulSet of the placeholder with this name.
    ///
    /// # Errors
    ///
    /// There is no such placeholder.
    pub async fn set(&self, name: &str) -> anyhow::Result<StatefulSet> {
        if !only_pods() {
            return Ok(self.api::<StatefulSet>().get(name).await?);
        }
        let pod = self.api::<Pod>().get(&format!("{name}-0")).await;
        Ok(set_of(
            &pod.with_context(|| format!("no placeholder {name}"))?,
        ))
    }
}
