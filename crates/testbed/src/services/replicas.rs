//! The processes of the services, and the functions with which a test ends, suspends or restarts one process.

use std::fmt;
use std::time::Duration;

use anyhow::{Context as _, bail};

use super::{STOP_TIMEOUT, Service, Services};

/// The time between the last new connection to a process and SIGTERM, when the process is replaced. The Deployments have five
/// seconds.
const PRE_STOP: Duration = Duration::from_secs(1);

/// One process of a service, with its number from 1. A [`Service`] converts to its first process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Replica {
    service: Service,
    number: u16,
}

impl Service {
    /// The process of this service with this number. Numbers begin at 1.
    pub fn replica(self, number: u16) -> Replica {
        Replica {
            service: self,
            number,
        }
    }
}

impl Replica {
    /// The service of this process.
    pub fn service(self) -> Service {
        self.service
    }

    /// The number of this process, from 1.
    pub fn number(self) -> u16 {
        self.number
    }

    /// Every process of every service.
    pub(super) fn all(replicas: u16) -> impl Iterator<Item = Self> + Clone {
        Service::ALL
            .into_iter()
            .flat_map(move |service| (1..=replicas).map(move |number| service.replica(number)))
    }
}

impl From<Service> for Replica {
    fn from(service: Service) -> Self {
        service.replica(1)
    }
}

/// The name of the process in [`ProcessGroup`](crate::ProcessGroup), and of its log.
impl fmt::Display for Replica {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.number {
            1 => self.service.fmt(formatter),
            number => write!(formatter, "{}-{number}", self.service),
        }
    }
}

impl Services {
    /// Starts one process that has ended. It continues the same log file. Does not wait for readiness.
    ///
    /// # Errors
    /// The process is running, or its binary cannot be started.
    pub fn start_service(&self, replica: impl Into<Replica>) -> anyhow::Result<()> {
        let replica = replica.into();
        let command = self.launch.command(replica)?;
        self.group
            .spawn(&replica.to_string(), command)
            .with_context(|| format!("failed to start {replica}"))?;
        self.with_running(|running| running.insert(replica));
        Ok(())
    }

    /// Kills one process with SIGKILL, like a crash, and waits for its end.
    ///
    /// # Errors
    /// The process was never started.
    pub fn kill(&self, replica: impl Into<Replica>) -> anyhow::Result<()> {
        let replica = replica.into();
        self.with_running(|running| running.remove(&replica));
        self.group
            .kill(&replica.to_string())
            .with_context(|| format!("failed to kill {replica}"))
    }

    /// Ends one process with SIGTERM, like a rollout, and waits for its end.
    ///
    /// # Errors
    /// The process was never started, or does not end with exit code 0 in time.
    pub async fn terminate(&self, replica: impl Into<Replica>) -> anyhow::Result<()> {
        let replica = replica.into();
        self.with_running(|running| running.remove(&replica));
        let name = replica.to_string();
        let ended = self.group.terminate(&name, STOP_TIMEOUT).await;
        let code = ended.with_context(|| format!("failed to terminate {name}"))?;
        let tail = || self.group.log_tail(&name);
        match code {
            Some(0) => Ok(()),
            Some(code) => bail!("{name} ended with exit code {code} after SIGTERM{}", tail()),
            None => bail!("{name} was ended by a signal{}", tail()),
        }
    }

    /// Calls [`Services::terminate`] and [`Services::start_service`], then waits until all running services are ready.
    ///
    /// # Errors
    /// The errors of these two functions, or a service is not ready in time.
    pub async fn restart(&self, replica: impl Into<Replica>) -> anyhow::Result<()> {
        let replica = replica.into();
        self.terminate(replica).await?;
        self.start_service(replica)?;
        self.wait_ready().await
    }

    /// Replaces one process as a rollout does: first no new connection goes to it, then it gets SIGTERM. Between these steps, the
    /// last new connections have time for their TLS handshakes, as with `preStop` in the Deployments. Waits until the new process
    /// is ready and gets new connections.
    ///
    /// # Errors
    /// The errors of [`Services::restart`].
    pub async fn roll(&self, replica: impl Into<Replica>) -> anyhow::Result<()> {
        let replica = replica.into();
        self.withdraw(replica);
        tokio::time::sleep(PRE_STOP).await;
        self.restart(replica).await?;
        if let Some(balancing) = &self.balancing {
            balancing.withdraw(replica, false);
            let served = tokio::time::timeout(self.ready_timeout, balancing.serves(replica));
            served.await.context("the balancer leaves it out")?;
        }
        Ok(())
    }

    /// Sends no new connection to one process until it has ended, as Kubernetes does before a pod ends.
    pub fn withdraw(&self, replica: impl Into<Replica>) {
        let replica = replica.into();
        let balancing = self.balancing.iter();
        balancing.for_each(|balancing| balancing.withdraw(replica, true));
    }

    /// Suspends one process (SIGSTOP), as if its node hung, until [`Services::resume`].
    ///
    /// # Errors
    /// The process was never started.
    pub fn pause(&self, replica: impl Into<Replica>) -> anyhow::Result<()> {
        self.group.pause(&replica.into().to_string())
    }

    /// Continues a suspended process (SIGCONT).
    ///
    /// # Errors
    /// The process was never started.
    pub fn resume(&self, replica: impl Into<Replica>) -> anyhow::Result<()> {
        self.group.resume(&replica.into().to_string())
    }

    /// Waits until a process ends by itself. [`Services::check`] does not report this end. Returns the exit code, or `None` if
    /// a signal ended the process.
    ///
    /// # Errors
    /// The process was never started, or still runs after 20 s.
    pub async fn ended(&self, replica: impl Into<Replica>) -> anyhow::Result<Option<i32>> {
        let replica = replica.into();
        let code = self.group.ended(&replica.to_string(), STOP_TIMEOUT).await?;
        self.with_running(|running| running.remove(&replica));
        Ok(code)
    }

    /// True while a process runs.
    ///
    /// # Errors
    /// The process was never started.
    pub fn is_running(&self, replica: impl Into<Replica>) -> anyhow::Result<bool> {
        self.group.is_running(&replica.into().to_string())
    }

    /// The id of a process.
    ///
    /// # Errors
    /// The process was never started.
    pub fn pid(&self, replica: impl Into<Replica>) -> anyhow::Result<u32> {
        self.group.pid(&replica.into().to_string())
    }

    /// Every process of a service, whether it runs or not.
    pub fn replicas(&self, service: Service) -> impl Iterator<Item = Replica> + Clone {
        (1..=self.launch.ports.replicas()).map(move |number| service.replica(number))
    }
}
