//! Calls the planner about a run, as the watcher or a person with grpcurl does.

use anyhow::Context as _;
use coscheduler_kubernetes::pipeline_run::{PipelineRun, to_json};
use coscheduler_proto::json::{object_to_struct, to_struct};
use coscheduler_proto::planner::planner_service_client::PlannerServiceClient;
use coscheduler_proto::planner::{
    Plan, PlanRequest, ReportPipelineRunRequest, ReportPipelineRunResponse,
};
use testbed::services::{OPERATOR, Service};

use tonic::transport::Channel;

use crate::runs::Run;
use crate::{Scene, grpc};

impl Scene<'_> {
    /// Reports a run as the watcher does.
    ///
    /// # Errors
    ///
    /// The planner refuses the report. The error is a [`tonic::Status`].
    pub async fn report(&self, run: &PipelineRun) -> anyhow::Result<ReportPipelineRunResponse> {
        let request = ReportPipelineRunRequest {
            pipeline_run: Some(to_struct(&to_json(run))),
        };
        let answer = self
            .planner(Service::Watcher.name())
            .await?
            .report_pipeline_run(request)
            .await;
        Ok(answer?.into_inner())
    }

    /// The plan for a run that would be created now.
    ///
    /// # Errors
    ///
    /// The planner refuses the request. The error is a [`tonic::Status`].
    pub async fn plan(&self, run: Run) -> anyhow::Result<Plan> {
        let request = PlanRequest {
            pipeline_run: Some(object_to_struct(&run.into_json())),
            ..PlanRequest::default()
        };
        let answer = self.planner(OPERATOR).await?.plan(request).await;
        let answer = answer?.into_inner();
        answer.plan.context("no plan was answered")
    }

    async fn planner(&self, caller: &str) -> anyhow::Result<PlannerServiceClient<Channel>> {
        let services = &self.stack.services;
        let channel = grpc::connect(services, Service::AffinityPlanner, caller).await?;
        Ok(PlannerServiceClient::new(channel))
    }
}
