//! One report: the run as it is now, to the planner, and whether to try again.

use std::time::Duration;

use kube::ResourceExt as _;
use kube::runtime::reflector::{ObjectRef, Store};
use tonic::Code;
use tracing::{Instrument as _, debug, error, info_span, warn};

use coscheduler_core::annotations;
use coscheduler_kubernetes::pipeline_run::{self, PipelineRun};
use coscheduler_proto::json;
use coscheduler_proto::planner::ReportPipelineRunRequest;
use coscheduler_proto::planner::planner_service_client::PlannerServiceClient;
use coscheduler_runtime::client::{self, Channel};
use coscheduler_runtime::queue::Outcome;
use coscheduler_runtime::trace;

/// How long a report may take. Longer than the manager waits for its caches and retries its writes.
const PATIENCE: Duration = Duration::from_secs(15);

/// Reports the run as the store has it now; one that is gone from the store needs no report. The report is part of the
/// trace that the run was admitted in.
pub(crate) async fn report(
    store: &Store<PipelineRun>,
    planner: &PlannerServiceClient<Channel>,
    key: ObjectRef<PipelineRun>,
) -> Outcome {
    let Some(run) = store.get(&key) else {
        return Outcome::Done;
    };
    let span = info_span!("report", namespace = key.namespace, pipeline_run = key.name);
    if let Some(traceparent) = run.annotations().get(annotations::TRACEPARENT) {
        trace::join(&span, traceparent);
    }
    send(&run, planner, key).instrument(span).await
}

async fn send(
    run: &PipelineRun,
    planner: &PlannerServiceClient<Channel>,
    key: ObjectRef<PipelineRun>,
) -> Outcome {
    let request = ReportPipelineRunRequest {
        pipeline_run: Some(json::to_struct(&pipeline_run::to_json(run))),
    };
    let namespace = key.namespace.unwrap_or_default();
    let answer = planner
        .clone()
        .report_pipeline_run(client::request(request, PATIENCE))
        .await;
    match answer {
        Ok(answer) => {
            let answer = answer.into_inner();
            debug!(namespace, pipeline_run = key.name, ?answer, "reported");
            Outcome::Done
        }
        Err(status) if status.code() == Code::InvalidArgument => {
            error!(
                namespace,
                pipeline_run = key.name,
                reason = status.message(),
                "a PipelineRun cannot be read; it is left alone until it changes"
            );
            Outcome::Done
        }
        Err(status) => {
            warn!(
                namespace,
                pipeline_run = key.name,
                code = ?status.code(),
                reason = status.message(),
                "failed to report a PipelineRun, will try again"
            );
            Outcome::Retry
        }
    }
}
