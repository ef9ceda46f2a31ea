//! The test bed: boots its parts in order, gives access to them, and ends them. Each part has its own module.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use kube::api::PostParams;
use kube::{Api, Client};
use rustix::process::{Pid, test_kill_process};
use serde_json::json;
use tracing::warn;

use crate::Config;
use crate::binaries::{self, Binaries, Lines};
use crate::control_plane::{self, Site};
use crate::credentials::{Credentials, Identity};
use crate::files::{create_folder, write};
use crate::ports::FreePorts;
use crate::process::ProcessGroup;
use crate::waiting::until;
use crate::{karpenter, kubelet, manifests, nodes, tekton};

/// How long a new namespace may wait for its default service account.
const NAMESPACE_TIMEOUT: Duration = Duration::from_secs(30);

/// The lifetime of a token of [`TestBed::kubeconfig_for`].
const TOKEN_SECONDS: i64 = 7 * 24 * 3600;

/// How long a detached bed may take to end.
const DOWN_TIMEOUT: Duration = Duration::from_secs(20);

/// If the error of a boot contains one of these texts, a second boot can succeed.
const TRANSIENT: [&str; 2] = [
    // The ports were free when they were chosen, but another process may have taken one since.
    "address already in use",
    // kube-apiserver can panic when it collects the OpenAPI schemas of new kinds. This was seen once in thousands of boots.
    "kube-openapi/pkg/cached",
];

/// A running control plane with nodes, storage and Tekton. Dropping it ends all its processes and removes its files.
pub struct TestBed {
    site: Site,
    port: u16,
    client: Client,
    kubeconfig: PathBuf,
    kubectl: PathBuf,
    audit: bool,
    _kubelets: kubelet::Thread,
}

impl TestBed {
    /// Boots a bed and waits until its nodes accept pods and Tekton accepts PipelineRuns. First builds the missing programs,
    /// and shows this as plain lines on stderr. To show the progress of the build in another way, call [`build`](crate::build)
    /// before this function.
    ///
    /// # Errors
    /// A program cannot be built, or a component ends early or is not ready in time. If a component ended, the error contains
    /// the end of its log.
    pub async fn start(config: Config) -> Result<Self> {
        let folder = match &config.folder {
            Some(folder) => std::path::absolute(folder)
                .with_context(|| format!("failed to find folder {}", folder.display()))?,
            None => binaries::default_folder()?,
        };
        let (binaries, karpenter) = {
            let (folder, wanted) = (folder.clone(), config.karpenter);
            let build = move || {
                let karpenter = wanted.then(|| binaries::build_karpenter(&folder, &Lines));
                anyhow::Ok((binaries::build(&folder, &Lines)?, karpenter.transpose()?))
            };
            tokio::task::spawn_blocking(build)
                .await
                .context("failed to wait for the build")??
        };
        let boot = async || Self::boot(&folder, &binaries, karpenter.as_ref(), &config).await;
        match boot().await {
            Err(error) if is_transient(&format!("{error:#}")) => {
                warn!("starting the test bed again: {error:#}");
                boot().await
            }
            booted => booted,
        }
    }

    async fn boot(
        folder: &Path,
        binaries: &Binaries,
        karpenter: Option<&Binaries>,
        config: &Config,
    ) -> Result<Self> {
        let runs = folder.join("run");
        create_folder(&runs)?;
        let folder = tempfile::Builder::new()
            .prefix("bed-")
            .tempdir_in(&runs)
            .with_context(|| format!("failed to create a folder in {}", runs.display()))?;
        let processes = ProcessGroup::start(folder.path())?;
        let folder = folder.keep(); // from now on the process group removes it
        let site = Site {
            credentials: Credentials::create(folder.join("credentials"))?,
            folder,
            binaries: binaries.clone(),
            processes,
            ports: FreePorts::find()?,
        };

        let (port, client, kubelets) = match start_parts(&site, karpenter, config).await {
            Ok(started) => started,
            // If a component has ended, the end of its log says more than the error of a request to it.
            Err(error) => return Err(site.processes.check().err().unwrap_or(error)),
        };
        Ok(Self {
            port,
            client,
            kubeconfig: site.credentials.kubeconfig(Identity::Administrator),
            kubectl: site.binaries.kubectl(),
            audit: config.audit_log,
            site,
            _kubelets: kubelets,
        })
    }

