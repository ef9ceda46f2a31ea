//! Reports one run, as it is now, to the affinity-planner.

use std::time::Duration;

use kube::ResourceExt as _;
use tonic::Code;
use tracing::{Instrument as _, debug, error, info_span, warn};

use coscheduler_core::annotations;
use coscheduler_kubernetes::pipeline_run;
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
    mut planner: PlannerServiceClient<Channel>,
    key: ObjectKey,
) -> Outcome {
    let Some(run) = runs.lock().get(&key).cloned() else {
        return Outcome::Done;
    };
    let (namespace, pipeline_run) = key;
    let span = info_span!("report", namespace, pipeline_run);
    if let Some(traceparent) = run.annotations().get(annotations::TRACEPARENT) {
        trace::join(&span, traceparent);
    }
    let request = ReportPipelineRunRequest {
        pipeline_run: Some(json::to_struct(&pipeline_run::to_json(&run))),
    };
    let request = client::request(request, TIMEOUT);
    let answer = planner.report_pipeline_run(request).instrument(span).await;
    let status = match answer {
        Ok(answer) => {
            let answer = answer.into_inner();
            debug!(namespace, pipeline_run, ?answer, "reported a PipelineRun");
            return Outcome::Done;
        }
        Err(status) => status,
    };
    let (code, reason) = (status.code(), status.message());
    if code == Code::InvalidArgument {
        error!(
            namespace,
            pipeline_run, reason, "skipped a PipelineRun that cannot be read, until it changes"
        );
        return Outcome::Done;
    }
    warn!(
        namespace,
        pipeline_run,
        ?code,
        reason,
        "failed to report a PipelineRun"
    );
    match code {
        // The fault lasts: the manager retries by itself, and the next report comes within a minute.
        Code::FailedPrecondition => Outcome::Done,
        _ => Outcome::Retry,
    }
}
