//! What the webhook's Secret holds, as types: authorities, the certificate that is served, and how both are written into the
//! Secret and read back. What cannot be read, or does not fit together, is no material at all.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;
use rcgen::{KeyPair, PublicKeyData as _};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::{FromDer as _, X509Certificate};

/// How long before it was issued a certificate is valid already, for API servers whose clock is behind.
pub(super) const BACKDATED: SignedDuration = SignedDuration::from_hours(1);

const AUTHORITY: &str = "ca.crt";
const AUTHORITY_KEY: &str = "ca.key";
const NEXT: &str = "next-ca.crt";
const NEXT_KEY: &str = "next-ca.key";
const PREVIOUS: &str = "previous-ca.crt";
const SERVING: &str = "tls.crt";
const SERVING_KEY: &str = "tls.key";
const ALL: [&str; 7] = [
    AUTHORITY,
    AUTHORITY_KEY,
    NEXT,
    NEXT_KEY,
    PREVIOUS,
    SERVING,
    SERVING_KEY,
];

/// A certificate, and what the decisions about it look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Certificate {
    /// The certificate itself, DER.
    pub(super) der: Vec<u8>,
    /// When it was issued, to the second.
    pub(super) issued: Timestamp,
    /// From when on nobody accepts it, to the second.
    pub(super) expires: Timestamp,
    /// Identifies the key it is about.
    pub(super) key: Vec<u8>,
    /// Identifies the key that signed it.
    pub(super) signer: Vec<u8>,
    /// The host names and IP addresses it is for; none for an authority.
    pub(super) names: BTreeSet<String>,
}

/// A private key, PEM. It shows itself to nobody.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct PrivateKey(pub(super) String);

impl fmt::Debug for PrivateKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("PrivateKey(…)")
    }
}

/// A certificate with its private key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pair {
    pub(super) certificate: Certificate,
    pub(super) key: PrivateKey,
}

/// Everything that the Secret holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Material {
    /// The authority that signed what is served.
    pub(super) current: Pair,
    /// The authority that is to follow, once the API server trusts it.
    pub(super) next: Option<Pair>,
    /// Authorities of before, trusted until every replica has gone on to the current one.
    pub(super) previous: Vec<Certificate>,
    /// The certificate that is served.
    pub(super) serving: Pair,
}

/// Why a Secret's data, or a part of it, cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unusable {
    /// A key is absent.
    #[error("key {0} is absent")]
    Absent(&'static str),
    /// A key's value is not what it should be.
    #[error("key {key} holds no {what}")]
    Malformed {
        /// The Secret's key.
        key: &'static str,
        /// What it should hold.
        what: &'static str,
    },
    /// Two values do not belong together.
    #[error("{0} and {1} do not belong together")]
    Mismatch(&'static str, &'static str),
}

impl Certificate {
    /// Reads a certificate as the webhook issues them: with key identifiers.
    pub(super) fn from_der(der: &[u8]) -> Option<Self> {
        let (_, parsed) = X509Certificate::from_der(der).ok()?;
        let validity = parsed.validity();
        let mut key = None;
        let mut signer = None;
        let mut names = BTreeSet::new();
        for extension in parsed.extensions() {
            match extension.parsed_extension() {
                ParsedExtension::SubjectKeyIdentifier(identifier) => {
                    key = Some(identifier.0.to_vec());
                }
                ParsedExtension::AuthorityKeyIdentifier(identifier) => {
                    signer = identifier
                        .key_identifier
                        .as_ref()
                        .map(|identifier| identifier.0.to_vec());
                }
                ParsedExtension::SubjectAlternativeName(alternatives) => {
                    names.extend(alternatives.general_names.iter().filter_map(name));
                }
                _ => {}
            }
        }
        // A certificate that is not an authority's needs no identifier of its own key; an authority's own signs it.
        let key = key.unwrap_or_default();
        Some(Self {
            der: der.to_vec(),
            issued: Timestamp::from_second(validity.not_before.timestamp())
                .ok()?
                .checked_add(BACKDATED)
                .ok()?,
            expires: Timestamp::from_second(validity.not_after.timestamp()).ok()?,
            signer: signer.unwrap_or_else(|| key.clone()),
            key,
            names,
        })
    }

    /// Every certificate of a PEM text. What is not a certificate of the webhook's making is left out.
    pub(super) fn from_pem(pem: &[u8]) -> Vec<Self> {
        CertificateDer::pem_slice_iter(pem)
            .filter_map(Result::ok)
            .filter_map(|der| Self::from_der(&der))
            .collect()
    }

