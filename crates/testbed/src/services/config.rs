//! What a set of services is started with: which cluster, which ports, which binaries.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;

/// What to start, and against which cluster.
#[derive(Clone, Debug)]
pub struct ServicesConfig {
    /// The cluster, with the rights of an administrator. The services themselves act as their own service accounts.
    pub kubeconfig: PathBuf,
    /// Whether the services are installed in the cluster already (`kubectl apply -k deploy/base`): their accounts, rights
    /// and webhook configuration are then used as they are, and nothing is made or removed.
    pub installed: bool,
    /// The ports, see [`Ports`](super::Ports); `None` chooses free ones, so that several sets run side by side.
    pub port_base: Option<u16>,
    /// Processes of each service, 1 to 8, with a balancer before them where there are several.
    pub replicas: u16,
    /// Whether every connection of a service goes through a link that [`Services::cut`](super::Services::cut) cuts.
    pub links: bool,
    /// Where the five binaries are, see [`bin_dir`].
    pub bin_dir: PathBuf,
    /// Value of `coschedule` in the ConfigMap if that is absent; `None` writes no ConfigMap.
    pub mode: Option<String>,
    /// Further keys of that ConfigMap.
    pub flags: BTreeMap<String, String>,
    /// `--log-level` of every service.
    pub log_level: String,
    /// Environment variables of every service, beside those of this process.
    pub environment: Vec<(String, String)>,
    /// How long all five together may take to become ready.
    pub ready_timeout: Duration,
}

impl ServicesConfig {
    /// `pipelineruns` on free ports, with the binaries of this build.
    ///
    /// # Errors
    /// If the folder of the binaries cannot be told.
    pub fn new(kubeconfig: impl Into<PathBuf>) -> anyhow::Result<Self> {
        Ok(Self {
            kubeconfig: kubeconfig.into(),
            installed: false,
            port_base: None,
            replicas: 1,
            links: false,
            bin_dir: bin_dir()?,
            mode: Some("pipelineruns".to_owned()),
            flags: BTreeMap::new(),
            log_level: "info".to_owned(),
            environment: Vec::new(),
            ready_timeout: Duration::from_secs(60),
        })
    }
}

/// Where the service binaries of this build are: `COSCHEDULER_BIN_DIR`, else beside the running executable (or one
/// folder up, for test runners, which cargo puts into `deps`).
///
/// # Errors
/// If the running executable's place cannot be told.
pub fn bin_dir() -> anyhow::Result<PathBuf> {
    if let Some(dir) = std::env::var_os("COSCHEDULER_BIN_DIR") {
        return Ok(PathBuf::from(dir));
    }
    let executable =
        std::env::current_exe().context("failed to tell where the running executable is")?;
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
/// If the file cannot be read or does not describe a cluster.
pub async fn kube_client(kubeconfig: &Path) -> anyhow::Result<kube::Client> {
    crate::control_plane::client(kubeconfig)
        .await
        .with_context(|| format!("failed to use kubeconfig {}", kubeconfig.display()))
}
