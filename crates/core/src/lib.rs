//! This crate makes every decision about runs and placeholders. All decisions are pure functions.
//!
//! A service passes in the objects that it has seen, for example a PipelineRun and the configuration, and gets back complete
//! steps. The crate has no clock, network, randomness, async code or Kubernetes client. So the same input always gives the same
//! result.

pub mod violation;
pub mod words;

pub mod mode;
pub mod quantity;
pub mod requests;

pub mod node;

pub mod config;
pub mod pod_template;

pub mod annotations;
pub mod labels;
pub mod names;

pub mod overrides;
pub mod params;
pub mod pinned;
pub mod pipeline;
pub mod pipeline_run;
pub mod run_claims;
pub mod separation;

pub mod admit;
pub mod admit_child;
pub mod adopt;
pub mod event_texts;
pub mod observed;
pub mod plan;
pub mod reconcile;
pub mod restore;
pub mod sizes;
pub mod subsets;
pub mod volumes;

mod claim_template;
mod document;
mod naming;
