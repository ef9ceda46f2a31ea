//! Asks the affinity-planner which changes admission would make on a run, under the configuration of the cluster (`--server`).

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use coscheduler_core::admit::{Admission, Question};
use coscheduler_proto::planner::planner_service_client::PlannerServiceClient;
use coscheduler_proto::planner::{AdmitPipelineRunResponse, PlanRequest};
use coscheduler_proto::{convert, error, json};
use serde_json::Value;
use tokio::runtime::Runtime;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Request, Status};

use crate::args::ServerArgs;
use crate::failure::Failure;

use super::denied;

/// The time limit of the connection, and of each call.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A connection to the affinity-planner.
pub(super) struct Server {
    runtime: Runtime,
    client: PlannerServiceClient<Channel>,
}

impl Server {
    /// Connects to the address in `args`. `None` if there is no address.
    pub(super) fn connect(args: &ServerArgs) -> Result<Option<Self>, Failure> {
        let Some(address) = &args.server else {
            return Ok(None);
        };
        let port = address
            .rsplit_once(':')
            .map(|(_, port)| port.parse::<u16>());
        let endpoint = match port {
            Some(Ok(_)) => endpoint(address, args)?,
            Some(Err(_)) | None => Err(anyhow!("--server {address:?}: expected HOST:PORT"))?,
        };
        let runtime = crate::runtime()?;
        let connected = runtime.block_on(endpoint.connect_timeout(TIMEOUT).connect());
        let channel = connected
            .with_context(|| format!("failed to connect to the affinity-planner at {address}"))
            .map_err(Failure::Unreachable)?;
        Ok(Some(Self {
            runtime,
            client: PlannerServiceClient::new(channel),
        }))
    }

    /// The changes that admission would make on the run in `manifest`.
    pub(super) fn admission(
        &self,
        question: &Question<'_>,
        manifest: &Value,
    ) -> Result<Admission, Failure> {
        let annotations = |all: Option<&super::documents::Annotations>| all.cloned();
        let mut request = Request::new(PlanRequest {
            pipeline_run: Some(json::object_to_struct(manifest)),
            request_uid: question.request_uid.to_owned(),
            pipeline_annotations: annotations(question.pipeline_annotations).unwrap_or_default(),
            namespace_annotations: annotations(question.namespace_annotations).unwrap_or_default(),
        });
        request.set_timeout(TIMEOUT);
        let mut client = self.client.clone();
        let answer = self.runtime.block_on(client.plan(request));
        let answer = answer.map_err(|status| failed(question, &status))?;
        let plan = answer.into_inner().plan.unwrap_or_default();
        Ok(convert::admission(AdmitPipelineRunResponse {
            set_annotations: plan.annotations,
            bindings: plan.bindings,
            ..AdmitPipelineRunResponse::default()
        }))
    }
}

fn endpoint(address: &str, args: &ServerArgs) -> anyhow::Result<Endpoint> {
    let Some(folder) = &args.certificates else {
        return Ok(Endpoint::from_shared(format!("http://{address}"))?);
    };
    let mut tls = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(read(folder, "ca.crt")?))
        .identity(Identity::from_pem(
            read(folder, "tls.crt")?,
            read(folder, "tls.key")?,
        ));
    if let Some(authority) = &args.authority {
        tls = tls.domain_name(authority);
    }
    Ok(Endpoint::from_shared(format!("https://{address}"))?.tls_config(tls)?)
}

fn read(folder: &Path, file: &str) -> anyhow::Result<Vec<u8>> {
    let path = folder.join(file);
    fs::read(&path).with_context(|| format!("failed to read {}", path.display()))
}

fn failed(question: &Question<'_>, status: &Status) -> Failure {
    let violations = error::violations(status);
    if !violations.is_empty() {
        return denied(&super::refused(question.run), &violations);
    }
    let error = anyhow!("{}", status.message()).context("the affinity-planner gave no answer");
    match status.code() {
        Code::Unavailable | Code::DeadlineExceeded => Failure::Unreachable(error),
        _ => Failure::Failed(error),
    }
}
