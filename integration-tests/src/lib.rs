//! The parts that integration tests and their benchmarks share: a real control plane with the five services beside a real Tekton
//! (a stack), a namespace for each test, and functions that wait for conditions.
//!
//! The tests of a file that only create runs share one stack ([`shared`]) and run in parallel. A test that changes the
//! configuration or stops services boots a stack of its own ([`alone`]). All processes of a stack end with the test process,
//! however it ends.

pub mod asking;
pub mod audit;
pub mod collector;
pub mod configuration;
pub mod costs;
pub mod cramped;
pub mod etcd;
pub mod faults;
mod gate;
pub mod growth;
pub mod grpc;
mod held;
pub mod history;
pub mod installation;
pub mod leases;
pub mod look;
pub mod metrics;
pub mod nodes;
pub mod pace;
pub mod plugin;
pub mod prometheus;
pub mod refusing;
mod resolving;
pub mod rights;
pub mod room;
pub mod runs;
mod scale;
pub mod send;
pub mod sets;
pub mod sides;
pub mod stack;
pub mod struck;
pub mod timings;
pub mod waits;

pub use scale::at_scale;
pub use stack::{
    Scene, alone, alone_unattended, alone_with, on_bed, shared, shared_on, shared_with,
    shared_with_overrides,
};
