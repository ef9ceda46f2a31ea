//! The config-service reads our ConfigMap `coscheduler-config`, and flag `coschedule` in Tekton's ConfigMap `feature-flags`. It
//! combines both into one validated, numbered configuration, and streams this configuration to its clients. The rules for the
//! flags are in `core`. This service decides which versions of the ConfigMaps are in force.
//!
//! It reads only these two ConfigMaps, and writes only Events. If our ConfigMap becomes invalid, the last valid configuration
//! stays in force. The answers of `GetConfig` and `WatchConfig`, an Event, a metric and the log report the fault.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod args;
mod event;
mod follow;
mod grpc;
mod report;
mod state;

use anyhow::Context as _;
use coscheduler_proto::FILE_DESCRIPTOR_SET;
use coscheduler_proto::config::config_service_server::ConfigServiceServer;
use coscheduler_runtime::{Callers, GrpcServices, MAX_MESSAGE_BYTES, Process, Service};
use kube::Api;
use tokio::sync::watch;

pub use args::Args;
use follow::Follower;
use report::Report;
use state::State;

/// The name, version and default addresses of this service.
pub const SERVICE: Service = Service {
    name: "config-service",
    version: env!("CARGO_PKG_VERSION"),
    about: "Serves the validated configuration of tekton-coscheduler",
    grpc_address: "127.0.0.1:9101",
    http_address: "127.0.0.1:9201",
};

/// The name of Tekton's ConfigMap with Tekton's own flags.
const TEKTON_CONFIG_MAP: &str = "feature-flags";

/// With mutual TLS, each RPC accepts only these callers. An operator may only read.
const CALLERS: Callers = &[
    ("CheckFlags", &["operator"]),
    ("GetConfig", &["operator"]),
    ("WatchConfig", &["affinity-planner", "operator"]),
];

/// Starts to follow the ConfigMaps and to serve.
///
/// # Errors
///
/// A Kubernetes client cannot be created, or the gRPC address cannot be bound.
pub async fn start(args: Args, process: Process) -> anyhow::Result<()> {
    let Args {
        namespace,
        config_map,
        tekton_namespace,
        kubernetes,
    } = args;
    let client = kubernetes.client(&process).await?;
    let (sender, states) = watch::channel(State::default());
    let follower = Follower {
        client: client.clone(),
        states: sender,
        report: Report::new(process.metrics()),
    };
    let ours = (namespace.as_str(), config_map.as_str());
    let tekton = (tekton_namespace.as_str(), TEKTON_CONFIG_MAP);
    let tekton_follower = follower.clone();
    follower.spawn(&process, "ConfigMap", ours, State::apply);
    tekton_follower.spawn(&process, "ConfigMap of Tekton", tekton, State::apply_tekton);

    let events = Api::namespaced(client, &namespace);
    process.spawn(
        "write Events about the ConfigMap",
        event::follow(events, states.clone()),
    );

    let service = ConfigServiceServer::new(grpc::Config { states })
        .max_decoding_message_size(MAX_MESSAGE_BYTES);
    let services = GrpcServices::new()
        .add_service(service, CALLERS)
        .descriptors(FILE_DESCRIPTOR_SET);
    process
        .serve_grpc(services)
        .await
        .context("failed to serve gRPC")?;
    Ok(())
}
