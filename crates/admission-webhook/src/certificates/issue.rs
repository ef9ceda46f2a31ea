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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use k8s_openapi::ByteString;
    use rustls::RootCertStore;
    use rustls::client::WebPkiServerVerifier;
    use rustls::client::danger::ServerCertVerifier as _;
    use rustls::crypto::ring;
    use rustls::pki_types::{ServerName, UnixTime};

    use super::*;
    use crate::certificates::serving::certified;

    const NOW: i64 = 1_800_000_000;

    fn wanted() -> Wanted {
        Wanted {
            names: ["127.0.0.1".to_owned(), "webhook.ns.svc".to_owned()].into(),
            authority_lifetime: SignedDuration::from_hours(100),
            certificate_lifetime: SignedDuration::from_hours(10),
            overlap: SignedDuration::from_mins(1),
        }
    }

    fn begin() -> Material {
        let change = Change::Begin {
            trusted: Vec::new(),
        };
        apply(&change, at(0), &wanted()).unwrap()
    }

    fn at(hours: i64) -> Timestamp {
        Timestamp::from_second(NOW + hours * 3600).unwrap()
    }

    /// Whether a client that trusts `authorities` accepts what is served, as a client of that name, so many hours later.
    fn accepted(
        authorities: &[&Certificate],
        serving: &Pair,
        name: &'static str,
        hours: i64,
    ) -> bool {
        let mut roots = RootCertStore::empty();
        for authority in authorities {
            roots.add(authority.der.clone().into()).unwrap();
        }
        let provider = std::sync::Arc::new(ring::default_provider());
        let verifier = WebPkiServerVerifier::builder_with_provider(roots.into(), provider)
            .build()
            .unwrap();
        let seconds = u64::try_from(at(hours).as_second()).unwrap();
        let verified = verifier.verify_server_cert(
            &serving.certificate.der.clone().into(),
            &[],
            &ServerName::try_from(name).unwrap(),
            &[],
            UnixTime::since_unix_epoch(Duration::from_secs(seconds)),
        );
        verified.is_ok()
    }

    #[test]
    fn what_is_made_is_accepted_by_its_names_while_it_is_valid() {
        let made = begin();
        let authority = &made.current.certificate;
        for (name, hours, expected) in [
            ("127.0.0.1", 0, true),
            ("webhook.ns.svc", 9, true),
            // The clock of an API server may be behind.
            ("webhook.ns.svc", -1, true),
            ("webhook.ns.svc", -2, false),
            ("webhook.ns.svc", 11, false),
            ("another.ns.svc", 0, false),
        ] {
            let answer = accepted(&[authority], &made.serving, name, hours);
            assert_eq!(answer, expected, "{name} after {hours} h");
        }
        let stranger = begin();
        let stranger = &stranger.current.certificate;
        assert!(!accepted(&[stranger], &made.serving, "127.0.0.1", 0));
        certified(&made.serving).unwrap();
    }

    #[test]
    fn a_certificate_never_outlives_its_authority_and_keeps_the_names_it_had() {
        let mut stored = begin();
        stored
            .serving
            .certificate
            .names
            .insert("older.ns.svc".to_owned());
        let renewed = apply(&Change::Renew(&stored), at(95), &wanted()).unwrap();
        let serving = &renewed.serving.certificate;
        assert_eq!(serving.expires, renewed.current.certificate.expires);
        assert!(
            serving.names.contains("older.ns.svc"),
            "{:?}",
            serving.names
        );
    }

    #[test]
    fn a_rotation_leaves_no_gap_in_trust() {
        let before = begin();
        let introduced = apply(&Change::Introduce(&before), at(70), &wanted()).unwrap();
        assert_eq!(introduced.serving, before.serving);
        let next = introduced.next.as_ref().unwrap();
        let promoted = apply(&Change::Promote(&introduced, next), at(71), &wanted()).unwrap();
        assert_eq!(&promoted.current, next);
        let bundle: Vec<_> = promoted.authorities().collect();
        let old = apply(&Change::Renew(&before), at(70), &wanted()).unwrap();
        assert!(accepted(&bundle, &old.serving, "127.0.0.1", 71));
        assert!(accepted(&bundle, &promoted.serving, "127.0.0.1", 71));
        let retired = apply(&Change::Retire(&promoted), at(72), &wanted()).unwrap();
        let bundle: Vec<_> = retired.authorities().collect();
        assert!(!accepted(&bundle, &old.serving, "127.0.0.1", 72));
        assert!(accepted(&bundle, &retired.serving, "127.0.0.1", 72));
    }

    /// The Secret as the API server has it after a write of `material`.
    fn secret(material: &Material) -> BTreeMap<String, ByteString> {
        let data = material.data().into_iter();
        data.filter_map(|(key, value)| Some((key.to_owned(), value?)))
            .collect()
    }

    #[test]
    fn the_secret_is_read_as_it_was_written() {
        let begun = begin();
        let introduced = apply(&Change::Introduce(&begun), at(1), &wanted()).unwrap();
        let next = introduced.next.clone().unwrap();
        let promoted = apply(&Change::Promote(&introduced, &next), at(2), &wanted()).unwrap();
        for material in [begun, introduced, promoted] {
            let read = Material::read(&secret(&material)).unwrap();
            assert_eq!(read, Some(material));
        }
        assert!(Material::read(&BTreeMap::new()).unwrap().is_none());
    }

    #[test]
    fn a_secret_that_does_not_fit_together_is_not_used() {
        let (good, other) = (secret(&begin()), secret(&begin()));
        let cases: [(&str, Option<&ByteString>, &str); 7] = [
            ("ca.key", None, "key ca.key is absent"),
            ("tls.crt", None, "key tls.crt is absent"),
            (
                "ca.crt",
                other.get("ca.crt"),
                "ca.crt and ca.key do not belong together",
            ),
            (
                "tls.key",
                other.get("tls.key"),
                "tls.crt and tls.key do not belong together",
            ),
            (
                "ca.crt",
                good.get("ca.key"),
                "key ca.crt holds no certificate",
            ),
            (
                "tls.key",
                good.get("tls.crt"),
                "key tls.key holds no private key",
            ),
            (
                "next-ca.crt",
                good.get("ca.crt"),
                "key next-ca.key is absent",
            ),
        ];
        for (key, value, expected) in cases {
            let mut data = good.clone();
            match value {
                Some(value) => data.insert(key.to_owned(), value.clone()),
                None => data.remove(key),
            };
            let error = Material::read(&data).unwrap_err().to_string();
            assert_eq!(error, expected);
        }
        let mut mixed = good;
        for key in ["tls.crt", "tls.key"] {
            mixed.insert(key.to_owned(), other[key].clone());
        }
        let error = Material::read(&mixed).unwrap_err().to_string();
        assert_eq!(error, "ca.crt and tls.crt do not belong together");
    }

    #[test]
    fn private_keys_do_not_show_themselves() {
        let shown = format!("{:?}", begin());
        assert!(!shown.contains("PRIVATE KEY"), "{shown}");
    }
}