    /// A kubeconfig of the cluster administrator.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// A client with the rights of the cluster administrator, without a rate limit.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// The kubectl of the same release as the API server.
    pub fn kubectl_path(&self) -> &Path {
        &self.kubectl
    }

    /// The API server's audit log (JSON lines, metadata of every request), if [`Config::audit_log`] asked for one.
    pub fn audit_log(&self) -> Option<PathBuf> {
        self.audit
            .then(|| control_plane::audit_log(&self.site.folder))
    }

    /// The folder of this bed. It is removed when the bed ends.
    pub fn dir(&self) -> &Path {
        &self.site.folder
    }

    /// The folder of the components' log files, `<component>.log`.
    pub fn logs_dir(&self) -> PathBuf {
        self.site.processes.logs_dir()
    }

    /// The components' processes, for example to kill one of them: `etcd`, `kube-apiserver`, `kube-controller-manager`,
    /// `kube-scheduler`, `kwok`, `tekton-controller`, `tekton-webhook`, `karpenter`.
    pub fn processes(&self) -> &ProcessGroup {
        &self.site.processes
    }

    /// Applies a YAML text of one or more documents (server-side apply, field manager `testbed`, forced). Applies namespaces
    /// and CustomResourceDefinitions first, and then all other objects in parallel.
    ///
    /// # Errors
    /// The text is not YAML, or the API server refuses an object. The error names the object.
    pub async fn apply(&self, yaml: &str) -> Result<()> {
        let objects = manifests::parse(yaml)?;
        manifests::apply(&self.client, &objects, manifests::FIELD_MANAGER).await
    }

    /// Creates a namespace and waits until pods can be created in it.
    ///
    /// # Errors
    /// The namespace exists already, or its default service account does not appear.
    pub async fn create_namespace(&self, name: &str, labels: &[(&str, &str)]) -> Result<()> {
        let labels: serde_json::Map<String, serde_json::Value> = labels
            .iter()
            .map(|(key, value)| ((*key).to_owned(), json!(value)))
            .collect();
        let namespace: Namespace =
            serde_json::from_value(json!({"metadata": {"name": name, "labels": labels}}))
                .with_context(|| format!("failed to describe namespace {name}"))?;
        Api::all(self.client.clone())
            .create(&PostParams::default(), &namespace)
            .await
            .with_context(|| format!("failed to create namespace {name}"))?;
        wait_for_service_account(&self.site, &self.client, name).await
    }

    /// Creates further nodes, so that a bed which was booted with `config` has `nodes` nodes, and waits until they are ready.
    ///
    /// # Errors
    /// The API server refuses a node, or the nodes are not ready in time.
    pub async fn grow(&self, config: &Config, nodes: usize) -> Result<()> {
        nodes::add(&self.client, config, config.nodes + 1..=nodes).await?;
        nodes::wait(&self.site, &self.client, nodes).await
    }

    /// A kubeconfig with a token of an existing service account.
    ///
    /// # Errors
    /// There is no such service account.
    pub async fn kubeconfig_for(&self, namespace: &str, name: &str) -> Result<PathBuf> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), namespace);
        let request = TokenRequest {
            spec: TokenRequestSpec {
                expiration_seconds: Some(TOKEN_SECONDS),
                ..TokenRequestSpec::default()
            },
            ..TokenRequest::default()
        };
        let answer = accounts
            .create_token_request(name, &PostParams::default(), &request)
            .await
            .with_context(|| {
                format!("failed to get a token of service account {namespace}/{name}")
            })?;
        let token = answer.status.map(|status| status.token).unwrap_or_default();
        let user = format!("system:serviceaccount:{namespace}:{name}");
        let path = self
            .site
            .folder
            .join("credentials")
            .join(format!("{namespace}.{name}"));
        self.site
            .credentials
            .write_kubeconfig(&path, self.port, &user, &token)?;
        Ok(path)
    }

    /// Starts the API server again after it was killed, with the same port and files, and waits until it is ready.
    ///
    /// # Errors
    /// The API server runs, or does not become ready.
    pub async fn start_api_server(&self) -> Result<()> {
        self.site.processes.start_again(control_plane::API_SERVER)?;
        control_plane::wait_for_api_server(&self.site, &self.client).await
    }

    /// Checks that all components run.
    ///
    /// # Errors
    /// A component ended by itself. The error contains the end of its log.
    pub fn check(&self) -> Result<()> {
        self.site.processes.check()
    }

    /// Ends all processes of the bed and removes its files.
    ///
    /// # Errors
    /// A component had ended by itself before. In this case too, all processes are ended and the files removed.
    pub async fn stop(self) -> Result<()> {
        let checked = self.check();
        self.site.processes.kill_all();
        self.site.processes.stop().await?;
        checked
    }

    /// Lets the bed run after this process has ended. The kubelets, which run inside this process, end at this call. So before
    /// this call, start another process in [`TestBed::processes`] that runs [`kubelets`](crate::kubelets).
    ///
    /// # Errors
    /// The guardian of the bed's processes (see `process.rs`) is gone. The bed is then ended.
    pub fn detach(self) -> Result<Detached> {
        let detached = Detached {
            kubeconfig: self.kubeconfig,
            dir: self.site.folder,
            guardian: self.site.processes.guardian(),
            group: self.site.processes.id(),
        };
        self.site.processes.detach()?;
        Ok(detached)
    }
}

