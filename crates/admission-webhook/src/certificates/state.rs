//! The decisions about the webhook's certificates: how to change the Secret, which certificate to serve, and when to decide
//! again. This module uses no clock, no randomness and no Kubernetes client.
//!
//! A self-signed certificate is replaced in three steps. Any replica can take a step:
//!
//! 1. *Introduce*: the Secret gets a *next* certificate. From now on, API servers trust both the current and the next
//!    certificate.
//! 2. *Promote*: when API servers have trusted the next certificate for a fixed time (`overlap`), it becomes the *current*
//!    certificate, and replicas serve it. The old certificate becomes a *previous* certificate, which API servers still trust.
//! 3. *Retire*: when every replica has had time to serve the new certificate, the Secret drops the previous certificate.
//!
//! A restarted replica finds all certificates in the Secret. But it does not know how long they have been trusted and served, so
//! it counts these times from its start. A step may therefore come later after a restart, but never earlier.
//!
//! If a replica serves no certificate yet, or API servers do not accept the certificate that it serves, the replica serves the
//! Secret's current certificate at once.
//!
//! If another program fills the Secret, this service does not change it. A new certificate of the same CA is served at once. A
//! certificate of a new CA is served when API servers have trusted this CA for `overlap`. [`outgoing`] says how long API servers
//! still trust the old CA.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};

use super::material::{Certificate, Material, Pair};

/// The operator's flags for certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    /// Host names and IP addresses that API servers may use to call the webhook.
    pub(super) names: BTreeSet<String>,
    /// How long a certificate is valid.
    pub(super) lifetime: SignedDuration,
    /// The longest time until all API servers and replicas have noticed a change.
    pub(super) overlap: SignedDuration,
}

/// The certificates that the MutatingWebhookConfiguration trusts. Each has the time since when this process has seen it there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Trust {
    /// The generation of the webhook configuration. `None` if the webhook configuration does not exist.
    generation: Option<i64>,
    /// The certificates that every webhook of the configuration trusts.
    certificates: Vec<(Certificate, Timestamp)>,
}

/// The certificate that this process serves, and the time when it began to serve it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Served {
    pub(super) certificate: Certificate,
    pub(super) since: Timestamp,
}

/// One change of the Secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change<'a> {
    /// Make a first certificate, because the Secret has no valid one. Other replicas may still serve the certificates in
    /// `trusted`, so these stay trusted.
    Begin { trusted: Vec<Certificate> },
    /// Make a next certificate.
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
    /// The time when the next change will be due, if it is known.
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
    /// Records the `caBundle` of each webhook in this generation of the webhook configuration.
    pub(super) fn observe(
        &mut self,
        generation: Option<i64>,
        bundles: Vec<Vec<Certificate>>,
        now: Timestamp,
    ) {
        // If this process has missed a generation, perhaps a certificate was not trusted in that generation.
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

    /// True if API servers accept this certificate now, according to the webhook configuration.
    pub(super) fn accepts(&self, certificate: &Certificate, now: Timestamp) -> bool {
        now < certificate.expires && self.since(certificate).is_some()
    }

    /// The time since when API servers accept this certificate.
    fn since(&self, certificate: &Certificate) -> Option<Timestamp> {
        let since = certificate.anchors().iter().map(|anchor| {
            let mut certificates = self.certificates.iter();
            let (_, since) = certificates.find(|(trusted, _)| trusted == anchor)?;
            Some(*since)
        });
        since.collect::<Option<Vec<_>>>()?.into_iter().max()
    }

    fn valid(&self, now: Timestamp) -> Vec<Certificate> {
        let certificates = self.certificates.iter().map(|(certificate, _)| certificate);
        certificates
            .filter(|certificate| now < certificate.expires)
            .cloned()
            .collect()
    }
}

/// Decides how to change the Secret. `stored` has the contents of the Secret.
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
    let retire = served_by_all(served, current, trust, wanted.overlap)
        .filter(|_| !previous.is_empty())
        .map(|at| (at, Change::Retire(stored)));
    let steps = [promote, introduce, retire].into_iter().flatten();
    let (due, to_come): (Vec<_>, Vec<_>) = steps.partition(|(at, _)| *at <= now);
    Next {
        change: due.into_iter().next().map(|(_, change)| change),
        look_again: to_come.iter().map(|(at, _)| *at).min(),
    }
}

/// The certificates that API servers must still trust in addition to those of `current`, because a replica may still serve
/// another certificate. Also returns the time from which API servers need not trust them any more, if this time is known.
pub(super) fn outgoing(
    now: Timestamp,
    served: Option<&Served>,
    current: &Certificate,
    trust: &Trust,
    overlap: SignedDuration,
) -> (Vec<Certificate>, Option<Timestamp>) {
    let until = served_by_all(served, current, trust, overlap);
    if until.is_some_and(|until| until <= now) {
        return (Vec::new(), None);
    }
    let mut trusted = trust.valid(now);
    trusted.retain(|certificate| !current.anchors().contains(certificate));
    (trusted, until)
}

/// The time when every replica serves `current`. `None` if this replica does not serve it yet. Two overlaps are enough for all
/// replicas: one until the last replica sees the certificate, and one until it serves this certificate.
fn served_by_all(
    served: Option<&Served>,
    current: &Certificate,
    trust: &Trust,
    overlap: SignedDuration,
) -> Option<Timestamp> {
    let served = served.filter(|served| served.certificate == *current)?;
    let since = trust.since(current)?.max(served.since);
    Some(later(since, overlap * 2))
}

/// Decides which certificate to serve. `stored` has the contents of the Secret.
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
        // API servers do not accept the served certificate anyway, so another certificate cannot be worse.
        Some(_) | None => Serve::Stored,
    }
}

/// The time at which two thirds of a certificate's life are over.
fn renewal(certificate: &Certificate) -> Timestamp {
    let life = certificate.expires.duration_since(certificate.issued);
    later(certificate.issued, life / 3 * 2)
}

fn later(moment: Timestamp, duration: SignedDuration) -> Timestamp {
    moment.checked_add(duration).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests;
