//! Makes authorities and certificates: what [`Change`] names, made true. The only place with randomness.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls::pki_types::CertificateDer;

use super::material::{BACKDATED, Certificate, Material, Pair, PrivateKey};
use super::state::{Change, Wanted};

/// A certificate could not be made.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// By the library.
    #[error(transparent)]
    Generate(#[from] rcgen::Error),
    /// It was made, and cannot be read back.
    #[error("the certificate made cannot be read")]
    Unreadable,
}

/// The material as it is after `change`.
///
/// # Errors
/// A certificate cannot be made.
pub(super) fn apply(
    change: &Change<'_>,
    now: Timestamp,
    wanted: &Wanted,
) -> Result<Material, Error> {
    match change {
        Change::Begin { trusted } => {
            let current = authority(now, wanted.authority_lifetime)?;
            Ok(Material {
                serving: serving(now, wanted, BTreeSet::new(), &current)?,
                current,
                next: None,
                previous: trusted.clone(),
            })
        }
        Change::Introduce(stored) => Ok(Material {
            next: Some(authority(now, wanted.authority_lifetime)?),
            ..(*stored).clone()
        }),
        Change::Promote(stored, next) => {
            let names = stored.serving.certificate.names.clone();
            let mut previous = vec![stored.current.certificate.clone()];
            previous.extend(stored.previous.iter().cloned());
            Ok(Material {
                serving: serving(now, wanted, names, next)?,
                current: (*next).clone(),
                next: None,
                previous,
            })
        }
        Change::Renew(stored) => {
            let names = stored.serving.certificate.names.clone();
            Ok(Material {
                serving: serving(now, wanted, names, &stored.current)?,
                ..(*stored).clone()
            })
        }
        Change::Retire(stored) => Ok(Material {
            previous: Vec::new(),
            ..(*stored).clone()
        }),
    }
}

fn authority(now: Timestamp, lifetime: SignedDuration) -> Result<Pair, Error> {
    let mut authority = CertificateParams::default();
    authority.distinguished_name.push(
        DnType::CommonName,
        format!("coscheduler admission-webhook authority of {now:.0}"),
    );
    authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    between(&mut authority, now, lifetime);
    let key = KeyPair::generate()?;
    let made = authority.self_signed(&key)?;
    pair(made.der(), &key)
}

/// A certificate for the names that are wanted, and those that another replica wanted before: replicas that want different
/// ones must not take turns for ever.
fn serving(
    now: Timestamp,
    wanted: &Wanted,
    names: BTreeSet<String>,
    authority: &Pair,
) -> Result<Pair, Error> {
    let names: BTreeSet<String> = names.union(&wanted.names).cloned().collect();
    let mut serving = CertificateParams::new(names.into_iter().collect::<Vec<_>>())?;
    serving
        .distinguished_name
        .push(DnType::CommonName, "coscheduler admission-webhook");
    serving.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    serving.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    serving.use_authority_key_identifier_extension = true;
    let left = authority.certificate.expires.duration_since(now);
    between(&mut serving, now, wanted.certificate_lifetime.min(left));
    let PrivateKey(authority_key) = &authority.key;
    let issuer = Issuer::from_ca_cert_der(
        &CertificateDer::from(authority.certificate.der.as_slice()),
        KeyPair::from_pem(authority_key)?,
    )?;
    let key = KeyPair::generate()?;
    let made = serving.signed_by(&key, &issuer)?;
    pair(made.der(), &key)
}

fn between(params: &mut CertificateParams, now: Timestamp, lifetime: SignedDuration) {
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    let at = |moment: Timestamp| {
        epoch + Duration::from_secs(u64::try_from(moment.as_second()).unwrap_or_default())
    };
    params.not_before = at(now.checked_sub(BACKDATED).unwrap_or(Timestamp::MIN));
    params.not_after = at(now.checked_add(lifetime).unwrap_or(Timestamp::MAX));
}

fn pair(certificate: &CertificateDer<'_>, key: &KeyPair) -> Result<Pair, Error> {
    Ok(Pair {
        certificate: Certificate::from_der(certificate).ok_or(Error::Unreadable)?,
        key: PrivateKey(key.serialize_pem()),
    })
}
