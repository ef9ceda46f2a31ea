//! The Kubernetes control plane: etcd, API server, controller manager and scheduler, as processes on loopback. They are
//! configured as in a real cluster (RBAC, default admission plugins, service account tokens), but without durability and
//! without leader election.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};
use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::json;

use crate::binaries::Binaries;
use crate::config::Config;
use crate::credentials::{Credentials, Identity};
use crate::files::write;
use crate::ports::FreePorts;
use crate::process::ProcessGroup;
use crate::waiting::until;

/// The name of the API server's process.
pub(crate) const API_SERVER: &str = "kube-apiserver";

const AUDIT_POLICY: &str = include_str!("../manifests/audit-policy.yaml");

/// How long the API server may take to become ready.
const BOOT_TIMEOUT: Duration = Duration::from_secs(60);

/// The inputs for starting a component.
#[derive(Debug)]
pub(crate) struct Site {
    /// Folder of the bed.
    pub(crate) folder: PathBuf,
    pub(crate) binaries: Binaries,
    pub(crate) credentials: Credentials,
    pub(crate) processes: ProcessGroup,
    /// The ports of etcd, of its peers, of the API server and of Tekton's webhook.
    pub(crate) ports: FreePorts<4>,
}

impl Site {
    /// A command for one of the programs, without the environment variables of this process.
    pub(crate) fn command(&self, program: &str) -> Command {
        self.command_of(&self.binaries, program)
    }

    /// As [`Site::command`], for a program that was built separately.
    pub(crate) fn command_of(&self, binaries: &Binaries, program: &str) -> Command {
        let mut command = Command::new(binaries.program(program));
        command
            .env_clear()
            .env("HOME", &self.folder)
            // Run Go's garbage collector less often: a bed runs for minutes, and processor time is scarcer than memory.
            .env("GOGC", "400")
            .current_dir(&self.folder);
        command
    }

    /// Starts a component. In [`ProcessGroup`], its process has the name of the program.
    pub(crate) fn start(&self, program: &str, arguments: &[String]) -> Result<()> {
        let mut command = self.command(program);
        command.args(arguments);
        self.processes.spawn(program, command)
    }
}

/// The path of the API server's audit log.
pub(crate) fn audit_log(folder: &Path) -> PathBuf {
    folder.join("audit.log")
}

/// Starts etcd and the API server, and returns the API server's port and a client once it is ready.
pub(crate) async fn start_api_server(site: &Site, config: &Config) -> Result<(u16, Client)> {
    let [etcd_port, peer_port, port, _] = site.ports.ports;
    let etcd = format!("http://127.0.0.1:{etcd_port}");
    let peer = format!("http://127.0.0.1:{peer_port}");
    site.start(
        "etcd",
        &[
            "--name=testbed".to_owned(),
            flag("data-dir", site.folder.join("etcd").display()),
            flag("listen-client-urls", &etcd),
            flag("advertise-client-urls", &etcd),
            flag("listen-peer-urls", &peer),
            flag("initial-advertise-peer-urls", &peer),
            flag("initial-cluster", format!("testbed={peer}")),
            "--unsafe-no-fsync".to_owned(),
            "--log-level=warn".to_owned(),
        ],
    )?;

    let credentials = &site.credentials;
    let mut arguments = vec![
        flag("etcd-servers", &etcd),
        "--bind-address=127.0.0.1".to_owned(),
        "--advertise-address=127.0.0.1".to_owned(),
        // The API server must not publish its address in an Endpoints object, because Endpoints objects must not contain a
        // loopback address.
        "--endpoint-reconciler-type=none".to_owned(),
        flag("secure-port", port),
        flag("cert-dir", site.folder.display()),
        flag("tls-cert-file", credentials.certificate().display()),
        flag("tls-private-key-file", credentials.key().display()),
        flag("token-auth-file", credentials.tokens().display()),
        "--authorization-mode=RBAC".to_owned(),
        "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
        flag(
            "service-account-key-file",
            credentials.service_account_public_key().display(),
        ),
        flag(
            "service-account-signing-key-file",
            credentials.service_account_key().display(),
        ),
        "--service-cluster-ip-range=10.96.0.0/16".to_owned(),
        "--profiling=false".to_owned(),
    ];
    if !config.streaming_lists {
        arguments.push("--feature-gates=WatchList=false".to_owned());
    }
    if !config.resizes_pods {
        // Later versions do not allow to switch this feature off.
        arguments.push("--emulated-version=1.34".to_owned());
        arguments.push("--feature-gates=InPlacePodVerticalScaling=false".to_owned());
    }
    if config.audit_log {
        let policy = site.folder.join("audit-policy.yaml");
        write(&policy, AUDIT_POLICY)?;
        arguments.push(flag("audit-policy-file", policy.display()));
        arguments.push(flag("audit-log-path", audit_log(&site.folder).display()));
        // The API server would begin another file after 100 MiB, which a benchmark can reach.
        arguments.push("--audit-log-maxsize=4096".to_owned());
    }
    site.start(API_SERVER, &arguments)?;

    credentials.write_kubeconfigs(port)?;
    let client = client(&credentials.kubeconfig(Identity::Administrator)).await?;
    wait_for_api_server(site, &client).await?;
    Ok((port, client))
}

