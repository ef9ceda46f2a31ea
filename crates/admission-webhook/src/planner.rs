//! Questions to the planner. While it cannot be reached and the API server still waits, the channel asks again.

use std::time::Duration;

use tonic::Status;

use coscheduler_core::admit::Admission;
use coscheduler_core::admit_run::ChildAdmission;
use coscheduler_proto::convert;
use coscheduler_proto::planner::planner_service_client::PlannerServiceClient;
use coscheduler_proto::planner::{AdmitPipelineRunRequest, AdmitRunRequest};
use coscheduler_runtime::client::{Channel, request};

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
    let mut planner = planner.clone();
    let answer = planner
        .admit_pipeline_run(request(question, patience))
        .await?;
    Ok(convert::admission(answer.into_inner()))
}

/// Asks what to write into a TaskRun or CustomRun.
///
/// # Errors
///
/// As [`admit_pipeline_run`].
pub(crate) async fn admit_run(
    planner: &PlannerServiceClient<Channel>,
    question: AdmitRunRequest,
    patience: Duration,
) -> Result<ChildAdmission, Status> {
    let mut planner = planner.clone();
    let answer = planner.admit_run(request(question, patience)).await?;
    Ok(convert::child_admission(answer.into_inner()))
}
