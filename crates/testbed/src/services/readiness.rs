//! Waits until `/readyz` of the services answers 200. If a service ends meanwhile, the wait fails at once.

use std::collections::BTreeSet;
use std::time::Duration;

use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use kube::client::Body;
use tokio::time::{Instant, sleep, timeout};

use super::{Ports, Replica};

/// The time between two probes of a service that is not ready yet.
const PERIOD: Duration = Duration::from_millis(100);
/// The time limit of one probe.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Probes the readiness of processes.
#[derive(Clone, Debug)]
pub(super) struct Probe(Client<HttpConnector, Body>);

impl Default for Probe {
    fn default() -> Self {
        Self(Client::builder(TokioExecutor::new()).build_http())
    }
}

/// Probes the processes in `wanted` until each has answered 200, `check` fails, or `limit` has passed. Returns the processes
/// that were not ready.
pub(super) async fn wait(
    wanted: &BTreeSet<Replica>,
    ports: Ports,
    limit: Duration,
    check: impl Fn() -> anyhow::Result<()>,
) -> anyhow::Result<Vec<Replica>> {
    let probe = Probe::default();
    let deadline = Instant::now() + limit;
    let mut missing: Vec<Replica> = wanted.iter().copied().collect();
    loop {
        check()?;
        let mut still = Vec::new();
        for replica in missing {
            if !probe.ready(ports.http(replica)).await {
                still.push(replica);
            }
        }
        missing = still;
        if missing.is_empty() || Instant::now() >= deadline {
            return Ok(missing);
        }
        sleep(PERIOD).await;
    }
}

impl Probe {
    /// True if `/readyz` at this port answers 200 in time.
    pub(super) async fn ready(&self, port: u16) -> bool {
        let url = format!("http://127.0.0.1:{port}/readyz");
        let Ok(request) = http::Request::get(url).body(Body::empty()) else {
            return false;
        };
        matches!(timeout(TIMEOUT, self.0.request(request)).await, Ok(Ok(answer)) if answer.status() == http::StatusCode::OK)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::super::Service;
    use super::*;

    /// A service that first answers 503 `refusals` times, and then always 200.
    async fn serve(port: u16, refusals: usize) -> Arc<AtomicUsize> {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", port))
            .await
            .unwrap();
        let asked = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&asked);
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut buffer = [0; 1024];
                let _ = stream.read(&mut buffer).await.unwrap();
                let status = if counter.fetch_add(1, Ordering::SeqCst) < refusals {
                    "503 Busy"
                } else {
                    "200 OK"
                };
                let answer =
                    format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        asked
    }

    #[tokio::test]
    async fn waits_until_the_last_one_says_200() {
        let (ports, _held) = super::super::ports::reserve(1).unwrap();
        let wanted =
            BTreeSet::from([Service::Watcher, Service::AffinityPlanner].map(Replica::from));
        serve(ports.http(Service::Watcher), 0).await;
        let asked = serve(ports.http(Service::AffinityPlanner), 2).await;
        let missing = wait(&wanted, ports, Duration::from_secs(20), || Ok(()))
            .await
            .unwrap();
        assert_eq!(missing, []);
        assert_eq!(asked.load(Ordering::SeqCst), 3);
    }

    #[tokio::test]
    async fn names_those_that_never_were_ready() {
        let (ports, _held) = super::super::ports::reserve(1).unwrap();
        let wanted =
            BTreeSet::from([Service::Watcher, Service::AffinityPlanner].map(Replica::from));
        serve(ports.http(Service::Watcher), 0).await;
        let missing = wait(&wanted, ports, Duration::ZERO, || Ok(()))
            .await
            .unwrap();
        assert_eq!(missing, [Service::AffinityPlanner.into()]);
    }

    #[tokio::test]
    async fn a_service_that_ended_is_not_waited_for() {
        let (ports, _held) = super::super::ports::reserve(1).unwrap();
        let wanted = BTreeSet::from([Service::Watcher.into()]);
        let error = wait(&wanted, ports, Duration::from_secs(3600), || {
            anyhow::bail!("watcher ended")
        })
        .await
        .unwrap_err();
        assert_eq!(error.to_string(), "watcher ended");
    }
}
