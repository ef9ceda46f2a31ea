//! Observes leaders from outside: the changes of their Leases with the times in them, and the replicas' `/metrics`. All processes
//! of a test bed share one clock, so it does not matter how late a change is seen.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, bail};
use futures::StreamExt as _;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, ResourceExt as _};
use testbed::services::{NAMESPACE, Replica, Service, Services};
use tokio::task::JoinSet;

use crate::{Scene, metrics};

/// The services in which only one replica does the background work. The Lease of a service has the service's name.
pub const LED: [Service; 2] = [Service::PlaceholderManager, Service::Watcher];

/// How long an election may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Observes the Leases, and the replicas that report that they lead. [`Scene::observe_leaders`] starts it.
#[derive(Debug)]
pub struct Observer {
    seen: Arc<Mutex<Seen>>,
    _tasks: JoinSet<()>,
}

#[derive(Debug, Default)]
struct Seen {
    leases: BTreeMap<String, Known>,
    leaders: BTreeSet<Replica>,
    handovers: usize,
    violations: Vec<String>,
}

/// The last seen state of a Lease.
#[derive(Debug)]
struct Known {
    holder: String,
    version: Option<String>,
    renewed: Option<MicroTime>,
    duration: Duration,
}

impl Observer {
    /// Returns how often a Lease got another holder, and the replicas that have led so far.
    ///
    /// # Errors
    ///
    /// Two replicas led at the same time, or a Lease got another holder before its holder had released it or its duration had
    /// passed. The error lists all these cases.
    pub fn verdict(&self) -> anyhow::Result<(usize, BTreeSet<Replica>)> {
        let seen = lock(&self.seen);
        if !seen.violations.is_empty() {
            bail!("{}", seen.violations.join("\n"));
        }
        Ok((seen.handovers, seen.leaders.clone()))
    }
}

