//! The flags that all services have, each with an environment variable. A service declares only its own flags, and a [`Service`]
//! constant with its name and the defaults of its two addresses. [`command`] adds the common flags.
//!
//! A service's own flags are in its file `args.rs`. Several services share `KubernetesArgs` (`kubernetes.rs`) and `LeaseArgs`
//! (`lease.rs`). The webhook also has `CertificateArgs` (`certificates.rs`) and `RegistrationArgs` (`registration.rs`).

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Command, ValueEnum};
use tracing_subscriber::EnvFilter;

/// The constants of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Service {
    /// Name of the service, its binary and its image, like `config-service`.
    pub name: &'static str,
    /// Version of the service's crate: `env!("CARGO_PKG_VERSION")`.
    pub version: &'static str,
    /// The description in `--help`, in one line.
    pub about: &'static str,
    /// Default of `--grpc-address`, `IP:PORT`.
    pub grpc_address: &'static str,
    /// Default of `--http-address`, `IP:PORT`.
    pub http_address: &'static str,
}

impl Service {
    /// The user agent of the service: `config-service/0.1.0`.
    pub fn user_agent(&self) -> String {
        format!("{}/{}", self.name, self.version)
    }
}

/// The flags of every service.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Process")]
pub struct ProcessArgs {
    /// Address of the gRPC server, as IP:PORT. Port 0 takes a free port
    #[arg(long, env = "GRPC_ADDRESS", value_name = "IP:PORT")]
    pub grpc_address: SocketAddr,

    /// Address of the HTTP server for /livez, /readyz and /metrics, as IP:PORT. Port 0 takes a free port
    #[arg(long, env = "HTTP_ADDRESS", value_name = "IP:PORT")]
    pub http_address: SocketAddr,

    /// Maximum number of RPCs in progress. The server answers further RPCs with RESOURCE_EXHAUSTED and a retry delay. Health
    /// and reflection do not count, and a stream counts until its response begins
    // The affinity-planner has two busy callers. The watcher reports at most 32 runs at the same time. So the default leaves room
    // for more than 200 calls of the admission-webhook at the same time.
    #[arg(
        long,
        env = "MAX_CONCURRENT_CALLS",
        default_value_t = 256,
        value_name = "N"
    )]
    pub max_concurrent_calls: usize,

    /// Directory with tls.crt, tls.key and ca.crt. With this flag, the connections between the services use mutual TLS. The files
    /// are read at each handshake. Without this flag, these connections are plaintext
    #[arg(long, env = "TLS_DIR", value_name = "DIRECTORY")]
    pub tls_dir: Option<PathBuf>,

    /// Format of the log on standard error
    #[arg(long, env = "LOG_FORMAT", value_enum, default_value_t = LogFormat::Json, value_name = "FORMAT")]
    pub log_format: LogFormat,

    /// Level of the log, or directives like `info,watcher=debug`
    #[arg(long, env = "LOG_LEVEL", default_value = "info", value_parser = parse_log_level, value_name = "FILTER")]
    pub log_level: String,
}

impl ProcessArgs {
    /// The flags of a service that runs inside a test: free ports on loopback, and logs as text.
    pub fn loopback() -> Self {
        ProcessArgs {
            grpc_address: SocketAddr::from(([127, 0, 0, 1], 0)),
            http_address: SocketAddr::from(([127, 0, 0, 1], 0)),
            max_concurrent_calls: 256,
            tls_dir: None,
            log_format: LogFormat::Text,
            log_level: "info".to_owned(),
        }
    }
}

/// The format of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// One JSON object per line, for log collectors
    Json,
    /// One line of text, for people
    Text,
}

/// The whole command line of `service`: its own flags `A`, then the common flags.
pub fn command<A: clap::Args>(service: Service) -> Command {
    let command = Command::new(service.name).version(service.version);
    <ProcessArgs as clap::Args>::augment_args(A::augment_args(command))
        .about(service.about)
        .long_about(None)
        .mut_arg("grpc_address", |arg| {
            arg.required(false).default_value(service.grpc_address)
        })
        .mut_arg("http_address", |arg| {
            arg.required(false).default_value(service.http_address)
        })
}

