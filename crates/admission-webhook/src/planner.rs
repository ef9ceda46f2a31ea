//! Questions to the planner, asked again while it cannot be reached and the API server still waits.

use std::time::Duration;

use backon::{ExponentialBuilder, Retryable as _};
use tokio::time::Instant;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

use coscheduler_core::admit::Admission;
use coscheduler_proto::convert;
use coscheduler_proto::planner::planner_service_client::PlannerServiceClient;
use coscheduler_proto::planner::{AdmitPipelineRunRequest, AdmitRunRequest, AdmitRunResponse};
use coscheduler_runtime::client::{is_retryable, request};

/// Asks what to write into a PipelineRun.
///
/// # Errors
///
/// What the planner answered last, once `patience` is used up or another try cannot help.
pub(crate) async fn admit_pipeline_run(
    planner: &PlannerServiceClient<Channel>,
    question: AdmitPipelineRunRequest,
    patience: Duration,
) -> Result<Admission, Status> {
    let call = |question| {
        let mut planner = planner.clone();
        async move { planner.admit_pipeline_run(question).await }
    };
    ask(question, patience, call).await.map(convert::admission)
}

/// Asks what to remove from a TaskRun or CustomRun.
///
/// # Errors
///
/// As [`admit_pipeline_run`].
pub(crate) async fn admit_run(
    planner: &PlannerServiceClient<Channel>,
    question: AdmitRunRequest,
    patience: Duration,
) -> Result<AdmitRunResponse, Status> {
    let call = |question| {
        let mut planner = planner.clone();
        async move { planner.admit_run(question).await }
    };
    ask(question, patience, call).await
}

async fn ask<Q, A, Fut>(
    question: Q,
    patience: Duration,
    call: impl Fn(Request<Q>) -> Fut,
) -> Result<A, Status>
where
    Q: Clone,
    Fut: Future<Output = Result<Response<A>, Status>>,
{
    let deadline = Instant::now() + patience;
    let call_again = || call(request(question.clone(), left(deadline)));
    let answer = call_again
        .retry(backoff())
        .when(|status| is_retryable(status) && !left(deadline).is_zero())
        .await?;
    Ok(answer.into_inner())
}

fn left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

fn backoff() -> ExponentialBuilder {
    ExponentialBuilder::default()
        .with_min_delay(Duration::from_millis(50))
        .with_max_delay(Duration::from_secs(1))
        .without_max_times()
        .with_jitter()
}
