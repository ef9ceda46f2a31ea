//! Every decision of tekton-coscheduler, as pure functions.
//!
//! A service hands in what it has seen (a PipelineRun, the flags, the objects left over) and gets
//! back what is to be done, so specific that no choice is left to whoever carries it out. There is
//! no clock, network, randomness, async or Kubernetes client in here: the same input always gives
//! the same answer, online and offline.

pub mod version;
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
pub mod evacuate;
pub mod notices;
pub mod observed;
pub mod plan;
pub mod reasons;
pub mod reconcile;
pub mod refusals;
pub mod rescue;
pub mod restore;
pub mod teardown;
pub mod volumes;

mod claim_template;
mod document;
