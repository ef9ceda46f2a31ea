//! Carries out a report: plans for the run, then calls `Ensure` or `Release` of the placeholder-manager.

use std::time::Duration;

use coscheduler_core::pipeline_run::PipelineRun;
use coscheduler_core::plan::{Action, plan};
use coscheduler_core::violation::Violation;
use coscheduler_proto::convert::{self, Identity};
use coscheduler_proto::placeholder::placeholder_service_client::PlaceholderServiceClient;
use coscheduler_proto::placeholder::{EnsureRequest, ReleaseRequest};
use coscheduler_proto::planner::report_pipeline_run_response::Outcome;
use coscheduler_proto::planner::{NothingToDo, ReportPipelineRunResponse};
use coscheduler_runtime::client::{self, Channel};

use crate::error::{Error, of_run};

/// Plans for `run`, then calls the placeholder-manager with what is left of the call's time.
///
/// # Errors
///
/// Where the run's annotations or identity cannot be read, or the placeholder-manager answers with an error.
pub(crate) async fn report(
    run: &PipelineRun,
    manager: &PlaceholderServiceClient<Channel>,
    remaining: Duration,
) -> Result<ReportPipelineRunResponse, Error> {
    let pipeline_run = Some(convert::identity_to_wire(identity(run)?));
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

/// The run's identity: a run that is reported exists, so all of it must be there.
fn identity(run: &PipelineRun) -> Result<Identity, Error> {
    let missing: Vec<_> = [
        ("namespace", &run.namespace),
        ("name", &run.name),
        ("uid", &run.uid),
        ("resourceVersion", &run.resource_version),
    ]
    .into_iter()
    .filter(|(_, value)| value.is_empty())
    .map(|(field, _)| Violation::new(format!("metadata.{field}"), "is empty; it is required"))
    .collect();
    if !missing.is_empty() {
        return Err(of_run(missing));
    }
    Ok(Identity {
        namespace: run.namespace.clone(),
        name: run.name.clone(),
        uid: run.uid.clone(),
        resource_version: run.resource_version.clone(),
    })
}
