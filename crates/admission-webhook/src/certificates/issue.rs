//! Carries out a [`Change`] of the certificates. In module `certificates`, only this code uses randomness.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::Context as _;
use jiff::{SignedDuration, Timestamp};
use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose};

use super::material::{BACKDATED, Certificate, Material, Pair, PrivateKey};
use super::state::{Change, Wanted};

/// The contents of the Secret after `change`.
///
/// # Errors
/// A certificate cannot be created.
pub(super) fn apply(
    change: &Change<'_>,
    now: Timestamp,
    wanted: &Wanted,
) -> anyhow::Result<Material> {
    Ok(match change {
        Change::Begin { trusted } => Material {
            current: self_signed(now, &wanted.names, wanted.lifetime)?,
            next: None,
            previous: trusted.clone(),
        },
        Change::Introduce(stored) => {
            // The new certificate has the names of the current one and the names in this replica's flags. Otherwise, replicas
            // with different flags would replace each other's certificates again and again.
            let names = &stored.current.certificate.names | &wanted.names;
            Material {
                next: Some(self_signed(now, &names, wanted.lifetime)?),
                ..(*stored).clone()
            }
        }
        Change::Promote(stored, next) => {
            let mut previous = stored.previous.clone();
            previous.push(stored.current.certificate.clone());
            Material {
                current: (*next).clone(),
                next: None,
                previous,
            }
        }
        Change::Retire(stored) => Material {
            previous: Vec::new(),
            ..(*stored).clone()
        },
    })
}

