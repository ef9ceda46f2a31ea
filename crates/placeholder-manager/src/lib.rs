//! The placeholder-manager: makes plans true. It creates placeholders when the planner asks for them and cleans up after
//! runs by itself, and it is the only service that writes workloads.
//!
//! It decides nothing: what a placeholder looks like and what the next step of a clean-up is, `core` says. It keeps no
//! state but caches of what Kubernetes holds, and serves only once those have listed everything.
//!
//! Calls are served by every replica. Cleaning up and telling authors, at each change and in a sweep once a minute, is up
//! to the holder of Lease `placeholder-manager`.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod args;
mod cache;
mod ensure;
mod error;
mod evacuate;
#[cfg(test)]
mod fixtures;
mod follow;
mod grpc;
mod identity;
mod notices;
mod objects;
mod one_list;
mod release;
mod rescue;
mod retries;
mod sweep;
mod volumes;

use std::sync::Arc;

use anyhow::Context as _;
use coscheduler_proto::FILE_DESCRIPTOR_SET;
use coscheduler_proto::placeholder::placeholder_service_server::PlaceholderServiceServer;
use coscheduler_runtime::queue::{self, Options};
use coscheduler_runtime::{GrpcServices, MAX_MESSAGE_BYTES, Process, Service};

pub use args::Args;
use cache::Cache;
use evacuate::Evacuation;
use follow::Queues;
use notices::Notices;
use objects::Objects;
use release::CleanUp;
use rescue::{Causes, Rescue};
use retries::Retries;

/// Who this service is.
pub const SERVICE: Service = Service {
    name: "placeholder-manager",
    version: env!("CARGO_PKG_VERSION"),
    about: "Makes plans true: creates the placeholders of PipelineRuns, and cleans up after them",
    grpc_address: "127.0.0.1:9103",
    http_address: "127.0.0.1:9203",
};

/// Starts following Kubernetes, serving and cleaning up.
///
/// # Errors
///
/// Where no Kubernetes client can be made or the gRPC address cannot be bound.
pub async fn start(args: Args, process: Process) -> anyhow::Result<()> {
    let Args {
        kubernetes,
        lease,
        scale_up_hold,
    } = args;
    let client = kubernetes.client(&process).await?;
    let cache = Arc::new(Cache::default());
    let objects = Objects::new(client.clone());
    let (clean_up_queue, cleaner) = queue::queue("clean-up", Options::default(), process.metrics());
    let (notices_queue, teller) = queue::queue("notices", Options::default(), process.metrics());
    let (evacuation_queue, evacuator) =
        queue::queue("evacuation", Options::default(), process.metrics());
    let (retries_queue, retrier) = queue::queue("retries", Options::default(), process.metrics());
    let (rescue_queue, rescuer) = queue::queue("rescue", Options::default(), process.metrics());
    let queues = Queues {
        clean_up: clean_up_queue,
        evacuation: evacuation_queue,
        rescue: rescue_queue,
        notices: notices_queue,
        retries: retries_queue,
    };

    let leadership = lease.campaign(&process, client.clone(), SERVICE.name)?;

    follow::spawn(&process, &client, &cache, &queues, &leadership);

    let causes = Causes::default();
    let clean_up = Arc::new(CleanUp::new(cache.clone(), objects.clone()));
    let notices = Arc::new(Notices::new(cache.clone(), objects.clone(), causes.clone()));
    let evacuation = Evacuation::new(cache.clone(), objects.clone());
    let retries = Retries::new(cache.clone(), objects.clone());
    let notices_of = queues.notices.clone();
    let rescue = Rescue::new(
        cache.clone(),
        objects.clone(),
        scale_up_hold,
        causes,
        move |run| notices_of.push(run),
    );
    let service = grpc::Placeholders::new(
        cache.clone(),
        objects,
        clean_up.clone(),
        notices.clone(),
        process.health().clone(),
    );
    let services = GrpcServices::new()
        .add_service(
            PlaceholderServiceServer::new(service).max_decoding_message_size(MAX_MESSAGE_BYTES),
        )
        .descriptors(FILE_DESCRIPTOR_SET);
    process
        .serve_grpc(services)
        .await
        .context("failed to serve gRPC")?;

    let health = process.health().clone();
    process.spawn_graceful("clean-up", |shutdown| async move {
        let lead = async {
            tokio::select! {
                () = health.ready() => {}
                () = shutdown.cancelled() => return,
            }
            tokio::select! {
                // They finish what they have begun.
                ((), (), (), (), ()) = async {
                    tokio::join!(
                        cleaner.run(shutdown.clone(), |key| clean_up.work(key)),
                        teller.run(shutdown.clone(), |key| notices.work(key)),
                        evacuator.run(shutdown.clone(), |key| evacuation.work(key)),
                        retrier.run(shutdown.clone(), |key| retries.work(key)),
                        rescuer.run(shutdown.clone(), |key| rescue.work(key)),
                    )
                } => {}
                () = sweep::sweep(&cache, &queues, clean_up.findings()) => {}
            }
        };
        leadership.lead(lead).await?;
        Ok(())
    });
    Ok(())
}
