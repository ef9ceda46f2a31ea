//! The parts that integration tests and their benchmark share: a real control plane with the five services beside a real
//! Tekton, a namespace for each test, and waiting on conditions.
//!
//! Tests that only create runs share one stack a test binary ([`shared`]) and run in parallel. A test that changes the
//! configuration or stops services boots its own ([`alone`]). Everything ends with the test binary, however it ends.

pub mod asking;
pub mod audit;
pub mod collector;
pub mod configuration;
pub mod costs;
pub mod cramped;
pub mod faults;
mod gate;
mod held;
pub mod history;
pub mod installation;
pub mod leases;
pub mod look;
pub mod metrics;
pub mod nodes;
pub mod rights;
pub mod runs;
pub mod send;
pub mod stack;
pub mod struck;

pub use stack::{
    Scene, alone, alone_with, on_bed, shared, shared_on, shared_with, shared_with_overrides,
};
