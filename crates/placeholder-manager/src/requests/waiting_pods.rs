//! The requests about pods that wait for room (N2).

use std::collections::BTreeSet;

use coscheduler_core::annotations::{LET_GO, LET_GO_TIMES, TEKTON_AFFINITY_ASSISTANT};
use coscheduler_core::labels::PIPELINE_RUN_UID;
use coscheduler_core::observed::Answer;
use coscheduler_core::pipeline_run::OwnerReference;
use coscheduler_kubernetes::pods::NOT_ENDED;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams};
use serde_json::json;

use super::{Requests, failed, once, retried, unless_gone};
use crate::error::Error;

impl Requests {
    /// Lets a TaskRun's pod run without its placeholder: empties the TaskRun's annotation with the placeholder's name, and
    /// writes the name into another annotation. The first annotation is not removed, because Tekton would then copy a value
    /// from the Task. Returns false if the TaskRun is gone or replaced.
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
        let patched = once(api.patch_metadata(name, &PatchParams::default(), &patch)).await;
        let act = || format!("release TaskRun {namespace}/{name} from its placeholder");
        Ok(unless_gone(patched, act)?.is_some())
    }

    /// Finds out if the PipelineRun with this uid controls the pod's TaskRun, and how often [`Self::let_go`] changed this
    /// TaskRun.
    pub(crate) async fn ask(
        &self,
        namespace: &str,
        task_run: &OwnerReference,
        run_uid: &str,
    ) -> Result<Answer, Error> {
        let api = self.task_runs(namespace);
        let act = || format!("read TaskRun {namespace}/{}", task_run.name);
        let found = retried(|| api.get_metadata_opt(&task_run.name)).await;
        let found = found.map_err(|error| failed(act(), error))?;
        let metadata = found.map(|found| found.metadata).unwrap_or_default();
        let mut owners = metadata.owner_references.iter().flatten();
        let own = metadata.uid.as_ref() == Some(&task_run.uid)
            && owners.any(|owner| owner.controller == Some(true) && owner.uid == run_uid);
        let annotations = metadata.annotations.unwrap_or_default();
        let times = annotations.get(LET_GO_TIMES);
        Ok(Answer {
            at: Timestamp::now(),
            own,
            let_go: times.and_then(|it| it.parse().ok()).unwrap_or_default(),
        })
    }

    /// Lists the pods of the PipelineRuns with these uids. Leaves out pods that have ended.
    pub(crate) async fn pods_of_runs(
        &self,
        namespace: &str,
        runs: &BTreeSet<&str>,
    ) -> Result<Vec<Pod>, Error> {
        let _turn = self.listings.acquire().await.ok();
        let api: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let runs: Vec<_> = runs.iter().copied().collect();
        let selector = format!("{PIPELINE_RUN_UID} in ({})", runs.join(","));
        let params = ListParams::default().labels(&selector).fields(NOT_ENDED);
        let listed = retried(|| api.list(&params)).await;
        let act = || format!("list the pods of PipelineRuns in {namespace}");
        Ok(listed.map_err(|error| failed(act(), error))?.items)
    }

    fn task_runs(&self, namespace: &str) -> Api<DynamicObject> {
        let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("tekton.dev", "v1", "TaskRun"));
        Api::namespaced_with(self.client.clone(), namespace, &kind)
    }
}
