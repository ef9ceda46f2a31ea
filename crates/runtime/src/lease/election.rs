//! One candidate's view of an election, and what it may do next: a state machine without I/O and without a clock of its
//! own, so that every schedule can be tried.
//!
//! Two rules keep two candidates from acting at once. A candidate takes a Lease over only if it is free, or once its own
//! clock has seen it unchanged for the holder's whole duration, and only by an update that fails if the Lease has changed
//! since. A holder counts on its Lease for less than that, from *before* it sent the write that confirmed it. To create a
//! Lease takes nothing over, since it may have been deleted under a holder: whoever created it waits like all others.
//! Times written by others are never compared with anything.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use tokio::time::Instant;

use super::LostLease;

/// How long a Lease holds, and how often it is renewed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timing {
    /// How long others leave an unchanged Lease alone.
    pub(super) duration: Duration,
    /// How long a holder counts on a Lease that it could not renew. Shorter than `duration`.
    pub(super) renew_deadline: Duration,
    /// How long to wait after a write that failed.
    pub(super) retry_period: Duration,
}

/// What a candidate does next.
#[derive(Debug)]
pub(super) enum Act {
    /// Wait for news of the Lease, or until then.
    Wait(Instant),
    /// Watch the Lease anew: nothing is known of it, and the watch is silent.
    Look,
    /// Create the Lease.
    Create(Lease),
    /// Replace the Lease, from the version it carries.
    Update(Lease),
    /// Stop: the Lease is lost.
    Lost(LostLease),
    /// Stop: the Lease was given up, or is not this candidate's to give up.
    Done,
}

/// A candidate in an election.
#[derive(Debug)]
pub(super) struct Election {
    name: String,
    identity: String,
    timing: Timing,
    known: Known,
    /// The labels that the Lease had last: who makes it again gives them back.
    labels: Option<BTreeMap<String, String>>,
    /// Set while this candidate holds the Lease.
    held: Option<Held>,
    /// Set once this candidate gives the Lease up.
    resigning: bool,
    /// No write before this, after one that failed.
    not_before: Option<Instant>,
}

/// What is known of the Lease.
#[derive(Debug)]
enum Known {
    /// Nothing: it is being looked at, since then.
    Nothing { since: Instant },
    /// It does not exist, as seen first at that time.
    Absent { since: Instant },
    /// It is this, seen first at that time.
    Present { lease: Box<Lease>, seen: Instant },
}

#[derive(Clone, Copy, Debug)]
struct Held {
    renewed: Instant,
    until: Instant,
}

impl Election {
    /// A candidate that knows nothing yet, and looks.
    pub(super) fn new(name: &str, identity: String, timing: Timing, now: Instant) -> Self {
        Self {
            name: name.to_owned(),
            identity,
            timing,
            known: Known::Nothing { since: now },
            labels: None,
            held: None,
            resigning: false,
            not_before: None,
        }
    }

    /// Until when this candidate may act, `None` where it may not.
    pub(super) fn held_until(&self) -> Option<Instant> {
        self.held.map(|held| held.until)
    }

    /// Takes in the Lease as the API server showed it, `None` where it does not exist. What is older than what is known
    /// comes late and says nothing.
    pub(super) fn observe(&mut self, lease: Option<Lease>, now: Instant) {
        match (lease, &self.known) {
            (None, Known::Absent { .. }) => {}
            (None, _) => self.known = Known::Absent { since: now },
            (Some(lease), Known::Present { lease: known, .. }) if !is_newer(&lease, known) => {}
            (Some(lease), _) => self.show(lease, now),
        }
    }

    /// What to do now.
    pub(super) fn next(&self, now: Instant) -> Act {
        if self.resigning {
            return self.give_up(now);
        }
        if let Some(held) = self.held {
            return self.keep(held, now);
        }
        match &self.known {
            Known::Nothing { since } => self.look(*since, now),
            // Its holder, if it has one, is given the time to make it again.
            Known::Absent { since } => self.create(*since + self.timing.retry_period, now),
            Known::Present { lease, seen } => {
                // Its own name there is of a write whose outcome it did not learn in time, and says no more.
                let free = match holder(lease) {
                    Some(_) => *seen + self.duration_of(lease),
                    None => *seen,
                };
                self.from(free, now, || Act::Update(self.record(lease)))
            }
        }
    }

    /// Takes in that it has created the Lease, by a write sent at `sent`.
    pub(super) fn created(&mut self, lease: Lease, sent: Instant, now: Instant) {
        if self.held.is_some() {
            self.updated(lease, sent, now);
        } else {
            self.not_before = None;
            self.observe(Some(lease), now);
        }
    }

    /// Takes in that it has updated the Lease, by a write sent at `sent`.
    pub(super) fn updated(&mut self, lease: Lease, sent: Instant, now: Instant) {
        self.not_before = None;
        let mine = holder(&lease) == Some(&self.identity);
        self.observe(Some(lease), now);
        let until = sent + self.timing.renew_deadline;
        if mine && now < until {
            self.held = Some(Held {
                renewed: sent,
                until,
            });
        }
    }

