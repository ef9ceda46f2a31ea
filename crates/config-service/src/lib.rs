//! The config service: turns one ConfigMap into one validated, numbered configuration, and streams it to whoever
//! watches. What the flags mean, `core` says; here is only which of the ConfigMap's states is in force.
//!
//! It reads exactly one ConfigMap and writes nothing. A ConfigMap that is not valid changes nothing: the last valid
//! configuration stays in force, and every answer says what is wrong.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod args;
mod follow;
mod grpc;
mod state;

use anyhow::Context as _;
use coscheduler_proto::FILE_DESCRIPTOR_SET;
use coscheduler_proto::config::config_service_server::ConfigServiceServer;
use coscheduler_runtime::{GrpcServices, MAX_MESSAGE_BYTES, Process, Service};
use tokio::sync::watch;

pub use args::Args;
use state::State;

/// Who this service is.
pub const SERVICE: Service = Service {
    name: "config-service",
    version: env!("CARGO_PKG_VERSION"),
    about: "Serves the validated configuration of tekton-coscheduler",
    grpc_address: "127.0.0.1:9101",
    http_address: "127.0.0.1:9201",
};

/// Starts following the ConfigMap and serving.
///
/// # Errors
///
/// Where no Kubernetes client can be made or the gRPC address cannot be bound.
pub async fn start(args: Args, process: Process) -> anyhow::Result<()> {
    let Args {
        namespace,
        config_map,
        kubernetes,
    } = args;
    let client = kubernetes.client(&process).await?;
    let (sender, states) = watch::channel(State::default());
    let read = process.health().condition("ConfigMap");
    process.spawn(
        "watch the ConfigMap",
        follow::follow(client, namespace, config_map, sender, read),
    );
    let service = ConfigServiceServer::new(grpc::Config::new(states))
        .max_decoding_message_size(MAX_MESSAGE_BYTES);
    let services = GrpcServices::new()
        .add_service(service)
        .descriptors(FILE_DESCRIPTOR_SET);
    process
        .serve_grpc(services)
        .await
        .context("failed to serve gRPC")?;
    Ok(())
}
