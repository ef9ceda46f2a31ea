//! The rim of an election: watches the Lease, carries out what [`Election`] says, and publishes whether this process
//! leads.

use std::fmt;
use std::time::Duration;

use anyhow::anyhow;
use backon::ExponentialBuilder;
use futures::stream::BoxStream;
use futures::{StreamExt as _, TryFutureExt as _};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::PostParams;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, ExponentialBackoff, watch_object};
use prometheus_client::encoding::{EncodeLabelSet, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

use super::election::{Act, Election, Timing};
use super::{Leadership, LostLease, State};

/// How long a watch that failed waits before it is tried again. Short: until then this replica cannot take over.
const FIRST_REWATCH: Duration = Duration::from_millis(200);
const LONGEST_REWATCH: Duration = Duration::from_secs(5);

/// A candidate at work.
pub(super) struct Campaign {
    api: Api<Lease>,
    name: &'static str,
    election: Election,
    /// How long giving the Lease up may take.
    patience: Duration,
    state: watch::Sender<State>,
    work: TaskTracker,
    shutdown: CancellationToken,
}

type Watch = BoxStream<'static, Result<Option<Lease>, watcher::Error>>;

impl Campaign {
    /// A candidate for Lease `name`, and what it tells the rest of the process.
    pub(super) fn new(
        api: Api<Lease>,
        name: &'static str,
        identity: String,
        timing: Timing,
        shutdown: CancellationToken,
    ) -> (Self, Leadership) {
        let (state, receiver) = watch::channel(State::Waiting);
        let leadership = Leadership {
            lease: name,
            state: receiver,
            work: TaskTracker::new(),
            shutdown: shutdown.clone(),
        };
        let campaign = Self {
            api,
            name,
            election: Election::new(name, identity, timing, Instant::now()),
            patience: timing.renew_deadline / 2,
            state,
            work: leadership.work.clone(),
            shutdown,
        };
        (campaign, leadership)
    }

    /// Takes part until the process stops and its leading work has ended.
    ///
    /// # Errors
    /// The Lease was held, and is lost.
    pub(super) async fn run(mut self) -> Result<(), LostLease> {
        let shutdown = self.shutdown.clone();
        let work = self.work.clone();
        let mut watch = self.watch();
        let mut stopping = false;
        let mut resigned: Option<Instant> = None;
        loop {
            let until = match self.election.next(Instant::now()) {
                Act::Wait(until) => until,
                Act::Look => {
                    self.election.looks(Instant::now());
                    watch = self.watch();
                    continue;
                }
                Act::Create(lease) => {
                    if self.write(Write::Create, lease).await {
                        watch = self.watch();
                    }
                    continue;
                }
                Act::Update(lease) => {
                    if self.write(Write::Update, lease).await {
                        watch = self.watch();
                    }
                    continue;
                }
                Act::Lost(lost) => {
                    self.state.send_replace(State::Lost(lost.clone()));
                    return Err(lost);
                }
                Act::Done => {
                    info!(lease = self.name, "gave the Lease up");
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
                () = shutdown.cancelled(), if !stopping => {
                    stopping = true;
                    work.close();
                }
                () = work.wait(), if stopping && resigned.is_none() => {
                    if self.election.held_until().is_none() {
                        return Ok(());
                    }
                    self.election.resign();
                    self.state.send_replace(State::Released);
                    resigned = Some(Instant::now() + self.patience);
                }
                () = sleep_until(resigned.unwrap_or_else(Instant::now)), if resigned.is_some() => {
                    warn!(lease = self.name, "failed to give the Lease up; it runs out by itself");
                    return Ok(());
                }
            }
        }
    }

    /// Sends a write, and takes in what came of it. True where the Lease has to be looked at again.
    async fn write(&mut self, write: Write, lease: Lease) -> bool {
        let sent = Instant::now();
        let params = PostParams::default();
        let request = async {
            match write {
                Write::Create => self.api.create(&params, &lease).await,
                Write::Update => self.api.replace(self.name, &params, &lease).await,
            }
        };
        let answer = tokio::time::timeout(self.election.patience(sent), request)
            .map_err(|_| kube::Error::Service(anyhow!("no answer in time").into()))
            .await;
        match answer.and_then(|answer| answer) {
            Ok(lease) => {
                match write {
                    Write::Create => self.election.created(lease, sent, Instant::now()),
                    Write::Update => self.election.updated(lease, sent, Instant::now()),
                }
                self.publish();
                false
            }
            Err(error) => {
                // Somebody else was quicker to create, change or delete it.
                let conflict = match (&error, write) {
                    (kube::Error::Api(status), Write::Create) => status.code == 409,
                    (kube::Error::Api(status), Write::Update) => matches!(status.code, 404 | 409),
                    (_, Write::Create | Write::Update) => false,
                };
                if !conflict {
                    warn!(lease = self.name, %error, "failed to write the Lease, will try again");
                }
                self.election.failed(conflict, sent, Instant::now());
                conflict
            }
        }
    }

    fn publish(&self) {
        let Some(until) = self.election.held_until() else {
            return;
        };
        let before = self.state.send_replace(State::Held { until });
        if matches!(before, State::Waiting) {
            info!(lease = self.name, "leads from now on");
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

#[derive(Clone, Copy)]
enum Write {
    Create,
    Update,
}

/// A name that no other process has had or will have: the host's, and 64 random bits.
///
/// # Errors
/// The system gives no random numbers.
pub(super) fn identity() -> anyhow::Result<String> {
    let mut random = [0; 8];
    rustls::crypto::ring::default_provider()
        .secure_random
        .fill(&mut random)
        .map_err(|_| anyhow!("failed to get random numbers for this process's identity"))?;
    let host = rustix::system::uname();
    Ok(format!(
        "{}_{:016x}",
        host.nodename().to_string_lossy(),
        u64::from_be_bytes(random)
    ))
}

/// Whether this process leads, asked at the moment it is shown: a process that was paused never shows a Lease that has
/// run out meanwhile.
#[derive(Clone, Debug)]
pub(super) struct Gauge {
    pub(super) lease: &'static str,
    pub(super) leadership: Leadership,
}

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct LeaseLabel {
    lease: &'static str,
}

impl EncodeMetric for Gauge {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), fmt::Error> {
        let held = i64::from(self.leadership.is_held());
        let label = LeaseLabel { lease: self.lease };
        encoder.encode_family(&label)?.encode_gauge(&held)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Gauge
    }
}
