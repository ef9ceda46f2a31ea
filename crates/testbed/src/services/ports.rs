//! The loopback ports of the services of one launcher. Every port is a base number plus a fixed offset, so another base changes
//! all ports.

use std::net::TcpListener;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use tokio::time::{Instant, sleep};

use super::{Replica, Service};
use crate::ports::{listen, places};

/// The ports of one launcher. The table shows the offsets from the base. With several replicas, balancers listen on the ports
/// that other processes call, and the replicas listen on other ports:
///
/// | | one replica | balancers | several replicas |
/// |---|---|---|---|
/// | gRPC | from 1 | from 1 | from 11, 21, … |
/// | HTTP | from 101 | none | from 101, 111, 121, … |
/// | admission | 343 | 343 | from 301 |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ports {
    base: u16,
    replicas: u16,
}

/// The default base. It gives the ports in the documentation: gRPC 9101 to 9105, HTTP 9201 to 9205, admission 9443.
pub const DEFAULT_BASE: u16 = 9100;
/// The highest base for which all ports are valid port numbers.
pub const HIGHEST_BASE: u16 = u16::MAX - RESERVATION;

const ADMISSION: u16 = 343;
/// The distance between the ports of one replica and the next.
const NEXT_REPLICA: u16 = 10;
/// The maximum number of replicas of each service.
const MOST_REPLICAS: u16 = 8;
/// A launcher that chooses free ports listens on the port with this offset, so that other launchers choose another base.
const RESERVATION: u16 = 344;
/// The bases that a launcher chooses from. They are below the ports of test beds, and below the ports that Linux gives to
/// outgoing connections.
const CANDIDATES: std::ops::Range<u16> = 10_100..31_000;
/// The distance between two such bases. All ports of one base are below the next base.
const STRIDE: u16 = 400;

impl Ports {
    /// The ports of `base`. If it is above [`HIGHEST_BASE`], the ports of [`HIGHEST_BASE`].
    pub fn at(base: u16) -> Self {
        Self {
            base: base.min(HIGHEST_BASE),
            replicas: 1,
        }
    }

    /// The ports with the same base, for this number of replicas of each service.
    pub(super) fn for_replicas(self, replicas: u16) -> anyhow::Result<Self> {
        ensure!(
            (1..=MOST_REPLICAS).contains(&replicas),
            "there can be 1 to {MOST_REPLICAS} replicas of a service, not {replicas}"
        );
        Ok(Self { replicas, ..self })
    }

    /// The number of processes of each service.
    pub(super) fn replicas(self) -> u16 {
        self.replicas
    }

    /// The base.
    pub fn base(self) -> u16 {
        self.base
    }

    /// The port where other processes call `service`: of its only process, or of its balancer.
    pub fn grpc(self, service: Service) -> u16 {
        self.base + service.port_offset()
    }

    /// gRPC port of one process.
    pub(super) fn grpc_of(self, replica: Replica) -> u16 {
        let behind = NEXT_REPLICA * replica.number();
        self.grpc(replica.service()) + if self.replicas == 1 { 0 } else { behind }
    }

    /// HTTP port (metrics, livez, readyz) of a process.
    pub fn http(self, replica: impl Into<Replica>) -> u16 {
        let replica = replica.into();
        self.grpc(replica.service()) + 100 + NEXT_REPLICA * (replica.number() - 1)
    }

    /// The HTTPS port of the admission-webhook that the API server calls.
    pub fn admission(self) -> u16 {
        self.base + ADMISSION
    }

    /// The HTTPS port of one process of the admission-webhook.
    pub(super) fn admission_of(self, replica: Replica) -> u16 {
        match self.replicas {
            1 => self.admission(),
            _ => self.base + 300 + replica.number(),
        }
    }

    fn all(self) -> impl Iterator<Item = (String, u16)> {
        let admission = move |number| {
            let replica = Service::AdmissionWebhook.replica(number);
            (
                format!("admission of {replica}"),
                self.admission_of(replica),
            )
        };
        let of_balancers = Service::ALL
            .into_iter()
            .map(move |service| (format!("gRPC of {service}"), self.grpc(service)))
            .chain([("admission".to_owned(), self.admission())])
            .filter(move |_| self.replicas > 1);
        Replica::all(self.replicas)
            .flat_map(move |replica| {
                [
                    (format!("gRPC of {replica}"), self.grpc_of(replica)),
                    (format!("HTTP of {replica}"), self.http(replica)),
                ]
            })
            .chain((1..=self.replicas).map(admission))
            .chain(of_balancers)
    }

    fn taken(self) -> Option<(String, u16)> {
        self.all().find(|(_, port)| listen(*port).is_none())
    }

    /// Waits until all ports are free, because the services of a launcher that was just killed need a moment to end.
    pub(super) async fn wait_free(self, patience: Duration) -> anyhow::Result<Self> {
        let deadline = Instant::now() + patience;
        while let Some((what, port)) = self.taken() {
            if Instant::now() >= deadline {
                bail!(
                    "port {port} ({what}) is taken on 127.0.0.1; another set of services may be running: \
                     end it, or choose another --port-base"
                );
            }
            sleep(Duration::from_millis(100)).await;
        }
        Ok(self)
    }
}

/// Chooses free ports. Also returns a listener: until it is dropped, other launchers do not choose these ports.
pub(super) fn reserve(replicas: u16) -> anyhow::Result<(Ports, Option<TcpListener>)> {
    Ports::at(CANDIDATES.start).for_replicas(replicas)?;
    places(CANDIDATES, STRIDE)
        .find_map(|base| {
            let ports = Ports::at(base).for_replicas(replicas).ok()?;
            let listener = listen(base + RESERVATION)?;
            ports.taken().is_none().then_some((ports, Some(listener)))
        })
        .context("no free ports on 127.0.0.1 for the services")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_base_gives_the_documented_ports() {
        let ports = Ports::at(DEFAULT_BASE);
        let all: Vec<u16> = ports.all().map(|(_, port)| port).collect();
        assert_eq!(
            all,
            [
                9101, 9201, 9102, 9202, 9103, 9203, 9104, 9204, 9105, 9205, 9443
            ]
        );
    }

    #[test]
    fn no_two_of_the_most_replicas_share_a_port_and_there_can_be_no_more() {
        let ports = Ports::at(DEFAULT_BASE);
        for replicas in 1..=MOST_REPLICAS {
            let all: Vec<u16> = ports
                .for_replicas(replicas)
                .unwrap()
                .all()
                .map(|(_, port)| port)
                .collect();
            let different: std::collections::BTreeSet<_> = all.iter().collect();
            assert_eq!(different.len(), all.len(), "{replicas}: {all:?}");
            assert!(all.iter().all(|port| *port < DEFAULT_BASE + RESERVATION));
        }
        for replicas in [0, MOST_REPLICAS + 1] {
            ports.for_replicas(replicas).unwrap_err();
        }
    }

    #[test]
    fn two_launchers_never_choose_the_same_ports() {
        let (first, _held) = reserve(1).unwrap();
        let (second, _also_held) = reserve(1).unwrap();
        assert_ne!(first, second);
    }

    #[tokio::test]
    async fn a_taken_port_is_named_with_its_use() {
        let (ports, _held) = reserve(1).unwrap();
        let _taken = listen(ports.http(Service::Watcher)).unwrap();
        let error = ports
            .wait_free(Duration::ZERO)
            .await
            .unwrap_err()
            .to_string();
        let expected = format!(
            "port {} (HTTP of watcher) is taken",
            ports.http(Service::Watcher)
        );
        assert!(error.starts_with(&expected), "{error}");
    }
}
