//! Decides the next act of one candidate in an election. It is a state machine without I/O, and no decision reads a clock, so
//! that tests can try many schedules.
//!
//! Two rules prevent two candidates from leading at the same time:
//!
//! - A candidate takes over a Lease only if the Lease has no holder, or if the Lease has not changed for a certain duration. The
//!   holder has written this duration into the Lease. The candidate measures it with its own clock. The update fails if the
//!   Lease has changed since the candidate read it.
//! - A holder trusts its Lease for a shorter time than this duration. The time starts just before the holder sends a write that
//!   the API server then confirms.
//!
//! A candidate that creates a Lease does not lead at once: somebody may have deleted the previous Lease while it had a holder.
//! So this candidate waits for the whole duration, like all others. No candidate compares its clock with times that others
//! wrote.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use tokio::time::Instant;

use crate::kubernetes::version::compare;

use super::{LostLease, NOT_RENEWED, Timing};

/// The next act of a candidate.
#[derive(Debug)]
pub(super) enum Act {
    /// Wait for a change of the Lease, but not longer than until this time.
    Wait(Instant),
    /// Start a new watch of the Lease, because the state of the Lease is unknown.
    Look,
    /// Create this Lease if it has no version; otherwise, replace that version.
    Write(Box<Lease>),
    /// Stop: the Lease is lost.
    Lost(LostLease),
    /// Stop: this candidate does not hold the Lease any more.
    Released,
    /// Stop: the Lease could not be released in time.
    GiveUp,
}

/// A candidate in an election.
#[derive(Debug)]
pub(super) struct Election {
    name: String,
    identity: String,
    timing: Timing,
    known: Known,
    /// The labels that the Lease had last. If this candidate creates the Lease again, it sets these labels.
    labels: Option<BTreeMap<String, String>>,
    /// Set while this candidate holds the Lease.
    held: Option<Held>,
    /// Set when this candidate begins to release the Lease: the time until which it tries.
    resigning: Option<Instant>,
    /// The earliest time of the next write, after a failed write.
    not_before: Option<Instant>,
}

/// The last known state of the Lease.
#[derive(Debug)]
enum Known {
    /// Unknown. If no event arrives until `look_at`, a new watch is needed.
    Nothing { look_at: Instant },
    /// The Lease does not exist. The candidate noticed this at time `since`.
    Absent { since: Instant },
    /// The candidate first saw this version of the Lease at time `seen`.
    Present { lease: Box<Lease>, seen: Instant },
}

#[derive(Clone, Copy, Debug)]
struct Held {
    renewed: Instant,
    until: Instant,
}

impl Election {
    /// A candidate that knows nothing yet.
    pub(super) fn new(name: &str, identity: String, timing: Timing, now: Instant) -> Self {
        Self {
            name: name.to_owned(),
            identity,
            timing,
            known: Known::Nothing { look_at: now },
            labels: None,
            held: None,
            resigning: None,
            not_before: None,
        }
    }

    /// The time until which this candidate leads; `None` if it does not lead.
    pub(super) fn held_until(&self) -> Option<Instant> {
        self.held.map(|held| held.until)
    }

    pub(super) fn is_resigning(&self) -> bool {
        self.resigning.is_some()
    }

    /// Stores the Lease that the API server reported; `None` if it does not exist. Versions that are not newer than the known
    /// version are ignored.
    pub(super) fn observe(&mut self, lease: Option<Lease>, now: Instant) {
        match (lease, &self.known) {
            (None, Known::Absent { .. }) => {}
            (None, _) => self.known = Known::Absent { since: now },
            (Some(lease), Known::Present { lease: known, .. }) if !is_newer(&lease, known) => {}
            (Some(lease), _) => {
                self.labels = lease.metadata.labels.clone();
                self.known = Known::Present {
                    lease: Box::new(lease),
                    seen: now,
                };
            }
        }
    }

    /// The next act.
    pub(super) fn next(&self, now: Instant) -> Act {
        if let Some(until) = self.resigning {
            return self.release(until, now);
        }
        if let Some(held) = self.held {
            return self.keep(held, now);
        }
        match &self.known {
            Known::Nothing { look_at } => look(*look_at, now),
            // If the previous holder still exists, it creates the deleted Lease again within this pause.
            Known::Absent { since } => self.create(*since + self.timing.retry_period, now),
            Known::Present { lease, seen } => {
                // The holder may be this candidate itself, because it created the Lease, or because the answer to its update was
                // lost. In both cases, it does not lead yet.
                let free = match holder(lease) {
                    Some(_) => *seen + self.duration_of(lease),
                    None => *seen,
                };
                self.from(free, now, || self.record(lease))
            }
        }
    }

    /// Stores the answer to a write that was sent at time `sent` and created or replaced the Lease.
    pub(super) fn wrote(&mut self, lease: Lease, created: bool, sent: Instant, now: Instant) {
        self.not_before = None;
        let mine = holder(&lease) == Some(&self.identity);
        self.observe(Some(lease), now);
        let until = sent + self.timing.renew_deadline;
        let leads = self.held.is_some() || !created;
        if mine && leads && now < until {
            self.held = Some(Held {
                renewed: sent,
                until,
            });
        }
    }

    /// How long a write that is sent now may wait for its answer. A holder keeps enough time for a second attempt.
    pub(super) fn write_timeout(&self, now: Instant) -> Duration {
        let left = self.held.map(|held| held.until.duration_since(now));
        let longest = left.unwrap_or(self.timing.renew_deadline);
        (longest / 2).max(self.timing.retry_period).min(longest)
    }

