//! The five services as local processes against any cluster, for `cargo xtask services`, the demo and the integration
//! tests. The launcher makes what the services need (namespace, ConfigMap, CA, webhook registrations) and takes the
//! registrations away before the services go, so that the cluster is never left blocked. It restarts nothing by itself.

mod catalog;
mod certificates;
mod config;
mod ports;
mod readiness;
mod registration;
mod settings;

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context as _, bail};
use futures::future::join_all;

use crate::ProcessGroup;

pub use catalog::Service;
pub use config::{ServicesConfig, bin_dir, kube_client};
pub use ports::{DEFAULT_BASE, HIGHEST_BASE, Ports};
pub use registration::{CONFIGURATION_NAME, MANAGED_BY};
pub use settings::{CONFIG_MAP, NAMESPACE};

/// How long a service may take to end once told to, before it is killed.
const STOP_PATIENCE: Duration = Duration::from_secs(20);
/// How long the cluster may take to give a registration up.
const UNREGISTER_PATIENCE: Duration = Duration::from_secs(20);

/// The five services, running. End them with [`Services::stop`]: a mere drop ends the processes, but leaves the
/// webhook registrations behind for [`Services::remove`] or the next start.
pub struct Services {
    group: ProcessGroup,
    launch: catalog::Launch,
    client: kube::Client,
    running: Mutex<BTreeSet<Service>>,
    ca_pem: String,
    ready_timeout: Duration,
    /// Held so that no other launcher chooses the same ports.
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
            ca_pem: _,
            ready_timeout: _,
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
    /// [`Services::launch`], then [`Services::register`].
    ///
    /// # Errors
    /// As those. Nothing keeps running then.
    pub async fn start(config: ServicesConfig) -> anyhow::Result<Self> {
        Self::launch(config).await?.register().await
    }

    /// Creates what is absent in the cluster, starts the five services and waits until all are ready. Dropping the
    /// future, or the result, ends all of it.
    ///
    /// # Errors
    /// If the cluster refuses, a port is taken, a service ends early (with the end of its log) or is not ready in
    /// time, or a registration exists that no launcher made. Nothing keeps running then.
    pub async fn launch(config: ServicesConfig) -> anyhow::Result<Self> {
        let ServicesConfig {
            kubeconfig,
            port_base,
            bin_dir,
            mode,
            log_level,
            ready_timeout,
        } = config;
        let kubeconfig = std::path::absolute(&kubeconfig)
            .with_context(|| format!("failed to resolve {}", kubeconfig.display()))?;
        let client = kube_client(&kubeconfig).await?;
        registration::refuse_foreign(&client).await?;
        settings::ensure(&client, mode.as_deref()).await?;

        let (ports, reservation) = match port_base {
            Some(base) => (
                Ports::at(base).wait_free(Duration::from_secs(10)).await?,
                None,
            ),
            None => ports::reserve()?,
        };
        let folder = tempfile::Builder::new()
            .prefix("coscheduler-services-")
            .tempdir()
            .context("failed to make a folder for the services")?;
        let group = ProcessGroup::start(folder.path())?;
        // From here on the group removes the folder, however this process ends.
        let folder = folder.keep();
        let certificates = certificates::issue(&folder)?;
        let services = Self {
            launch: catalog::Launch {
                kubeconfig,
                ports,
                bin_dir,
                log_level,
                tls_certificate: certificates.certificate,
                tls_private_key: certificates.private_key,
            },
            group,
            client,
            running: Mutex::default(),
            ca_pem: certificates.ca_pem,
            ready_timeout,
            _reservation: reservation,
        };
        for service in Service::ALL {
            services.start_service(service)?;
        }
        services.wait_ready().await?;
        Ok(services)
    }

