//! The config-service: turns one ConfigMap, and Tekton's own flag in another, into one validated, numbered configuration,
//! and streams it to its clients. `core` knows what the flags mean; this service decides which state of the ConfigMaps is
//! in force.
//!
//! It reads exactly these two ConfigMaps and writes nothing but Events. A ConfigMap that is not valid changes nothing: the
//! last valid configuration stays in force, and every answer, an Event, a metric and the log say what is wrong.

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
use coscheduler_runtime::{GrpcServices, MAX_MESSAGE_BYTES, Process, Service};
use kube::Api;
use tokio::sync::watch;

pub use args::Args;
use report::Report;
use state::State;

/// Who this service is.
pub const SERVICE: Service = Service {
    name: "config-service",
    version: env!("CARGO_PKG_VERSION"),
    about: "Serves the validated configuration of tekton-coscheduler",
    grpc_address: "127.0.0.1:9101",
    http_address: "127.0.0.1:9201",
};

/// Tekton's ConfigMap with its own flags.
const TEKTON_CONFIG_MAP: &str = "feature-flags";

/// Starts to follow the ConfigMaps and to serve.
///
/// # Errors
///
/// No Kubernetes client can be made, or the gRPC address cannot be bound.
pub async fn start(args: Args, process: Process) -> anyhow::Result<()> {
    let Args {
        namespace,
        config_map,
        tekton_namespace,
        kubernetes,
    } = args;
    let client = kubernetes.client(&process).await?;
    let (sender, states) = watch::channel(State::default());
    let report = Report::new(process.metrics());

    let full_name = format!("{namespace}/{config_map}");
    let read = process.health().condition("ConfigMap");
    let (ours, ours_report) = (sender.clone(), report.clone());
    let apply = move |map| {
        change(&ours, &ours_report, |state| state.apply(&full_name, map));
        read.set(true);
    };
    process.spawn(
        "watch the ConfigMap",
        follow::follow(client.clone(), namespace.clone(), config_map.clone(), apply),
    );

    let full_name = format!("{tekton_namespace}/{TEKTON_CONFIG_MAP}");
    let read = process.health().condition("Tekton's ConfigMap");
    let apply = move |map| {
        change(&sender, &report, |state| {
            state.apply_tekton(&full_name, map);
        });
        read.set(true);
    };
    process.spawn(
        "watch Tekton's ConfigMap",
        follow::follow(
            client.clone(),
            tekton_namespace,
            TEKTON_CONFIG_MAP.to_owned(),
            apply,
        ),
    );

    let events = Api::namespaced(client, &namespace);
    process.spawn(
        "write Events about the ConfigMap",
        event::follow(events, namespace, config_map, states.clone()),
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

/// Changes the state and reports it. Watchers get real changes only.
fn change(states: &watch::Sender<State>, report: &Report, change: impl FnOnce(&mut State)) {
    states.send_if_modified(|state| {
        let before = state.clone();
        change(state);
        report.changed(&before, state);
        *state != before
    });
}