    /// How long a write that is sent now waits for its answer: a holder leaves itself time for another one.
    pub(super) fn patience(&self, now: Instant) -> Duration {
        let left = self.held.map(|held| held.until.duration_since(now));
        let longest = left.unwrap_or(self.timing.renew_deadline);
        (longest / 2).max(self.timing.retry_period).min(longest)
    }

    /// Takes in that a write of this candidate's, sent at `sent`, failed, or that its outcome is unknown. After a conflict
    /// the Lease has to be looked at again, and a holder then tries again at once.
    pub(super) fn failed(&mut self, conflict: bool, sent: Instant, now: Instant) {
        self.not_before = Some(sent + self.timing.retry_period);
        if conflict {
            self.looks(now);
            if self.held.is_some() {
                self.not_before = None;
            }
        }
    }

    /// Takes in that the Lease is being looked at anew.
    pub(super) fn looks(&mut self, now: Instant) {
        self.known = Known::Nothing { since: now };
    }

    /// From here on this candidate gives the Lease up, if it holds it.
    pub(super) fn resign(&mut self) {
        self.held = None;
        self.resigning = true;
    }

    fn show(&mut self, lease: Lease, now: Instant) {
        self.labels = lease.metadata.labels.clone();
        self.known = Known::Present {
            lease: Box::new(lease),
            seen: now,
        };
    }

    fn keep(&self, held: Held, now: Instant) -> Act {
        if held.until <= now {
            return Act::Lost(self.lost("it could not be renewed in time".to_owned()));
        }
        let renewal = held.renewed + self.timing.renew_deadline / 2;
        match &self.known {
            Known::Nothing { since } => self.look(*since, now),
            // Somebody deleted it.
            Known::Absent { .. } => self.create(now, now),
            Known::Present { lease, .. } => match holder(lease) {
                Some(holder) if holder == self.identity => {
                    self.from(renewal, now, || Act::Update(self.record(lease)))
                }
                Some(other) => Act::Lost(self.lost(format!("{other} holds it"))),
                None => Act::Lost(self.lost("somebody has removed its holder".to_owned())),
            },
        }
        .within(held.until)
    }

    fn give_up(&self, now: Instant) -> Act {
        match &self.known {
            Known::Nothing { since } => self.look(*since, now),
            Known::Present { lease, .. } if holder(lease) == Some(&self.identity) => {
                self.from(now, now, || Act::Update(released(lease)))
            }
            Known::Absent { .. } | Known::Present { .. } => Act::Done,
        }
    }

    fn create(&self, time: Instant, now: Instant) -> Act {
        let mut lease = Lease::default();
        lease.metadata.labels = self.labels.clone();
        self.from(time, now, || Act::Create(self.record(&lease)))
    }

    /// An answer is due within the retry period; a connection that died answers never.
    fn look(&self, since: Instant, now: Instant) -> Act {
        let due = since + self.timing.retry_period;
        if now < due { Act::Wait(due) } else { Act::Look }
    }

    /// `act` at `time`, but never sooner than a retry may be.
    fn from(&self, time: Instant, now: Instant, act: impl FnOnce() -> Act) -> Act {
        let time = self.not_before.map_or(time, |retry| time.max(retry));
        if now < time { Act::Wait(time) } else { act() }
    }

    /// The Lease with this candidate as its holder.
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
        spec.lease_duration_seconds = Some(seconds(self.timing.duration));
        spec.renew_time = Some(now);
        lease
    }

    fn duration_of(&self, lease: &Lease) -> Duration {
        let seconds = lease
            .spec
            .as_ref()
            .and_then(|spec| spec.lease_duration_seconds)
            .and_then(|seconds| u64::try_from(seconds).ok());
        seconds.map_or(self.timing.duration, Duration::from_secs)
    }

    fn lost(&self, reason: String) -> LostLease {
        LostLease {
            lease: self.name.clone(),
            reason,
        }
    }
}

impl Act {
    /// Waits no longer than until `end`.
    fn within(self, end: Instant) -> Self {
        match self {
            Self::Wait(until) => Self::Wait(until.min(end)),
            act @ (Self::Look | Self::Create(_) | Self::Update(_) | Self::Lost(_) | Self::Done) => {
                act
            }
        }
    }
}

/// The Lease without a holder: free for whoever writes first.
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

/// Whether `lease` is a later version than `known`. Resource versions compare as numbers (Kubernetes 1.35, "Resource
/// versions"); where they are not numbers, any other version counts as later.
fn is_newer(lease: &Lease, known: &Lease) -> bool {
    let version = |lease: &Lease| lease.metadata.resource_version.clone().unwrap_or_default();
    let (lease, known) = (version(lease), version(known));
    match (lease.parse::<u128>(), known.parse::<u128>()) {
        (Ok(lease), Ok(known)) => lease > known,
        (Ok(_) | Err(_), Ok(_) | Err(_)) => lease != known,
    }
}

/// Whole seconds, as a Lease wants them, and never fewer than there are.
fn seconds(duration: Duration) -> i32 {
    let whole = duration.as_secs() + u64::from(duration.subsec_nanos() > 0);
    i32::try_from(whole).unwrap_or(i32::MAX)
}
