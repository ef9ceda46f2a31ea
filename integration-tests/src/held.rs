//! Tasks that run until the test ends them: [`Run::held`](crate::runs::Run::held).

use std::time::Duration;

use coscheduler_core::observed::PodPhase;
use coscheduler_kubernetes::pipeline_run::PipelineRun;
use coscheduler_kubernetes::pods;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::json;
use testbed::DURATION_ANNOTATION;

use crate::Scene;

impl Scene<'_> {
    /// Ends the pods of a [held](crate::runs::Run::held) task, and waits until they have ended.
    ///
    /// # Errors
    ///
    /// There is no such run, or the task's pods do not end in time. The second error describes the namespace.
    pub async fn end(&self, run: &str, task: &str) -> anyhow::Result<()> {
        // The uid is needed, because pods of an earlier run with this name may still exist.
        let uid = self.api::<PipelineRun>().get(run).await?.uid();
        let of_task = |pod: &Pod| {
            let label = |key: &str| pod.labels().get(key);
            label("tekton.dev/pipelineRunUID") == uid.as_ref()
                && label("tekton.dev/pipelineTask").is_some_and(|found| found == task)
        };
        let has_ended =
            |pod: &Pod| matches!(pods::phase(pod), PodPhase::Succeeded | PodPhase::Failed);
        // KWOK may act on an old version of a pod and not see the patch, so the patch is repeated until the pod ends.
        let told = async {
            let api = self.api::<Pod>();
            let mut round = 0;
            loop {
                round += 1;
                let duration = format!("{round}ms");
                let now = Patch::Merge(
                    json!({"metadata": {"annotations": {DURATION_ANNOTATION: duration}}}),
                );
                let pods = api.list(&ListParams::default()).await?.items;
                for pod in pods.iter().filter(|pod| of_task(pod) && !has_ended(pod)) {
                    match api
                        .patch(&pod.name_any(), &PatchParams::default(), &now)
                        .await
                    {
                        Err(kube::Error::Api(status)) if status.code == 404 => {}
                        patched => drop(patched?),
                    }
                }
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        };
        let what = format!("of run {run} and task {task} have ended");
        let ended = self.until_all::<Pod>(&what, |pods| {
            let mut of_task = pods.iter().filter(|pod| of_task(pod)).peekable();
            of_task.peek().is_some() && of_task.all(|pod| has_ended(pod))
        });
        tokio::select! {
            ended = ended => ended.map(drop),
            told = told => told,
        }
    }
}
