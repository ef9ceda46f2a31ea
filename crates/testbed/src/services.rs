//! Runs the five services as local processes against a cluster whose API server runs on this machine, for `cargo xtask
//! services`, the demo and the integration tests. This module is called the launcher. The launcher creates the namespace and
//! the ConfigMap if they are absent. It applies the other objects of folder `deploy` that the services need (service
//! accounts, rights, Leases, the webhook's Secret and configurations), and starts each service with its own service account.
//! Before it ends the services, it deletes the webhook configurations, so that the API server refuses no runs because of a
//! webhook that has ended. It does not restart a service by itself.

mod accounts;
mod balancing;
mod catalog;
mod config;
mod deploy;
mod links;
mod ports;
mod readiness;
mod registration;
mod replicas;
mod settings;
mod stopping;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context as _, bail};

use crate::ProcessGroup;

pub use catalog::Service;
pub use config::{ServicesConfig, backend, bin_dir, kube_client};
pub use deploy::MANAGED_BY;
pub use links::{Link, Peer};
pub use ports::{DEFAULT_BASE, HIGHEST_BASE, Ports};
pub use registration::CONFIGURATION_NAME;
pub use replicas::Replica;
pub use settings::{CONFIG_MAP, NAMESPACE};

/// The name in the certificate of people who use grpcurl. With this certificate, they may only read.
pub const OPERATOR: &str = "operator";

/// The names in the certificates of an installation: those of the services, and [`OPERATOR`].
pub fn certificate_names() -> impl Iterator<Item = &'static str> {
    Service::ALL
        .map(Service::name)
        .into_iter()
        .chain([OPERATOR])
}

/// How long a service may take to end after SIGTERM.
const STOP_TIMEOUT: Duration = Duration::from_secs(20);

/// The five running services. End them with [`Services::stop`]. A drop ends the processes too, but leaves the objects in the
/// cluster, such as the webhook configurations, until [`Services::remove`] or the next start.
pub struct Services {
    group: ProcessGroup,
    launch: catalog::Launch,
    client: kube::Client,
    running: Mutex<BTreeSet<Replica>>,
    /// The name of this launcher, in an annotation of its objects. `None` if the services are installed in the cluster: then
    /// the launcher creates no objects.
    launcher: Option<String>,
    ready_timeout: Duration,
    _accounts: accounts::Accounts,
    /// `None` without mutual TLS.
    authority: Option<crate::Authority>,
    /// `None` if there is only one replica of each service.
    balancing: Option<balancing::Balancing>,
    /// Prevents other launchers from choosing the same ports.
    _reservation: Option<std::net::TcpListener>,
}

impl fmt::Debug for Services {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // `kube::Client` has no `Debug`.
        let Self {
            group,
            launch,
            client: _,
            running,
            launcher: _,
            ready_timeout: _,
            _accounts: _,
            authority: _,
            balancing: _,
            _reservation: _,
        } = self;
        formatter
            .debug_struct("Services")
            .field("launch", launch)
            .field("running", running)
            .field("group", group)
            .finish_non_exhaustive()
    }
}

impl Services {
    /// Calls [`Services::launch`], then [`Services::register`].
    ///
    /// # Errors
    /// The errors of these two functions. After an error, no service is running.
    pub async fn start(config: ServicesConfig) -> anyhow::Result<Self> {
        let services = Self::launch(config).await?;
        match services.register().await {
            Ok(()) => Ok(services),
            Err(error) => {
                // The webhook configurations may exist even after an error, so delete them and end the services.
                let Err(also) = services.stop().await else {
                    return Err(error);
                };
                Err(error.context(format!("{also:#}")))
            }
        }
    }

