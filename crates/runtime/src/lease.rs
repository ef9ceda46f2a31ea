//! Leadership by Lease: of several replicas, one does the work that must not be done twice.
//!
//! A replica takes part with [`LeaseArgs::campaign`] and wraps its leading work in [`Leadership::lead`], which polls the
//! work only while the Lease is known to be held; a process that was paused over the end of its Lease finds out before it
//! acts again. A lost Lease ends the process with exit code 1. When the process stops, the work ends first, and then the
//! Lease is given up, so that another replica takes over at once.
//!
//! It needs the rights to `list`, `watch` and `update` the one Lease, and to `create` Leases.

mod campaign;
mod election;

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::Process;
use campaign::Campaign;
use election::Timing;

/// The flags of a service of which one replica leads, to be flattened into its own. Names and defaults are
/// controller-runtime's.
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
    pub lease_namespace: String,

    /// How long other replicas leave the Lease of a silent leader alone, in whole seconds like 15s
    #[arg(long = "leader-elect-lease-duration", env = "LEADER_ELECT_LEASE_DURATION",
        value_name = "DURATION", default_value = "15s", value_parser = parse_duration)]
    pub lease_duration: Duration,

    /// How long a leader goes on without having renewed its Lease, like 10s; it renews twice as often. Shorter than the
    /// duration
    #[arg(long = "leader-elect-renew-deadline", env = "LEADER_ELECT_RENEW_DEADLINE",
        value_name = "DURATION", default_value = "10s", value_parser = parse_duration)]
    pub renew_deadline: Duration,

    /// How long to wait after a failed attempt to acquire or renew the Lease, like 2s. At most half of the deadline
    #[arg(long = "leader-elect-retry-period", env = "LEADER_ELECT_RETRY_PERIOD",
        value_name = "DURATION", default_value = "2s", value_parser = parse_duration)]
    pub retry_period: Duration,
}

/// A Lease that was held is held no longer, and nothing may be done under it.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("lost Lease {lease}: {reason}")]
pub struct LostLease {
    /// Name of the Lease.
    pub lease: String,
    /// How it was lost.
    pub reason: String,
}

/// The part of this process in an election; clones share it.
#[derive(Clone, Debug)]
pub struct Leadership {
    lease: &'static str,
    state: watch::Receiver<State>,
    /// The leading work: the Lease is given up once all of it has ended.
    work: TaskTracker,
    shutdown: CancellationToken,
}

#[derive(Clone, Debug)]
enum State {
    /// Somebody else leads, or nobody.
    Waiting,
    /// This process leads until then, unless it renews its Lease.
    Held { until: Instant },
    /// It does not lead any more, and never will again.
    Lost(LostLease),
    /// It has given the Lease up.
    Released,
}

impl LeaseArgs {
    /// Takes part in the election of the holder of Lease `name` for the life of the process, and shows by
    /// `coscheduler_leader{lease="<name>"}` whether this process leads.
    ///
    /// # Errors
    /// The durations do not fit together.
    pub fn campaign(
        &self,
        process: &Process,
        client: kube::Client,
        name: &'static str,
    ) -> anyhow::Result<Leadership> {
        let timing = self.timing()?;
        let api = Api::<Lease>::namespaced(client, &self.lease_namespace);
        let (campaign, leadership) =
            Campaign::new(api, name, campaign::identity()?, timing, process.shutdown());
        process.metrics().register(
            "leader",
            "Whether this process holds the Lease: 1 or 0",
            campaign::Gauge {
                lease: name,
                leadership: leadership.clone(),
            },
        );
        process.spawn_graceful(format!("Lease {name}"), |_| async {
            Ok(campaign.run().await?)
        });
        Ok(leadership)
    }

    fn timing(&self) -> anyhow::Result<Timing> {
        let Self {
            lease_namespace: _,
            lease_duration,
            renew_deadline,
            retry_period,
        } = self;
        ensure!(
            lease_duration.subsec_nanos() == 0,
            "--leader-elect-lease-duration is {lease_duration:?}; a Lease holds whole seconds"
        );
        ensure!(
            renew_deadline < lease_duration,
            "--leader-elect-renew-deadline is {renew_deadline:?}; it must be shorter than \
             --leader-elect-lease-duration, {lease_duration:?}"
        );
        ensure!(
            *retry_period <= *renew_deadline / 2,
            "--leader-elect-retry-period is {retry_period:?}; it must be at most half of \
             --leader-elect-renew-deadline, {renew_deadline:?}"
        );
        Ok(Timing {
            duration: *lease_duration,
            renew_deadline: *renew_deadline,
            retry_period: *retry_period,
        })
    }
}

impl Leadership {
    /// Whether this process leads at this moment.
    pub fn is_held(&self) -> bool {
        match *self.state.borrow() {
            State::Held { until } => Instant::now() < until,
            State::Waiting | State::Lost(_) | State::Released => false,
        }
    }

    /// Waits until this process leads, then polls `work` to its end as long as it does. `None` where the process began to
    /// stop before it led. The Lease is renewed until all such work has ended, so work has to end by itself when the
    /// process stops.
    ///
    /// # Errors
    /// The Lease was lost before the work had ended. It is not polled again then.
    pub async fn lead<T>(&self, work: impl Future<Output = T>) -> Result<Option<T>, LostLease> {
        let _held_back = self.work.token();
        let mut state = self.state.clone();
        tokio::select! {
            biased;
            () = self.shutdown.cancelled() => return Ok(None),
            _ = state.wait_for(|state| !matches!(state, State::Waiting)) => {}
        }
        let mut lost = pin!(state.wait_for(|state| !matches!(state, State::Held { .. })));
        let mut work = pin!(work);
        let outcome = poll_fn(|context| {
            // Asked on every poll, so that nothing is done after a pause before this was asked.
            if lost.as_mut().poll(context).is_ready() || !self.is_held() {
                return Poll::Ready(None);
            }
            work.as_mut().poll(context).map(Some)
        })
        .await;
        outcome.map_or_else(|| self.over(), |outcome| Ok(Some(outcome)))
    }

    /// Why no work is done any more.
    fn over<T>(&self) -> Result<Option<T>, LostLease> {
        match &*self.state.borrow() {
            State::Lost(lost) => Err(lost.clone()),
            // This was noticed before the campaign itself has.
            State::Held { .. } => Err(LostLease {
                lease: self.lease.to_owned(),
                reason: "it could not be renewed in time".to_owned(),
            }),
            State::Waiting | State::Released => Ok(None),
        }
    }
}

/// Reads a duration above zero, like `15s`.
///
/// # Errors
///
/// What is expected instead.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let duration: jiff::SignedDuration = text
        .parse()
        .map_err(|error| format!("expected a duration like 15s: {error}"))?;
    Duration::try_from(duration)
        .ok()
        .filter(|duration| !duration.is_zero())
        .context("expected a duration above zero, like 15s")
        .map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests;
