//! Reduces each object in a list or watch to the needed part as soon as the object is parsed. So a list of large objects needs
//! little memory.

use coscheduler_core::observed;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::{Metadata, Resource};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::pipeline_run::{self, PipelineRun};
use crate::pods;

/// A kind of object of which only a part is kept.
pub trait Keep: Metadata<Ty = ObjectMeta> {
    /// The part.
    type Part;

    /// Reduces the object to the part.
    fn keep(self) -> Self::Part;
}

/// The kept part of an object of kind `K`. It can be listed and watched like the object itself.
#[derive(Clone, Debug, Deserialize)]
#[serde(from = "K", bound = "K: Keep + DeserializeOwned")]
pub struct Kept<K: Keep> {
    /// Namespace, name and version of the object.
    metadata: ObjectMeta,
    /// The part.
    pub part: K::Part,
}

impl<K: Keep> From<K> for Kept<K> {
    fn from(object: K) -> Self {
        let metadata = object.metadata();
        Self {
            metadata: ObjectMeta {
                namespace: metadata.namespace.clone(),
                name: metadata.name.clone(),
                resource_version: metadata.resource_version.clone(),
                ..ObjectMeta::default()
            },
            part: object.keep(),
        }
    }
}

impl<K: Keep> Resource for Kept<K> {
    const API_VERSION: &'static str = K::API_VERSION;
    const GROUP: &'static str = K::GROUP;
    const KIND: &'static str = K::KIND;
    const VERSION: &'static str = K::VERSION;
    const URL_PATH_SEGMENT: &'static str = K::URL_PATH_SEGMENT;
    type Scope = K::Scope;
}

impl<K: Keep> Metadata for Kept<K> {
    type Ty = ObjectMeta;

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

impl Keep for Pod {
    type Part = Option<observed::Pod>;

    fn keep(self) -> Self::Part {
        pods::view(self)
    }
}

impl Keep for PipelineRun {
    type Part = Self;

    fn keep(mut self) -> Self {
        pipeline_run::trim(&mut self);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn n8_an_object_is_reduced_when_it_is_parsed() {
        let pod: Kept<Pod> = serde_json::from_value(json!({
            "metadata": {
                "namespace": "ci", "name": "p", "resourceVersion": "7", "labels": {"tekton.dev/pipelineRunUID": "u"},
                "annotations": {"note": "long"},
            },
            "status": {"phase": "Succeeded"},
        }))
        .unwrap();
        let identity = json!({"namespace": "ci", "name": "p", "resourceVersion": "7"});
        assert_eq!(json!(pod.metadata), identity);
        assert_eq!(pod.part.unwrap().run_uid, "u");
        let run: Kept<PipelineRun> = serde_json::from_value(json!({
            "metadata": {"name": "r", "annotations": {"note": "long"}}, "spec": {"params": []},
        }))
        .unwrap();
        assert_eq!(run.part.spec.len(), 0);
        assert_eq!(run.part.metadata.annotations, Some([].into()));
    }
}
