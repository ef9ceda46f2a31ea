//! The settings of a launcher: cluster, ports, binaries and so on.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use coscheduler_core::config;

/// The settings of a launcher of the five services.
#[derive(Clone, Debug)]
pub struct ServicesConfig {
    /// A kubeconfig with administrator rights in the cluster. The launcher uses it; each service uses its own service account.
    pub kubeconfig: PathBuf,
    /// True if the services are installed in the cluster already (`kubectl apply -k deploy/base`). Then the launcher uses their
    /// accounts, rights and webhook configurations as they are, and creates and deletes nothing.
    pub installed: bool,
    /// The base of the [`Ports`](super::Ports). With `None`, the launcher chooses free ports, so that several launchers can run
    /// side by side.
    pub port_base: Option<u16>,
    /// The number of processes of each service, 1 to 8. With more than one, each service also has a balancer.
    pub replicas: u16,
    /// True if every connection of a service goes through a link that [`Services::cut`](super::Services::cut) can cut.
    pub links: bool,
    /// The folder of the five binaries, see [`bin_dir`].
    pub bin_dir: PathBuf,
    /// Value of `coschedule` in the ConfigMap that is created if the cluster has none. With `None`, no ConfigMap is created.
    pub mode: Option<String>,
    /// Further keys of the ConfigMap that is created.
    pub flags: BTreeMap<String, String>,
    /// True if the connections between the services use mutual TLS, with certificates of an authority of the launcher.
    pub mutual_tls: bool,
    /// `--log-level` of every service.
    pub log_level: String,
    /// Further environment variables of every service. The services also get the variables of this process.
    pub environment: Vec<(String, String)>,
    /// The longest time until all five services are ready.
    pub ready_timeout: Duration,
}

impl ServicesConfig {
    /// The default settings: mode `pipelineruns`, free ports, and the binaries of this build. The services use mutual TLS if
    /// environment variable `TESTBED_MTLS` is set. Variable `TESTBED_PLACEHOLDERS` gives the value of key `placeholder-backend`.
    ///
    /// # Errors
    /// The folder of the binaries cannot be found, or `TESTBED_PLACEHOLDERS` is not a value of this key.
    pub fn new(kubeconfig: impl Into<PathBuf>) -> anyhow::Result<Self> {
        let flags = backend().into_iter().collect();
        if let Err(violations) = config::check(&flags) {
            let violations: Vec<_> = violations.iter().map(ToString::to_string).collect();
            bail!("TESTBED_PLACEHOLDERS: {}", violations.join("; "));
        }
        Ok(Self {
            kubeconfig: kubeconfig.into(),
            installed: false,
            port_base: None,
            replicas: 1,
            links: false,
            bin_dir: bin_dir()?,
            mode: Some("pipelineruns".to_owned()),
            flags,
            mutual_tls: std::env::var_os("TESTBED_MTLS").is_some(),
            log_level: "info".to_owned(),
            environment: Vec::new(),
            ready_timeout: Duration::from_secs(60),
        })
    }
}

/// Key `placeholder-backend` with the value of variable `TESTBED_PLACEHOLDERS`, if it is set.
pub fn backend() -> Option<(String, String)> {
    let value = std::env::var("TESTBED_PLACEHOLDERS").ok()?;
    Some(("placeholder-backend".to_owned(), value))
}

/// The folder of the services' binaries. It is the value of `COSCHEDULER_BIN_DIR` if this variable is set. Otherwise, it is the
/// folder of the running executable, or the folder above if the executable is in folder `deps`, where cargo puts test binaries.
///
/// # Errors
/// The path of the running executable cannot be read.
pub fn bin_dir() -> anyhow::Result<PathBuf> {
    if let Some(dir) = std::env::var_os("COSCHEDULER_BIN_DIR") {
        return Ok(PathBuf::from(dir));
    }
    let executable = std::env::current_exe().context("failed to find the running executable")?;
    let folder = executable
        .parent()
        .with_context(|| format!("{} is in no folder", executable.display()))?;
    Ok(match folder.parent() {
        Some(parent) if folder.ends_with("deps") => parent.to_owned(),
        Some(_) | None => folder.to_owned(),
    })
}

/// A client for the current context of a kubeconfig file.
///
/// # Errors
/// The file cannot be read, or does not describe a cluster.
pub async fn kube_client(kubeconfig: &Path) -> anyhow::Result<kube::Client> {
    crate::control_plane::client(kubeconfig)
        .await
        .with_context(|| format!("failed to use kubeconfig {}", kubeconfig.display()))
}
