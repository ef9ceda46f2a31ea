//! The wire side of the planner: requests in, answers out, nothing in between.

use tokio::sync::watch;
use tonic::{Request, Response, Status};
use tracing::warn;

use coscheduler_core::admit::{self, Admission};
use coscheduler_core::annotations;
use coscheduler_core::config::Configuration;
use coscheduler_core::mode::Mode;
use coscheduler_core::pipeline_run::{OwnerReference, PipelineRun};
use coscheduler_core::plan;
use coscheduler_core::restore::restore;
use coscheduler_core::violation::Violation;
use coscheduler_proto::convert;
use coscheduler_proto::placeholder::placeholder_service_client::PlaceholderServiceClient;
use coscheduler_proto::planner::planner_service_server::PlannerService;
use coscheduler_proto::planner::{
    AdmitPipelineRunRequest, AdmitPipelineRunResponse, AdmitRunRequest, AdmitRunResponse,
    PlanRequest, PlanResponse, ReportPipelineRunRequest, ReportPipelineRunResponse,
};
use coscheduler_runtime::Deadline;
use coscheduler_runtime::client::Channel;

use crate::configuration::Known;
use crate::error::{Error, of_run};
use crate::report::report;

/// Serves `coscheduler.planner.v1.PlannerService`.
pub(crate) struct Planner {
    configuration: watch::Receiver<Known>,
    manager: PlaceholderServiceClient<Channel>,
    tekton_controller: String,
}

impl Planner {
    /// Plans with the latest `configuration`, and has `manager` carry plans out. `tekton_controller` is the username
    /// that Tekton creates TaskRuns with.
    pub(crate) fn new(
        configuration: watch::Receiver<Known>,
        manager: PlaceholderServiceClient<Channel>,
        tekton_controller: String,
    ) -> Self {
        Self {
            configuration,
            manager,
            tekton_controller,
        }
    }

    fn configuration(&self) -> Known {
        self.configuration.borrow().clone()
    }
}

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl PlannerService for Planner {
    async fn plan(&self, request: Request<PlanRequest>) -> Answer<PlanResponse> {
        let PlanRequest {
            pipeline_run,
            request_uid,
        } = request.into_inner();
        let run = convert::pipeline_run(pipeline_run).map_err(Error::BadRequest)?;
        let admitted = !run.uid.is_empty() || run.annotations.contains_key(annotations::MODE);
        let plan = if admitted {
            convert::plan_to_wire(&plan::plan(&run).map_err(of_run)?)
        } else {
            match self.configuration() {
                Known::Nothing => return Err(Error::ConfigNotRead.into()),
                Known::Invalid(_) => convert::plan_to_wire(&plan::plan(&run).map_err(of_run)?),
                Known::InForce(configuration) => convert::preview_to_wire(
                    plan::preview(&configuration, &run, &request_uid).map_err(of_run)?,
                ),
            }
        };
        Ok(Response::new(PlanResponse { plan: Some(plan) }))
    }

    async fn report_pipeline_run(
        &self,
        request: Request<ReportPipelineRunRequest>,
    ) -> Answer<ReportPipelineRunResponse> {
        let patience = Deadline::of(&request).remaining();
        let run =
            convert::pipeline_run(request.into_inner().pipeline_run).map_err(Error::BadRequest)?;
        let response = report(&run, &self.manager, patience).await?;
        Ok(Response::new(response))
    }

    async fn admit_pipeline_run(
        &self,
        request: Request<AdmitPipelineRunRequest>,
    ) -> Answer<AdmitPipelineRunResponse> {
        let Question { uid, run, old } = question(request.into_inner())?;
        let admission = match (old, self.configuration()) {
            // What was pinned stays, whatever the configuration has become.
            (Some(old), _) => restore(&old, &run),
            (None, Known::Nothing) => return Err(Error::ConfigNotRead.into()),
            (None, Known::Invalid(violations)) => off(&run, &violations, &uid),
            (None, Known::InForce(configuration)) => admit::admit(&configuration, &run, &uid),
        };
        Ok(Response::new(convert::admission_to_wire(admission)))
    }

    async fn admit_run(&self, request: Request<AdmitRunRequest>) -> Answer<AdmitRunResponse> {
        let run = convert::child_run(request.into_inner()).map_err(Error::BadRequest)?;
        let admission = admit::admit_run(&run, &self.tekton_controller);
        let of_pipeline_run = run
            .controller
            .as_ref()
            .is_some_and(OwnerReference::is_pipeline_run);
        if of_pipeline_run && !run.joins_owner(&self.tekton_controller) {
            warn!(
                username = run.created_by,
                expected = self.tekton_controller,
                "a run's annotations were removed: it belongs to a PipelineRun, but Tekton's controller did not create \
                 it; if it did, --tekton-controller-username is wrong"
            );
        }
        Ok(Response::new(AdmitRunResponse {
            remove_annotations: admission.remove_annotations,
            warnings: admission.warnings,
        }))
    }
}

/// A question about a PipelineRun, once read.
struct Question {
    uid: String,
    run: PipelineRun,
    /// The run as it is stored, where it is being updated.
    old: Option<PipelineRun>,
}

fn question(request: AdmitPipelineRunRequest) -> Result<Question, Error> {
    let AdmitPipelineRunRequest {
        request_uid,
        pipeline_run,
        old_pipeline_run,
    } = request;
    let mut violations = Vec::new();
    let mut faulty = |faults: Vec<Violation>| violations.extend(faults);
    let run = convert::pipeline_run(pipeline_run)
        .map_err(&mut faulty)
        .ok();
    let old = old_pipeline_run
        .map(|old| convert::pipeline_run_at("old_pipeline_run", old))
        .transpose()
        .map_err(&mut faulty)
        .unwrap_or_default();
    if request_uid.is_empty() {
        violations.push(Violation::new("request_uid", "is empty; it is required"));
    }
    match run {
        Some(run) if violations.is_empty() => Ok(Question {
            uid: request_uid,
            run,
            old,
        }),
        Some(_) | None => Err(Error::BadRequest(violations)),
    }
}

/// No good configuration was ever seen: bad flags never stop CI, they switch coscheduling off and say so (M7).
fn off(run: &PipelineRun, violations: &[Violation], request_uid: &str) -> Admission {
    let disabled = Configuration {
        mode: Mode::Disabled,
        ..Configuration::default()
    };
    let mut admission = admit::admit(&disabled, run, request_uid);
    let reasons: Vec<_> = violations.iter().map(ToString::to_string).collect();
    admission.warnings.push(format!(
        "coscheduling is off: the ConfigMap of tekton-coscheduler is not valid ({})",
        reasons.join("; ")
    ));
    admission
}
