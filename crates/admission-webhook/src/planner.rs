//! Questions to the planner, asked again while it cannot be reached and the API server still waits.

use std::time::Duration;

use backon::{ExponentialBuilder, Retryable as _};
use tokio::time::Instant;
use tonic::Status;
use tonic::transport::Channel;

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
    let deadline = Instant::now() + patience;
    let ask = || async {
        let question = request(question.clone(), left(deadline));
        planner.clone().admit_pipeline_run(question).await
    };
    let answer = ask
        .retry(backoff())
        .when(|status| is_retryable(status) && !left(deadline).is_zero())
        .await?;
    Ok(convert::admission(answer.into_inner()))
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
    let deadline = Instant::now() + patience;
    let ask = || async {
        let question = request(question.clone(), left(deadline));
        planner.clone().admit_run(question).await
    };
    let answer = ask
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
