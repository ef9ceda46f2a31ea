//! Publishes Events about PipelineRuns and TaskRuns, and annotation `coscheduler.dev/blocked` on PipelineRuns.
//!
//! The name of an Event is computed from its object, its reason code and its text. So if two replicas create the same Event,
//! the API server stores it only once. Each replica remembers the names of its Events, so that an unchanged run costs no
//! request.

use coscheduler_core::annotations::BLOCKED;
use coscheduler_core::observed::Observed;
use coscheduler_core::pipeline_run::{OwnerReference, PipelineRun};
use coscheduler_core::plan::Reason;
use coscheduler_core::reconcile::Decision;
use coscheduler_core::reconcile::tell::blocked_annotation;
use coscheduler_core::reconcile::tell::refusals::{REFUSALS, said_on};
use coscheduler_kubernetes::events;
use k8s_openapi::jiff::Timestamp;
use tracing::info;

use crate::SERVICE;
use crate::act::Acted;
use crate::cache::RunKey;
use crate::error::Error;
use crate::reconciler::Reconciler;

impl Reconciler {
    /// Publishes the Events of the steps and of the decision, and an Event for `acted.refused`. Then updates the annotation.
    pub(crate) async fn announce(
        &self,
        key: &RunKey,
        observed: &Observed,
        decision: &Decision,
        acted: &Acted,
    ) -> Result<(), Error> {
        let Some((run, _)) = &observed.run else {
            return Ok(());
        };
        let mut published = Ok(());
        let reasons = acted.events.iter().chain(&decision.events);
        let object = OwnerReference::to_pipeline_run(run);
        let of_run = reasons
            .chain(&acted.refused)
            .map(|reason| (&object, reason));
        let of_task_runs = decision
            .of_task_runs
            .iter()
            .map(|(it, reason)| (it, reason));
        for (object, reason) in of_run.chain(of_task_runs) {
            // If one Event cannot be created, the others and the annotation are still written.
            let this = self.publish(key, run, object, reason).await;
            published = published.and(this);
        }
        if let Some(reason) = &acted.refused {
            // If the annotation has the same reason code, it stays, even if its text differs. Each change of the annotation
            // costs a reconcile by Tekton and a report by the watcher.
            if REFUSALS.contains(&reason.code) && said_on(run) != Some(reason.code) {
                self.annotate(run, Some(reason)).await?;
            }
        } else if let Some(blocked) = &decision.blocked {
            self.annotate(run, blocked.as_ref()).await?;
        }
        published
    }

    /// Creates an Event, unless this replica has created it before.
    async fn publish(
        &self,
        key: &RunKey,
        run: &PipelineRun,
        object: &OwnerReference,
        reason: &Reason,
    ) -> Result<(), Error> {
        let name = reason.event_name(object);
        if self.memory.has_said(key, &name) {
            return Ok(());
        }
        let (namespace, now) = (run.namespace.as_str(), Timestamp::now());
        if let Some(event) = events::about(namespace, object, reason, SERVICE.name, now) {
            let is_new = self.requests.create_event(namespace, &event).await?;
            // The metric counts only Events about PipelineRuns. An Event about a TaskRun repeats the reason of its run.
            if is_new && object.uid == run.uid {
                self.published.count(reason.code);
            }
            info!(
                namespace,
                pipeline_run = run.name,
                kind = object.kind,
                name = object.name,
                reason = reason.code.as_str(),
                message = reason.message,
                "published an Event"
            );
        }
        self.memory.said(key, name);
        Ok(())
    }

    /// Sets or removes the annotation, unless it is up to date.
    async fn annotate(&self, run: &PipelineRun, blocked: Option<&Reason>) -> Result<(), Error> {
        let Some(value) = blocked_annotation(run, blocked) else {
            return Ok(());
        };
        let annotated = self.requests.annotate(run, BLOCKED, value.clone()).await?;
        if let Some(version) = annotated {
            self.cache.annotated(run, BLOCKED, value, version);
        }
        Ok(())
    }
}
