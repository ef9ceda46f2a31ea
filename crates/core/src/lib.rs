//! Every decision of tekton-coscheduler, as pure functions.
//!
//! A service passes in the objects that it has seen (a PipelineRun, the flags, leftovers). It gets back the steps to take, with
//! every detail, so it decides nothing itself. The crate has no clock, network, randomness, async code or Kubernetes client: the
//! same input always gives the same answer.

pub mod violation;
pub mod words;

pub mod mode;
pub mod quantity;

pub mod config;
pub mod pod_template;

pub mod annotations;
pub mod labels;
pub mod names;

pub mod params;
pub mod pinned;
pub mod pipeline;
pub mod pipeline_run;
pub mod run_claims;
pub mod separation;

pub mod admit;
pub mod admit_run;
pub mod observed;
pub mod plan;
pub mod reasons;
pub mod reconcile;
pub mod restore;
pub mod sizes;
pub mod volumes;

mod claim_template;
mod document;