    /// Creates the missing objects in the cluster (but not the webhook configurations), then starts the five services, and
    /// waits until they are ready. It does not wait for the admission-webhook, which is ready only after
    /// [`Services::register`]. If the future or the result is dropped, the processes end. Accounts and rights then stay until
    /// [`Services::remove`] or the next start.
    ///
    /// # Errors
    /// The API server refuses a request, a port is taken, a service is not ready in time, a service ends early (the error
    /// contains the end of its log), or one of the objects exists but no launcher made it. After an error, no service runs.
    pub async fn launch(config: ServicesConfig) -> anyhow::Result<Self> {
        let ServicesConfig {
            kubeconfig,
            installed,
            port_base,
            replicas,
            links,
            bin_dir,
            mode,
            flags,
            mutual_tls,
            log_level,
            environment,
            ready_timeout,
        } = config;
        let client = kube_client(&kubeconfig).await?;
        if !installed {
            registration::refuse_foreign(&client).await?;
            settings::ensure(&client, mode.as_deref(), flags).await?;
        }

        let (ports, reservation) = match port_base {
            Some(base) => {
                let ports = Ports::at(base).for_replicas(replicas)?;
                (ports.wait_free(Duration::from_secs(10)).await?, None)
            }
            None => ports::reserve(replicas)?,
        };
        let balancing = match ports.replicas() {
            1 => None,
            _ => Some(balancing::Balancing::start(ports).await?),
        };
        let links = if links {
            links::Links::start(ports, &kubeconfig).await?
        } else {
            links::Links::default()
        };
        let folder = tempfile::Builder::new()
            .prefix("coscheduler-services-")
            .tempdir()
            .context("failed to make a folder for the services")?;
        let group = ProcessGroup::start(folder.path())?;
        // From now on, the process group removes the folder, however this process ends.
        let folder = folder.keep();
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        let launcher = (!installed).then(|| name.into_owned());
        if let Some(launcher) = &launcher {
            registration::apply_rights(&client, launcher).await?;
        }
        let authority = mutual_tls.then(crate::Authority::new).transpose()?;
        let certificates = folder.join("certificates");
        if let Some(authority) = &authority {
            for process in certificate_names() {
                authority.issue_service(&certificates.join(process), NAMESPACE, process)?;
            }
        }
        let accounts = accounts::Accounts::write(&client, &kubeconfig, &folder, &links).await?;
        let services = Self {
            launcher,
            launch: catalog::Launch {
                kubeconfigs: folder,
                ports,
                links,
                certificates: authority.is_some().then_some(certificates),
                bin_dir,
                log_level,
                environment,
                installed,
            },
            group,
            client,
            running: Mutex::default(),
            ready_timeout,
            _accounts: accounts,
            authority,
            balancing,
            _reservation: reservation,
        };
        for replica in Replica::all(ports.replicas()) {
            services.start_service(replica)?;
        }
        let mut first = services.with_running(|running| running.clone());
        first.retain(|replica| replica.service() != Service::AdmissionWebhook);
        services.wait_ready_of(&first).await?;
        Ok(services)
    }

    /// Applies the webhook configurations and waits until the API server reaches the webhooks. If an earlier launcher left its
    /// configurations behind, they are replaced.
    ///
    /// # Errors
    /// The API server refuses a request, or the admission-webhook is not ready in time. After an error, the services still run,
    /// and the webhook configurations may exist. [`Services::stop`] ends the services and deletes the configurations.
    pub async fn register(&self) -> anyhow::Result<()> {
        if let Some(launcher) = &self.launcher {
            let port = self.launch.admission_port();
            registration::apply_webhooks(&self.client, port, launcher).await?;
        }
        self.wait_ready().await?;
        tokio::time::timeout(self.ready_timeout, registration::reached(&self.client))
            .await
            .with_context(|| {
                format!(
                    "the API server does not reach the webhooks after {:?}",
                    self.ready_timeout
                )
            })?
    }

    /// Waits until `/readyz` of every running service answers 200.
    ///
    /// # Errors
    /// A service has ended (the error contains the end of its log), or a service is not ready in time.
    pub async fn wait_ready(&self) -> anyhow::Result<()> {
        self.wait_ready_of(&self.with_running(|running| running.clone()))
            .await
    }

    async fn wait_ready_of(&self, wanted: &BTreeSet<Replica>) -> anyhow::Result<()> {
        let not_yet = readiness::wait(wanted, self.launch.ports, self.ready_timeout, || {
            self.group.check()
        })
        .await?;
        let Some(first) = not_yet.first() else {
            return Ok(());
        };
        let names = not_yet
            .iter()
            .map(Replica::to_string)
            .collect::<Vec<_>>()
            .join(", ");
        bail!(
            "not ready after {:?}: {names}{}",
            self.ready_timeout,
            self.group.log_tail(&first.to_string())
        )
    }

