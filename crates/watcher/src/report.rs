//! Reports the latest state of a run to the affinity-planner.

use std::time::Duration;

use kube::ResourceExt as _;
use tonic::Code;
use tracing::{Instrument as _, debug, error, info_span, warn};

use coscheduler_core::annotations;
use coscheduler_kubernetes::pipeline_run;
use coscheduler_proto::json;
use coscheduler_proto::placeholder::EnsureOutcome;
use coscheduler_proto::planner::ReportPipelineRunRequest;
use coscheduler_proto::planner::planner_service_client::PlannerServiceClient;
use coscheduler_proto::planner::report_pipeline_run_response::Outcome as Reported;
use coscheduler_runtime::client::{self, Channel};
use coscheduler_runtime::kubernetes::watch::ObjectKey;
use coscheduler_runtime::queue::Outcome;
use coscheduler_runtime::trace;

use crate::follow::Runs;

/// The longest time for a report. The manager waits for its caches and retries its writes within this time.
const TIMEOUT: Duration = Duration::from_secs(15);

/// Reports the latest state of a run. The report belongs to the trace of the run's admission. A deleted run needs no report.
/// After the report of its end, a run is removed from `runs`. A run that the planner cannot read is removed too, until it
/// changes.
pub(crate) async fn report(
    runs: Runs,
    mut planner: PlannerServiceClient<Channel>,
    key: ObjectKey,
) -> Outcome {
    let Some(run) = runs.lock().get(&key).cloned() else {
        return Outcome::Done;
    };
    let (namespace, pipeline_run) = &key;
    let span = info_span!("report", namespace, pipeline_run);
    if let Some(traceparent) = run.annotations().get(annotations::TRACEPARENT) {
        trace::join(&span, traceparent);
    }
    let request = ReportPipelineRunRequest {
        pipeline_run: Some(json::to_struct(&pipeline_run::to_json(&run))),
    };
    let request = client::request(request, TIMEOUT);
    let answer = planner.report_pipeline_run(request).instrument(span).await;
    let is_done = pipeline_run::is_done(&run);
    let (outcome, settled) = match answer {
        Ok(answer) => {
            let answer = answer.into_inner();
            debug!(namespace, pipeline_run, ?answer, "reported a PipelineRun");
            let superseded = Reported::Ensured(EnsureOutcome::Superseded.into());
            if answer.outcome != Some(superseded) {
                (Outcome::Done, is_done)
            } else if runs.has(&key, &run) {
                // The manager has a newer state of the run, which the watch will deliver here too. If the newer state has the
                // same plan, it causes no report, so this report must be repeated.
                (Outcome::Retry, false)
            } else {
                (Outcome::Later(Duration::ZERO), false)
            }
        }
        Err(status) if status.code() == Code::InvalidArgument => {
            let reason = status.message();
            error!(
                namespace,
                pipeline_run, reason, "skipped a PipelineRun that cannot be read, until it changes"
            );
            (Outcome::Done, true)
        }
        Err(status) => {
            let (code, reason) = (status.code(), status.message());
            warn!(
                namespace,
                pipeline_run,
                ?code,
                reason,
                "failed to report a PipelineRun"
            );
            match code {
                // This error lasts, so an immediate retry is useless. The manager retries by itself, and an unfinished run is
                // reported again within a minute.
                Code::FailedPrecondition => (Outcome::Done, is_done),
                _ => (Outcome::Retry, false),
            }
        }
    };
    if settled {
        runs.forget(&key, &run);
    }
    outcome
}