    /// Registers the webhooks, taking over what an earlier launcher left behind.
    ///
    /// # Errors
    /// If the API server refuses; the services are ended then.
    pub async fn register(self) -> anyhow::Result<Self> {
        match registration::apply(&self.client, self.launch.ports, &self.ca_pem).await {
            Ok(()) => Ok(self),
            Err(error) => {
                // Whether the API server took it before its answer was lost is unknown, so it is removed as well.
                let Err(also) = self.stop().await else {
                    return Err(error);
                };
                Err(error.context(format!("{also:#}")))
            }
        }
    }

    /// Starts one service that was killed or terminated; its log goes on in the same file. Does not wait for readiness.
    ///
    /// # Errors
    /// If it is running or its binary cannot be started.
    pub fn start_service(&self, service: Service) -> anyhow::Result<()> {
        let command = self.launch.command(service)?;
        self.group
            .spawn(service.name(), command)
            .with_context(|| format!("failed to start {service}"))?;
        self.with_running(|running| running.insert(service));
        Ok(())
    }

    /// Kills one service with SIGKILL and waits for its end, as a crash would.
    ///
    /// # Errors
    /// If it is not running.
    pub fn kill(&self, service: Service) -> anyhow::Result<()> {
        self.with_running(|running| running.remove(&service));
        self.group
            .kill(service.name())
            .with_context(|| format!("failed to kill {service}"))
    }

    /// Ends one service with SIGTERM and waits for its end, as a rollout would.
    ///
    /// # Errors
    /// If it is not running or does not end well.
    pub async fn terminate(&self, service: Service) -> anyhow::Result<()> {
        self.with_running(|running| running.remove(&service));
        let code = self
            .group
            .terminate(service.name(), STOP_PATIENCE)
            .await
            .with_context(|| format!("failed to terminate {service}"))?;
        match code {
            Some(0) => Ok(()),
            Some(code) => bail!(
                "{service} ended with exit code {code} when told to stop{}",
                self.log_tail(service)
            ),
            None => bail!("{service} was ended by a signal{}", self.log_tail(service)),
        }
    }

    /// [`Services::terminate`] and [`Services::start_service`], then waits until it is ready again.
    ///
    /// # Errors
    /// As those.
    pub async fn restart(&self, service: Service) -> anyhow::Result<()> {
        self.terminate(service).await?;
        self.start_service(service)?;
        self.wait_ready().await
    }

    /// Waits until `/readyz` of every running service answers 200.
    ///
    /// # Errors
    /// If a service ended (with the end of its log), or one is not ready in time.
    pub async fn wait_ready(&self) -> anyhow::Result<()> {
        let wanted = self.with_running(|running| running.clone());
        let not_yet = readiness::wait(&wanted, self.launch.ports, self.ready_timeout, || {
            self.group.check()
        })
        .await?;
        let Some(service) = not_yet.first() else {
            return Ok(());
        };
        let names = not_yet
            .iter()
            .map(|service| service.name())
            .collect::<Vec<_>>()
            .join(", ");
        bail!(
            "not ready after {:?}: {names}{}",
            self.ready_timeout,
            self.log_tail(*service)
        )
    }

    /// An error if a service ended that nobody asked to end.
    ///
    /// # Errors
    /// Names the service and carries the end of its log.
    pub fn check(&self) -> anyhow::Result<()> {
        self.group.check()
    }

