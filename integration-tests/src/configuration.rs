//! Changes and reads the configuration: our ConfigMap, Tekton's ConfigMap, and the answers of the config-service and the
//! affinity-planner.

use std::time::Duration;

use anyhow::{Context as _, bail};
use coscheduler_core::config::{PLACEHOLDER_RESERVES, Reserves};
use coscheduler_kubernetes::pipeline_run::PipelineRun;
use coscheduler_proto::config::config_service_client::ConfigServiceClient;
use coscheduler_proto::config::{ConfigStatus, GetConfigRequest, Mode};
use coscheduler_proto::planner::PlanRequest;
use coscheduler_proto::planner::planner_service_client::PlannerServiceClient;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;
use testbed::services::{CONFIG_MAP, NAMESPACE, OPERATOR, Service, backend};
use tonic::transport::Channel;

use crate::Scene;
use crate::grpc;
use crate::runs::{Run, run};
use crate::send::Answer;

/// How long a change may take to reach every service on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);
/// The time between two polls.
const PAUSE: Duration = Duration::from_millis(100);

/// Namespace and name of Tekton's ConfigMap with its own flags.
pub const TEKTON_FLAGS: (&str, &str) = ("tekton-pipelines", "feature-flags");

impl Scene<'_> {
    /// Creates a PipelineRun, and returns the API server's answer with its warnings.
    ///
    /// # Errors
    ///
    /// The API server refuses the run.
    pub async fn submit_told(&self, run: Run) -> anyhow::Result<Answer> {
        let object = run.into_json();
        let answer = self.send("POST", "tekton.dev/v1/pipelineruns", &object);
        answer.await?.accepted()
    }

    /// Replaces the data of our ConfigMap. Key `placeholder-backend` gets the value of variable `TESTBED_PLACEHOLDERS`, if it is
    /// set.
    ///
    /// # Errors
    ///
    /// The API server refuses the change.
    pub async fn set_flags(&self, flags: &[(&str, &str)]) -> anyhow::Result<()> {
        let data: serde_json::Map<_, _> = flags
            .iter()
            .map(|(key, value)| ((*key).to_owned(), json!(value)))
            .chain(backend().map(|(key, value)| (key, json!(value))))
            .collect();
        let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), NAMESPACE);
        let patch = Patch::Json::<()>(serde_json::from_value(
            json!([{"op": "add", "path": "/data", "value": data}]),
        )?);
        api.patch(CONFIG_MAP, &PatchParams::default(), &patch)
            .await
            .with_context(|| format!("failed to set {flags:?}"))?;
        Ok(())
    }

    /// Sets only key `placeholder-reserves`, and waits until the planner uses the new value for new runs.
    ///
    /// # Errors
    ///
    /// The API server refuses the change, or the planner does not use the value in time.
    pub async fn set_reserves(&self, reserves: Reserves) -> anyhow::Result<()> {
        let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), NAMESPACE);
        let patch = Patch::Merge(json!({"data": {PLACEHOLDER_RESERVES: reserves.as_str()}}));
        api.patch(CONFIG_MAP, &PatchParams::default(), &patch)
            .await?;
        let expected = format!("RESERVES_{}", reserves.as_str().to_uppercase());
        let planned = async {
            loop {
                let dry = run("dry").in_mode("pipelineruns").task("one", &[], &[]);
                let placeholders = self.plan(dry).await?.placeholders;
                let mut planned = placeholders
                    .iter()
                    .map(|spec| spec.reserves().as_str_name());
                if !placeholders.is_empty() && planned.all(|planned| planned == expected) {
                    return anyhow::Ok(());
                }
                tokio::time::sleep(PAUSE).await;
            }
        };
        let planned = tokio::time::timeout(LIMIT, planned).await;
        planned.with_context(|| format!("no run is planned with {reserves}"))?
    }

    /// Sets Tekton's own flag `coschedule`.
    ///
    /// # Errors
    ///
    /// The API server refuses the change.
    pub async fn set_tekton_flag(&self, value: &str) -> anyhow::Result<()> {
        let (namespace, name) = TEKTON_FLAGS;
        let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), namespace);
        let patch = Patch::Merge(json!({"data": {"coschedule": value}}));
        api.patch(name, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// A client of the config-service.
    ///
    /// # Errors
    ///
    /// The config-service cannot be reached.
    pub async fn config_service(&self) -> anyhow::Result<ConfigServiceClient<Channel>> {
        let services = &self.stack.services;
        let channel = grpc::connect(services, Service::ConfigService, OPERATOR).await?;
        Ok(ConfigServiceClient::new(channel))
    }

    /// The status in the answer of `GetConfig`.
    ///
    /// # Errors
    ///
    /// The call fails, or its answer has no status.
    pub async fn config(&self) -> anyhow::Result<ConfigStatus> {
        let mut service = self.config_service().await?;
        let answer = service.get_config(GetConfigRequest {}).await?;
        answer.into_inner().status.context("no status")
    }

    /// Waits until `condition` holds for the status in the answer of `GetConfig`, and returns this status.
    ///
    /// # Errors
    ///
    /// `condition` did not hold in time. The error contains the last answer.
    pub async fn config_until(
        &self,
        what: &str,
        condition: impl Fn(&ConfigStatus) -> bool,
    ) -> anyhow::Result<ConfigStatus> {
        let deadline = tokio::time::Instant::now() + LIMIT;
        loop {
            let status = self.config().await;
            match status {
                Ok(status) if condition(&status) => return Ok(status),
                last if tokio::time::Instant::now() > deadline => {
                    bail!("the configuration is not {what}: {last:?}")
                }
                _ => tokio::time::sleep(PAUSE).await,
            }
        }
    }

    /// Waits until the planner plans new runs in this mode. The planner gets a change of the configuration a moment after the
    /// config-service, by a stream.
    ///
    /// # Errors
    ///
    /// The planner does not use the mode in time.
    pub async fn planned_in(&self, mode: Mode) -> anyhow::Result<()> {
        let services = &self.stack.services;
        let channel = grpc::connect(services, Service::AffinityPlanner, OPERATOR).await?;
        planned_in(channel, mode).await
    }
}