/// Parses a duration like `15s`, for the flag of a service.
///
/// # Errors
/// `text` is not a duration, or is below zero.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let failed = |error| format!("expected a duration like 15s: {error}");
    let duration: jiff::SignedDuration = text.parse().map_err(failed)?;
    Duration::try_from(duration).map_err(failed)
}

fn parse_log_level(filter: &str) -> Result<String, String> {
    match EnvFilter::try_new(filter) {
        Ok(_) => Ok(filter.to_owned()),
        Err(error) => Err(format!(
            "expected a level or a list of target=level: {error}"
        )),
    }
}

#[cfg(test)]
impl Service {
    /// A service for tests.
    pub(crate) const EXAMPLE: Service = Service {
        name: "example",
        version: "1.2.3",
        about: "An example",
        grpc_address: "127.0.0.1:9199",
        http_address: "127.0.0.1:9299",
    };
}

#[cfg(test)]
mod tests {
    use clap::{Args, FromArgMatches};

    use super::*;

    #[derive(Args)]
    struct Own {
        /// A flag of the service
        #[arg(long, env = "OWN_FLAG", default_value = "x")]
        own_flag: String,
    }

    fn parse(args: &[&str]) -> Result<(Own, ProcessArgs), clap::Error> {
        let matches =
            command::<Own>(Service::EXAMPLE).try_get_matches_from([&["example"], args].concat())?;
        Ok((
            Own::from_arg_matches(&matches)?,
            ProcessArgs::from_arg_matches(&matches)?,
        ))
    }

    #[test]
    fn the_command_line_is_well_formed() {
        command::<Own>(Service::EXAMPLE).debug_assert();
    }

    #[test]
    fn addresses_default_to_those_of_the_service() {
        let (own, process) = parse(&[]).unwrap();
        assert_eq!(own.own_flag, "x");
        assert_eq!(
            process.grpc_address.to_string(),
            Service::EXAMPLE.grpc_address
        );
        assert_eq!(
            process.http_address.to_string(),
            Service::EXAMPLE.http_address
        );
        assert_eq!(process.log_format, LogFormat::Json);
    }

    #[test]
    fn flags_win_over_defaults() {
        let (own, process) = parse(&[
            "--own-flag",
            "y",
            "--grpc-address",
            "0.0.0.0:1",
            "--log-format",
            "text",
        ])
        .unwrap();
        assert_eq!(own.own_flag, "y");
        assert_eq!(process.grpc_address.to_string(), "0.0.0.0:1");
        assert_eq!(process.log_format, LogFormat::Text);
    }

    #[test]
    fn a_malformed_value_is_a_usage_error() {
        for args in [
            ["--log-level", "loud=="],
            ["--grpc-address", "localhost"],
            ["--log-format", "xml"],
        ] {
            assert_eq!(
                parse(&args).err().map(|error| error.exit_code()),
                Some(2),
                "{args:?}"
            );
        }
    }

    #[test]
    fn help_names_every_flag_and_its_variable() {
        let help = command::<Own>(Service::EXAMPLE)
            .render_long_help()
            .to_string();
        let expected = [
            ("--own-flag", "OWN_FLAG"),
            ("--grpc-address", "GRPC_ADDRESS"),
            ("--http-address", "HTTP_ADDRESS"),
            ("--max-concurrent-calls", "MAX_CONCURRENT_CALLS"),
            ("--tls-dir", "TLS_DIR"),
            ("--log-format", "LOG_FORMAT"),
            ("--log-level", "LOG_LEVEL"),
        ];
        for (flag, variable) in expected {
            assert!(
                help.contains(flag) && help.contains(&format!("[env: {variable}=")),
                "{flag}: {help}"
            );
        }
        assert!(help.starts_with("An example\n"), "{help}");
    }
}
