//! The decisions about the webhook's certificates, without clock, randomness or Kubernetes: how to change the Secret, which
//! certificate to serve, and when to look again.
//!
//! A replica replaces the certificate in three steps:
//!
//! 1. *Introduce*: the Secret stores a next certificate. API servers trust it and the current certificate.
//! 2. *Promote*: when API servers have trusted the next certificate for a fixed time (`overlap`), it becomes the current certificate, and
//!    replicas serve it. API servers still trust the previous certificate.
//! 3. *Retire*: when every replica has had time to serve the new certificate, the Secret drops the previous certificate.
//!
//! The Secret holds everything that a replica needs to continue after a restart. The time of a step also depends on what the
//! replica itself has seen: since when certificates have been trusted and served. A restarted replica counts these times from
//! its start. So a step may come later, but never earlier.
//!
//! If API servers do not accept the served certificate, or a replica serves none yet, it serves the Secret's current
//! certificate at once.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};

use super::material::{Certificate, Material, Pair};

/// The operator's flags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    /// Host names and IP addresses by which API servers may call the webhook.
    pub(super) names: BTreeSet<String>,
    /// How long a certificate is valid.
    pub(super) lifetime: SignedDuration,
    /// How long API servers and replicas may take to notice a change.
    pub(super) overlap: SignedDuration,
}

/// The certificates that the webhook configuration trusts, each with the time when this process first saw the certificate there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Trust {
    /// Generation of the webhook configuration; `None` where there is none.
    generation: Option<i64>,
    /// Trusted by every webhook of the configuration.
    certificates: Vec<(Certificate, Timestamp)>,
}

/// The certificate that this process serves, and since when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Served {
    pub(super) certificate: Certificate,
    pub(super) since: Timestamp,
}

/// One change of the Secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change<'a> {
    /// Make a certificate, because the Secret has no valid one. Keep trusting certificates that replicas may still serve.
    Begin { trusted: Vec<Certificate> },
    /// Make the next certificate.
    Introduce(&'a Material),
    /// Make the next certificate the current one.
    Promote(&'a Material, &'a Pair),
    /// Stop trusting the previous certificates.
    Retire(&'a Material),
}

/// The decision about the Secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Next<'a> {
    /// The change that is due, if any.
    pub(super) change: Option<Change<'a>>,
    /// When another change will be due.
    pub(super) look_again: Option<Timestamp>,
}

/// The decision about the certificate to serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Serve {
    /// Keep the served certificate.
    Keep,
    /// Keep the served certificate until this time.
    KeepUntil(Timestamp),
    /// Serve the current certificate of the Secret from now on.
    Stored,
}

impl Trust {
    /// Takes note of the `caBundle` of each webhook in a generation of the webhook configuration.
    pub(super) fn observe(
        &mut self,
        generation: Option<i64>,
        bundles: Vec<Vec<Certificate>>,
        now: Timestamp,
    ) {
        // A generation that this process has not seen may have trusted nothing.
        let seen_all = matches!(
            (self.generation, generation),
            (Some(before), Some(now)) if (before..=before + 1).contains(&now)
        );
        self.generation = generation;
        let mut bundles = bundles.into_iter();
        let first = bundles.next().unwrap_or_default();
        let others: Vec<_> = bundles.collect();
        let by_all = first
            .into_iter()
            .filter(|certificate| others.iter().all(|other| other.contains(certificate)));
        self.certificates = by_all
            .map(|certificate| {
                let since = self.since(&certificate).filter(|_| seen_all);
                (certificate, since.unwrap_or(now))
            })
            .collect();
    }

    /// True where API servers accept a certificate, as far as the webhook configuration goes.
    pub(super) fn accepts(&self, certificate: &Certificate, now: Timestamp) -> bool {
        now < certificate.expires && self.since(certificate).is_some()
    }

    fn since(&self, certificate: &Certificate) -> Option<Timestamp> {
        let mut certificates = self.certificates.iter();
        let (_, since) = certificates.find(|(trusted, _)| trusted == certificate)?;
        Some(*since)
    }

    fn valid(&self, now: Timestamp) -> Vec<Certificate> {
        let certificates = self.certificates.iter().map(|(certificate, _)| certificate);
        certificates
            .filter(|certificate| now < certificate.expires)
            .cloned()
            .collect()
    }
}

/// Decides how to change the Secret, which holds `stored`.
pub(super) fn next<'a>(
    now: Timestamp,
    stored: Option<&'a Material>,
    served: Option<&Served>,
    trust: &Trust,
    wanted: &Wanted,
) -> Next<'a> {
    let usable = stored.filter(|stored| now < stored.current.certificate.expires);
    let Some(stored) = usable else {
        let trusted = trust.valid(now);
        return Next {
            change: Some(Change::Begin { trusted }),
            look_again: None,
        };
    };
    let Material {
        current: Pair {
            certificate: current,
            ..
        },
        next,
        previous,
    } = stored;
    let next = next.as_ref().filter(|next| now < next.certificate.expires);
    let promote = next.and_then(|next| {
        let at = later(trust.since(&next.certificate)?, wanted.overlap);
        Some((at, Change::Promote(stored, next)))
    });
    let introduce = (next.is_none() && previous.is_empty()).then(|| {
        let named = wanted.names.is_subset(&current.names);
        let at = if named { renewal(current) } else { now };
        (at, Change::Introduce(stored))
    });
    // Within the first overlap, the last replica sees the current certificate. Within the second overlap, it serves it.
    let retire = served
        .filter(|served| !previous.is_empty() && served.certificate == *current)
        .and_then(|served| {
            let since = trust.since(current)?.max(served.since);
            Some((later(since, wanted.overlap * 2), Change::Retire(stored)))
        });
    let steps = [promote, introduce, retire].into_iter().flatten();
    let (due, to_come): (Vec<_>, Vec<_>) = steps.partition(|(at, _)| *at <= now);
    Next {
        change: due.into_iter().next().map(|(_, change)| change),
        look_again: to_come.iter().map(|(at, _)| *at).min(),
    }
}

/// Decides which certificate to serve, where the Secret holds `stored`.
pub(super) fn serve(
    now: Timestamp,
    served: Option<&Served>,
    stored: &Material,
    trust: &Trust,
    overlap: SignedDuration,
) -> Serve {
    let offered = &stored.current.certificate;
    match served.map(|served| &served.certificate) {
        Some(served) if served == offered => Serve::Keep,
        Some(served) if trust.accepts(served, now) => {
            match trust.since(offered).map(|since| later(since, overlap)) {
                None => Serve::Keep,
                Some(at) if at <= now => Serve::Stored,
                Some(at) => Serve::KeepUntil(at),
            }
        }
        // API servers do not accept the served certificate, so the change cannot make this worse.
        Some(_) | None => Serve::Stored,
    }
}

/// Two thirds of a certificate's life after it was issued.
fn renewal(certificate: &Certificate) -> Timestamp {
    let life = certificate.expires.duration_since(certificate.issued);
    later(certificate.issued, life / 3 * 2)
}

fn later(moment: Timestamp, duration: SignedDuration) -> Timestamp {
    moment.checked_add(duration).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests;
