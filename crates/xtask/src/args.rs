//! The command line. `cargo xtask --help` prints the doc comments of this file.

use std::path::PathBuf;

use clap::{Parser, Subcommand};
use testbed::services::{DEFAULT_BASE, HIGHEST_BASE, Service};

/// The default of `cargo xtask bench compare --minutes`.
pub(crate) const MINUTES: u16 = 34;

/// The task runner of tekton-coscheduler.
///
/// Needs Rust and a C compiler. Commands that start a test bed (demo, test, bench, ci, testbed) also need Go. They build the
/// control plane once, into target/testbed. This takes about ten minutes on two cores. Environment variables
/// TESTBED_KUBERNETES (1.35 or 1.36) and TESTBED_TEKTON (1.12 or 1.15) choose its releases.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", version)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a PipelineRun with two volumes on one node, and show it live
    ///
    /// Builds and boots the test bed, starts the five services, creates the example and shows live where the placeholder,
    /// claims and TaskRun pods are. Exits 0 only if the run succeeded on one node, and its placeholder and claims were deleted
    /// afterwards. At the end, also after a failure or Ctrl-C, ends the services and the test bed.
    Demo(DemoArgs),
    /// Run the tests of the workspace, all of them or a selection
    ///
    /// Builds the test bed, the services and the tests, then runs several test binaries at a time. Prints the output of a
    /// binary when it has ended. If there is only one binary, prints its output at once. Ends a binary that takes longer than
    /// an hour. Example: `cargo xtask test two_volumes -- --nocapture` runs the tests with two_volumes in their names.
    Test(TestArgs),
    /// Measure decisions, admissions, and how our services and Tekton's own affinity assistant react to a lost or full node
    ///
    /// First runs the benchmark of the decisions (1, 10 and 100 workspaces). Then boots a test bed with the five services, and
    /// creates examples/two-volumes.yaml as a dry run, alternately in a namespace with our webhook and in a namespace without
    /// it. Prints medians and 99th percentiles of the times. Last, runs the same PipelineRuns with our services and with
    /// Tekton's own affinity assistant while the node of the runs is lost or full, and prints how long each of the two needs.
    /// No figure makes this command fail. Run it on an idle machine. `cargo xtask bench compare`, `saturated` and `scale` are
    /// other benchmarks.
    Bench(BenchArgs),
    /// Run all checks of continuous integration: fmt, tidy, clippy, doc, deny, bench, test
    ///
    /// If a step cannot check something, the summary lists it as SKIPPED, with the reason.
    Ci,
    /// Check the rules of this repository that no compiler checks
    ///
    /// The rules are about: dependencies between crates, unused dependencies, required files, file sizes, files that know that
    /// a placeholder is a StatefulSet, paths that exist on one machine only, links, the table of tests, the table of rights to
    /// write, the style of proto files, scripts and Dockerfile, incompatible changes of proto files, and the rendering of
    /// deploy/base. Installs the programs for these checks under target/tools, with python3 and pip; builds kubectl with Go.
    Tidy,
    /// Make the pictures in docs/pictures
    ///
    /// Boots the test bed and the services, and runs the PipelineRuns of docs/pictures/runs.yaml. Needs Chromium.
    Pictures,
    /// Write the files of a release: release.yaml, sbom.cdx.json, coschedule.yaml, the kubectl plugin and SHA256SUMS
    ///
    /// release.yaml is deploy/base with the images by digest. sbom.cdx.json lists the crates of the services and of the plugin
    /// (CycloneDX). The images must have been pushed before; `.github/workflows/release.yaml` builds, signs and pushes them.
    /// Builds kubectl with Go. Builds the archive of the plugin for this machine, with the Rust target ARCH-unknown-linux-musl.
    /// coschedule.yaml is krew's manifest. It names this archive, and the archives for other machines that are in the folder.
    Release(ReleaseArgs),
    /// Write docs/tests.md, the table of requirements with the tests of each, from the names of the tests
    TestTable,
    /// Boot a test bed and leave it running, or end it
    Testbed {
        #[command(subcommand)]
        command: TestbedCommand,
    },
    /// Run the five services as local processes against a local cluster
    ///
    /// Creates namespace coscheduler-system and ConfigMap coscheduler-config (coschedule: pipelineruns) if they are absent.
    /// Applies the service accounts, rights, Leases, Secret and webhook configurations in folder deploy. The webhooks get
    /// loopback URLs, so the API server must run on this machine. Starts each service with its own account, then prints a line
    /// `ready`. SIGTERM or Ctrl-C ends the services and deletes the objects, except namespace and ConfigMap. After a SIGKILL the
    /// objects stay until the next start takes them over or --remove deletes them.
    Services(ServicesArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct DemoArgs {
    /// Use the cluster of this kubeconfig, where Tekton runs with `coschedule: disabled`, instead of a test bed
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Keep the cluster and the services until Ctrl-C, and print how to reach them with grpcurl and kubectl
    #[arg(long)]
    pub(crate) keep: bool,
    #[command(flatten)]
    pub(crate) ports: PortArgs,
    /// Namespace of the PipelineRun
    #[arg(long, value_name = "NAME", default_value = "default")]
    pub(crate) namespace: String,
    /// PipelineRun to create; examples/two-volumes.yaml if not set
    #[arg(long, value_name = "FILE")]
    pub(crate) example: Option<PathBuf>,
    /// How long the PipelineRun may take, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    pub(crate) timeout: u64,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ReleaseArgs {
    /// The image of each service, as REGISTRY/SERVICE@sha256:DIGEST
    #[arg(value_name = "IMAGE", required_unless_present_any = ["check", "plugin"])]
    pub(crate) images: Vec<String>,
    /// The git tag of the release: the letter v, directly followed by the version in Cargo.toml
    #[arg(long, value_name = "TAG")]
    pub(crate) tag: Option<String>,
    /// The folder for the files
    #[arg(long, value_name = "FOLDER", default_value = "target/release-files")]
    pub(crate) output: PathBuf,
    /// Write no files. Build the static binary of this service for this machine instead, and run it as the Dockerfile packs it:
    /// alone in an empty root, as user 65532. Needs the Rust target ARCH-unknown-linux-musl and `unshare`
    #[arg(long, value_name = "SERVICE", value_parser = Service::ALL.map(Service::name),
          conflicts_with_all = ["images", "tag", "output"])]
    pub(crate) check: Option<String>,
    /// Write only the archive with the kubectl plugin for this machine
    #[arg(long, conflicts_with_all = ["images", "tag", "check"])]
    pub(crate) plugin: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct PortArgs {
    /// Base of the services' ports: gRPC at B+1 to B+5 (config-service, affinity-planner, placeholder-manager,
    /// watcher, admission-webhook), HTTP at B+101 to B+105, admission HTTPS at B+343
    #[arg(long, value_name = "B", default_value_t = DEFAULT_BASE,
          value_parser = clap::value_parser!(u16).range(1024..=i64::from(HIGHEST_BASE)))]
    pub(crate) port_base: u16,
}

