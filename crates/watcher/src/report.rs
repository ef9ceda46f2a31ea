//! Reports one run, as it is now, to the affinity-planner.

use std::time::Duration;

use kube::ResourceExt as _;
use tonic::Code;
use tracing::{Instrument as _, debug, error, info_span, warn};

use coscheduler_core::annotations;
use coscheduler_kubernetes::pipeline_run::{self, PipelineRun};
use coscheduler_proto::json;
use coscheduler_proto::planner::ReportPipelineRunRequest;
use coscheduler_proto::planner::planner_service_client::PlannerServiceClient;
use coscheduler_runtime::client::{self, Channel};
use coscheduler_runtime::kubernetes::watch::ObjectKey;
use coscheduler_runtime::queue::Outcome;
use coscheduler_runtime::trace;

use crate::follow::Runs;

/// How long a report may take. The manager's wait for its caches and the retries of its writes fit in.
const TIMEOUT: Duration = Duration::from_secs(15);

/// Reports the last state of a run, as part of the trace that it was admitted in. A deleted run needs no report.
pub(crate) async fn report(
    runs: Runs,
    planner: PlannerServiceClient<Channel>,
    key: ObjectKey,
) -> Outcome {
    let Some(run) = runs.get(&key) else {
        return Outcome::Done;
    };
    let (namespace, name) = key;
    let span = info_span!("report", namespace, pipeline_run = name);
    if let Some(traceparent) = run.annotations().get(annotations::TRACEPARENT) {
        trace::join(&span, traceparent);
    }
    send(&run, planner, &namespace, &name)
        .instrument(span)
        .await
}

async fn send(
    run: &PipelineRun,
    mut planner: PlannerServiceClient<Channel>,
    namespace: &str,
    pipeline_run: &str,
) -> Outcome {
    let request = ReportPipelineRunRequest {
        pipeline_run: Some(json::to_struct(&pipeline_run::to_json(run))),
    };
    let request = client::request(request, TIMEOUT);
    match planner.report_pipeline_run(request).await {
        Ok(answer) => {
            debug!(namespace, pipeline_run, answer = ?answer.into_inner(), "reported a PipelineRun");
            Outcome::Done
        }
        Err(status) if status.code() == Code::InvalidArgument => {
            let reason = status.message();
            error!(
                namespace,
                pipeline_run, reason, "skipped a PipelineRun that cannot be read, until it changes"
            );
            Outcome::Done
        }
        // The manager retries by itself, and the next report comes within a minute.
        Err(status) if status.code() == Code::FailedPrecondition => {
            let reason = status.message();
            warn!(
                namespace,
                pipeline_run, reason, "a report met a lasting fault"
            );
            Outcome::Done
        }
        Err(status) => {
            let (code, reason) = (status.code(), status.message());
            warn!(
                namespace,
                pipeline_run,
                ?code,
                reason,
                "failed to report a PipelineRun, will retry"
            );
            Outcome::Retry
        }
    }
}
