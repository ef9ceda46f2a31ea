//! All tests on the control plane, one file for each topic. They are one program, because linking takes longer than compiling.
//! `cargo xtask test` runs the program once for each topic, so that the stack of a topic (control plane and services) ends with
//! its last test.

mod autoscaling;
mod configuration;
mod contention;
mod contracts;
mod crowd;
mod deployments;
mod drain;
mod evacuation;
mod events;
mod examples;
mod faults;
mod flags;
mod forged;
mod hundred;
mod installation;
mod interruptions;
mod invariants;
mod isolation;
mod leadership;
mod leftovers;
mod lifecycle;
mod memory;
mod modes;
mod monitoring;
mod mutual_tls;
mod outages;
mod overrides;
mod parents;
mod pipelineruns;
mod placeholders;
mod random;
mod refusals;
mod replicas;
mod requests;
mod rerun;
mod reservation;
mod silence;
mod sizes;
mod spread;
mod tekton_flag;
mod telemetry;
mod tenants;
mod volumes;
mod width;
