//! The requests about StatefulSets that exist.

use k8s_openapi::api::apps::v1::StatefulSet;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

use coscheduler_core::annotations::RETRIED;
use coscheduler_core::teardown::ObjectRef;

use super::{Objects, failed, is_gone, retried, this_one};
use crate::error::Error;

impl Objects {
    /// Reads a StatefulSet. `None` where there is none.
    pub(crate) async fn stateful_set(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<StatefulSet>, Error> {
        let api: Api<StatefulSet> = Api::namespaced(self.client.clone(), namespace);
        retried(|| api.get_opt(name))
            .await
            .map_err(|error| failed(format!("read StatefulSet {namespace}/{name}"), error))
    }

    /// Patches the version of a StatefulSet that the patch names. `None` where it has changed since or is gone.
    pub(crate) async fn patch_stateful_set(
        &self,
        namespace: &str,
        name: &str,
        patch: &Value,
    ) -> Result<Option<StatefulSet>, Error> {
        let api: Api<StatefulSet> = Api::namespaced(self.client.clone(), namespace);
        let params = PatchParams::default();
        match api.patch(name, &params, &Patch::Merge(patch)).await {
            Ok(patched) => Ok(Some(patched)),
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(None),
            Err(error) => Err(failed(
                format!("move placeholder {namespace}/{name}"),
                error,
            )),
        }
    }

    /// Deletes a StatefulSet, its pod with it. One that is gone or replaced already is left alone.
    pub(crate) async fn delete_stateful_set(
        &self,
        namespace: &str,
        set: &ObjectRef,
    ) -> Result<(), Error> {
        let api: Api<StatefulSet> = Api::namespaced(self.client.clone(), namespace);
        let params = DeleteParams::background().preconditions(this_one(set));
        match retried(|| api.delete(&set.name, &params)).await {
            Ok(_) => Ok(()),
            Err(error) if is_gone(&error) => Ok(()),
            Err(error) => Err(failed(
                format!("delete StatefulSet {namespace}/{}", set.name),
                error,
            )),
        }
    }

    /// Makes the controller of this StatefulSet try again now what it has failed to do, by an annotation that says which
    /// version of it that was. One that is gone or replaced already is left alone.
    pub(crate) async fn nudge(&self, namespace: &str, set: &StatefulSet) -> Result<(), Error> {
        let api: Api<StatefulSet> = Api::namespaced(self.client.clone(), namespace);
        let name = set.metadata.name.clone().unwrap_or_default();
        let patch = Patch::Merge(json!({"metadata": {
            "uid": set.metadata.uid,
            "annotations": {RETRIED: set.metadata.resource_version},
        }}));
        // A conflict means that another one has taken the name.
        match api
            .patch_metadata(&name, &PatchParams::default(), &patch)
            .await
        {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
            Err(error) => Err(failed(
                format!("annotate StatefulSet {namespace}/{name}"),
                error,
            )),
        }
    }
}
