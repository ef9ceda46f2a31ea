//! Pure functions that convert Kubernetes and Tekton objects to types of `core`, and types of `core` to objects.
//!
//! The crate has the few Tekton types that the services read, and builds the objects that the placeholder-manager writes. It never
//! talks to an API server. It uses `kube::Error` to read the API server's errors: whether a retry may help, whether an object
//! exists already, and whether an admission webhook is down.

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
