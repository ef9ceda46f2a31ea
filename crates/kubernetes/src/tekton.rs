//! Tekton's kinds as Kubernetes objects. `spec` and `status` are JSON, so this code can also read objects of a newer Tekton.

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A `tekton.dev/v1` PipelineRun.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PipelineRun {
    /// `apiVersion`. Empty if the object comes from a list.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub api_version: String,
    /// `kind`. Empty if the object comes from a list.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// Standard metadata.
    pub metadata: ObjectMeta,
    /// `spec` as JSON.
    #[serde(default)]
    pub spec: Map<String, Value>,
    /// `status` as JSON. Empty until Tekton writes it.
    #[serde(default)]
    pub status: Map<String, Value>,
}

/// A `tekton.dev/v1` Pipeline.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Pipeline {
    /// Standard metadata.
    pub metadata: ObjectMeta,
    /// `spec` as JSON.
    #[serde(default)]
    pub spec: Value,
}

/// A `tekton.dev/v1` Task.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Task {
    /// Standard metadata.
    pub metadata: ObjectMeta,
    /// `spec` as JSON.
    #[serde(default)]
    pub spec: Value,
}

/// A `tekton.dev/v1` TaskRun.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct TaskRun {
    /// Standard metadata.
    pub metadata: ObjectMeta,
    /// `status` as JSON.
    #[serde(default)]
    pub status: Value,
}

macro_rules! tekton_kind {
    ($kind:ident, $plural:literal) => {
        impl k8s_openapi::Resource for $kind {
            const API_VERSION: &'static str = "tekton.dev/v1";
            const GROUP: &'static str = "tekton.dev";
            const KIND: &'static str = stringify!($kind);
            const VERSION: &'static str = "v1";
            const URL_PATH_SEGMENT: &'static str = $plural;
            type Scope = NamespaceResourceScope;
        }

        impl k8s_openapi::Metadata for $kind {
            type Ty = ObjectMeta;

            fn metadata(&self) -> &ObjectMeta {
                &self.metadata
            }

            fn metadata_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }
    };
}

tekton_kind!(PipelineRun, "pipelineruns");
tekton_kind!(Pipeline, "pipelines");
tekton_kind!(Task, "tasks");
tekton_kind!(TaskRun, "taskruns");
