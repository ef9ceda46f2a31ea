//! The Pipeline as a kind: nothing but its metadata is ever read.

use std::borrow::Cow;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};

/// A `tekton.dev/v1` Pipeline.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Pipeline {
    /// Standard metadata.
    pub metadata: ObjectMeta,
}

impl kube::Resource for Pipeline {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "Pipeline".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        "tekton.dev".into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "pipelines".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}
