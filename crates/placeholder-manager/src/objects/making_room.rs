//! The requests that make room for pods (N2, N4).

use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Api;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams};
use serde_json::json;

use coscheduler_core::annotations::{LET_GO, TEKTON_AFFINITY_ASSISTANT};

use super::{Objects, failed, retried};
use crate::error::Error;

/// What the cluster autoscaler says about a pod that it adds a node for (cluster-autoscaler, "FAQ": "What events are emitted by
/// CA?").
const TRIGGERED: &str = "TriggeredScaleUp";

impl Objects {
    /// Takes the placeholder from the TaskRun with this uid, and writes down which it was. Empty rather than absent: a Task's own
    /// annotation would take the place. False where the TaskRun is gone or replaced.
    pub(crate) async fn let_go(
        &self,
        namespace: &str,
        name: &str,
        uid: &str,
        placeholder: &str,
    ) -> Result<bool, Error> {
        let api = self.task_runs(namespace);
        let patch = Patch::Merge(json!({"metadata": {
            "uid": uid,
            "annotations": {TEKTON_AFFINITY_ASSISTANT: "", LET_GO: placeholder},
        }}));
        match api
            .patch_metadata(name, &PatchParams::default(), &patch)
            .await
        {
            Ok(_) => Ok(true),
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(false),
            Err(error) => Err(failed(format!("let go TaskRun {namespace}/{name}"), error)),
        }
    }

    /// Whether the TaskRun is there and was made for the PipelineRun with that uid.
    pub(crate) async fn is_task_of(
        &self,
        namespace: &str,
        task: &OwnerReference,
        run: &str,
    ) -> Result<bool, Error> {
        let api = self.task_runs(namespace);
        let found = retried(|| api.get_metadata_opt(&task.name)).await;
        let found = found
            .map_err(|error| failed(format!("read TaskRun {namespace}/{}", task.name), error))?;
        Ok(found.is_some_and(|found| {
            let mut owners = found.metadata.owner_references.iter().flatten();
            found.metadata.uid.as_ref() == Some(&task.uid)
                && owners.any(|owner| owner.controller == Some(true) && owner.uid == run)
        }))
    }

    fn task_runs(&self, namespace: &str) -> Api<DynamicObject> {
        let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("tekton.dev", "v1", "TaskRun"));
        Api::namespaced_with(self.client.clone(), namespace, &kind)
    }

    /// Whether the cluster autoscaler has said that it adds a node for the pod with this uid.
    pub(crate) async fn is_scaled_up_for(&self, namespace: &str, uid: &str) -> Result<bool, Error> {
        let api: Api<Event> = Api::namespaced(self.client.clone(), namespace);
        let params = ListParams::default()
            .fields(&format!("reason={TRIGGERED},regarding.uid={uid}"))
            .limit(1);
        let list = retried(|| api.list_metadata(&params)).await;
        list.map(|list| !list.items.is_empty())
            .map_err(|error| failed(format!("look for Events of pods in {namespace}"), error))
    }
}
