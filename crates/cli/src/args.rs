//! The command line. Flags `-f`, `-n` and `-o` have kubectl's names. `-n` does not use kubectl's context.

use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};
use coscheduler_core::mode::Mode;

/// Shows the decisions of tekton-coscheduler. Changes no object.
///
/// Exit codes: 0 success, 1 failure, 2 wrong usage, 4 unreachable.
#[derive(Debug, Parser)]
#[command(name = "kubectl coschedule", bin_name = "kubectl coschedule", version)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Plan(PlanArgs),
}

/// Show the objects that the PipelineRuns of a file would get
///
/// Needs no cluster, except with --server.
#[derive(Debug, clap::Args)]
pub(crate) struct PlanArgs {
    /// File with PipelineRuns, as YAML or JSON; - for standard input. The file may also have the runs' Pipelines, Tasks, Namespace,
    /// LimitRanges, RuntimeClasses and claims
    #[arg(short, long, value_name = "FILE")]
    pub(crate) filename: PathBuf,

    /// File with ConfigMap coscheduler-config. Default: every key has its default
    #[arg(long, value_name = "FILE", conflicts_with = "server")]
    pub(crate) config: Option<PathBuf>,

    /// Mode of the cluster, instead of key coschedule of the ConfigMap
    #[arg(long, value_name = "MODE", conflicts_with = "server")]
    pub(crate) mode: Option<Mode>,

    /// Namespace of objects that name none
    #[arg(short, long, value_name = "NAME", default_value = "default")]
    pub(crate) namespace: String,

    #[command(flatten)]
    pub(crate) server: ServerArgs,

    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ServerArgs {
    /// Address of the affinity-planner, such as localhost:9102 of a port-forward. It plans with the cluster's configuration
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) server: Option<String>,

    /// Folder with ca.crt, tls.crt and tls.key of Secret operator-tls, for a server with mutual TLS
    #[arg(long, value_name = "DIR", requires = "server")]
    pub(crate) certificates: Option<PathBuf>,

    /// Name in the server's certificate. Default: the host in --server
    #[arg(long, value_name = "NAME", requires = "certificates")]
    pub(crate) authority: Option<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct OutputArgs {
    /// Format of the answer. Default: text for people
    #[arg(short, long, value_name = "FORMAT")]
    pub(crate) output: Option<Format>,
}

/// The format of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Text for people, with more details.
    Wide,
    /// Every fact, as JSON.
    Json,
    /// Every fact, as YAML.
    Yaml,
    /// Only the names of the objects, such as `pod/example`.
    Name,
}
