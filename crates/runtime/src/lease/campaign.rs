//! The requests of an election: watches the Lease, carries out the acts of [`Election`], and publishes whether this process
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

/// The first and the longest backoff of a failed watch. They are short, because this replica cannot take over without a watch.
const FIRST_REWATCH: Duration = Duration::from_millis(200);
const LONGEST_REWATCH: Duration = Duration::from_secs(5);

/// A candidate for a Lease. It watches and writes the Lease.
pub(super) struct Campaign {
    api: Api<Lease>,
    election: Election,
    state: watch::Sender<State>,
    leadership: Leadership,
}

type Watch = BoxStream<'static, Result<Option<Lease>, watcher::Error>>;

impl Campaign {
    /// A candidate for Lease `lease`, and the handle that shows whether it leads.
    pub(super) fn new(
        api: Api<Lease>,
        lease: &'static str,
        identity: String,
        timing: Timing,
        shutdown: CancellationToken,
    ) -> (Self, Leadership) {
        let (state, receiver) = watch::channel(State::Waiting);
        let leadership = Leadership {
            lease,
            state: receiver,
            work: TaskTracker::new(),
            shutdown,
        };
        let campaign = Self {
            api,
            election: Election::new(lease, identity, timing, Instant::now()),
            state,
            leadership: leadership.clone(),
        };
        (campaign, leadership)
    }

    /// Takes part in the election until the process stops. If this process leads at that time, this function first waits until
    /// the leader's work has ended, and then tries to release the Lease.
    ///
    /// # Errors
    /// This process held the Lease and lost it.
    pub(super) async fn run(mut self) -> Result<(), LostLease> {
        let Leadership {
            lease,
            work,
            shutdown,
            state: _,
        } = self.leadership.clone();
        let mut watch: Watch = stream::pending().boxed();
        loop {
            let until = match self.election.next(Instant::now()) {
                Act::Wait(until) => until,
                Act::Look => {
                    self.election.looks(Instant::now());
                    watch = self.watch();
                    continue;
                }
                Act::Write(next) => {
                    self.write(*next).await;
                    continue;
                }
                Act::Lost(lost) => {
                    self.state.send_replace(State::Lost(lost.clone()));
                    return Err(lost);
                }
                Act::Released => {
                    info!(lease, "released the Lease");
                    return Ok(());
                }
                Act::GiveUp => {
                    warn!(lease, "failed to release the Lease; it will expire");
                    return Ok(());
                }
            };
            tokio::select! {
                event = watch.next() => match event {
                    Some(Ok(seen)) => self.election.observe(seen, Instant::now()),
                    Some(Err(error)) => {
                        warn!(lease, %error, "watch of the Lease failed, will be resumed");
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

    /// Creates the Lease if `lease` has no version. Otherwise, replaces exactly this version of it.
    async fn write(&mut self, lease: Lease) {
        let sent = Instant::now();
        let creates = lease.metadata.resource_version.is_none();
        let params = PostParams::default();
        let request = async {
            if creates {
                self.api.create(&params, &lease).await
            } else {
                self.api
                    .replace(self.leadership.lease, &params, &lease)
                    .await
            }
        };
        let timeout = self.election.write_timeout(sent);
        let error = match tokio::time::timeout(timeout, request).await {
            Ok(Ok(lease)) => {
                self.election.wrote(lease, creates, sent, Instant::now());
                return self.publish();
            }
            Ok(Err(error)) => anyhow!(error),
            Err(_) => anyhow!("no answer in time"),
        };
        // A conflict: another client created, changed or deleted the Lease first.
        let conflict = matches!(
            error.downcast_ref(),
            Some(kube::Error::Api(status))
                if status.code == 409 || status.code == 404 && !creates
        );
        if !conflict {
            warn!(lease = self.leadership.lease, %error, "failed to write the Lease, will retry");
        }
        self.election.failed(conflict, sent, Instant::now());
    }

    fn publish(&self) {
        let Some(until) = self.election.held_until() else {
            return;
        };
        let before = self.state.send_replace(State::Held { until });
        if matches!(before, State::Waiting) {
            info!(lease = self.leadership.lease, "acquired the Lease");
        }
    }

    fn watch(&self) -> Watch {
        let backoff = ExponentialBuilder::default()
            .with_min_delay(FIRST_REWATCH)
            .with_max_delay(LONGEST_REWATCH)
            .with_jitter()
            .without_max_times();
        watch_object(self.api.clone(), self.leadership.lease)
            .backoff(ExponentialBackoff::from(backoff))
            .boxed()
    }
}

/// A unique name for this process: the host name and 64 random bits.
pub(super) fn identity() -> String {
    let random = RandomState::new().hash_one(());
    let host = rustix::system::uname();
    format!("{}_{random:016x}", host.nodename().to_string_lossy())
}

/// A gauge that is computed at each scrape: 1 if this process leads at this moment, otherwise 0. So a process that was
/// suspended never reports an expired Lease as held.
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
