//! The decisions about the webhook's certificates, without clock, randomness or Kubernetes: what to change in the Secret, what
//! the webhook configuration should trust, which certificate to serve, and when to look again.
//!
//! The rule behind all of it: what is served is signed by an authority that the API server has been told to trust for at
//! least the overlap. So an authority is changed in steps. The next one is *introduced*: stored and trusted beside the current
//! one. It is *promoted* once it has been trusted for the overlap: a certificate of its own is served, the one before is
//! still trusted. That one is *retired* when every replica has had time to follow. Each step is a state of the Secret
//! alone, so any replica can take the next one, after any restart.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};

use super::material::{Certificate, Material, Pair};

/// What the operator wants of the certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    /// Host names and IP addresses that the API server may call the webhook by.
    pub(super) names: BTreeSet<String>,
    /// How long an authority is valid.
    pub(super) authority_lifetime: SignedDuration,
    /// How long a serving certificate is valid.
    pub(super) certificate_lifetime: SignedDuration,
    /// How long API servers and replicas may take to notice a change.
    pub(super) overlap: SignedDuration,
}

/// What the webhook configuration tells the API server to trust, and since when, as far as this process has seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Trust {
    /// Generation of the webhook configuration; `None` where there is none.
    generation: Option<i64>,
    /// Whether all of its webhooks trust the same.
    uniform: bool,
    /// What every webhook trusts.
    authorities: Vec<(Certificate, Timestamp)>,
}

/// One change of what the Secret holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change<'a> {
    /// Make everything anew, and keep trusting what the API server trusts for now.
    Begin {
        /// The authorities that replicas may still serve under.
        trusted: Vec<Certificate>,
    },
    /// Make the authority that is to follow.
    Introduce(&'a Material),
    /// Let the next authority sign what is served.
    Promote(&'a Material, &'a Pair),
    /// Make another serving certificate of the current authority.
    Renew(&'a Material),
    /// Stop trusting the authorities of before.
    Retire(&'a Material),
}

/// What to do about the Secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Next<'a> {
    /// What to change now, if anything.
    pub(super) change: Option<Change<'a>>,
    /// When to ask again although nothing has happened.
    pub(super) look_again: Option<Timestamp>,
}

/// What to do about the certificate that is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Serve {
    /// Go on as before.
    Keep,
    /// Serve what is stored, from now on.
    Stored,
    /// Go on as before until then.
    KeepUntil(Timestamp),
}

impl Trust {
    /// Takes note of the authorities in each `caBundle` of a generation of the webhook configuration.
    pub(super) fn observe(
        &mut self,
        generation: Option<i64>,
        bundles: Vec<Vec<Certificate>>,
        now: Timestamp,
    ) {
        // Where a generation was not seen, nobody knows whom it trusted.
        let seen_all = matches!(
            (self.generation, generation),
            (Some(before), Some(now)) if (before..=before + 1).contains(&now)
        );
        self.generation = generation;
        let mut bundles = bundles.into_iter();
        let first = bundles.next().unwrap_or_default();
        let others: Vec<_> = bundles.collect();
        self.uniform = others.iter().all(|other| same(first.iter(), other.iter()));
        let by_all = first
            .into_iter()
            .filter(|authority| others.iter().all(|other| other.contains(authority)));
        self.authorities = by_all
            .map(|authority| {
                let since = self.since(&authority.key).filter(|_| seen_all);
                (authority, since.unwrap_or(now))
            })
            .collect();
    }

    /// Whether the webhook configuration lacks something of `stored`, or trusts something else besides.
    pub(super) fn differs_from(&self, stored: &Material) -> bool {
        let authorities = self.authorities.iter().map(|(authority, _)| authority);
        self.generation.is_some() && !(self.uniform && same(authorities, stored.authorities()))
    }

    /// Whether the API server accepts a certificate, as far as the webhook configuration goes.
    pub(super) fn accepts(&self, certificate: &Certificate, now: Timestamp) -> bool {
        now < certificate.expires && self.since(&certificate.signer).is_some()
    }

