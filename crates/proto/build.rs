//! Compiles the files in `proto/` with protox, so that the build does not need protoc. Keeps their comments for gRPC reflection.

use std::path::PathBuf;

use anyhow::Context as _;
use prost::Message as _;
use protox::Compiler;

const FILES: [&str; 4] = [
    "coscheduler/config/v1/config.proto",
    "coscheduler/placeholder/v1/placeholder.proto",
    "coscheduler/planner/v1/planner.proto",
    "coscheduler/reason/v1/reason.proto",
];

fn main() -> anyhow::Result<()> {
    let root = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR")?).join("../../proto");
    println!("cargo::rerun-if-changed={}", root.display());
    let mut compiler = Compiler::new([&root]).context("failed to open proto/")?;
    compiler
        .include_source_info(true)
        .include_imports(true)
        .open_files(FILES)?;
    let descriptors = compiler.file_descriptor_set();
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("coscheduler.bin"), descriptors.encode_to_vec())
        .context("failed to write the file descriptor set")?;
    tonic_prost_build::configure()
        .btree_map(".")
        .include_file("contracts.rs")
        .compile_fds(descriptors)
        .context("failed to generate code from proto/")
}