#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct TestArgs {
    /// Run the tests on each combination of a release of Kubernetes and a release of Tekton, and print a table
    ///
    /// Runs the most important tests on the control plane: each mode, each kind of volume, and the parts of Tekton and
    /// Kubernetes that are no stable API. NAME and --test choose other tests on the control plane instead.
    #[arg(long, conflicts_with = "package")]
    pub(crate) matrix: bool,
    /// Let the tests in autoscaling.rs, bursts.rs, crowd.rs and width.rs create more runs and pods
    #[arg(long, conflicts_with = "matrix")]
    pub(crate) full_scale: bool,
    /// Only tests with one of these texts in their names
    #[arg(value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// Only tests of this package; may be repeated
    #[arg(short, long, value_name = "PACKAGE")]
    pub(crate) package: Vec<String>,
    /// Only the tests of the target with this name, such as FILE for FILE.rs in a `tests` folder; may be repeated
    #[arg(long, value_name = "FILE")]
    pub(crate) test: Vec<String>,
    /// Arguments of the test binaries, such as --nocapture
    #[arg(last = true, value_name = "ARGUMENTS")]
    pub(crate) arguments: Vec<String>,
}

#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    pub(crate) command: Option<BenchCommand>,
    /// Number of pairs of PipelineRuns that are measured
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = pairs)]
    pub(crate) pairs: usize,
    /// Measure services that are built with optimisation, as in their images
    #[arg(long)]
    pub(crate) release: bool,
    /// Skip the benchmark of the decisions
    #[arg(long)]
    pub(crate) skip_planning: bool,
    /// Skip the comparison with Tekton's own affinity assistant
    #[arg(long)]
    pub(crate) skip_built_in: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Measure the same runs with Tekton alone, with Tekton's own affinity assistant, and with our services
    ///
    /// Each measurement has a test bed of its own, and every second round has the reverse order. Prints ratios. Writes
    /// docs/benchmarks.md, docs/benchmarks.json and the plots in docs/pictures. With --quick, or if a flag chooses other loads
    /// or modes, writes these files into target/bench-compare instead. Fails if a run fails or hangs, but checks no figure.
    /// Takes about half an hour on two cores, once everything is built. Run it on an idle machine.
    Compare(CompareArgs),
    /// Measure a cluster that has room for a third of its runs, while other pods compete for this room
    ///
    /// Measures the same runs with Tekton alone (disabled), with Tekton's own affinity assistant (built-in), and with our
    /// services for each value of placeholder-reserves. Each measurement has a test bed of its own. Every second round has the
    /// reverse order. Prints a table, and writes target/bench-saturated.json. Fails if a run fails or hangs, but checks no
    /// figure. With `--runs 20`, each measurement takes about two minutes.
    Saturated(SaturatedArgs),
    /// Measure the services in a large cluster: many runs that have ended, active runs, nodes, and pods that belong to no run
    ///
    /// Measures two clusters; the second one is twice as large as the first. Prints the memory, CPU and start time of each
    /// service, and the times of new runs and evacuations, and writes target/bench-scale.json. Fails if a service needs more
    /// than 150 MiB, or is not ready 20 seconds after its start. The larger cluster needs about 8 GiB of memory. With twice the
    /// default numbers, its control plane needs more than two processors.
    Scale(ScaleArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct CompareArgs {
    /// Shapes of the runs. If this flag or one of the next five is set, the default loads do not run
    #[arg(long, value_name = "SHAPES", value_delimiter = ',',
          value_parser = ["one-claim", "slow-volume", "two-claims", "ten-wide", "fifty", "matrix"])]
    pub(crate) workload: Vec<String>,
    /// Numbers of nodes, such as 20,200,2000 [default: 20]
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) nodes: Vec<u16>,
    /// Runs created per second. By default, so many that three tasks start per second
    #[arg(long, value_name = "N", value_parser = rate)]
    pub(crate) rate: Option<f64>,
    /// How long runs are created at a rate, in seconds [default: 10]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) seconds: Option<u16>,
    /// Number of runs that are created at once
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) burst: Option<u16>,
    /// Create a few runs one after the other, each when the previous one is done
    #[arg(long)]
    pub(crate) alone: bool,
    /// Number of rounds. Each round has one measurement of each side. The default is as many rounds as fit into --minutes, but
    /// at least two
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..))]
    pub(crate) rounds: Option<u8>,
    /// Begin no round that would probably end later than this, in minutes
    #[arg(long, value_name = "N", default_value_t = MINUTES)]
    pub(crate) minutes: u16,
    /// Modes of our services, and of Tekton's own affinity assistant
    #[arg(
        long,
        value_name = "MODES",
        value_delimiter = ',',
        default_value = "workspaces,pipelineruns"
    )]
    pub(crate) modes: Vec<String>,
    /// Only show that the benchmark works: one round with six runs, a debug build, and no page in docs
    #[arg(long)]
    pub(crate) quick: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ScaleArgs {
    /// Number of ended runs in the larger cluster, each with four ended pods. The smaller cluster has half as many runs, nodes
    /// and pods
    #[arg(long, value_name = "N", default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(2..))]
    pub(crate) ended_runs: u32,
    /// Number of nodes
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(2..))]
    pub(crate) nodes: u32,
    /// Number of pods that belong to no run
    #[arg(long, value_name = "N", default_value_t = 25_000, value_parser = clap::value_parser!(u32).range(2..))]
    pub(crate) foreign_pods: u32,
    /// Number of active runs
    #[arg(long, value_name = "N", default_value_t = 250, value_parser = clap::value_parser!(u32).range(2..))]
    pub(crate) active_runs: u32,
    /// Measure services that are built with optimisation, as in their images
    #[arg(long)]
    pub(crate) release: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct SaturatedArgs {
    /// Number of runs, all created at once; the cluster has one node for nine runs
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u16).range(9..))]
    pub(crate) runs: u16,
    /// Number of rounds. Each round has one measurement of Tekton alone, one of its assistant, and one of each value of
    /// placeholder-reserves
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..))]
    pub(crate) rounds: u8,
    /// Values of placeholder-reserves
    #[arg(
        long,
        value_name = "VALUES",
        value_delimiter = ',',
        default_value = "nothing,placement,peak"
    )]
    pub(crate) reserves: Vec<String>,
    /// Measure neither Tekton alone nor Tekton's own affinity assistant
    #[arg(long)]
    pub(crate) skip_tekton: bool,
    /// Mode of our services, and of Tekton's own affinity assistant
    #[arg(long, value_name = "MODE", default_value = "workspaces")]
    pub(crate) mode: String,
    /// How long a task takes on average, in seconds. The default is a fifth of the number of runs, but at least 8, because two
    /// cores start about three tasks a second
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u16).range(2..))]
    pub(crate) task_seconds: Option<u16>,
    /// Share of the cluster's CPUs that pods of no run request on average, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 15, value_parser = clap::value_parser!(u8).range(..=100))]
    pub(crate) foreign_percent: u8,
    /// How long one measurement may take before the benchmark fails, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    pub(crate) limit: u64,
    /// Measure services that are built with optimisation, as in their images
    #[arg(long)]
    pub(crate) release: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ServicesArgs {
    /// Kubeconfig of the cluster
    #[arg(long, value_name = "FILE", env = "KUBECONFIG")]
    pub(crate) kubeconfig: PathBuf,
    #[command(flatten)]
    pub(crate) ports: PortArgs,
    /// Only delete the objects that an earlier start left behind, the webhook configurations first
    #[arg(long)]
    pub(crate) remove: bool,
    /// Log level of the services: error, warn, info, debug, trace, or a filter such as info,kube=debug
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    pub(crate) log_level: String,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TestbedCommand {
    /// Build and boot a test bed and leave it running
    Up(UpArgs),
    /// End the test bed of this name and remove its files; it is no error if the test bed has ended already
    Down(NameArgs),
    /// Simulate the kubelets of a running test bed; `up` starts this
    #[command(hide = true)]
    Kubelets {
        /// Kubeconfig of the test bed
        #[arg(long, value_name = "FILE")]
        kubeconfig: PathBuf,
    },
}

#[derive(Debug, clap::Args)]
pub(crate) struct NameArgs {
    /// Name of the test bed; several test beds with different names can run at the same time
    #[arg(long, default_value = "default", value_parser = bed_name)]
    pub(crate) name: String,
}

#[derive(Debug, clap::Args)]
pub(crate) struct UpArgs {
    #[command(flatten)]
    pub(crate) name: NameArgs,
    /// Number of nodes
    #[arg(long, default_value_t = 4)]
    pub(crate) nodes: usize,
    /// CPU of each node, a Kubernetes quantity
    #[arg(long, default_value = "8")]
    pub(crate) node_cpu: String,
    /// Memory of each node, a Kubernetes quantity
    #[arg(long, default_value = "16Gi")]
    pub(crate) node_memory: String,
    /// Maximum number of pods on each node
    #[arg(long, default_value_t = 110)]
    pub(crate) pods_per_node: usize,
    /// Number of zones of the nodes; 0 means no zone labels and no storage class `zonal`
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=26))]
    pub(crate) zones: u8,
    /// How long a task pod runs, in milliseconds
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 1000)]
    pub(crate) task_duration: u64,
    /// Value of Tekton's own flag `coschedule`
    #[arg(long, value_name = "MODE", default_value = "disabled")]
    pub(crate) tekton_coschedule: String,
    /// Make the API server write an audit log
    #[arg(long)]
    pub(crate) audit_log: bool,
    /// Run Karpenter, which adds nodes of 2, 4, 8 or 16 CPUs for pods that fit on no node; it is built at the first use
    #[arg(long)]
    pub(crate) karpenter: bool,
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(rate) if f64::is_finite(rate) && rate > 0.0 => Ok(rate),
        Ok(_) | Err(_) => Err("a number above 0, such as 0.5".to_owned()),
    }
}

