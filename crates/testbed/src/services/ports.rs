//! The loopback ports of one set of services: all are distances from one number, so that a set is moved as a whole.

use std::net::{Ipv4Addr, TcpListener};
use std::time::Duration;

use anyhow::{Context as _, bail};
use tokio::time::{Instant, sleep};

use super::Service;

/// The ports of one set: gRPC from base + 1, HTTP from base + 101, admission at base + 343.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ports {
    base: u16,
}

/// Base of the documented ports: gRPC 9101 to 9105, HTTP 9201 to 9205, admission 9443.
pub const DEFAULT_BASE: u16 = 9100;
/// The highest base whose ports all exist.
pub const HIGHEST_BASE: u16 = u16::MAX - RESERVATION;

const ADMISSION: u16 = 343;
/// Nobody serves here: a launcher that chose its ports by itself holds it, so that others choose differently.
const RESERVATION: u16 = 344;
/// Below the ports that Linux hands out to outgoing connections.
const CANDIDATES: std::ops::Range<u16> = 10_100..31_000;
/// The services' ports of one base fit between it and the next candidate.
const STRIDE: u16 = 400;

impl Ports {
    /// The ports of `base`; a base beyond [`HIGHEST_BASE`] is taken for that.
    pub fn at(base: u16) -> Self {
        Self {
            base: base.min(HIGHEST_BASE),
        }
    }

    /// The number all others are counted from.
    pub fn base(self) -> u16 {
        self.base
    }

    /// gRPC port of `service`.
    pub fn grpc(self, service: Service) -> u16 {
        self.base + service.port_offset()
    }

    /// HTTP port (metrics, livez, readyz) of `service`.
    pub fn http(self, service: Service) -> u16 {
        self.base + 100 + service.port_offset()
    }

    /// HTTPS port of admission-webhook that the API server calls.
    pub fn admission(self) -> u16 {
        self.base + ADMISSION
    }

    fn all(self) -> impl Iterator<Item = (String, u16)> {
        Service::ALL
            .into_iter()
            .flat_map(move |service| {
                [
                    (format!("gRPC of {service}"), self.grpc(service)),
                    (format!("HTTP of {service}"), self.http(service)),
                ]
            })
            .chain([("admission".to_owned(), self.admission())])
    }

    fn taken(self) -> Option<(String, u16)> {
        self.all()
            .find(|(_, port)| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_err())
    }

    /// Waits until nobody listens on any of the ports: the services of a launcher that was killed a moment ago need
    /// that moment to end.
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

/// Free ports, and the listener that keeps other launchers away from them as long as it is held.
pub(super) fn reserve() -> anyhow::Result<(Ports, Option<TcpListener>)> {
    // Launchers that start together begin at different places and so seldom try the same base at the same time.
    let places = usize::from((CANDIDATES.end - CANDIDATES.start) / STRIDE);
    let first = usize::try_from(std::process::id()).unwrap_or_default() % places;
    CANDIDATES
        .step_by(usize::from(STRIDE))
        .take(places)
        .cycle()
        .skip(first)
        .take(places)
        .find_map(|base| {
            let ports = Ports::at(base);
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, base + RESERVATION)).ok()?;
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
    fn two_launchers_never_choose_the_same_ports() {
        let (first, _held) = reserve().unwrap();
        let (second, _also_held) = reserve().unwrap();
        assert_ne!(first, second);
    }

    #[tokio::test]
    async fn a_taken_port_is_named_with_its_use() {
        let (ports, _held) = reserve().unwrap();
        let _taken =
            TcpListener::bind((Ipv4Addr::LOCALHOST, ports.http(Service::Watcher))).unwrap();
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