/// Describes a bed that runs on after the process that started it has ended. The description can be serialised, and another
/// process can end the bed with it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Detached {
    /// A kubeconfig of the cluster administrator.
    pub kubeconfig: PathBuf,
    /// Folder of the bed. It is removed when the bed ends.
    pub dir: PathBuf,
    /// Process id of the guardian that ends the bed.
    pub guardian: u32,
    /// Process group of the bed's components.
    pub group: u32,
}

impl Detached {
    /// True while the bed's guardian runs. Only then can the bed be used.
    pub fn is_up(&self) -> bool {
        let guardian = i32::try_from(self.guardian).ok().and_then(Pid::from_raw);
        self.dir.exists() && guardian.is_some_and(|guardian| test_kill_process(guardian).is_ok())
    }

    /// Ends the bed and waits until its folder is gone. It is no error if the bed has ended already.
    ///
    /// # Errors
    /// The bed does not end.
    pub async fn down(&self) -> Result<()> {
        if !self.dir.exists() {
            return Ok(());
        }
        let sign = self.dir.join("down");
        write(&sign, "")?;
        let end = Instant::now() + DOWN_TIMEOUT;
        while self.dir.exists() {
            if !self.is_up() {
                // The guardian is gone, for example after a reboot, and left the files behind.
                return fs::remove_dir_all(&self.dir)
                    .with_context(|| format!("failed to remove {}", self.dir.display()));
            }
            if Instant::now() >= end {
                bail!(
                    "the test bed in {} did not end within {DOWN_TIMEOUT:?}",
                    self.dir.display()
                );
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }
}

impl fmt::Debug for TestBed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("TestBed")
            .field("dir", &self.site.folder)
            .field("port", &self.port)
            .finish_non_exhaustive()
    }
}

fn is_transient(error: &str) -> bool {
    TRANSIENT.iter().any(|text| error.contains(text))
}

/// Starts all parts, and waits until they are ready. Returns the API server's port, a client and the kubelets.
async fn start_parts(
    site: &Site,
    karpenter: Option<&Binaries>,
    config: &Config,
) -> Result<(u16, Client, kubelet::Thread)> {
    let (port, client) = control_plane::start_api_server(site, config).await?;
    control_plane::start_controllers(site, config)?;
    nodes::start_kwok(site, config)?;
    let kubelets = kubelet::Thread::start(site.credentials.kubeconfig(Identity::Kwok))?;
    futures::try_join!(
        nodes::create(&client, config),
        tekton::start(site, &client, config),
        karpenter::start(site, karpenter, &client, config),
    )?;
    futures::try_join!(
        nodes::wait(site, &client, config.nodes),
        tekton::wait(site, &client),
        karpenter::wait(site, &client, config),
        wait_for_service_account(site, &client, "default"),
    )?;
    Ok((port, client, kubelets))
}

async fn wait_for_service_account(site: &Site, client: &Client, namespace: &str) -> Result<()> {
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), namespace);
    let what = format!("the default service account of namespace {namespace}");
    until(&site.processes, &what, NAMESPACE_TIMEOUT, async || {
        Ok(accounts.get_opt("default").await?.is_some())
    })
    .await
}