    /// Waits until a service ends that nobody asked to end, [`Services::check`]'s error, or until somebody takes the
    /// webhook registration away: runs would then be created past us, and nobody would know.
    pub async fn failed(&self) -> anyhow::Error {
        let ended = async {
            loop {
                if let Err(error) = self.check() {
                    return error;
                }
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        };
        tokio::select! {
            error = ended => error,
            () = registration::lost(&self.client, &self.ca_pem) => anyhow::anyhow!(
                "MutatingWebhookConfiguration {CONFIGURATION_NAME} was removed or taken over by another launcher"
            ),
        }
    }

    /// What in the cluster's configuration would keep runs from being coscheduled properly, for a person to read.
    ///
    /// # Errors
    /// If the API server does not answer or refuses.
    pub async fn warnings(&self) -> anyhow::Result<Vec<String>> {
        let flags = settings::flags_warning(&self.client).await?;
        let tekton = settings::tekton_warning(&self.client).await?;
        Ok(flags.into_iter().chain(tekton).collect())
    }

    /// Where `service` serves gRPC, as a URL.
    pub fn grpc_address(&self, service: Service) -> String {
        format!("http://127.0.0.1:{}", self.launch.ports.grpc(service))
    }

    /// Where `service` serves `/metrics`, `/livez` and `/readyz`, as a URL.
    pub fn http_address(&self, service: Service) -> String {
        format!("http://127.0.0.1:{}", self.launch.ports.http(service))
    }

    /// All ports in use.
    pub fn ports(&self) -> Ports {
        self.launch.ports
    }

    /// The log file of `service`; gone once the services are stopped.
    pub fn log(&self, service: Service) -> PathBuf {
        self.group.log(service.name())
    }

    /// Where the log files are; gone once the services are stopped.
    pub fn logs_dir(&self) -> PathBuf {
        self.group.logs_dir()
    }

    /// Removes the webhook registrations first, then ends the services and their folder. Every step is tried even if
    /// one before it failed.
    ///
    /// # Errors
    /// If the registrations could not be removed, or a service had ended by itself or did not end well.
    pub async fn stop(self) -> anyhow::Result<()> {
        let unregistered = tokio::time::timeout(UNREGISTER_PATIENCE, registration::remove_own(&self.client, &self.ca_pem))
            .await
            .unwrap_or_else(|_| Err(anyhow::anyhow!("no answer from the API server within {UNREGISTER_PATIENCE:?}")))
            .with_context(|| {
                format!(
                    "failed to remove MutatingWebhookConfiguration {CONFIGURATION_NAME}: the cluster refuses PipelineRuns \
                     until `cargo xtask services --remove` has done it"
                )
            });
        let checked = self.group.check();
        let running = self.with_running(std::mem::take);
        let ended = join_all(running.iter().map(|service| self.terminate(*service))).await;
        let stopped = if checked.is_ok() {
            self.group.stop().await
        } else {
            // It would report the same end of the same service once more.
            let _ = self.group.stop().await;
            Ok(())
        };
        let ended = if checked.is_ok() { ended } else { Vec::new() };
        let failures: Vec<String> = [unregistered, checked]
            .into_iter()
            .chain(ended)
            .chain([stopped])
            .filter_map(Result::err)
            .map(|error| format!("{error:#}"))
            .collect();
        if failures.is_empty() {
            Ok(())
        } else {
            bail!("{}", failures.join("\n"))
        }
    }

    /// Removes webhook registrations that a launcher left behind (it was killed with SIGKILL), and says what it did,
    /// one sentence an object. Touches nothing else.
    ///
    /// # Errors
    /// If the API server does not answer or refuses.
    pub async fn remove(kubeconfig: &Path) -> anyhow::Result<Vec<String>> {
        registration::remove_all(&kube_client(kubeconfig).await?).await
    }

    fn log_tail(&self, service: Service) -> String {
        let lines: usize = 20;
        match std::fs::read_to_string(self.log(service)) {
            Ok(text) if !text.trim().is_empty() => {
                let all: Vec<&str> = text.lines().collect();
                let tail = all
                    .get(all.len().saturating_sub(lines)..)
                    .unwrap_or_default();
                format!("; the end of its log:\n{}", tail.join("\n"))
            }
            Ok(_) => "; its log is empty".to_owned(),
            Err(error) => format!("; its log cannot be read: {error}"),
        }
    }

    fn with_running<T>(&self, act: impl FnOnce(&mut BTreeSet<Service>) -> T) -> T {
        // A panic elsewhere cannot leave a set half-written.
        let mut running = self
            .running
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        act(&mut running)
    }
}
