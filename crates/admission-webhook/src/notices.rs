//! Publishes Events on a PipelineRun about reviews of its TaskRuns and CustomRuns. Only Tekton's controller sees the answer to
//! such a review, so an Event informs the author of the PipelineRun. If a TaskRun must not run, the PipelineRun also gets an
//! annotation with the cause, because Tekton's condition of the PipelineRun does not name the cause. The answer to the review
//! does not wait for these writes.

use std::time::Duration;

use coscheduler_core::annotations::REFUSED;
use coscheduler_core::event_texts::{Reason, ReasonCode};
use coscheduler_core::pipeline_run::{OwnerReference, PipelineRun};
use coscheduler_kubernetes::events::{about, written};
use coscheduler_kubernetes::tekton;
use coscheduler_runtime::Process;
use jiff::Timestamp;
use k8s_openapi::api::events::v1::Event;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tracing::warn;

/// The greatest number of Events that wait to be written. If there are more, new Events are dropped, and the log reports this.
const WAITING: usize = 256;
/// The longest time for one write.
const TIMEOUT: Duration = Duration::from_secs(10);

/// An Event to write.
#[derive(Clone, Debug)]
pub(crate) struct Notice {
    pub(crate) pipeline_run: PipelineRun,
    pub(crate) reason: Reason,
}

/// Accepts Events to write.
#[derive(Clone, Debug)]
pub(crate) struct Notices {
    waiting: mpsc::Sender<Notice>,
}

impl Notices {
    /// Starts a task that writes Events for the life of the process.
    pub(crate) fn spawn(process: &Process, client: Client) -> Self {
        let (events, mut waiting) = Self::channel();
        process.spawn("write Events", async move {
            while let Some(notice) = waiting.recv().await {
                write(&client, &notice).await;
            }
            Ok(())
        });
        events
    }

    /// A sender, and the receiver of the Events that it accepts.
    pub(crate) fn channel() -> (Self, mpsc::Receiver<Notice>) {
        let (sender, receiver) = mpsc::channel(WAITING);
        (Self { waiting: sender }, receiver)
    }

    /// Queues an Event to write.
    pub(crate) fn send(&self, notice: Notice) {
        if let Err(error) = self.waiting.try_send(notice) {
            warn!(%error, "dropped an Event: too many wait for a write");
        }
    }
}

async fn write(client: &Client, notice: &Notice) {
    let Notice {
        pipeline_run: run,
        reason,
    } = notice;
    let object = OwnerReference::to_pipeline_run(run);
    let now = Timestamp::now();
    let Some(event) = about(&run.namespace, &object, reason, crate::SERVICE.name, now) else {
        return;
    };
    let api: Api<Event> = Api::namespaced(client.clone(), &run.namespace);
    let params = PostParams::default();
    let created = timeout(TIMEOUT, api.create(&params, &event)).await;
    let created = created.unwrap_or_else(|late| Err(kube::Error::Service(late.into())));
    let (namespace, pipeline_run, code) = (&run.namespace, &run.name, reason.code.as_str());
    if let Err(error) = written(created) {
        warn!(namespace, pipeline_run, code, %error, "failed to create an Event");
    }
    if reason.code != ReasonCode::TaskRunRefused {
        return;
    }
    let api: Api<tekton::PipelineRun> = Api::namespaced(client.clone(), &run.namespace);
    let annotation = Patch::Merge(json!({"metadata": {
        "uid": run.uid,
        "annotations": {REFUSED: reason.to_annotation()},
    }}));
    let params = PatchParams::default();
    let patched = timeout(TIMEOUT, api.patch_metadata(&run.name, &params, &annotation)).await;
    let patched = patched.unwrap_or_else(|late| Err(kube::Error::Service(late.into())));
    if let Err(error) = patched {
        warn!(namespace, pipeline_run, code, %error, "failed to annotate the PipelineRun");
    }
}
