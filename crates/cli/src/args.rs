//! The command line. The flags have kubectl's names. Without `-n`, `plan` uses namespace `default`, and not the namespace of
//! kubectl's context.

use std::ffi::OsStr;
use std::path::PathBuf;

use clap::builder::{PossibleValue, TypedValueParser};
use clap::{Parser, Subcommand, ValueEnum};
use coscheduler_core::mode::Mode;

use crate::template::Template;

/// Shows the decisions of tekton-coscheduler. Changes no object.
///
/// Exit codes: 0 success, 1 failure, 2 wrong usage, 3 not found, 4 unreachable.
#[derive(Debug, Parser)]
#[command(name = "kubectl coschedule", bin_name = "kubectl coschedule", version)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Plan(PlanArgs),
    Status(StatusArgs),
    Explain(ExplainArgs),
    /// Show the Events about one PipelineRun and its TaskRuns, pods, claims and placeholders, the oldest first
    ///
    /// Reads the PipelineRun, its TaskRuns and pods, and the Events of the namespace with the rights of the kubeconfig.
    Events(NamedArgs),
    Nodes(NodesArgs),
    Check(CheckArgs),
    Ui(UiArgs),
    /// Write the words that may come next in a command line, for kubectl's completion
    #[command(name = "__complete", hide = true)]
    Complete {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<String>,
    },
}

/// Show the objects that the PipelineRuns of a file would get
///
/// Needs no cluster, except with --server.
#[derive(Debug, clap::Args)]
pub(crate) struct PlanArgs {
    /// File with PipelineRuns, as YAML or JSON; - for standard input. The file may also have the runs' Pipelines, Tasks,
    /// Namespace, LimitRanges, RuntimeClasses and claims
    #[arg(short, long, value_name = "FILE")]
    pub(crate) filename: PathBuf,

    /// File with ConfigMap coscheduler-config. Default: every key has its default
    #[arg(long, value_name = "FILE", conflicts_with = "server")]
    pub(crate) config: Option<PathBuf>,

    /// Mode of the cluster, instead of key coschedule of the ConfigMap
    #[arg(long, value_name = "MODE", conflicts_with = "server")]
    pub(crate) mode: Option<Mode>,

    /// Namespace of the file's objects that have no namespace
    #[arg(short, long, value_name = "NAME", default_value = "default")]
    pub(crate) namespace: String,

    /// Address of the affinity-planner, such as localhost:9102 of a port-forward. The affinity-planner then admits the
    /// runs, with the configuration of its cluster
    #[arg(long, value_name = "HOST:PORT", value_parser = address)]
    pub(crate) server: Option<String>,

    #[command(flatten)]
    pub(crate) certificates: CertificateArgs,

    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// Show the coscheduled PipelineRuns that have not ended, with their nodes, and why they wait
///
/// Reads PipelineRuns and pods with the rights of the kubeconfig.
#[derive(Debug, clap::Args)]
pub(crate) struct StatusArgs {
    /// Show only this PipelineRun, even if it has ended or is not coscheduled
    #[arg(value_name = "NAME", value_parser = run_name, conflicts_with = "all_namespaces")]
    pub(crate) name: Option<String>,

    /// All namespaces
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    pub(crate) all_namespaces: bool,

    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,

    #[command(flatten)]
    pub(crate) output: OutputArgs,

    /// Write the row of a run again whenever it changes, until Ctrl-C
    #[arg(short, long)]
    pub(crate) watch: bool,

    /// Do not write the headers of the table
    #[arg(long)]
    pub(crate) no_headers: bool,
}

/// Show one PipelineRun, the cause for which it waits, and what to do about it
///
/// Reads the PipelineRun and its TaskRuns, pods, claims and Events with the rights of the kubeconfig. With --server, asks the
/// placeholder-manager instead. For a child run, the placeholder-manager answers about the topmost parent run.
#[derive(Debug, clap::Args)]
pub(crate) struct ExplainArgs {
    #[command(flatten)]
    pub(crate) run: NamedArgs,

    /// Address of the placeholder-manager, such as localhost:9103 of a port-forward
    #[arg(long, value_name = "HOST:PORT", value_parser = address)]
    pub(crate) server: Option<String>,

