//! Replaces the Kubernetes Service of each of our services, if they have several replicas. A balancer listens on the service's
//! port. A replica is an endpoint of the balancer while its `/readyz` answers 200.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::task::JoinSet;

use super::readiness::Probe;
use super::{Ports, Replica, Service};
use crate::Balancer;

/// The time between two probes of a replica. A cluster is not faster: it needs about a second to see that a container has ended.
const PERIOD: Duration = Duration::from_millis(500);

/// The balancers of all services. They end when this value is dropped.
#[derive(Debug)]
pub(super) struct Balancing {
    fronts: Vec<Arc<Front>>,
    /// One task for each replica. The tasks and `fronts` share the balancers.
    _probes: JoinSet<()>,
}

/// The balancers of one service.
#[derive(Debug)]
struct Front {
    ports: Ports,
    grpc: Balancer,
    /// The balancer for admission requests; only the admission-webhook has it.
    admission: Option<Balancer>,
    replicas: Mutex<Replicas>,
}

#[derive(Debug, Default)]
struct Replicas {
    ready: BTreeSet<Replica>,
    /// Replicas that get no new connections, because they are about to end.
    withdrawn: BTreeSet<Replica>,
}

impl Balancing {
    /// Starts the balancers and the probes.
    ///
    /// # Errors
    /// A port is taken.
    pub(super) async fn start(ports: Ports) -> anyhow::Result<Self> {
        let mut probes = JoinSet::new();
        let mut fronts = Vec::new();
        for service in Service::ALL {
            let admission = match service {
                Service::AdmissionWebhook => {
                    Some(Balancer::start(loopback(ports.admission())).await?)
                }
                Service::ConfigService
                | Service::AffinityPlanner
                | Service::PlaceholderManager
                | Service::Watcher => None,
            };
            let front = Arc::new(Front {
                ports,
                grpc: Balancer::start(loopback(ports.grpc(service))).await?,
                admission,
                replicas: Mutex::default(),
            });
            fronts.push(Arc::clone(&front));
            for number in 1..=ports.replicas() {
                probes.spawn(probe(Arc::clone(&front), service.replica(number)));
            }
        }
        Ok(Self {
            fronts,
            _probes: probes,
        })
    }

    /// If `withdrawn` is true, sends no new connection to a replica from now on. Otherwise, sends it new connections again.
    pub(super) fn withdraw(&self, replica: Replica, withdrawn: bool) {
        for front in &self.fronts {
            front.change(|replicas| match withdrawn {
                true => replicas.withdrawn.insert(replica),
                false => replicas.withdrawn.remove(&replica),
            });
        }
    }

    /// Waits until new connections go to a replica.
    pub(super) async fn serves(&self, replica: Replica) {
        while !self.fronts.iter().any(|front| front.serves(replica)) {
            tokio::time::sleep(PERIOD).await;
        }
    }
}

impl Front {
    fn set(&self, replica: Replica, is_ready: bool) {
        self.change(|replicas| match is_ready {
            true => replicas.ready.insert(replica),
            false => replicas.ready.remove(&replica) | replicas.withdrawn.remove(&replica),
        });
    }

    fn serves(&self, replica: Replica) -> bool {
        let replicas = self.replicas.lock().unwrap_or_else(PoisonError::into_inner);
        replicas.ready.contains(&replica) && !replicas.withdrawn.contains(&replica)
    }

    fn change(&self, change: impl FnOnce(&mut Replicas) -> bool) {
        // A panic elsewhere cannot leave a set half-written.
        let mut replicas = self.replicas.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut replicas);
        let endpoints = |port: fn(Ports, Replica) -> u16| {
            let serving = replicas.ready.difference(&replicas.withdrawn);
            serving
                .map(|replica| loopback(port(self.ports, *replica)))
                .collect()
        };
        self.grpc.set_endpoints(endpoints(Ports::grpc_of));
        if let Some(admission) = &self.admission {
            admission.set_endpoints(endpoints(Ports::admission_of));
        }
    }
}

async fn probe(front: Arc<Front>, replica: Replica) {
    let probe = Probe::default();
    loop {
        let is_ready = probe.ready(front.ports.http(replica)).await;
        front.set(replica, is_ready);
        tokio::time::sleep(PERIOD).await;
    }
}

fn loopback(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    /// Simulates a replica of the config-service. It is ready until it ends, and sends its gRPC port on each connection.
    async fn replica(ports: Ports, number: u16) -> JoinSet<()> {
        let replica = Service::ConfigService.replica(number);
        let greeting = ports.grpc_of(replica).to_be_bytes().to_vec();
        let ready = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".to_vec();
        let mut tasks = JoinSet::new();
        for (port, asks, answer) in [
            (ports.grpc_of(replica), false, greeting),
            (ports.http(replica), true, ready),
        ] {
            let listener = TcpListener::bind(loopback(port)).await.unwrap();
            tasks.spawn(async move {
                loop {
                    let (mut stream, _) = listener.accept().await.unwrap();
                    if asks {
                        let _ = stream.read(&mut [0; 1024]).await;
                    }
                    let _ = stream.write_all(&answer).await;
                }
            });
        }
        tasks
    }

    /// Opens four connections to the service, and returns the gRPC ports of the replicas that answered. A connection that was
    /// refused or reset counts as port 0.
    async fn heard(ports: Ports) -> BTreeSet<u16> {
        let mut heard = BTreeSet::new();
        for _ in 0..4 {
            let service = loopback(ports.grpc(Service::ConfigService));
            let mut stream = TcpStream::connect(service).await.unwrap();
            heard.insert(stream.read_u16().await.unwrap_or(0));
        }
        heard
    }

    /// Waits until connections to the service lead to these replicas and to no other.
    async fn leads_to(ports: Ports, numbers: &[u16]) {
        let port = |number: &u16| ports.grpc_of(Service::ConfigService.replica(*number));
        let expected: BTreeSet<u16> = numbers.iter().map(port).collect();
        let led = async {
            while heard(ports).await != expected {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), led)
            .await
            .unwrap_or_else(|_| panic!("it never led to {expected:?} alone"));
    }

    #[tokio::test]
    async fn replicas_are_endpoints_while_they_are_ready() {
        let (ports, _held) = super::super::ports::reserve(2).unwrap();
        let _balancing = Balancing::start(ports).await.unwrap();
        let mut one = replica(ports, 1).await;
        let _two = replica(ports, 2).await;
        leads_to(ports, &[1, 2]).await;
        one.shutdown().await;
        leads_to(ports, &[2]).await;
        let _one = replica(ports, 1).await;
        leads_to(ports, &[1, 2]).await;
    }
}
