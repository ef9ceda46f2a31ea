//! The I/O of an election: watches the Lease, carries out the acts of [`Election`], and publishes whether this process
//! leads.

use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use anyhow::anyhow;
use backon::ExponentialBuilder;
use futures::stream::BoxStream;
use futures::{StreamExt as _, stream};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::PostParams;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, ExponentialBackoff, watch_object};
use prometheus_client::encoding::{EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

use super::election::{Act, Election};
use super::{Leadership, LostLease, State, Timing};

/// The first and longest backoff of a failed watch. Short: without a watch this replica cannot take over.
const FIRST_REWATCH: Duration = Duration::from_millis(200);
const LONGEST_REWATCH: Duration = Duration::from_secs(5);

/// A candidate at work.
pub(super) struct Campaign {
    api: Api<Lease>,
    name: &'static str,
    election: Election,
    state: watch::Sender<State>,
    work: TaskTracker,
    shutdown: CancellationToken,
}

type Watch = BoxStream<'static, Result<Option<Lease>, watcher::Error>>;

impl Campaign {
    /// A candidate for Lease `name`, and its view for the rest of the process.
    pub(super) fn new(
        api: Api<Lease>,
        name: &'static str,
        identity: String,
        timing: Timing,
        shutdown: CancellationToken,
    ) -> (Self, Leadership) {
        let (state, receiver) = watch::channel(State::Waiting);
        let work = TaskTracker::new();
        let leadership = Leadership {
            lease: name,
            state: receiver,
            work: work.clone(),
            shutdown: shutdown.clone(),
        };
        let campaign = Self {
            api,
            name,
            election: Election::new(name, identity, timing, Instant::now()),
            state,
            work,
            shutdown,
        };
        (campaign, leadership)
    }

    /// Takes part until the process stops and the work of the leader has ended.
    ///
    /// # Errors
    /// The Lease was held, and is lost.
    pub(super) async fn run(mut self) -> Result<(), LostLease> {
        let (shutdown, work) = (self.shutdown.clone(), self.work.clone());
        let mut watch: Watch = stream::pending().boxed();
        loop {
            let until = match self.election.next(Instant::now()) {
                Act::Wait(until) => until,
                Act::Look => {
                    self.election.looks(Instant::now());
                    watch = self.watch();
                    continue;
                }
                Act::Write(lease) => {
                    self.write(*lease).await;
                    continue;
                }
                Act::Lost(lost) => {
                    self.state.send_replace(State::Lost(lost.clone()));
                    return Err(lost);
                }
                Act::Released => {
                    info!(lease = self.name, "released the Lease");
                    return Ok(());
                }
                Act::GiveUp => {
                    warn!(
                        lease = self.name,
                        "failed to release the Lease; it will expire"
                    );
                    return Ok(());
                }
            };
            tokio::select! {
                event = watch.next() => match event {
                    Some(Ok(lease)) => self.election.observe(lease, Instant::now()),
                    Some(Err(error)) => {
                        warn!(lease = self.name, %error, "watch of the Lease failed, will be resumed");
                    }
                    None => watch = self.watch(),
                },
                () = sleep_until(until) => {}
                () = shutdown.cancelled(), if !work.is_closed() => {
                    work.close();
                }
                () = work.wait(), if work.is_closed() && !self.election.is_resigning() => {
                    if self.election.held_until().is_none() {
                        return Ok(());
                    }
                    self.election.resign(Instant::now());
                    self.state.send_replace(State::Released);
                }
            }
        }
    }

    /// Creates the Lease, or replaces it from the version in `lease`.
    async fn write(&mut self, lease: Lease) {
        let sent = Instant::now();
        let creates = lease.metadata.resource_version.is_none();
        let params = PostParams::default();
        let request = async {
            if creates {
                self.api.create(&params, &lease).await
            } else {
                self.api.replace(self.name, &params, &lease).await
            }
        };
        let answer = tokio::time::timeout(self.election.write_timeout(sent), request).await;
        let error = match answer {
            Ok(Ok(lease)) => {
                self.election.wrote(lease, creates, sent, Instant::now());
                return self.publish();
            }
            Ok(Err(error)) => anyhow!(error),
            Err(_) => anyhow!("no answer in time"),
        };
        // Another client was quicker to create, change or delete it.
        let conflict = matches!(
            error.downcast_ref(),
            Some(kube::Error::Api(status))
                if status.code == 409 || status.code == 404 && !creates
        );
        if !conflict {
            warn!(lease = self.name, %error, "failed to write the Lease, will retry");
        }
        self.election.failed(conflict, sent, Instant::now());
    }

    fn publish(&self) {
        let Some(until) = self.election.held_until() else {
            return;
        };
        let before = self.state.send_replace(State::Held { until });
        if matches!(before, State::Waiting) {
            info!(lease = self.name, "acquired the Lease");
        }
    }

    fn watch(&self) -> Watch {
        let backoff = ExponentialBuilder::default()
            .with_min_delay(FIRST_REWATCH)
            .with_max_delay(LONGEST_REWATCH)
            .with_jitter()
            .without_max_times();
        watch_object(self.api.clone(), self.name)
            .backoff(ExponentialBackoff::from(backoff))
            .boxed()
    }
}

/// A unique name for this process: that of its host, and 64 random bits.
pub(super) fn identity() -> String {
    let random = RandomState::new().hash_one(());
    let host = rustix::system::uname();
    format!("{}_{random:016x}", host.nodename().to_string_lossy())
}

/// Whether this process leads at the moment of the scrape, so that a process that was suspended never shows a Lease that
/// has expired.
#[derive(Clone, Debug)]
pub(super) struct Gauge(pub(super) Leadership);

impl EncodeMetric for Gauge {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), fmt::Error> {
        let held = i64::from(self.0.is_held());
        let labels = [("lease", self.0.lease)];
        encoder.encode_family(&labels)?.encode_gauge(&held)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Gauge
    }
}