fn pairs(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(pairs) if pairs > 0 => Ok(pairs),
        Ok(_) | Err(_) => Err("a number from 1 upwards".to_owned()),
    }
}

/// Checks the name of a test bed, because it becomes part of a file name.
fn bed_name(name: &str) -> Result<String, String> {
    let plain = |character: char| {
        character.is_ascii_lowercase() || character.is_ascii_digit() || character == '-'
    };
    if !name.is_empty() && name.chars().all(plain) {
        Ok(name.to_owned())
    } else {
        Err("a name may have lowercase letters, digits and dashes".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn a_selection_of_tests_ends_where_arguments_for_them_begin() {
        let line = "xtask test two_volumes -p x one -- --nocapture";
        let Command::Test(test) = Args::parse_from(line.split(' ')).command else {
            panic!("{line}")
        };
        assert_eq!(test.names, ["two_volumes", "one"]);
        assert_eq!(test.package, ["x"]);
        assert_eq!(test.arguments, ["--nocapture"]);
    }

    #[test]
    fn a_matrix_of_other_packages_is_refused() {
        let parse = |line: &str| Args::try_parse_from(line.split(' ')).map(drop);
        parse("xtask test --matrix --test modes m1 -- --nocapture").unwrap();
        let error = parse("xtask test --matrix -p coscheduler-core").unwrap_err();
        assert_eq!(error.kind(), clap::error::ErrorKind::ArgumentConflict);
    }
}
