//! The placeholder-manager creates the placeholders of PipelineRuns, moves them to nodes where the run can continue, and cleans
//! up after runs. It is the only service that writes workloads.
//!
//! `watch` writes each change of an object into the `cache` and, on the leader, pushes the affected runs into one queue. The
//! `reconciler` takes a run from the queue, observes the run's objects, lets `core` decide, carries out the steps and publishes
//! Events. All lasting state is in Kubernetes objects, so the service is ready as soon as the watches have listed them.
//!
//! Every replica serves the calls `Ensure` and `Release`, and creates and deletes objects for these calls. Only the leader, which
//! holds Lease `placeholder-manager`, reacts to changes of objects and moves placeholders.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod args;

mod cache;
mod watch;

mod act;
mod announce;
mod delete_claims;
mod memory;
mod metrics;
mod reconciler;

mod one_list;
mod placeholder;
mod requests;

mod call;
mod error;
#[cfg(test)]
mod fixtures;
mod grpc;
mod sweep;

use std::sync::Arc;

use anyhow::Context as _;
use coscheduler_proto::FILE_DESCRIPTOR_SET;
use coscheduler_proto::placeholder::placeholder_service_server::PlaceholderServiceServer;
use coscheduler_runtime::queue::{self, Options};
use coscheduler_runtime::{Callers, GrpcServices, MAX_MESSAGE_BYTES, Process, Service};

pub use args::Args;
use cache::Cache;
use reconciler::Reconciler;
use requests::Requests;

/// The service's name, version and default addresses.
pub const SERVICE: Service = Service {
    name: "placeholder-manager",
    version: env!("CARGO_PKG_VERSION"),
    about: "Creates the placeholders of PipelineRuns, and cleans up after them",
    grpc_address: "127.0.0.1:9103",
    http_address: "127.0.0.1:9203",
};

/// With mutual TLS, each RPC accepts only these callers. An operator may only read.
const CALLERS: Callers = &[
    ("Ensure", &["affinity-planner"]),
    ("Explain", &["operator"]),
    ("GetPlaceholder", &["operator"]),
    ("ListPlaceholders", &["operator"]),
    ("Release", &["affinity-planner"]),
    ("WatchPlaceholders", &["operator"]),
];

/// Starts the watches, the leader election, the metrics, the gRPC server, the reconciles of runs, and the sweep.
///
/// # Errors
///
/// The Kubernetes client cannot be created, the durations of the Lease contradict each other, or the gRPC address cannot be
/// bound.
pub async fn start(args: Args, process: Process) -> anyhow::Result<()> {
    let Args {
        peak_wait,
        kubernetes,
        lease,
    } = args;
    let client = kubernetes.client(&process).await?;
    let cache = Arc::new(Cache::default());
    let (queue, worker) = queue::queue("runs", Options::default(), process.metrics());
    let leadership = lease.campaign(&process, client.clone(), SERVICE.name)?;
    watch::spawn(&process, &client, &cache, &queue, &leadership);

    let reconciler = Arc::new(Reconciler::new(
        cache.clone(),
        Requests::new(client),
        leadership.clone(),
        queue.clone(),
        peak_wait,
    ));
    reconciler.published.register(process.metrics());
    let seconds = metrics::register(process.metrics(), &cache);
    let (followed, leads, health) = (cache.clone(), leadership.clone(), process.health().clone());
    process.spawn("measure placeholders", async move {
        // Until the process is ready, the placeholders of the first list would look like changes.
        health.ready().await;
        metrics::follow(&followed, &leads, &seconds).await;
        Ok(())
    });
    let service = grpc::Placeholders::new(reconciler.clone(), process.health().clone());
    let services = GrpcServices::new()
        .add_service(
            PlaceholderServiceServer::new(service).max_decoding_message_size(MAX_MESSAGE_BYTES),
            CALLERS,
        )
        .descriptors(FILE_DESCRIPTOR_SET);
    process
        .serve_grpc(services)
        .await
        .context("failed to serve gRPC")?;

    let (health, works) = (process.health().clone(), reconciler.clone());
    process.spawn_graceful("work on runs", |shutdown| async move {
        tokio::select! {
            () = health.ready() => {}
            () = shutdown.cancelled() => return Ok(()),
        }
        let reconciler = works.clone();
        worker
            .run(shutdown, move |run| {
                let reconciler = reconciler.clone();
                async move { reconciler.work(run).await }
            })
            .await;
        works.stop();
        Ok(())
    });
    let health = process.health().clone();
    process.spawn_graceful("sweep", |shutdown| async move {
        let sweep = async {
            tokio::select! {
                () = health.ready() => {}
                () = shutdown.cancelled() => return,
            }
            tokio::select! {
                () = sweep::sweep(&cache, &queue) => {}
                () = shutdown.cancelled() => {}
            }
        };
        tokio::select! {
            led = leadership.lead(sweep) => drop(led?),
            () = sweep::forget(&cache, &reconciler.memory) => {}
        }
        Ok(())
    });
    Ok(())
}
