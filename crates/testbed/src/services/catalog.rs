//! The five services, and the command line of each: the flags of its Deployment, with loopback addresses.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::bail;

use super::links::{Links, Peer};
use super::{NAMESPACE, Ports, Replica, accounts};

/// One of the five services. Their order is that of their ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Service {
    /// Reads the ConfigMaps, and serves one validated configuration.
    ConfigService,
    /// Decides about admission, and plans placeholders.
    AffinityPlanner,
    /// Creates, moves and deletes placeholders.
    PlaceholderManager,
    /// Reports changes of PipelineRuns.
    Watcher,
    /// Answers admission reviews.
    AdmissionWebhook,
}

impl Service {
    /// All five.
    pub const ALL: [Self; 5] = [
        Self::ConfigService,
        Self::AffinityPlanner,
        Self::PlaceholderManager,
        Self::Watcher,
        Self::AdmissionWebhook,
    ];

    /// Name of the binary, the crate and the Deployment.
    pub fn name(self) -> &'static str {
        match self {
            Self::ConfigService => "config-service",
            Self::AffinityPlanner => "affinity-planner",
            Self::PlaceholderManager => "placeholder-manager",
            Self::Watcher => "watcher",
            Self::AdmissionWebhook => "admission-webhook",
        }
    }

    /// True if the service calls the API server, with the token of a service account.
    pub(super) fn talks_to_kubernetes(self) -> bool {
        match self {
            Self::ConfigService
            | Self::PlaceholderManager
            | Self::Watcher
            | Self::AdmissionWebhook => true,
            Self::AffinityPlanner => false,
        }
    }

    /// The services that this service calls.
    pub(super) fn calls(self) -> &'static [Self] {
        match self {
            Self::ConfigService | Self::PlaceholderManager => &[],
            Self::AffinityPlanner => &[Self::ConfigService, Self::PlaceholderManager],
            Self::Watcher | Self::AdmissionWebhook => &[Self::AffinityPlanner],
        }
    }

    /// Distance of its gRPC port from the port base.
    pub(super) fn port_offset(self) -> u16 {
        match self {
            Self::ConfigService => 1,
            Self::AffinityPlanner => 2,
            Self::PlaceholderManager => 3,
            Self::Watcher => 4,
            Self::AdmissionWebhook => 5,
        }
    }
}

impl fmt::Display for Service {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// The inputs of the command lines.
#[derive(Debug)]
pub(super) struct Launch {
    /// The folder of the kubeconfigs, see [`accounts`].
    pub(super) kubeconfigs: PathBuf,
    pub(super) ports: Ports,
    pub(super) links: Links,
    /// The folder with a folder of certificates for each service. `None`: no mutual TLS.
    pub(super) certificates: Option<PathBuf>,
    pub(super) bin_dir: PathBuf,
    pub(super) log_level: String,
    pub(super) environment: Vec<(String, String)>,
    /// True if the cluster has the services' Deployments.
    pub(super) installed: bool,
}

impl Launch {
    /// The command that starts `replica`.
    pub(super) fn command(&self, replica: Replica) -> anyhow::Result<Command> {
        let service = replica.service();
        let program = self.bin_dir.join(service.name());
        if !program.is_file() {
            bail!(
                "{} is missing; build it with `cargo build --bin {service}`",
                program.display()
            );
        }
        let mut command = Command::new(program);
        command.args(self.arguments(replica));
        // Without these variables, a service can only reach the cluster that its flags name.
        for variable in [
            "KUBECONFIG",
            "KUBERNETES_SERVICE_HOST",
            "KUBERNETES_SERVICE_PORT",
        ] {
            command.env_remove(variable);
        }
        // The API server reaches a local process at once, so the admission-webhook writes its rules without a delay.
        command.env("RULES_DELAY", "0s");
        command.envs(self.environment.iter().cloned());
        Ok(command)
    }

    /// The port in the webhook configurations.
    pub(super) fn admission_port(&self) -> u16 {
        let port = self.links.port(Peer::ApiServer, Service::AdmissionWebhook);
        port.unwrap_or(self.ports.admission())
    }

