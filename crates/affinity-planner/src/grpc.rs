//! The wire side of the planner: requests in, answers out, nothing in between.

use tokio::sync::watch;
use tonic::{Request, Response, Status};
use tracing::warn;

use coscheduler_core::admit;
use coscheduler_core::admit_run::admit_run;
use coscheduler_core::annotations;
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
            pipeline_coschedule,
            namespace_coschedule,
        } = request.into_inner();
        let run = convert::pipeline_run(pipeline_run).map_err(Error::BadRequest)?;
        let admitted = !run.uid.is_empty() || run.annotations.contains_key(annotations::MODE);
        let plan = if admitted {
            convert::plan_to_wire(&plan::plan(&run).map_err(of_run)?)
        } else {
            let question = admit::Question {
                run: &run,
                request_uid: &request_uid,
                created_by: "",
                pipeline_override: pipeline_coschedule.as_deref(),
                namespace_override: namespace_coschedule.as_deref(),
                owner_group: None,
            };
            let configuration = self.configuration();
            let in_force = configuration.in_force()?;
            let preview = plan::preview(in_force, &self.tekton_controller, &question);
            convert::preview_to_wire(preview.map_err(of_run)?)
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
        let asked = question(request.into_inner())?;
        let admission = match &asked.old {
            // What was pinned stays, whatever the configuration has become.
            Some(old) => restore(old, &asked.run),
            None => {
                let configuration = self.configuration();
                let in_force = configuration.in_force()?;
                admit::admit(in_force, &self.tekton_controller, &asked.as_question())
                    .map_err(of_run)?
            }
        };
        Ok(Response::new(convert::admission_to_wire(admission)))
    }

    async fn admit_run(&self, request: Request<AdmitRunRequest>) -> Answer<AdmitRunResponse> {
        let run = convert::child_run(request.into_inner()).map_err(Error::BadRequest)?;
        let admission = admit_run(&run, &self.tekton_controller);
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
        Ok(Response::new(convert::child_admission_to_wire(admission)))
    }
}

/// A question about a PipelineRun, once read.
struct Asked {
    uid: String,
    run: PipelineRun,
    /// The run as it is stored, where it is being updated.
    old: Option<PipelineRun>,
    username: String,
    pipeline_coschedule: Option<String>,
    namespace_coschedule: Option<String>,
    owner_group: Option<String>,
}

impl Asked {
    fn as_question(&self) -> admit::Question<'_> {
        admit::Question {
            run: &self.run,
            request_uid: &self.uid,
            created_by: &self.username,
            pipeline_override: self.pipeline_coschedule.as_deref(),
            namespace_override: self.namespace_coschedule.as_deref(),
            owner_group: self.owner_group.as_deref(),
        }
    }
}

fn question(request: AdmitPipelineRunRequest) -> Result<Asked, Error> {
    let AdmitPipelineRunRequest {
        request_uid,
        pipeline_run,
        old_pipeline_run,
        username,
        pipeline_coschedule,
        namespace_coschedule,
        owner_group,
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
        Some(run) if violations.is_empty() => Ok(Asked {
            uid: request_uid,
            run,
            old,
            username,
            pipeline_coschedule,
            namespace_coschedule,
            owner_group,
        }),
        Some(_) | None => Err(Error::BadRequest(violations)),
    }
}
