//! Kubernetes and Tekton objects to and from `core`, as pure functions.
//!
//! Here are the few Tekton types the services read, and the builders of the objects the placeholder-manager writes.
//! Nothing here talks to an API server; `kube::Error` appears only so that one place says which errors are worth a
//! retry.

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
pub mod pipeline;
pub mod pipeline_run;
pub mod placeholder;
pub mod pods;
pub mod transient;
pub mod volumes;
