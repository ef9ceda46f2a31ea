//! Kubernetes and Tekton objects to and from `core`, as pure functions.
//!
//! The crate has the few Tekton types that the services read, and builds the objects that the placeholder-manager writes. It never
//! talks to an API server; `kube::Error` is here only so that one place says which errors are worth a retry.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod admission;
pub mod affinity;
pub mod child_run;
pub mod claims;
pub mod complaints;
pub mod events;
pub mod needs;
pub mod nodes;
pub mod objects;
pub mod ownership;
pub mod pipeline_run;
pub mod placeholder;
pub mod pods;
pub mod tekton;
pub mod transient;
pub mod volumes;