/// Waits until the API server is ready.
pub(crate) async fn wait_for_api_server(site: &Site, client: &Client) -> Result<()> {
    until(
        &site.processes,
        "the API server to be ready",
        BOOT_TIMEOUT,
        async || {
            let request = http::Request::get("/readyz").body(Vec::new())?;
            Ok(client
                .request_text(request)
                .await
                .is_ok_and(|answer| answer == "ok"))
        },
    )
    .await
}

/// Starts the controller manager and the scheduler, without waiting for them.
pub(crate) fn start_controllers(site: &Site, config: &Config) -> Result<()> {
    let credentials = &site.credentials;
    // A new node of Karpenter has a taint with effect NoExecute until it is registered. If kube-controller-manager sees late
    // that the taint is gone, it deletes the first pod that the scheduler binds to the node (kubernetes/kubernetes#139992).
    let controllers = if config.karpenter {
        "*,-taint-eviction-controller"
    } else {
        "*"
    };
    site.start(
        "kube-controller-manager",
        &[
            flag("controllers", controllers),
            flag(
                "kubeconfig",
                credentials
                    .kubeconfig(Identity::ControllerManager)
                    .display(),
            ),
            flag(
                "service-account-private-key-file",
                credentials.service_account_key().display(),
            ),
            flag("root-ca-file", credentials.authority().display()),
            "--leader-elect=false".to_owned(),
            "--secure-port=0".to_owned(),
            "--bind-address=127.0.0.1".to_owned(),
            "--kube-api-qps=500".to_owned(),
            "--kube-api-burst=1000".to_owned(),
            // Ended pods are never deleted: a benchmark has more of them than the default allows.
            "--terminated-pod-gc-threshold=0".to_owned(),
            "--profiling=false".to_owned(),
        ],
    )?;

    let config = json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {
            "kubeconfig": credentials.kubeconfig(Identity::Scheduler),
            "qps": 500,
            "burst": 1000,
        },
        "leaderElection": {"leaderElect": false},
    });
    let path = site.folder.join("kube-scheduler.yaml");
    write(&path, &config.to_string())?;
    site.start(
        "kube-scheduler",
        &[
            flag("config", path.display()),
            "--secure-port=0".to_owned(),
            "--bind-address=127.0.0.1".to_owned(),
        ],
    )
}

/// The client configuration for the current context of a kubeconfig.
pub(crate) async fn config(kubeconfig: &Path) -> Result<kube::Config> {
    let read = Kubeconfig::read_from(kubeconfig)
        .with_context(|| format!("failed to read {}", kubeconfig.display()))?;
    kube::Config::from_custom_kubeconfig(read, &KubeConfigOptions::default())
        .await
        .with_context(|| format!("failed to use {}", kubeconfig.display()))
}

/// A client for a kubeconfig.
pub(crate) async fn client(kubeconfig: &Path) -> Result<Client> {
    connect(config(kubeconfig).await?)
}

/// A client with this configuration.
pub(crate) fn connect(mut config: kube::Config) -> Result<Client> {
    // A connection without data for this time is an error. The time is longer than the longest watch.
    config.read_timeout = Some(Duration::from_secs(300));
    config.reset_reader_on_write = true;
    Client::try_from(config).context("failed to create a client")
}

/// `--name=value`.
pub(crate) fn flag(name: &str, value: impl std::fmt::Display) -> String {
    format!("--{name}={value}")
}