    #[command(flatten)]
    pub(crate) certificates: CertificateArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct NamedArgs {
    /// Name of the PipelineRun, or pipelinerun/NAME
    #[arg(value_name = "NAME", value_parser = run_name)]
    pub(crate) name: String,

    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,

    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// The name in `NAME` or `TYPE/NAME`.
fn run_name(text: &str) -> Result<String, String> {
    match text.split_once('/') {
        None => object_name(text),
        Some(("pipelinerun" | "pipelineruns" | "pr" | "prs" | "pipelinerun.tekton.dev", name)) => {
            object_name(name)
        }
        Some((kind, _)) => Err(format!(
            "{kind:?} is not allowed before the name; allowed: pipelinerun. To choose a namespace, use -n"
        )),
    }
}

/// Checks the characters of a name, so that it is safe in a URL (Kubernetes, "Object Names and IDs").
fn object_name(text: &str) -> Result<String, String> {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.".contains(c);
    match !text.is_empty() && text.chars().all(allowed) {
        true => Ok(text.to_owned()),
        false => Err("allowed: a name of lower-case letters, digits, '-' and '.'".to_owned()),
    }
}

/// Show each node: its number of PipelineRuns and placeholders, the requests of placeholders, and the free CPU and memory
///
/// Reads the nodes and the pods of all namespaces with the rights of the kubeconfig.
#[derive(Debug, clap::Args)]
pub(crate) struct NodesArgs {
    #[command(flatten)]
    pub(crate) kubeconfig: KubeconfigArgs,

    #[command(flatten)]
    pub(crate) output: OutputArgs,

    /// Do not write the headers of the table
    #[arg(long)]
    pub(crate) no_headers: bool,
}

/// Check that the cluster has what tekton-coscheduler needs, before or after its installation
///
/// Reads Tekton's flag, the configuration, the webhooks, the Deployments, the nodes, the StorageClasses, the PriorityClasses,
/// the API groups, the resources of API v1 and the user's own rights, with the rights of the kubeconfig. Fails if a check
/// fails.
#[derive(Debug, clap::Args)]
pub(crate) struct CheckArgs {
    /// Namespace of Tekton's ConfigMap feature-flags
    #[arg(long, value_name = "NAME", default_value = "tekton-pipelines")]
    pub(crate) tekton_namespace: String,

    /// Namespace of the services
    #[arg(short, long, value_name = "NAME", default_value = "coscheduler-system")]
    pub(crate) namespace: String,

    /// Check only what must hold before the installation
    #[arg(long)]
    pub(crate) pre: bool,

    #[command(flatten)]
    pub(crate) kubeconfig: KubeconfigArgs,

    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// Serve a page with the nodes, the PipelineRuns on them, and the runs that wait, until Ctrl-C
///
/// Only programs on this machine can reach the page. Reads nodes, PipelineRuns and pods with the rights of the kubeconfig.
#[derive(Debug, clap::Args)]
pub(crate) struct UiArgs {
    /// All namespaces
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    pub(crate) all_namespaces: bool,

    /// Port of the page; 0 for any free port
    #[arg(long, value_name = "PORT", default_value_t = 8135)]
    pub(crate) port: u16,

    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ClusterArgs {
    /// Namespace. Default: the namespace of the kubeconfig's context
    #[arg(short, long, value_name = "NAME", value_parser = object_name)]
    pub(crate) namespace: Option<String>,

    #[command(flatten)]
    pub(crate) kubeconfig: KubeconfigArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct KubeconfigArgs {
    /// Context of the kubeconfig. Default: its current context
    #[arg(long, value_name = "NAME")]
    pub(crate) context: Option<String>,

    /// Kubeconfig file. Default: $KUBECONFIG, or ~/.kube/config
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
}

/// Checks that `text` is `HOST:PORT`.
fn address(text: &str) -> Result<String, String> {
    let port = text.rsplit_once(':').map(|(_, port)| port.parse::<u16>());
    match port {
        Some(Ok(_)) if !text.contains('/') => Ok(text.to_owned()),
        Some(_) | None => Err("expected HOST:PORT".to_owned()),
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct CertificateArgs {
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
    #[arg(short, long, value_name = "FORMAT", value_parser = FormatParser)]
    pub(crate) output: Option<Format>,
}

impl OutputArgs {
    pub(crate) fn is_wide(&self) -> bool {
        self.output == Some(Format::Wide)
    }
}

/// The format of an answer.
#[derive(Clone, Debug, PartialEq, ValueEnum)]
pub(crate) enum Format {
    /// Text for people, with more details.
    Wide,
    /// Every fact, as JSON.
    Json,
    /// Every fact, as YAML.
    Yaml,
    /// Only the names of the objects, such as `pod/example`.
    Name,
    /// A template with fields of the JSON, as `jsonpath=TEMPLATE`.
    #[value(skip)]
    JsonPath(Template),
}

/// Reads a [`Format`].
#[derive(Clone)]
struct FormatParser;

impl FormatParser {
    const JSON_PATH: &str = "jsonpath=";

    fn parse(text: &str) -> Result<Format, String> {
        match text.strip_prefix(Self::JSON_PATH) {
            Some(template) => template.parse().map(Format::JsonPath),
            None => Format::from_str(text, false)
                .map_err(|_| "allowed: wide, json, yaml, name, jsonpath=TEMPLATE".to_owned()),
        }
    }
}

impl TypedValueParser for FormatParser {
    type Value = Format;

    fn parse_ref(
        &self,
        command: &clap::Command,
        arg: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<Format, clap::Error> {
        TypedValueParser::parse_ref(&Self::parse, command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let others = Format::value_variants().iter();
        let others = others.filter_map(ValueEnum::to_possible_value);
        let json_path = PossibleValue::new(Self::JSON_PATH)
            .help("A template with fields of the JSON, such as 'jsonpath={.runs[*].name}'");
        Some(Box::new(others.chain([json_path])))
    }
}
