//! After each change of a PipelineRun that may change its plan, the watcher reports the run's latest state to the
//! affinity-planner. If a run changes again before its report is sent, only the newest state is reported. A report that fails
//! for a temporary reason is repeated. The watcher makes no decision about a run.
//!
//! Only the replica that holds Lease `watcher` sends reports. The other replicas only keep their caches up to date. The holder
//! also reports each unfinished run twice a minute, so that the placeholder-manager repairs changes that somebody else made to a
//! placeholder. The holder reports the end of a run once.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod args;
mod follow;
mod report;

use coscheduler_proto::planner::planner_service_client::PlannerServiceClient;
use coscheduler_runtime::queue::{self, Options};
use coscheduler_runtime::{GrpcServices, Process, Service, client};

pub use args::Args;
use follow::Runs;

/// The name, version and default addresses of this service.
pub const SERVICE: Service = Service {
    name: "watcher",
    version: env!("CARGO_PKG_VERSION"),
    about: "Reports PipelineRuns to the affinity-planner when their plans may change",
    grpc_address: "127.0.0.1:9104",
    http_address: "127.0.0.1:9204",
};

/// Starts to follow PipelineRuns and to report them.
///
/// # Errors
/// A Kubernetes client cannot be created, the planner's address is malformed, or the gRPC address cannot be bound.
pub async fn start(args: Args, process: Process) -> anyhow::Result<()> {
    let Args {
        affinity_planner_address,
        kubernetes,
        lease,
    } = args;
    let kubernetes = kubernetes.client(&process).await?;
    let leadership = lease.campaign(&process, kubernetes.clone(), SERVICE.name)?;
    let planner = PlannerServiceClient::new(client::channel(&affinity_planner_address, &process)?);
    let (queue, worker) = queue::queue("report", Options::default(), process.metrics());
    let runs = Runs::default();
    let synced = process.health().condition("PipelineRun cache");
    process.spawn(
        "watch PipelineRuns",
        follow::follow(
            kubernetes,
            runs.clone(),
            queue.clone(),
            leadership.clone(),
            synced,
        ),
    );
    process.spawn_graceful("report", |shutdown| async move {
        let report = |run| report::report(runs.clone(), planner.clone(), run);
        let lead = async {
            tokio::select! {
                () = worker.run(shutdown, report) => {}
                () = follow::repeat(&runs, &queue) => {}
            }
        };
        leadership.lead(lead).await?;
        Ok(())
    });
    process.serve_grpc(GrpcServices::new()).await?;
    Ok(())
}