    /// Checks that no service has ended by itself.
    ///
    /// # Errors
    /// A service has ended by itself. The error names it and contains the end of its log.
    pub fn check(&self) -> anyhow::Result<()> {
        self.group.check()
    }

    /// The CPU time that each running process has used, in seconds, by name.
    ///
    /// # Errors
    /// The state of a process cannot be read.
    pub fn cpu_seconds(&self) -> anyhow::Result<BTreeMap<String, f64>> {
        self.group.cpu_seconds()
    }

    /// Acts as a kubelet for processes that have ended because the machine stood still for some seconds: they lost their Lease,
    /// or their caches are too old. Starts them again, and returns their names.
    ///
    /// # Errors
    /// A binary cannot be started.
    pub fn start_again_after_standstill(&self) -> anyhow::Result<Vec<String>> {
        let words = ["lost Lease", "the process was suspended"];
        self.group.start_again_after(&words)
    }

    /// Waits for a failure, and returns it. One failure is that a service ends by itself, as in [`Services::check`]. The other
    /// failure is that somebody deletes this launcher's MutatingWebhookConfiguration, or another launcher replaces it. After
    /// that, the API server does not ask these services about new PipelineRuns.
    pub async fn failed(&self) -> anyhow::Error {
        let ended = async {
            loop {
                if let Err(error) = self.check() {
                    return error;
                }
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        };
        let lost = async {
            match &self.launcher {
                Some(launcher) => registration::lost(&self.client, launcher).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            error = ended => error,
            () = lost => anyhow::anyhow!(
                "MutatingWebhookConfiguration {CONFIGURATION_NAME} was removed or taken over by another launcher"
            ),
        }
    }

    /// Warnings about configuration in the cluster that prevents coscheduling.
    ///
    /// # Errors
    /// The API server does not answer, or refuses a request.
    pub async fn warnings(&self) -> anyhow::Result<Vec<String>> {
        let flags = settings::flags_warning(&self.client).await?;
        let tekton = settings::tekton_warning(&self.client).await?;
        Ok(flags.into_iter().chain(tekton).collect())
    }

    /// The URL of the gRPC port of `service`. If it has several replicas, this is the port of their balancer.
    pub fn grpc_address(&self, service: Service) -> String {
        format!("http://127.0.0.1:{}", self.launch.ports.grpc(service))
    }

    /// The URL of the gRPC port of one process.
    pub fn grpc_address_of(&self, replica: impl Into<Replica>) -> String {
        format!(
            "http://127.0.0.1:{}",
            self.launch.ports.grpc_of(replica.into())
        )
    }

    /// The URL of the HTTP port of a process, with `/metrics`, `/livez` and `/readyz`.
    pub fn http_address(&self, replica: impl Into<Replica>) -> String {
        format!("http://127.0.0.1:{}", self.launch.ports.http(replica))
    }

    /// The authority that signed the certificates of the services. `None` without mutual TLS.
    pub fn authority(&self) -> Option<&crate::Authority> {
        self.authority.as_ref()
    }

    /// The folder with the certificates of `process`: the name of a service, or [`OPERATOR`]. `None` without mutual TLS.
    pub fn certificates(&self, process: &str) -> Option<PathBuf> {
        Some(self.launch.certificates.as_ref()?.join(process))
    }

    /// The ports of these services.
    pub fn ports(&self) -> Ports {
        self.launch.ports
    }

    /// The log file of a process, which is removed when the services are stopped.
    pub fn log(&self, replica: impl Into<Replica>) -> PathBuf {
        self.group.log(&replica.into().to_string())
    }

    /// The folder of the log files. It is removed when the services are stopped.
    pub fn logs_dir(&self) -> PathBuf {
        self.group.logs_dir()
    }

    fn with_running<T>(&self, act: impl FnOnce(&mut BTreeSet<Replica>) -> T) -> T {
        // A panic elsewhere cannot leave a set half-written.
        let mut running = self
            .running
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        act(&mut running)
    }
}