/// Waits until the planner behind `channel` plans new runs in this mode.
///
/// # Errors
///
/// The planner does not use the mode in time.
pub async fn planned_in(channel: Channel, mode: Mode) -> anyhow::Result<()> {
    let deadline = tokio::time::Instant::now() + LIMIT;
    loop {
        match planned_mode(channel.clone()).await {
            Ok(planned) if planned == mode => return Ok(()),
            last if tokio::time::Instant::now() > deadline => {
                bail!("the planner does not plan in {mode:?}: {last:?}")
            }
            _ => tokio::time::sleep(PAUSE).await,
        }
    }
}

/// Creates a run as a dry run, again and again, until admission's answer meets `condition`.
///
/// # Errors
///
/// Admission does not give such an answer in time. The error contains the last answer.
pub async fn admitted_until(
    runs: &Api<PipelineRun>,
    run: Run,
    condition: impl Fn(&PipelineRun) -> bool,
) -> anyhow::Result<()> {
    let run = serde_json::from_value(run.into_json())?;
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let deadline = tokio::time::Instant::now() + LIMIT;
    loop {
        match runs.create(&dry_run, &run).await {
            Ok(admitted) if condition(&admitted) => return Ok(()),
            last if tokio::time::Instant::now() > deadline => {
                bail!("admission does not answer as expected: {last:?}")
            }
            _ => tokio::time::sleep(PAUSE).await,
        }
    }
}

/// The mode in which the planner behind `channel` would plan a new run.
///
/// # Errors
///
/// The planner does not answer.
pub async fn planned_mode(channel: Channel) -> anyhow::Result<Mode> {
    let mut planner = PlannerServiceClient::new(channel);
    let object = run("dry").task("one", &[], &[]).into_json();
    let request = PlanRequest {
        pipeline_run: Some(coscheduler_proto::json::object_to_struct(&object)),
        ..PlanRequest::default()
    };
    let plan = planner.plan(request).await?.into_inner().plan;
    Ok(plan.context("no plan")?.mode())
}
