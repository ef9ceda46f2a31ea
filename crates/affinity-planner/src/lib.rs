//! The affinity-planner answers the webhook's questions about new and changed runs. When the watcher reports a run, the planner
//! plans the run's placeholders. If the plan requires it, the planner then calls `Ensure` or `Release` of the
//! placeholder-manager. Functions in crate `core` make all decisions.
//!
//! `Ensure` and `Release` only name the run, because the placeholder-manager plans the run again with the same functions. The
//! planner's only state is the newest configuration. The planner never talks to Kubernetes, and none of its dependencies is a
//! Kubernetes client.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod args;
mod configuration;
mod error;
mod grpc;
mod report;

use anyhow::Context as _;
use coscheduler_proto::FILE_DESCRIPTOR_SET;
use coscheduler_proto::config::config_service_client::ConfigServiceClient;
use coscheduler_proto::placeholder::placeholder_service_client::PlaceholderServiceClient;
use coscheduler_proto::planner::planner_service_server::PlannerServiceServer;
use coscheduler_runtime::{Callers, GrpcServices, MAX_MESSAGE_BYTES, Process, Service, client};
use tokio::sync::watch;

use configuration::Known;

pub use args::Args;

/// The name, version and default addresses of this service.
pub const SERVICE: Service = Service {
    name: "affinity-planner",
    version: env!("CARGO_PKG_VERSION"),
    about: "Decides where the pods of a PipelineRun run",
    grpc_address: "127.0.0.1:9102",
    http_address: "127.0.0.1:9202",
};

/// With mutual TLS, each RPC accepts only these callers. An operator may only read.
const CALLERS: Callers = &[
    ("AdmitPipelineRun", &["admission-webhook"]),
    ("AdmitRun", &["admission-webhook"]),
    ("Plan", &["operator"]),
    ("ReportPipelineRun", &["watcher"]),
];

/// Starts to follow the configuration and to serve.
///
/// # Errors
///
/// An address cannot be parsed, or the gRPC address cannot be bound.
pub async fn start(args: Args, process: Process) -> anyhow::Result<()> {
    let Args {
        config_service_address,
        placeholder_manager_address,
        tekton_controller_username,
    } = args;
    let config = ConfigServiceClient::new(client::channel(&config_service_address, &process)?);
    let manager =
        PlaceholderServiceClient::new(client::channel(&placeholder_manager_address, &process)?);

    let (sender, configuration) = watch::channel(Known::default());
    let received = process.health().condition("configuration");
    process.spawn(
        "follow the configuration",
        configuration::follow(config, sender, received),
    );

    let planner = grpc::Planner::new(
        configuration,
        manager,
        tekton_controller_username,
        process.metrics(),
    );
    let planner = PlannerServiceServer::new(planner).max_decoding_message_size(MAX_MESSAGE_BYTES);
    let services = GrpcServices::new()
        .add_service(planner, CALLERS)
        .descriptors(FILE_DESCRIPTOR_SET);
    process
        .serve_grpc(services)
        .await
        .context("failed to serve gRPC")?;
    Ok(())
}
