//! Boots a real control plane on loopback for the demo, tests and benchmarks: etcd, the Kubernetes API server, controller
//! manager and scheduler, Tekton's controller and webhook, and, if the configuration says so, Karpenter. KWOK simulates nodes,
//! kubelets and the storage provisioner. `kubelet.rs` adds functions of a kubelet that KWOK lacks: for example, it rejects pods
//! that do not fit on their node, and removes the objects of deleted pods. The test bed needs no container engine.
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
//! The environment variables `TESTBED_KUBERNETES` and `TESTBED_TEKTON` choose other releases than the default (see
//! [`Releases`]). With `TESTBED_MTLS=1`, the services use mutual TLS.
//!
//! When a bed is dropped, or the process that started it ends in any way, all processes of the bed end and its files are
//! removed (see [`ProcessGroup`]).

mod authority;
mod balancer;
mod bed;
mod binaries;
mod bundled;
mod config;
mod control_plane;
mod credentials;
mod files;
mod go;
mod karpenter;
mod kubelet;
mod manifests;
mod nodes;
mod ports;
mod process;
mod releases;
pub mod services;
mod tekton;
mod waiting;

pub use authority::Authority;
pub use balancer::Balancer;
pub use bed::{Detached, TestBed};
pub use binaries::{
    Binaries, Lines, Progress, build, build_karpenter, build_kubectl, build_releases,
    default_folder,
};
pub use config::{
    CUSTOM_STATUS, Config, DURATION_ANNOTATION, EXIT_CODE_ANNOTATION, LOCAL_STORAGE_CLASS,
    MESSAGE_ANNOTATION, MOVABLE_STORAGE_CLASS, STATUS_ANNOTATION, ZONAL_STORAGE_CLASS,
};
pub use kubelet::kubelets;
pub use ports::FreePorts;
pub use process::ProcessGroup;
pub use releases::Releases;