    /// The certificate as PEM.
    pub(super) fn pem(&self) -> String {
        pem::encode_config(
            &pem::Pem::new("CERTIFICATE", self.der.as_slice()),
            pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF),
        )
    }

    /// How long it is valid, from when it was issued.
    pub(super) fn life(&self) -> SignedDuration {
        self.expires.duration_since(self.issued)
    }
}

fn name(name: &GeneralName<'_>) -> Option<String> {
    match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => {
            let v4 = <[u8; 4]>::try_from(*bytes).map(|v4| std::net::IpAddr::from(v4).to_string());
            let v6 =
                || <[u8; 16]>::try_from(*bytes).map(|v6| std::net::IpAddr::from(v6).to_string());
            v4.or_else(|_| v6()).ok()
        }
        _ => None,
    }
}

impl Material {
    /// Reads the Secret's data. `None` where there is none.
    ///
    /// # Errors
    /// A part is missing, malformed, or does not fit the others.
    pub(super) fn read(data: &BTreeMap<String, ByteString>) -> Result<Option<Self>, Unusable> {
        if ALL.iter().all(|key| !data.contains_key(*key)) {
            return Ok(None);
        }
        let current = pair(data, AUTHORITY, AUTHORITY_KEY)?;
        let serving = pair(data, SERVING, SERVING_KEY)?;
        if serving.certificate.signer != current.certificate.key {
            return Err(Unusable::Mismatch(AUTHORITY, SERVING));
        }
        let next = data
            .contains_key(NEXT)
            .then(|| pair(data, NEXT, NEXT_KEY))
            .transpose()?;
        let previous = data
            .get(PREVIOUS)
            .map(|ByteString(pem)| Certificate::from_pem(pem))
            .unwrap_or_default();
        Ok(Some(Self {
            current,
            next,
            previous,
            serving,
        }))
    }

    /// The Secret's data. `None` stands for a key that must not be there.
    pub(super) fn data(&self) -> BTreeMap<&'static str, Option<ByteString>> {
        let Self {
            current,
            next,
            previous,
            serving,
        } = self;
        let certificate = |certificate: &Certificate| bytes(certificate.pem());
        let key = |PrivateKey(pem): &PrivateKey| bytes(pem.clone());
        let previous: String = previous.iter().map(Certificate::pem).collect();
        BTreeMap::from([
            (AUTHORITY, Some(certificate(&current.certificate))),
            (AUTHORITY_KEY, Some(key(&current.key))),
            (
                NEXT,
                next.as_ref().map(|next| certificate(&next.certificate)),
            ),
            (NEXT_KEY, next.as_ref().map(|next| key(&next.key))),
            (PREVIOUS, (!previous.is_empty()).then(|| bytes(previous))),
            (SERVING, Some(certificate(&serving.certificate))),
            (SERVING_KEY, Some(key(&serving.key))),
        ])
    }

    /// The authorities that the API server is to trust.
    pub(super) fn authorities(&self) -> impl Iterator<Item = &Certificate> {
        [&self.current]
            .into_iter()
            .chain(&self.next)
            .map(|pair| &pair.certificate)
            .chain(&self.previous)
    }

    /// [`Self::authorities`] as PEM, for a `caBundle`.
    pub(super) fn bundle(&self) -> ByteString {
        bytes(self.authorities().map(Certificate::pem).collect())
    }
}

fn bytes(text: String) -> ByteString {
    ByteString(text.into_bytes())
}

fn pair(
    data: &BTreeMap<String, ByteString>,
    certificate_name: &'static str,
    key_name: &'static str,
) -> Result<Pair, Unusable> {
    let value = |key| {
        let ByteString(value) = data.get(key).ok_or(Unusable::Absent(key))?;
        Ok(value)
    };
    let certificate = Certificate::from_pem(value(certificate_name)?)
        .into_iter()
        .next()
        .ok_or(Unusable::Malformed {
            key: certificate_name,
            what: "certificate",
        })?;
    let malformed = Unusable::Malformed {
        key: key_name,
        what: "private key",
    };
    let Ok(pem) = String::from_utf8(value(key_name)?.clone()) else {
        return Err(malformed);
    };
    let Ok(key) = KeyPair::from_pem(&pem) else {
        return Err(malformed);
    };
    if !is_about(&certificate, &key) {
        return Err(Unusable::Mismatch(certificate_name, key_name));
    }
    Ok(Pair {
        certificate,
        key: PrivateKey(pem),
    })
}

fn is_about(certificate: &Certificate, key: &KeyPair) -> bool {
    X509Certificate::from_der(&certificate.der)
        .is_ok_and(|(_, parsed)| parsed.public_key().raw == key.subject_public_key_info())
}