    fn arguments(&self, replica: Replica) -> Vec<OsString> {
        let service = replica.service();
        let mut arguments = Vec::new();
        let mut flag = |name: &str, value: OsString| {
            arguments.push(OsString::from(name));
            arguments.push(value);
        };
        let loopback = |port: u16| OsString::from(format!("127.0.0.1:{port}"));
        flag("--grpc-address", loopback(self.ports.grpc_of(replica)));
        flag("--http-address", loopback(self.ports.http(replica)));
        flag("--log-format", "text".into());
        flag("--log-level", self.log_level.clone().into());
        if let Some(certificates) = &self.certificates {
            flag("--tls-dir", certificates.join(service.name()).into());
        }
        if service.talks_to_kubernetes() {
            let kubeconfig = accounts::kubeconfig_of(&self.kubeconfigs, service);
            flag("--kubeconfig", kubeconfig.into());
        }
        for peer in service.calls() {
            let port = self.links.port(service, *peer);
            let port = port.unwrap_or(self.ports.grpc(*peer));
            flag(&format!("--{peer}-address"), loopback(port));
        }
        if service == Service::AdmissionWebhook {
            flag(
                "--webhook-address",
                loopback(self.ports.admission_of(replica)),
            );
            // The certificate is valid for the loopback address, and for the Service of an installation in the cluster.
            let names = format!("127.0.0.1,{}.{NAMESPACE}.svc", service.name());
            flag("--certificate-names", names.into());
            if self.installed {
                let deployments = Service::ALL.map(Service::name).join(",");
                flag("--deployments", deployments.into());
            }
        }
        arguments
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(replica: impl Into<Replica>, replicas: u16) -> String {
        let launch = Launch {
            kubeconfigs: "k".into(),
            ports: Ports::at(9100).for_replicas(replicas).unwrap(),
            links: Links::default(),
            certificates: None,
            bin_dir: "bin".into(),
            log_level: "info".into(),
            environment: Vec::new(),
            installed: false,
        };
        let arguments = launch.arguments(replica.into());
        arguments
            .join(std::ffi::OsStr::new(" "))
            .into_string()
            .unwrap()
    }

    #[test]
    fn each_service_has_its_own_ports_and_account_and_the_addresses_of_those_it_calls() {
        let cases = [
            (
                Service::ConfigService,
                "9101",
                "9201",
                "--kubeconfig k/config-service.kubeconfig",
            ),
            (
                Service::AffinityPlanner,
                "9102",
                "9202",
                "--config-service-address 127.0.0.1:9101 --placeholder-manager-address 127.0.0.1:9103",
            ),
            (
                Service::PlaceholderManager,
                "9103",
                "9203",
                "--kubeconfig k/placeholder-manager.kubeconfig",
            ),
            (
                Service::Watcher,
                "9104",
                "9204",
                "--kubeconfig k/watcher.kubeconfig --affinity-planner-address 127.0.0.1:9102",
            ),
            (
                Service::AdmissionWebhook,
                "9105",
                "9205",
                "--kubeconfig k/admission-webhook.kubeconfig --affinity-planner-address 127.0.0.1:9102 \
                 --webhook-address 127.0.0.1:9443 \
                 --certificate-names 127.0.0.1,admission-webhook.coscheduler-system.svc",
            ),
        ];
        for (service, grpc, http, own) in cases {
            assert_eq!(
                arguments(service, 1),
                format!(
                    "--grpc-address 127.0.0.1:{grpc} --http-address 127.0.0.1:{http} --log-format text --log-level info {own}"
                )
            );
        }
    }

    #[test]
    fn of_several_replicas_each_has_its_own_ports_and_calls_the_balancers() {
        assert_eq!(
            arguments(Service::AdmissionWebhook.replica(2), 2),
            "--grpc-address 127.0.0.1:9125 --http-address 127.0.0.1:9215 --log-format text --log-level info \
             --kubeconfig k/admission-webhook.kubeconfig --affinity-planner-address 127.0.0.1:9102 \
             --webhook-address 127.0.0.1:9402 \
             --certificate-names 127.0.0.1,admission-webhook.coscheduler-system.svc"
        );
    }

    #[test]
    fn a_missing_binary_is_named_with_the_command_that_builds_it() {
        let launch = Launch {
            kubeconfigs: "k".into(),
            ports: Ports::at(9100),
            links: Links::default(),
            certificates: None,
            bin_dir: "nowhere".into(),
            log_level: "info".into(),
            environment: Vec::new(),
            installed: false,
        };
        let error = launch
            .command(Service::Watcher.into())
            .unwrap_err()
            .to_string();
        assert_eq!(
            error,
            "nowhere/watcher is missing; build it with `cargo build --bin watcher`"
        );
    }
}
