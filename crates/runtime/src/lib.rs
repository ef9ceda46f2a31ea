//! The skeleton of every service process of tekton-coscheduler: flags, logs, signals, the gRPC and HTTP servers with health and
//! metrics, and the gRPC client. This crate knows nothing about coscheduling. It has a Kubernetes client only with the feature
//! `kubernetes`, so that a service without this feature cannot call the API server.
//!
//! A service consists of a [`Service`] constant, a struct of its own flags, and one function that builds its caches, serves its
//! gRPC services and spawns its loops. `main` passes the constant and the function to [`run()`]:
//!
//! ```no_run
//! use coscheduler_runtime::{GrpcServices, Process, Service};
//!
//! const SERVICE: Service = Service {
//!     name: "example",
//!     version: env!("CARGO_PKG_VERSION"),
//!     about: "Shows the skeleton of a service",
//!     grpc_address: "127.0.0.1:9199",
//!     http_address: "127.0.0.1:9299",
//! };
//!
//! #[derive(clap::Args)]
//! struct Args {}
//!
//! async fn start(Args {}: Args, process: Process) -> anyhow::Result<()> {
//!     process.serve_grpc(GrpcServices::new()).await?;
//!     Ok(())
//! }
//!
//! fn main() -> std::process::ExitCode {
//!     coscheduler_runtime::run(SERVICE, start)
//! }
//! ```

mod args;
mod run;
mod telemetry;

mod health;
mod metrics_registry;
mod process;

mod http;
mod rpc;
mod server;
mod tls;

pub mod client;
#[cfg(feature = "kubernetes")]
pub mod kubernetes;
#[cfg(feature = "kubernetes")]
pub mod lease;
pub mod queue;
pub mod trace;

pub use args::{LogFormat, ProcessArgs, Service, command, parse_duration};
pub use health::{Condition, Health};
#[cfg(feature = "kubernetes")]
pub use kubernetes::KubernetesArgs;
pub use metrics_registry::{Metrics, Seconds};
pub use process::{Process, Supervisor};
pub use run::run;
pub use server::{
    Callers, Deadline, GrpcServices, KEEPALIVE_INTERVAL, KEEPALIVE_TIMEOUT, MAX_MESSAGE_BYTES,
};
