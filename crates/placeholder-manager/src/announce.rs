//! Informs the authors of runs: Events, and the annotation that says why a run waits.
//!
//! An Event is named after its run and its text, so that the API server keeps it once, whichever replica writes it and however
//! often. Written names are remembered, so that an unchanged run costs nothing.

use coscheduler_core::annotations::BLOCKED;
use coscheduler_core::notices::blocked_annotation;
use coscheduler_core::observed::Observed;
use coscheduler_core::pipeline_run::PipelineRun;
use coscheduler_core::plan::Reason;
use coscheduler_core::reconcile::Decision;
use coscheduler_core::refusals::{REFUSALS, said_on};
use coscheduler_kubernetes::events;
use k8s_openapi::jiff::Timestamp;
use tracing::info;

use crate::SERVICE;
use crate::act::Acted;
use crate::cache::RunKey;
use crate::error::Error;
use crate::reconciler::Reconciler;

impl Reconciler {
    /// Says what was decided, what was done, and what could not be done.
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
        for reason in acted.told.iter().chain(&decision.events) {
            self.say(key, run, reason).await?;
        }
        if let Some(reason) = &acted.refused {
            self.say(key, run, reason).await?;
            // One cause in changing words does not change the annotation: each change of the run brings the next report.
            if REFUSALS.contains(&reason.code) && said_on(run) != Some(reason.code) {
                return self.annotate(run, Some(reason)).await;
            }
        } else if let Some(blocked) = &decision.blocked {
            return self.annotate(run, blocked.as_ref()).await;
        }
        Ok(())
    }

    /// Writes one Event, once.
    async fn say(&self, key: &RunKey, run: &PipelineRun, reason: &Reason) -> Result<(), Error> {
        let name = reason.event_name(run);
        if self.memory.has_said(key, &name) {
            return Ok(());
        }
        if let Some(event) = events::of_run(run, reason, SERVICE.name, Timestamp::now()) {
            self.requests.create_event(&run.namespace, &event).await?;
            info!(
                namespace = run.namespace,
                pipeline_run = run.name,
                reason = reason.code.as_str(),
                message = reason.message,
                "wrote an Event"
            );
        }
        self.memory.said(key, name);
        Ok(())
    }

    /// Writes why the run waits, or that it does not, where it does not say so already.
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
