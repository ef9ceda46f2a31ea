//! From a report to what came of it: plans for the run, and has the placeholder-manager make the plan true.

use std::time::Duration;

use coscheduler_core::pipeline_run::PipelineRun;
use coscheduler_core::plan::{Action, plan};
use coscheduler_core::violation::Violation;
use coscheduler_proto::convert::{self, Identity};
use coscheduler_proto::placeholder::placeholder_service_client::PlaceholderServiceClient;
use coscheduler_proto::placeholder::{EnsureRequest, ReleaseRequest};
use coscheduler_proto::planner::{Action as WireAction, ReportPipelineRunResponse};
use coscheduler_runtime::client::{self, Channel};

use crate::error::{Error, of_run};

/// Plans for `run` and carries the plan out, within `patience`.
///
/// # Errors
///
/// Where the run's annotations or identity cannot be read, or the placeholder-manager answers with an error.
pub(crate) async fn report(
    run: &PipelineRun,
    manager: &PlaceholderServiceClient<Channel>,
    patience: Duration,
) -> Result<ReportPipelineRunResponse, Error> {
    let identity = identity(run)?;
    let plan = plan(run).map_err(of_run)?;
    let mut manager = manager.clone();
    let mut response = ReportPipelineRunResponse::default();
    match plan.action {
        Action::Nothing => response.set_action(WireAction::None),
        Action::Ensure(placeholders) => {
            let request = EnsureRequest {
                pipeline_run: Some(convert::identity_to_wire(identity)),
                placeholders: placeholders
                    .iter()
                    .map(convert::placeholder_spec_to_wire)
                    .collect(),
            };
            let answer = manager.ensure(client::request(request, patience)).await;
            response.set_action(WireAction::Ensure);
            response.set_ensure_outcome(answer.map_err(manager_error)?.into_inner().outcome());
        }
        Action::Release { .. } => {
            let request = ReleaseRequest {
                pipeline_run: Some(convert::identity_to_wire(identity)),
            };
            let answer = manager.release(client::request(request, patience)).await;
            response.set_action(WireAction::Release);
            response.set_release_outcome(answer.map_err(manager_error)?.into_inner().outcome());
        }
    }
    Ok(response)
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