impl Scene<'_> {
    /// Starts to observe the Leases and the leaders.
    pub fn observe_leaders(&self) -> Observer {
        let seen = Arc::<Mutex<Seen>>::default();
        let mut tasks = JoinSet::new();
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), NAMESPACE);
        tasks.spawn(follow(leases, Arc::clone(&seen)));
        for service in LED {
            let services = &self.stack.services;
            let replicas = services
                .replicas(service)
                .map(|replica| (replica, services.http_address(replica)))
                .collect();
            tasks.spawn(compare(replicas, Arc::clone(&seen)));
        }
        Observer {
            seen,
            _tasks: tasks,
        }
    }

    /// Waits until a replica of `service` leads, and returns this replica.
    ///
    /// # Errors
    ///
    /// No replica leads in time.
    pub async fn leader(&self, service: Service) -> anyhow::Result<Replica> {
        self.leader_among(self.stack.services.replicas(service))
            .await
            .with_context(|| format!("no {service} leads"))
    }

    /// Waits until one of `replicas` leads, and returns this replica.
    ///
    /// # Errors
    ///
    /// No replica leads in time.
    pub async fn leader_among(
        &self,
        replicas: impl Iterator<Item = Replica> + Clone,
    ) -> anyhow::Result<Replica> {
        let leading = async {
            loop {
                for replica in replicas.clone() {
                    if leads(&self.stack.services, replica).await {
                        return replica;
                    }
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        Ok(tokio::time::timeout(PATIENCE, leading).await?)
    }
}

/// True if a replica reports that it leads.
pub async fn leads(services: &Services, replica: Replica) -> bool {
    says_it_leads(&services.http_address(replica), replica).await
}

async fn says_it_leads(address: &str, replica: Replica) -> bool {
    let asked = tokio::time::timeout(Duration::from_secs(1), metrics::scrape(address));
    let lease = [("lease", replica.service().name())];
    match asked.await {
        Ok(Ok(metrics)) => metrics::sum(&metrics, "coscheduler_leader", &lease) > 0.0,
        Ok(Err(_)) | Err(_) => false,
    }
}

/// Follows the Leases, and checks every change of a holder.
async fn follow(leases: Api<Lease>, seen: Arc<Mutex<Seen>>) {
    let events = watcher(leases, watcher::Config::default()).default_backoff();
    let mut leases = pin!(events.applied_objects());
    while let Some(lease) = leases.next().await {
        if let Ok(lease) = lease {
            lock(&seen).lease(&lease);
        }
    }
}

impl Seen {
    fn lease(&mut self, lease: &Lease) {
        let name = lease.name_any();
        let spec = lease.spec.clone().unwrap_or_default();
        let seconds = spec.lease_duration_seconds.unwrap_or_default();
        let is = Known {
            holder: spec.holder_identity.unwrap_or_default(),
            version: lease.resource_version(),
            renewed: spec.renew_time,
            duration: Duration::from_secs(seconds.unsigned_abs().into()),
        };
        if let Some(was) = self.leases.get(&name) {
            if was.version == is.version {
                return;
            }
            let taken = !was.holder.is_empty() && !is.holder.is_empty() && was.holder != is.holder;
            let left_alone = match (&was.renewed, &spec.acquire_time) {
                (Some(renewed), Some(acquired)) => {
                    Duration::try_from(acquired.0.duration_since(renewed.0)).unwrap_or_default()
                }
                _ => Duration::ZERO,
            };
            if taken && left_alone < was.duration {
                self.violations.push(format!(
                    "{} took Lease {name} from {} {left_alone:?} after its last renewal, which was for {:?}",
                    is.holder, was.holder, was.duration
                ));
            }
            self.handovers += usize::from(was.holder != is.holder && !is.holder.is_empty());
        }
        self.leases.insert(name, is);
    }
}

/// Asks the replicas of one service in turn if they lead. If replica A says yes, then replica B, and then A again, both led at
/// the same time.
async fn compare(replicas: Vec<(Replica, String)>, seen: Arc<Mutex<Seen>>) {
    let mut leading: Option<Replica> = None;
    loop {
        for (replica, address) in &replicas {
            if !says_it_leads(address, *replica).await {
                if leading == Some(*replica) {
                    leading = None;
                }
                continue;
            }
            lock(&seen).leaders.insert(*replica);
            let Some(other) = leading.replace(*replica).filter(|other| other != replica) else {
                continue;
            };
            let Some((_, address)) = replicas.iter().find(|(replica, _)| *replica == other) else {
                continue;
            };
            if says_it_leads(address, other).await {
                let violation = format!("{other} and {replica} led at once");
                lock(&seen).violations.push(violation);
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn lock(seen: &Mutex<Seen>) -> std::sync::MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use serde_json::json;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    /// Checks the number of violations in a history of a Lease with a duration of 15 s. Each entry of the history is a write:
    /// the second in which it happened, and the holder that it names.
    #[track_caller]
    fn check(history: &[(u64, &str)], violations: usize) {
        let mut seen = Seen::default();
        for (version, (second, holder)) in history.iter().enumerate() {
            let time = format!("2026-01-01T00:00:{second:02}.000000Z");
            let lease = serde_json::from_value(json!({
                "metadata": {"name": "watcher", "resourceVersion": version.to_string()},
                "spec": {
                    "holderIdentity": holder, "leaseDurationSeconds": 15, "acquireTime": time, "renewTime": time,
                },
            }));
            seen.lease(&lease.unwrap());
        }
        assert_eq!(seen.violations.len(), violations, "{:?}", seen.violations);
    }

    #[test]
    fn a_lease_changes_hands_when_it_was_released_or_has_run_out() {
        check(&[(0, "a"), (5, "a"), (10, "a")], 0);
        check(&[(0, "a"), (5, ""), (6, "b")], 0);
        check(&[(0, "a"), (5, "a"), (20, "b")], 0);
        check(&[(0, "a"), (10, "a"), (20, "b")], 1);
        check(&[(0, "a"), (1, "b"), (2, "a")], 2);
    }

    /// Lets `compare` ask two watchers 20 times if they lead. Returns how many of them led, and how often both led at the same
    /// time. `leads` gets the number of the watcher and the number of earlier questions.
    async fn compared(leads: fn(u16, usize) -> bool) -> (usize, usize) {
        let seen = Arc::<Mutex<Seen>>::default();
        let questions = Arc::<AtomicUsize>::default();
        let mut tasks = JoinSet::new();
        let mut replicas = Vec::new();
        for number in [1, 2] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = format!("http://{}", listener.local_addr().unwrap());
            replicas.push((Service::Watcher.replica(number), address));
            let questions = Arc::clone(&questions);
            tasks.spawn(async move {
                loop {
                    let (mut stream, _) = listener.accept().await.unwrap();
                    let _ = stream.read(&mut [0; 1024]).await;
                    let before = questions.fetch_add(1, Ordering::SeqCst);
                    let leads = i32::from(leads(number, before));
                    let metrics = format!("coscheduler_leader{{lease=\"watcher\"}} {leads}\n");
                    let head = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length:";
                    let answer = format!("{head} {}\r\n\r\n{metrics}", metrics.len());
                    let _ = stream.write_all(answer.as_bytes()).await;
                }
            });
        }
        tasks.spawn(compare(replicas, Arc::clone(&seen)));
        let asked = async {
            while questions.load(Ordering::SeqCst) < 20 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), asked)
            .await
            .unwrap();
        let seen = lock(&seen);
        (seen.leaders.len(), seen.violations.len())
    }

    #[tokio::test]
    async fn two_that_lead_at_once_are_told_from_two_that_lead_one_after_the_other() {
        let (leaders, violations) = compared(|_, _| true).await;
        assert!(leaders == 2 && violations > 0);
        // The hand-over is between a question to the first watcher and a question to the second one, or the other way round.
        let handed_over = compared(|number, before| (number == 1) == (before < 6)).await;
        assert_eq!(handed_over, (2, 0));
        let handed_over = compared(|number, before| (number == 1) == (before < 7)).await;
        assert_eq!(handed_over, (2, 0));
        assert_eq!(compared(|number, _| number == 2).await, (1, 0));
    }
}
