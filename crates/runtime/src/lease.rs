//! Leader election by Lease: of several replicas, one does the background work.
//!
//! A replica takes part with [`LeaseArgs::campaign`] and wraps its work in [`Leadership::lead`], which checks the Lease before
//! each poll of the work. So a process whose Lease expired while it was suspended does not act again. If a leader loses its
//! Lease, its process ends with exit code 1. When a process stops, the work ends first. Then the process releases the Lease, so
//! that another replica takes over at once.
//!
//! A service needs the rights to `list`, `watch` and `update` its Lease, and to `create` Leases.

mod campaign;
mod election;

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use anyhow::ensure;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::Process;
use campaign::Campaign;

/// The reason in [`LostLease`] if the renew deadline passed without a renewal.
const NOT_RENEWED: &str = "it could not be renewed in time";

/// The flags of a service with leader election. The service flattens them into its own flags. The names, and the defaults of
/// the durations, are those of kube-controller-manager.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Leader election")]
pub struct LeaseArgs {
    /// Namespace of the Lease
    #[arg(
        long = "leader-elect-resource-namespace",
        env = "LEADER_ELECT_RESOURCE_NAMESPACE",
        value_name = "NAMESPACE",
        default_value = "coscheduler-system"
    )]
    lease_namespace: String,

    #[command(flatten)]
    timing: Timing,
}

/// How long a Lease is valid, and how often it is renewed.
#[derive(Clone, Copy, Debug, clap::Args)]
#[command(next_help_heading = "Leader election")]
struct Timing {
    /// How long other replicas respect a Lease that is not renewed, in whole seconds like 15s
    #[arg(long = "leader-elect-lease-duration", env = "LEADER_ELECT_LEASE_DURATION",
        value_name = "DURATION", default_value = "15s", value_parser = parse_duration)]
    lease_duration: Duration,

    /// How long a leader continues after it last renewed its Lease, like 10s. It renews the Lease after half of this time. Must
    /// be shorter than the lease duration
    #[arg(long = "leader-elect-renew-deadline", env = "LEADER_ELECT_RENEW_DEADLINE",
        value_name = "DURATION", default_value = "10s", value_parser = parse_duration)]
    renew_deadline: Duration,

    /// How long to wait after a failed attempt to acquire or renew the Lease, like 2s. Must be at most half of the renew
    /// deadline
    #[arg(long = "leader-elect-retry-period", env = "LEADER_ELECT_RETRY_PERIOD",
        value_name = "DURATION", default_value = "2s", value_parser = parse_duration)]
    retry_period: Duration,
}

/// This process held the Lease and lost it. It must not act as the leader any more.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("lost Lease {lease}: {reason}")]
pub struct LostLease {
    /// Name of the Lease.
    pub lease: String,
    /// The reason for the loss.
    pub reason: String,
}

/// The leadership of this process; clones share it.
#[derive(Clone, Debug)]
pub struct Leadership {
    lease: &'static str,
    state: watch::Receiver<State>,
    /// The work of the leader. The Lease is released when all work has ended.
    work: TaskTracker,
    shutdown: CancellationToken,
}

#[derive(Clone, Debug)]
enum State {
    /// This process has not led yet.
    Waiting,
    /// This process leads until this time. Each renewal of the Lease moves the time.
    Held { until: Instant },
    /// This process lost the Lease, and never leads again.
    Lost(LostLease),
    /// This process released the Lease.
    Released,
}

impl LeaseArgs {
    /// Takes part in the election for Lease `name` for the life of the process. Metric
    /// `coscheduler_leader{lease="<name>"}` shows whether this process leads.
    ///
    /// # Errors
    /// A duration is not allowed, for example because the renew deadline is longer than the lease duration.
    pub fn campaign(
        &self,
        process: &Process,
        client: kube::Client,
        name: &'static str,
    ) -> anyhow::Result<Leadership> {
        let timing = self.timing.checked()?;
        let api = Api::<Lease>::namespaced(client, &self.lease_namespace);
        let (campaign, leadership) =
            Campaign::new(api, name, campaign::identity(), timing, process.shutdown());
        let leader = campaign::Gauge(leadership.clone());
        let help = "1 while this process holds the Lease, else 0";
        process.metrics().register("leader", help, leader);
        process.spawn_graceful(format!("Lease {name}"), |_| async {
            Ok(campaign.run().await?)
        });
        Ok(leadership)
    }
}

impl Timing {
    fn checked(self) -> anyhow::Result<Self> {
        let Self {
            lease_duration,
            renew_deadline,
            retry_period,
        } = self;
        ensure!(
            lease_duration.subsec_nanos() == 0,
            "--leader-elect-lease-duration is {lease_duration:?}; it must be whole seconds"
        );
        ensure!(
            renew_deadline < lease_duration,
            "--leader-elect-renew-deadline is {renew_deadline:?}; it must be shorter than \
             --leader-elect-lease-duration, {lease_duration:?}"
        );
        ensure!(
            retry_period <= renew_deadline / 2,
            "--leader-elect-retry-period is {retry_period:?}; it must be at most half of \
             --leader-elect-renew-deadline, {renew_deadline:?}"
        );
        Ok(self)
    }
}

impl Leadership {
    /// True while this process leads.
    pub fn is_held(&self) -> bool {
        matches!(*self.state.borrow(), State::Held { until } if Instant::now() < until)
    }

    /// Waits until this process leads, then polls `work` until it ends or the Lease is lost. Returns `None` if the process
    /// began to stop before it led. The Lease is renewed until the work of all calls of this function has ended, so `work` must
    /// end by itself when the process stops.
    ///
    /// # Errors
    /// The Lease was lost before the work ended. The work is then not polled again.
    pub async fn lead<T>(&self, work: impl Future<Output = T>) -> Result<Option<T>, LostLease> {
        let _keeps_the_lease = self.work.token();
        let mut state = self.state.clone();
        tokio::select! {
            biased;
            () = self.shutdown.cancelled() => return Ok(None),
            _ = state.wait_for(|state| !matches!(state, State::Waiting)) => {}
        }
        let mut lost = pin!(state.wait_for(|state| !matches!(state, State::Held { .. })));
        let mut work = pin!(work);
        let outcome = poll_fn(|context| {
            // Each poll checks the Lease first, because the process may have been suspended before this poll.
            if lost.as_mut().poll(context).is_ready() || !self.is_held() {
                return Poll::Ready(None);
            }
            work.as_mut().poll(context).map(Some)
        })
        .await;
        if outcome.is_some() {
            return Ok(outcome);
        }
        match &*self.state.borrow() {
            State::Lost(lost) => Err(lost.clone()),
            // The Lease expired a moment ago, and the campaign has not noticed this yet.
            State::Held { .. } => Err(LostLease {
                lease: self.lease.to_owned(),
                reason: NOT_RENEWED.to_owned(),
            }),
            State::Waiting | State::Released => Ok(None),
        }
    }
}

/// Parses a duration above zero, like `15s`.
///
/// # Errors
/// `text` is not a duration above zero.
fn parse_duration(text: &str) -> Result<Duration, String> {
    match crate::args::parse_duration(text)? {
        Duration::ZERO => Err("expected a duration above zero, like 15s".to_owned()),
        duration => Ok(duration),
    }
}

#[cfg(test)]
mod tests;
