//! The gRPC contracts of tekton-coscheduler, generated from `proto/`, and their conversions to and from `core`.
//!
//! The files in `proto/` define the wire format. Their comments give the meaning of each field, the meaning of an unset field,
//! and the errors of each RPC. This crate only converts.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod convert;
pub mod error;
pub mod json;

#[allow(missing_docs, clippy::all, rust_2018_idioms, unreachable_pub)]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/contracts.rs"));
}

/// The contract of the config-service.
pub use generated::coscheduler::config::v1 as config;
/// The contract of the placeholder-manager.
pub use generated::coscheduler::placeholder::v1 as placeholder;
/// The contract of the affinity-planner.
pub use generated::coscheduler::planner::v1 as planner;
/// The reasons for decisions and for errors.
pub use generated::coscheduler::reason::v1 as reason;

/// The types of `google/protobuf` that the contracts use.
pub use prost_types::{Struct, Timestamp};

/// The encoded `FileDescriptorSet` of all contracts, comments included, for gRPC reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/coscheduler.bin"));
