//! Handles a report: plans the run, and then calls `Ensure` or `Release` of the placeholder-manager if the plan requires it.

use std::time::Duration;

use coscheduler_core::pipeline_run::PipelineRun;
use coscheduler_core::plan::{Action, plan};
use coscheduler_proto::convert;
use coscheduler_proto::placeholder::placeholder_service_client::PlaceholderServiceClient;
use coscheduler_proto::placeholder::{EnsureRequest, PipelineRunRef, ReleaseRequest};
use coscheduler_proto::planner::report_pipeline_run_response::Outcome;
use coscheduler_proto::planner::{NothingToDo, ReportPipelineRunResponse};
use coscheduler_runtime::client::{self, Channel};

use crate::error::{Error, of_run};

/// Plans `run`. If the plan requires it, calls the placeholder-manager within `remaining`, the time that is left for the report.
///
/// # Errors
///
/// The run's annotations or identity cannot be read, or the placeholder-manager answers with an error.
pub(crate) async fn report(
    run: &PipelineRun,
    manager: &PlaceholderServiceClient<Channel>,
    remaining: Duration,
) -> Result<ReportPipelineRunResponse, Error> {
    let pipeline_run = Some(reference(run)?);
    let mut manager = manager.clone();
    let outcome = match plan(run).map_err(of_run)?.action {
        Action::Nothing => Outcome::Nothing(NothingToDo {}),
        Action::Ensure(_) => {
            let request = client::request(EnsureRequest { pipeline_run }, remaining);
            let answer = manager.ensure(request).await.map_err(manager_error)?;
            Outcome::Ensured(answer.into_inner().outcome)
        }
        Action::Release { .. } => {
            let request = client::request(ReleaseRequest { pipeline_run }, remaining);
            let answer = manager.release(request).await.map_err(manager_error)?;
            Outcome::Released(answer.into_inner().outcome)
        }
    };
    Ok(ReportPipelineRunResponse {
        outcome: Some(outcome),
    })
}

fn manager_error(status: tonic::Status) -> Error {
    Error::Manager(Box::new(status))
}

/// A reference to the run. Only a run that exists can be reported, so all fields must be set.
fn reference(run: &PipelineRun) -> Result<PipelineRunRef, Error> {
    let mut violations = Vec::new();
    for (field, text) in [
        ("namespace", &run.namespace),
        ("name", &run.name),
        ("uid", &run.uid),
        ("resourceVersion", &run.resource_version),
    ] {
        convert::required(&format!("metadata.{field}"), text, &mut violations);
    }
    if !violations.is_empty() {
        return Err(of_run(violations));
    }
    Ok(PipelineRunRef {
        namespace: run.namespace.clone(),
        name: run.name.clone(),
        uid: run.uid.clone(),
        resource_version: run.resource_version.clone(),
    })
}
