//! The gRPC side of the affinity-planner. It reads requests, decides with the functions of `core`, and writes answers. For a
//! reported run, it also calls the placeholder-manager.

use tokio::sync::watch;
use tonic::{Request, Response, Status};
use tracing::warn;

use coscheduler_core::admit;
use coscheduler_core::admit_child::admit_child;
use coscheduler_core::adopt;
use coscheduler_core::event_texts::ReasonCode;
use coscheduler_core::pipeline_run::PipelineRun;
use coscheduler_core::plan;
use coscheduler_core::restore::restore;
use coscheduler_core::sizes;
use coscheduler_proto::placeholder::placeholder_service_client::PlaceholderServiceClient;
use coscheduler_proto::planner::planner_service_server::PlannerService;
use coscheduler_proto::planner::{
    AdmitPipelineRunRequest, AdmitPipelineRunResponse, AdmitRunRequest, AdmitRunResponse,
    PlanRequest, PlanResponse, ReportPipelineRunRequest, ReportPipelineRunResponse,
};
use coscheduler_proto::{Struct, convert};
use coscheduler_runtime::client::Channel;
use coscheduler_runtime::{Deadline, Metrics};
use prometheus_client::metrics::counter::Counter;

use crate::configuration::Known;
use crate::error::{Error, of_run};
use crate::report::report;

/// Serves `coscheduler.planner.v1.PlannerService`.
pub(crate) struct Planner {
    configuration: watch::Receiver<Known>,
    manager: PlaceholderServiceClient<Channel>,
    tekton_controller: String,
    /// Counts TaskRuns and CustomRuns that belong to a coscheduled PipelineRun, but were created by another account than Tekton's
    /// controller.
    strangers: Counter,
}

impl Planner {
    /// Serves decisions with the newest `configuration`. When a watcher reports a run, the planner calls `manager`.
    /// `tekton_controller` is the username of Tekton's controller.
    pub(crate) fn new(
        configuration: watch::Receiver<Known>,
        manager: PlaceholderServiceClient<Channel>,
        tekton_controller: String,
        metrics: &Metrics,
    ) -> Self {
        Self {
            configuration,
            manager,
            tekton_controller,
            strangers: metrics.register(
                "tekton_account_unknown",
                "TaskRuns and CustomRuns of coscheduled PipelineRuns that another account than Tekton's controller created",
                Counter::default(),
            ),
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
            pipeline_annotations,
            namespace_annotations,
            access_modes,
        } = request.into_inner();
        let run = read("pipeline_run", pipeline_run)?;
        let plan = if plan::is_stored(&run) {
            convert::plan_to_wire(&plan::plan(&run).map_err(of_run)?)
        } else {
            let access_modes = convert::access_modes(access_modes);
            let question = admit::Question {
                pipeline_annotations: Some(&pipeline_annotations),
                namespace_annotations: Some(&namespace_annotations),
                access_modes: Some(&access_modes),
                ..admit::Question::about(&run, &request_uid, "")
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
        let remaining = Deadline::of(&request).remaining();
        let run = read("pipeline_run", request.into_inner().pipeline_run)?;
        let response = report(&run, &self.manager, remaining).await?;
        Ok(Response::new(response))
    }

    async fn admit_pipeline_run(
        &self,
        request: Request<AdmitPipelineRunRequest>,
    ) -> Answer<AdmitPipelineRunResponse> {
        let AdmitPipelineRunRequest {
            request_uid,
            pipeline_run,
            old_pipeline_run,
            username,
            pipeline_annotations,
            namespace_annotations,
            owner_group,
            catalog,
            source_templates,
            access_modes,
        } = request.into_inner();
        let mut violations = Vec::new();
        let mut read = |field, message| {
            convert::pipeline_run(field, message)
                .map_err(|faults| violations.extend(faults))
                .ok()
        };
        let run = read("pipeline_run", pipeline_run);
        let old = old_pipeline_run.and_then(|old| read("old_pipeline_run", Some(old)));
        convert::required("request_uid", &request_uid, &mut violations);
        let (Some(run), true) = (run, violations.is_empty()) else {
            return Err(Error::BadRequest(violations).into());
        };
        let catalog = catalog.map(convert::catalog);
        let access_modes = convert::access_modes(access_modes);
        let question = admit::Question {
            pipeline_annotations: Some(&pipeline_annotations),
            namespace_annotations: Some(&namespace_annotations),
            owner_group: owner_group.as_deref(),
            source_templates: Some(&source_templates),
            catalog: catalog.as_ref(),
            access_modes: Some(&access_modes),
            ..admit::Question::about(&run, &request_uid, &username)
        };
        let admission = match &old {
            Some(old) if adopt::is_asked(old, &run) => {
                let configuration = self.configuration();
                adopt::adopt_existing(configuration.in_force()?, old, &run, &request_uid)
            }
            Some(old) if admit::is_late_choice(old, &run) => {
                let configuration = self.configuration();
                admit::choose_late(configuration.in_force()?, old, &question)
            }
            // Updates of other kinds do not depend on the configuration, because everything is pinned.
            Some(old) => restore(old, &run),
            None => {
                let configuration = self.configuration();
                let in_force = configuration.in_force()?;
                let mut admission =
                    admit::admit(in_force, &self.tekton_controller, &question).map_err(of_run)?;
                sizes::pin(&mut admission, &run, catalog.as_ref());
                admission
            }
        };
        Ok(Response::new(convert::admission_to_wire(admission)))
    }

    async fn admit_run(&self, request: Request<AdmitRunRequest>) -> Answer<AdmitRunResponse> {
        let run = convert::child_run(request.into_inner()).map_err(Error::BadRequest)?;
        let admission = admit_child(&run, &self.tekton_controller);
        let mut events = admission.events.iter();
        if let Some(event) = events.find(|it| it.code == ReasonCode::TektonAccountUnknown) {
            self.strangers.inc();
            warn!("{}", event.message);
        }
        Ok(Response::new(convert::child_admission_to_wire(admission)))
    }
}

fn read(field: &str, message: Option<Struct>) -> Result<PipelineRun, Error> {
    convert::pipeline_run(field, message).map_err(Error::BadRequest)
}
