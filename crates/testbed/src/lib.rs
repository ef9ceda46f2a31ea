//! Boots a real control plane on loopback for demo, tests and benchmarks: etcd, the Kubernetes API server, controller
//! manager and scheduler, KWOK for nodes and kubelets, and Tekton's controller and webhook. No container engine is
//! needed, and nothing is simulated but the kubelet and the storage provisioner.
//!
//! ```no_run
//! # async fn example() -> anyhow::Result<()> {
//! use testbed::{Config, TestBed};
//!
//! testbed::build(&testbed::default_folder()?, &testbed::Lines)?;
//! let bed = TestBed::start(Config { nodes: 2, ..Config::default() }).await?;
//! println!("export KUBECONFIG={}", bed.kubeconfig().display());
//! bed.stop().await?;
//! # Ok(())
//! # }
//! ```
//!
//! A bed that is dropped, or whose owner dies in any way, takes every process and file of it along (see
//! [`ProcessGroup`]).

mod balancer;
mod bed;
mod binaries;
mod bundled;
mod config;
mod control_plane;
mod credentials;
mod go;
mod manifests;
mod nodes;
mod ports;
mod process;
pub mod services;
mod tekton;
mod waiting;

pub use balancer::Balancer;
pub use bed::{Detached, TestBed};
pub use binaries::{Binaries, Lines, Progress, build, build_kubectl, default_folder};
pub use config::{
    CUSTOM_STATUS, Config, DURATION_ANNOTATION, EXIT_CODE_ANNOTATION, LOCAL_STORAGE_CLASS,
    MESSAGE_ANNOTATION, MOVABLE_STORAGE_CLASS, STATUS_ANNOTATION, ZONAL_STORAGE_CLASS,
};
pub use ports::FreePorts;
pub use process::ProcessGroup;