    fn since(&self, key: &[u8]) -> Option<Timestamp> {
        self.authorities
            .iter()
            .find(|(authority, _)| authority.key == key)
            .map(|(_, since)| *since)
    }

    fn valid(&self, now: Timestamp) -> Vec<Certificate> {
        self.authorities
            .iter()
            .map(|(authority, _)| authority)
            .filter(|authority| now < authority.expires)
            .cloned()
            .collect()
    }
}

/// What to change in the Secret, which holds `stored`.
pub(super) fn next<'a>(
    now: Timestamp,
    stored: Option<&'a Material>,
    trust: &Trust,
    wanted: &Wanted,
) -> Next<'a> {
    let begin = || Next {
        change: Some(Change::Begin {
            trusted: trust.valid(now),
        }),
        look_again: None,
    };
    let Some(stored) = stored else {
        return begin();
    };
    let Material {
        current,
        next,
        previous,
        serving,
    } = stored;
    if current.certificate.expires <= now {
        return begin();
    }
    let next = next.as_ref().filter(|next| now < next.certificate.expires);
    let promote = next.and_then(|next| {
        let trusted_since = trust.since(&next.certificate.key)?;
        Some((
            later(trusted_since, wanted.overlap),
            Change::Promote(stored, next),
        ))
    });
    let introduce = (next.is_none() && previous.is_empty())
        .then(|| (worn(&current.certificate), Change::Introduce(stored)));
    let renew_at = if wanted.names.is_subset(&serving.certificate.names) {
        worn(&serving.certificate)
    } else {
        now
    };
    let trusted_since = trust.since(&current.certificate.key);
    let retire = trusted_since
        .filter(|_| !previous.is_empty())
        .map(|trusted_since| {
            // The overlap for the last replica to see that it may serve its new certificate, and once more to do so.
            let since = trusted_since.max(serving.certificate.issued);
            (later(since, wanted.overlap * 2), Change::Retire(stored))
        });
    let steps = [
        promote,
        introduce,
        Some((renew_at, Change::Renew(stored))),
        retire,
    ];
    let (due, to_come): (Vec<_>, Vec<_>) =
        steps.into_iter().flatten().partition(|(at, _)| *at <= now);
    Next {
        change: due.into_iter().next().map(|(_, change)| change),
        look_again: to_come.iter().map(|(at, _)| *at).min(),
    }
}

/// Whether to go on serving `served`, where the Secret holds `stored`.
pub(super) fn serve(
    now: Timestamp,
    served: Option<&Certificate>,
    stored: &Material,
    trust: &Trust,
    overlap: SignedDuration,
) -> Serve {
    let offered = &stored.serving.certificate;
    match served {
        Some(served) if served == offered => Serve::Keep,
        Some(served) if trust.accepts(served, now) => match trust.since(&offered.signer) {
            None => Serve::Keep,
            Some(since) if later(since, overlap) <= now => Serve::Stored,
            Some(since) => Serve::KeepUntil(later(since, overlap)),
        },
        // What is served is of no use, so nothing can become worse.
        Some(_) | None => Serve::Stored,
    }
}

/// When two thirds of a certificate's life are over.
fn worn(certificate: &Certificate) -> Timestamp {
    later(certificate.issued, certificate.life() / 3 * 2)
}

/// A moment beyond the end of time is as good as the end of time.
fn later(moment: Timestamp, duration: SignedDuration) -> Timestamp {
    moment.checked_add(duration).unwrap_or(Timestamp::MAX)
}

fn same<'a>(
    some: impl Iterator<Item = &'a Certificate>,
    others: impl Iterator<Item = &'a Certificate>,
) -> bool {
    let set = |certificate: &'a Certificate| certificate.der.as_slice();
    some.map(set).collect::<BTreeSet<_>>() == others.map(set).collect::<BTreeSet<_>>()
}

#[cfg(test)]
mod tests;
