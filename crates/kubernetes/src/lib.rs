//! Pure functions that convert Kubernetes and Tekton objects to types of `core`, and types of `core` to objects.
//!
//! The crate has the few Tekton types that the services read. It also builds the objects and patches that the services send. It
//! never talks to an API server. It uses `kube::Error` only to classify errors of the API server: a retry may help, the object
//! exists already, or an admission webhook is down.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod admission;
pub mod affinity;
pub mod child_run;
pub mod claims;
pub mod complaints;
pub mod events;
pub mod kept;
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