/// A self-signed certificate. It is not a CA. With it in the `caBundle`, API servers accept this certificate and no other.
fn self_signed(
    now: Timestamp,
    names: &BTreeSet<String>,
    lifetime: SignedDuration,
) -> anyhow::Result<Pair> {
    let mut params = CertificateParams::new(names.iter().cloned().collect::<Vec<_>>())?;
    params
        .distinguished_name
        .push(DnType::CommonName, "coscheduler admission-webhook");
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    let at = |moment: Timestamp| {
        epoch + Duration::from_secs(u64::try_from(moment.as_second()).unwrap_or_default())
    };
    params.not_before = at(now.checked_sub(BACKDATED).unwrap_or(Timestamp::MIN));
    params.not_after = at(now.checked_add(lifetime).unwrap_or(Timestamp::MAX));
    let key = KeyPair::generate()?;
    let made = params.self_signed(&key)?;
    Ok(Pair {
        certificate: Certificate::from_der(made.der())
            .context("the new certificate is malformed")?,
        intermediates: Vec::new(),
        key: PrivateKey(key.serialize_pem()),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use k8s_openapi::ByteString;
    use rustls::RootCertStore;
    use rustls::client::WebPkiServerVerifier;
    use rustls::client::danger::ServerCertVerifier as _;
    use rustls::crypto::ring;
    use rustls::pki_types::{ServerName, UnixTime};

    use super::*;

    const NOW: i64 = 1_800_000_000;

    fn wanted() -> Wanted {
        Wanted {
            names: ["127.0.0.1".to_owned(), "webhook.ns.svc".to_owned()].into(),
            lifetime: SignedDuration::from_hours(10),
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

    /// True if a client that trusts `roots` accepts certificate `served` for this host name, `hours` after the start of the test.
    fn accepted(roots: &[&Certificate], served: &Pair, name: &'static str, hours: i64) -> bool {
        let mut store = RootCertStore::empty();
        for root in roots {
            store.add(root.der.clone().into()).unwrap();
        }
        let provider = Arc::new(ring::default_provider());
        let verifier = WebPkiServerVerifier::builder_with_provider(store.into(), provider)
            .build()
            .unwrap();
        let seconds = u64::try_from(at(hours).as_second()).unwrap();
        let verified = verifier.verify_server_cert(
            &served.certificate.der.clone().into(),
            &[],
            &ServerName::try_from(name).unwrap(),
            &[],
            UnixTime::since_unix_epoch(Duration::from_secs(seconds)),
        );
        verified.is_ok()
    }

    #[test]
    fn a_certificate_is_accepted_by_its_names_while_it_is_valid() {
        let current = begin().current;
        let root = &current.certificate;
        for (name, hours, expected) in [
            ("127.0.0.1", 0, true),
            ("webhook.ns.svc", 9, true),
            // The clock of an API server may be slow.
            ("webhook.ns.svc", -1, true),
            ("webhook.ns.svc", -2, false),
            ("webhook.ns.svc", 11, false),
            ("another.ns.svc", 0, false),
        ] {
            let answer = accepted(&[root], &current, name, hours);
            assert_eq!(answer, expected, "{name} after {hours} h");
        }
        let stranger = begin().current.certificate;
        assert!(!accepted(&[&stranger], &current, "127.0.0.1", 0));
    }

    #[test]
    fn the_next_certificate_keeps_the_names_of_the_current_one() {
        let mut stored = begin();
        let older = "older.ns.svc".to_owned();
        stored.current.certificate.names.insert(older.clone());
        let introduced = apply(&Change::Introduce(&stored), at(1), &wanted()).unwrap();
        let names = introduced.next.unwrap().certificate.names;
        assert_eq!(names, &wanted().names | &[older].into());
    }

    #[test]
    fn a_rotation_leaves_no_gap_in_trust() {
        let before = begin();
        let introduced = apply(&Change::Introduce(&before), at(6), &wanted()).unwrap();
        assert_eq!(introduced.current, before.current);
        let next = introduced.next.as_ref().unwrap();
        let promoted = apply(&Change::Promote(&introduced, next), at(7), &wanted()).unwrap();
        assert_eq!(&promoted.current, next);
        assert_eq!(promoted.bundle(), introduced.bundle());
        let roots = promoted.certificates();
        assert!(accepted(&roots, &before.current, "127.0.0.1", 7));
        assert!(accepted(&roots, &promoted.current, "127.0.0.1", 7));
        let retired = apply(&Change::Retire(&promoted), at(8), &wanted()).unwrap();
        let roots = retired.certificates();
        assert!(!accepted(&roots, &before.current, "127.0.0.1", 8));
        assert!(accepted(&roots, &retired.current, "127.0.0.1", 8));
    }

    /// The Secret as the API server stores it after `material` was written.
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
    fn a_secret_whose_parts_do_not_fit_together_is_not_used() {
        let (good, other) = (secret(&begin()), secret(&begin()));
        let cases: [(&str, Option<&ByteString>, &str); 6] = [
            ("tls.crt", None, "key tls.crt is absent"),
            ("tls.key", None, "key tls.key is absent"),
            (
                "tls.key",
                other.get("tls.key"),
                "key tls.key holds no private key of tls.crt",
            ),
            (
                "tls.crt",
                good.get("tls.key"),
                "key tls.crt holds no certificate",
            ),
            (
                "tls.key",
                good.get("tls.crt"),
                "key tls.key holds no private key of tls.crt",
            ),
            ("next.crt", good.get("tls.crt"), "key next.key is absent"),
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
    }

    #[test]
    fn a_secret_of_another_program_is_used_if_api_servers_accept_its_certificate() {
        let authority = || {
            let mut params = CertificateParams::default();
            params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
            let key = KeyPair::generate().unwrap();
            let pem = params.self_signed(&key).unwrap().pem();
            (pem, rcgen::Issuer::new(params, key))
        };
        let ((pem, issuer), (stranger, _)) = (authority(), authority());
        let names: Vec<String> = wanted().names.into_iter().collect();
        let data = |names: &[String], days: i64| {
            let mut params = CertificateParams::new(names).unwrap();
            let end = u64::try_from(NOW + days * 86_400).unwrap();
            params.not_after = rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(end);
            let key = KeyPair::generate().unwrap();
            let certificate = params.signed_by(&key, &issuer).unwrap().pem();
            let entries = [
                ("tls.crt", certificate),
                ("tls.key", key.serialize_pem()),
                ("ca.crt", pem.clone()),
            ];
            let entries = entries.map(|(key, text)| (key.to_owned(), ByteString(text.into())));
            BTreeMap::from(entries)
        };
        let read = |data: &BTreeMap<_, _>| Material::issued(data, &wanted().names, at(0));
        let good = data(&names, 2);
        let read_good = read(&good).unwrap();
        let authorities = Certificate::from_pem(&ByteString(pem.clone().into()));
        assert_eq!(read_good.certificate.authorities, authorities);
        let stored = Material {
            current: read_good,
            ..begin()
        };
        assert_eq!(stored.bundle(), ByteString(pem.clone().into()));

        let with = |key: &str, value: Option<String>| {
            let mut data = good.clone();
            match value {
                Some(value) => data.insert(key.to_owned(), ByteString(value.into())),
                None => data.remove(key),
            };
            data
        };
        for (data, expected) in [
            (BTreeMap::new(), "key tls.crt is absent"),
            (with("tls.key", None), "key tls.key is absent"),
            (
                with("ca.crt", None),
                "key ca.crt holds no certificate of a CA",
            ),
            (
                with("ca.crt", Some(stranger)),
                "not accept the certificate for 127.0.0.1",
            ),
            (data(&names, -1), "not accept the certificate for 127.0.0.1"),
            (
                data(&names[..1], 2),
                "not accept the certificate for webhook.ns.svc",
            ),
        ] {
            let error = format!("{:#}", read(&data).unwrap_err());
            assert!(error.contains(expected), "{expected}: {error}");
        }
    }

    #[test]
    fn debug_output_shows_no_private_key() {
        let shown = format!("{:?}", begin());
        assert!(!shown.contains("PRIVATE KEY"), "{shown}");
    }
}