    /// Notes that a write sent at time `sent` failed, or that its outcome is unknown. After a conflict, the candidate reads the
    /// Lease again with a new watch. If it holds the Lease, it then writes at once.
    pub(super) fn failed(&mut self, conflict: bool, sent: Instant, now: Instant) {
        self.not_before = Some(sent + self.timing.retry_period);
        if conflict {
            self.known = Known::Nothing { look_at: now };
            if self.held.is_some() {
                self.not_before = None;
            }
        }
    }

    /// Notes that a new watch has started. If it delivers no event within the retry period, its connection may be dead, and the
    /// candidate starts another watch.
    pub(super) fn looks(&mut self, now: Instant) {
        let look_at = now + self.timing.retry_period;
        self.known = Known::Nothing { look_at };
    }

    /// Ends the leadership of this candidate. From now on, it tries to release the Lease.
    pub(super) fn resign(&mut self, now: Instant) {
        self.held = None;
        self.resigning = Some(now + self.timing.renew_deadline / 2);
    }

    fn keep(&self, held: Held, now: Instant) -> Act {
        if held.until <= now {
            return self.lost(NOT_RENEWED.to_owned());
        }
        let act = match &self.known {
            Known::Nothing { look_at } => look(*look_at, now),
            // Another client deleted the Lease.
            Known::Absent { .. } => self.create(now, now),
            Known::Present { lease, .. } => match holder(lease) {
                Some(holder) if holder == self.identity => {
                    let renewal = held.renewed + self.timing.renew_deadline / 2;
                    self.from(renewal, now, || self.record(lease))
                }
                Some(other) => self.lost(format!("{other} holds it")),
                None => self.lost("another client removed its holder".to_owned()),
            },
        };
        act.within(held.until)
    }

    fn release(&self, until: Instant, now: Instant) -> Act {
        if until <= now {
            return Act::GiveUp;
        }
        let act = match &self.known {
            Known::Nothing { look_at } => look(*look_at, now),
            Known::Present { lease, .. } if holder(lease) == Some(&self.identity) => {
                self.from(now, now, || released(lease))
            }
            Known::Absent { .. } | Known::Present { .. } => Act::Released,
        };
        act.within(until)
    }

    fn create(&self, time: Instant, now: Instant) -> Act {
        let mut lease = Lease::default();
        lease.metadata.labels = self.labels.clone();
        self.from(time, now, || self.record(&lease))
    }

    /// Returns the act that writes `lease` at `time`, or later if the pause after a failed write is not over yet.
    fn from(&self, time: Instant, now: Instant, lease: impl FnOnce() -> Lease) -> Act {
        let time = self.not_before.map_or(time, |retry| time.max(retry));
        if now < time {
            Act::Wait(time)
        } else {
            Act::Write(Box::new(lease()))
        }
    }

    /// Returns the Lease with this candidate as its holder.
    fn record(&self, lease: &Lease) -> Lease {
        let mut lease = lease.clone();
        let now = MicroTime(jiff::Timestamp::now());
        lease.metadata.name = Some(self.name.clone());
        lease.metadata.managed_fields = None;
        let renews = holder(&lease) == Some(&self.identity);
        let spec = lease.spec.get_or_insert_default();
        if !renews {
            spec.acquire_time = Some(now.clone());
            spec.lease_transitions = Some(spec.lease_transitions.unwrap_or_default() + 1);
        }
        spec.holder_identity = Some(self.identity.clone());
        spec.lease_duration_seconds = i32::try_from(self.timing.lease_duration.as_secs()).ok();
        spec.renew_time = Some(now);
        lease
    }

    fn duration_of(&self, lease: &Lease) -> Duration {
        let seconds = lease
            .spec
            .as_ref()
            .and_then(|spec| spec.lease_duration_seconds)
            .and_then(|seconds| u64::try_from(seconds).ok());
        seconds.map_or(self.timing.lease_duration, Duration::from_secs)
    }

    fn lost(&self, reason: String) -> Act {
        Act::Lost(LostLease {
            lease: self.name.clone(),
            reason,
        })
    }
}

impl Act {
    /// Waits no longer than until `end`.
    fn within(self, end: Instant) -> Self {
        match self {
            Self::Wait(until) => Self::Wait(until.min(end)),
            act => act,
        }
    }
}

fn look(at: Instant, now: Instant) -> Act {
    if now < at { Act::Wait(at) } else { Act::Look }
}

/// Returns the Lease without a holder. The first candidate that writes gets it.
fn released(lease: &Lease) -> Lease {
    let mut lease = lease.clone();
    lease.metadata.managed_fields = None;
    let spec = lease.spec.get_or_insert_default();
    spec.holder_identity = Some(String::new());
    spec.renew_time = Some(MicroTime(jiff::Timestamp::now()));
    lease
}

fn holder(lease: &Lease) -> Option<&str> {
    let holder = lease.spec.as_ref()?.holder_identity.as_deref()?;
    Some(holder).filter(|holder| !holder.is_empty())
}

/// True if `lease` is a later version than `known`. Resource versions compare as numbers (Kubernetes 1.35, "Resource
/// versions"); if they are no numbers, every different version counts as later.
fn is_newer(lease: &Lease, known: &Lease) -> bool {
    let version = |lease: &Lease| lease.metadata.resource_version.clone().unwrap_or_default();
    let (lease, known) = (version(lease), version(known));
    compare(&lease, &known).map_or(lease != known, |order| order == Ordering::Greater)
}
