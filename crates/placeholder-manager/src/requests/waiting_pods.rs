//! The requests about pods that wait for room (N2, N4).

use coscheduler_core::annotations::{LET_GO, LET_GO_TIMES, TEKTON_AFFINITY_ASSISTANT};
use coscheduler_core::observed::Answer;
use coscheduler_core::observed::ObjectRef;
use coscheduler_core::pipeline_run::OwnerReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams};
use serde_json::json;

use super::{Requests, failed, once, retried};
use crate::error::Error;

/// The reason of the cluster autoscaler's Event about a pod for which it adds a node (cluster-autoscaler, "FAQ": "What events are
/// emitted by CA?").
const TRIGGERED: &str = "TriggeredScaleUp";

impl Requests {
    /// Empties the annotation of the TaskRun that names its placeholder, and notes the placeholder in another one. The annotation
    /// is empty rather than removed, because the Task's own would replace it. Returns false if the TaskRun is gone or replaced.
    pub(crate) async fn let_go(
        &self,
        namespace: &str,
        task_run: &OwnerReference,
        placeholder: &str,
        times: u32,
    ) -> Result<bool, Error> {
        let (api, name) = (self.task_runs(namespace), &task_run.name);
        let patch = Patch::Merge(json!({"metadata": {
            "uid": task_run.uid,
            "annotations": {
                TEKTON_AFFINITY_ASSISTANT: "", LET_GO: placeholder, LET_GO_TIMES: times.to_string(),
            },
        }}));
        match once(api.patch_metadata(name, &PatchParams::default(), &patch)).await {
            Ok(_) => Ok(true),
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(false),
            Err(error) => Err(failed(format!("let go TaskRun {namespace}/{name}"), error)),
        }
    }

    /// Reads whether the PipelineRun with this uid controls the pod's TaskRun, how often that was let go, and since when the
    /// cluster autoscaler adds a node for the pod.
    pub(crate) async fn ask(
        &self,
        namespace: &str,
        pod: &ObjectRef,
        task_run: &OwnerReference,
        run_uid: &str,
    ) -> Result<Answer, Error> {
        let api = self.task_runs(namespace);
        let found = retried(|| api.get_metadata_opt(&task_run.name)).await;
        let found = found.map_err(|error| {
            failed(format!("read TaskRun {namespace}/{}", task_run.name), error)
        })?;
        let metadata = found.map(|found| found.metadata).unwrap_or_default();
        let mut owners = metadata.owner_references.iter().flatten();
        let own = metadata.uid.as_ref() == Some(&task_run.uid)
            && owners.any(|owner| owner.controller == Some(true) && owner.uid == run_uid);
        let times = metadata
            .annotations
            .as_ref()
            .and_then(|all| all.get(LET_GO_TIMES));
        let scale_up = self.scale_up(namespace, &pod.uid).await?;
        Ok(Answer {
            at: Timestamp::now(),
            own,
            let_go: times
                .and_then(|times| times.parse().ok())
                .unwrap_or_default(),
            scale_up,
        })
    }

    async fn scale_up(&self, namespace: &str, uid: &str) -> Result<Option<Timestamp>, Error> {
        let api: Api<Event> = Api::namespaced(self.client.clone(), namespace);
        let fields = format!("reason={TRIGGERED},regarding.uid={uid}");
        let params = ListParams::default().fields(&fields);
        let list = retried(|| api.list_metadata(&params)).await;
        let list =
            list.map_err(|error| failed(format!("look for Events of pods in {namespace}"), error))?;
        let times = list.items.into_iter();
        let times = times.filter_map(|event| event.metadata.creation_timestamp);
        Ok(times.map(|time| time.0).min())
    }

    fn task_runs(&self, namespace: &str) -> Api<DynamicObject> {
        let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("tekton.dev", "v1", "TaskRun"));
        Api::namespaced_with(self.client.clone(), namespace, &kind)
    }
}
