//! The admission-webhook converts admission reviews to questions for the affinity-planner, and the planner's answers to JSON
//! patches. It makes only two decisions about runs itself. It denies a PipelineRun that is nested too deeply. It also denies an
//! object whose admission depends on a Pipeline that Tekton has not stored yet; Tekton then tries again later. It checks
//! ConfigMap `coscheduler-config` itself, with the rules of `core`. It makes its own TLS certificates (module `certificates`),
//! and writes the rules of its webhook configurations when it can answer (module `registration`).
//!
//! If the planner cannot answer, the webhook answers with HTTP 503. The `failurePolicy` of the webhook configuration then
//! decides if the object is admitted.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod args;
mod cache;
mod catalog;
mod certificates;
mod claims;
mod config_map;
mod notices;
mod object;
mod observe;
mod registration;
mod review;
mod stop;
mod stored_runs;
mod surroundings;
mod webhook;

use anyhow::Context as _;
use axum::middleware::from_fn_with_state;
use axum_server::Handle;
use axum_server::tls_rustls::RustlsConfig;
use coscheduler_proto::planner::planner_service_client::PlannerServiceClient;
use coscheduler_runtime::{
    GrpcServices, KEEPALIVE_INTERVAL, KEEPALIVE_TIMEOUT, Process, Service, client,
};
use hyper_util::rt::TokioTimer;

pub use args::Args;
use catalog::Catalog;
use notices::Notices;
use object::Configurations;
use observe::Reviews;
use surroundings::Surroundings;
use webhook::Webhook;

/// The name, version and default addresses of this service.
pub const SERVICE: Service = Service {
    name: "admission-webhook",
    version: env!("CARGO_PKG_VERSION"),
    about: "Answers admission reviews of PipelineRuns, TaskRuns and CustomRuns with the planner's decisions, and checks the \
            ConfigMap",
    grpc_address: "127.0.0.1:9105",
    http_address: "127.0.0.1:9205",
};

/// Starts to answer admission reviews.
///
/// # Errors
///
/// A flag is invalid, flags contradict each other, a Kubernetes client cannot be created, the planner's address is invalid, or an
/// address cannot be bound.
pub async fn start(args: Args, process: Process) -> anyhow::Result<()> {
    let Args {
        affinity_planner_address,
        webhook_address,
        tekton_namespace,
        installation_namespace,
        webhook_configuration,
        registration,
        certificates,
        kubernetes,
    } = args;
    let planner = client::channel(&affinity_planner_address, &process)?;
    let kubernetes = kubernetes.client(&process).await?;
    let configurations = || Configurations::new(&kubernetes, &webhook_configuration);
    registration::start(
        registration,
        &installation_namespace,
        configurations(),
        planner.clone(),
        &kubernetes,
        &process,
    )?;
    let webhook = Webhook {
        client: kubernetes.clone(),
        planner: PlannerServiceClient::new(planner),
        surroundings: Surroundings::follow(&process, &kubernetes),
        catalog: Catalog::follow(&process, &kubernetes, &tekton_namespace),
        notices: Notices::spawn(&process, kubernetes.clone()),
    };
    let configurations = configurations();
    let tls = certificates::start(
        certificates,
        &installation_namespace,
        configurations,
        kubernetes,
        &process,
    )?;
    let bind = || {
        let listener = std::net::TcpListener::bind(webhook_address)?;
        listener.set_nonblocking(true)?;
        axum_server::from_tcp_rustls(listener, RustlsConfig::from_config(tls))
    };
    let mut server = bind()
        .with_context(|| format!("failed to bind the admission address {webhook_address}"))?;
    server
        .http_builder()
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT);

    let handle = Handle::new();
    let stopping = process.shutdown();
    let routes = webhook::routes(webhook, Reviews::new(process.metrics()));
    let routes = routes.layer(from_fn_with_state(stopping, stop::close));
    let server = server.handle(handle.clone());
    let serve = server.serve(routes.into_make_service());
    process.spawn_graceful("admission server", |shutdown| async move {
        let stop = async {
            stop::stop(handle, shutdown).await;
            Ok(())
        };
        let served = tokio::try_join!(serve, stop);
        served.context("failed to serve admission reviews")?;
        Ok(())
    });
    process
        .serve_grpc(GrpcServices::new())
        .await
        .context("failed to serve gRPC")?;
    Ok(())
}
