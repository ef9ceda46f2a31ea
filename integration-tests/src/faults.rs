//! Faults of a whole stack or of one of its services, and a simulated kubelet that restarts services that end.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::fmt;
use std::time::Duration;

use anyhow::ensure;
use testbed::TestBed;
use testbed::services::{Link, Peer, Service, Services};
use tokio::sync::watch;
use tokio::time::sleep;

use crate::stack::Stack;

const API_SERVER: &str = "kube-apiserver";
const ETCD: &str = "etcd";

/// A slow etcd is suspended for [`STILL`], then runs for [`GOING`], and so on.
const STILL: Duration = Duration::from_millis(500);
const GOING: Duration = Duration::from_millis(100);

/// The time between two checks of the kubelet.
const LOOK: Duration = Duration::from_millis(200);

/// A fault of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A service is killed with SIGKILL, and started again later.
    Killed(Service),
    /// A service is suspended (SIGSTOP) for longer than a leader relies on its Lease, and then continues.
    Paused(Service),
    /// A connection carries no data for some time, and then works again. This time is longer than three others: the time for
    /// which a leader relies on its Lease, the time for which a connection may be silent, and the time for an admission.
    Cut(Link),
    /// The API server is killed, and started again later.
    ApiServerRestarted,
    /// etcd is suspended for half a second, again and again.
    EtcdSlow,
}

impl Fault {
    /// Begins the fault.
    ///
    /// # Errors
    ///
    /// The process or the link does not exist.
    pub fn strike(self, stack: &Stack) -> anyhow::Result<()> {
        match self {
            Self::Killed(service) => stack.services.kill(service),
            Self::Paused(service) => stack.services.pause(service),
            Self::Cut(link) => stack.services.cut(link),
            Self::ApiServerRestarted => stack.bed.processes().kill(API_SERVER),
            Self::EtcdSlow => Ok(()),
        }
    }

    /// Runs `meanwhile`. If the fault consists of repeated changes, makes these changes until `meanwhile` ends.
    ///
    /// # Errors
    ///
    /// `meanwhile` fails, or a repeated change fails.
    pub async fn last<T>(
        self,
        stack: &Stack,
        meanwhile: impl Future<Output = anyhow::Result<T>>,
    ) -> anyhow::Result<T> {
        match self {
            Self::EtcdSlow => tokio::select! {
                done = meanwhile => done,
                never = slow_down(&stack.bed) => match never? {},
            },
            Self::Killed(_) | Self::Paused(_) | Self::Cut(_) | Self::ApiServerRestarted => {
                meanwhile.await
            }
        }
    }

    /// Ends the fault.
    ///
    /// # Errors
    ///
    /// The process or the link cannot be restored.
    pub async fn heal(self, stack: &Stack) -> anyhow::Result<()> {
        match self {
            Self::Killed(service) => stack.services.start_service(service),
            Self::Paused(service) => stack.services.resume(service),
            Self::Cut(link) => stack.services.heal(link),
            Self::ApiServerRestarted => stack.bed.start_api_server().await,
            Self::EtcdSlow => stack.bed.processes().resume(ETCD),
        }
    }

    /// The shortest time for which the fault lasts.
    pub fn duration(self) -> Duration {
        match self {
            Self::Killed(_) | Self::ApiServerRestarted => Duration::from_secs(3),
            // This is longer than three other times. A leader relies on its Lease, and a process may be suspended, for ten
            // seconds. A silent connection is replaced after seven seconds. The webhook gives the planner nine seconds.
            Self::Paused(_) | Self::Cut(_) => Duration::from_secs(11),
            Self::EtcdSlow => Duration::ZERO,
        }
    }

    /// True if new runs are refused during the fault. Only the API server, the webhook and the planner take part in an admission.
    pub fn refuses_runs(self) -> bool {
        match self {
            Self::Killed(service) | Self::Paused(service) => match service {
                Service::AffinityPlanner | Service::AdmissionWebhook => true,
                Service::ConfigService | Service::PlaceholderManager | Service::Watcher => false,
            },
            Self::Cut(link) => {
                let admission = [
                    Link::new(Peer::ApiServer, Service::AdmissionWebhook),
                    Link::new(Service::AdmissionWebhook, Service::AffinityPlanner),
                ];
                admission.contains(&link)
            }
            Self::ApiServerRestarted => true,
            Self::EtcdSlow => false,
        }
    }

    /// The services that exit because of the fault. A service that was suspended exits, because its caches are old. Only the
    /// planner continues, because it has no client for Kubernetes. A leader that cannot renew its Lease exits too.
    pub fn ends(self) -> BTreeSet<Service> {
        match self {
            Self::Paused(Service::AffinityPlanner)
            | Self::Killed(_)
            | Self::ApiServerRestarted
            | Self::EtcdSlow => BTreeSet::new(),
            Self::Paused(service) => BTreeSet::from([service]),
            Self::Cut(link) => match (link.from, link.to) {
                (
                    Peer::Service(led @ (Service::PlaceholderManager | Service::Watcher)),
                    Peer::ApiServer,
                ) => BTreeSet::from([led]),
                _ => BTreeSet::new(),
            },
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Killed(service) => write!(formatter, "{service} killed"),
            Self::Paused(service) => write!(formatter, "{service} paused"),
            Self::Cut(link) => write!(formatter, "nothing gets through {link}"),
            Self::ApiServerRestarted => formatter.write_str("the API server restarted"),
            Self::EtcdSlow => formatter.write_str("etcd slow"),
        }
    }
}

/// Suspends etcd again and again. A suspended etcd answers no request, and loses no data.
async fn slow_down(bed: &TestBed) -> anyhow::Result<Infallible> {
    loop {
        bed.processes().pause(ETCD)?;
        sleep(STILL).await;
        bed.processes().resume(ETCD)?;
        sleep(GOING).await;
    }
}

/// Restarts each service that ended with exit code 1, as a kubelet would, and adds it to `restarted`. Does not restart a service
/// that a signal ended: the code that sent the signal does this.
///
/// # Errors
/// A service ended with another exit code, or cannot be started.
pub async fn kubelet(
    services: &Services,
    restarted: &watch::Sender<BTreeSet<Service>>,
) -> anyhow::Result<Infallible> {
    loop {
        for service in Service::ALL {
            if services.is_running(service)? {
                continue;
            }
            if let Some(code) = services.ended(service).await? {
                ensure!(code == 1, "{service} ended with exit code {code}");
                services.start_service(service)?;
                restarted.send_modify(|restarted| {
                    restarted.insert(service);
                });
            }
        }
        sleep(LOOK).await;
    }
}
