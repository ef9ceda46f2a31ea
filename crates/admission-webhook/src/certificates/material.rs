//! The contents of the webhook's Secret: the current certificate, the next certificate, and the previous certificates. If another
//! program fills the Secret, the Secret contains one certificate, and the certificates of the CA that issued this certificate.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;
use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier as _;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::sign::CertifiedKey;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer as _, X509Certificate};

/// The validity of a certificate begins this long before its time of issue, because the clocks of API servers may be slow.
pub(super) const BACKDATED: SignedDuration = SignedDuration::from_hours(1);

/// The keys of the Secret for a certificate and its private key.
const CURRENT: [&str; 2] = ["tls.crt", "tls.key"];
const NEXT: [&str; 2] = ["next.crt", "next.key"];
/// The key of the Secret for the previous certificates.
const PREVIOUS: &str = "previous.crt";
/// The key for the certificates of the CA, in a Secret that another program fills.
const AUTHORITIES: &str = "ca.crt";

/// A serving certificate, or the certificate of a CA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Certificate {
    pub(super) der: Vec<u8>,
    /// The time of issue, in whole seconds.
    pub(super) issued: Timestamp,
    /// The time of expiry, in whole seconds.
    pub(super) expires: Timestamp,
    /// The host names and IP addresses.
    pub(super) names: BTreeSet<String>,
    /// The certificates of its CA, which API servers must trust instead of the certificate itself. Empty if it is self-signed.
    pub(super) authorities: Vec<Certificate>,
}

/// A private key in PEM format. `Debug` does not print it.
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
    /// The certificates between this one and the CA's.
    pub(super) intermediates: Vec<Certificate>,
    pub(super) key: PrivateKey,
}

impl Pair {
    /// Converts the certificate and its key to the form that `rustls` needs.
    ///
    /// # Errors
    /// The key cannot be read, or does not belong to the certificate.
    pub(super) fn certified(&self) -> anyhow::Result<Arc<CertifiedKey>> {
        let PrivateKey(pem) = &self.key;
        let act = "failed to use a stored private key";
        let key = PrivateKeyDer::from_pem_slice(pem.as_bytes()).context(act)?;
        let certificates = [&self.certificate].into_iter().chain(&self.intermediates);
        let chain = certificates.map(|it| it.der().into_owned()).collect();
        let certified =
            CertifiedKey::from_der(chain, key, &ring::default_provider()).context(act)?;
        Ok(Arc::new(certified))
    }
}

/// The contents of the Secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Material {
    /// The certificate to serve.
    pub(super) current: Pair,
    /// The certificate that becomes the current one when API servers have trusted it long enough.
    pub(super) next: Option<Pair>,
    /// Earlier certificates. They stay trusted until every replica serves the current certificate.
    pub(super) previous: Vec<Certificate>,
}

impl Certificate {
    /// Reads a certificate. `None` if the bytes are not a certificate.
    pub(super) fn from_der(der: &[u8]) -> Option<Self> {
        let (_, parsed) = X509Certificate::from_der(der).ok()?;
        let validity = parsed.validity();
        let not_before = Timestamp::from_second(validity.not_before.timestamp()).ok()?;
        let alternatives = parsed.subject_alternative_name().ok()?;
        let names = alternatives.map(|names| &names.value.general_names);
        Some(Self {
            der: der.to_vec(),
            issued: not_before.checked_add(BACKDATED).ok()?,
            expires: Timestamp::from_second(validity.not_after.timestamp()).ok()?,
            names: names.into_iter().flatten().filter_map(name).collect(),
            authorities: Vec::new(),
        })
    }

    /// The certificates that API servers must trust to accept this one.
    pub(super) fn anchors(&self) -> &[Self] {
        match self.authorities.as_slice() {
            [] => std::slice::from_ref(self),
            authorities => authorities,
        }
    }

    /// All certificates in a PEM text.
    pub(super) fn from_pem(ByteString(pem): &ByteString) -> Vec<Self> {
        CertificateDer::pem_slice_iter(pem)
            .filter_map(|der| Self::from_der(&der.ok()?))
            .collect()
    }

    pub(super) fn der(&self) -> CertificateDer<'_> {
        self.der.as_slice().into()
    }

    fn pem(&self) -> String {
        pem::encode_config(
            &pem::Pem::new("CERTIFICATE", self.der.as_slice()),
            pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF),
        )
    }
}

fn name(name: &GeneralName<'_>) -> Option<String> {
    match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => {
            let v4 = <[u8; 4]>::try_from(*bytes).map(IpAddr::from);
            let address = v4.or_else(|_| <[u8; 16]>::try_from(*bytes).map(IpAddr::from));
            Some(address.ok()?.to_string())
        }
        _ => None,
    }
}

impl Material {
    /// Reads the Secret's data. `None` if the Secret has none of our entries.
    ///
    /// # Errors
    /// An entry is missing, a value of the current or next pair is malformed, or a private key does not belong to its
    /// certificate.
    pub(super) fn read(data: &BTreeMap<String, ByteString>) -> anyhow::Result<Option<Self>> {
        let mut keys = CURRENT.iter().chain(&NEXT).chain([&PREVIOUS]);
        if !keys.any(|key| data.contains_key(*key)) {
            return Ok(None);
        }
        let has_next = data.contains_key(NEXT[0]);
        let previous = data.get(PREVIOUS).map(Certificate::from_pem);
        Ok(Some(Self {
            current: pair(data, CURRENT)?,
            next: has_next.then(|| pair(data, NEXT)).transpose()?,
            previous: previous.unwrap_or_default(),
        }))
    }

    /// Reads the data of a Secret that another program fills. Checks that API servers would accept the certificate for each of
    /// `names`.
    ///
    /// # Errors
    /// A value is missing or malformed, or API servers would not accept the certificate.
    pub(super) fn issued(
        data: &BTreeMap<String, ByteString>,
        names: &BTreeSet<String>,
        now: Timestamp,
    ) -> anyhow::Result<Pair> {
        let mut pair = pair(data, CURRENT)?;
        let authorities = data.get(AUTHORITIES).map(Certificate::from_pem);
        pair.certificate.authorities = authorities.unwrap_or_default();
        let mut roots = RootCertStore::empty();
        for authority in &pair.certificate.authorities {
            let added = roots.add(authority.der());
            added.with_context(|| format!("key {AUTHORITIES} holds a certificate of no CA"))?;
        }
        ensure!(
            !roots.is_empty(),
            "key {AUTHORITIES} holds no certificate of a CA"
        );
        let provider = Arc::new(ring::default_provider());
        let verifier = WebPkiServerVerifier::builder_with_provider(roots.into(), provider);
        let verifier = verifier.build().context("failed to verify a certificate")?;
        let chain: Vec<_> = pair.intermediates.iter().map(Certificate::der).collect();
        let now = Duration::from_secs(u64::try_from(now.as_second())?);
        for name in names {
            let failed = || format!("API servers would not accept the certificate for {name}");
            let name = ServerName::try_from(name.as_str()).with_context(failed)?;
            let der = pair.certificate.der();
            let now = UnixTime::since_unix_epoch(now);
            let verified = verifier.verify_server_cert(&der, &chain, &name, &[], now);
            verified.with_context(failed)?;
        }
        Ok(pair)
    }

    /// The data of the Secret. A key with value `None` is removed.
    pub(super) fn data(&self) -> BTreeMap<&'static str, Option<ByteString>> {
        let Self {
            current,
            next,
            previous,
        } = self;
        let mut data = BTreeMap::new();
        for ([certificate, key], pair) in [(CURRENT, Some(current)), (NEXT, next.as_ref())] {
            let pem = pair.map(|pair| ByteString(pair.certificate.pem().into_bytes()));
            data.insert(certificate, pem);
            let pem = pair.map(|pair| ByteString(pair.key.0.clone().into_bytes()));
            data.insert(key, pem);
        }
        let previous = (!previous.is_empty()).then(|| bundle(previous));
        data.insert(PREVIOUS, previous);
        data
    }

    /// The certificates that API servers must trust, the oldest first. A promotion does not change their order.
    pub(super) fn certificates(&self) -> Vec<&Certificate> {
        let pairs = [&self.current].into_iter().chain(&self.next);
        let pairs = pairs.map(|pair| &pair.certificate);
        let trusted = pairs.chain(&self.previous).flat_map(Certificate::anchors);
        let mut certificates: Vec<_> = trusted.collect();
        certificates.sort_by_key(|certificate| (certificate.issued, &certificate.der));
        certificates
    }

    /// The result of [`Self::certificates`] as a `caBundle`.
    pub(super) fn bundle(&self) -> ByteString {
        bundle(self.certificates())
    }
}

fn bundle<'a>(certificates: impl IntoIterator<Item = &'a Certificate>) -> ByteString {
    let pem: String = certificates.into_iter().map(Certificate::pem).collect();
    ByteString(pem.into_bytes())
}

fn pair(data: &BTreeMap<String, ByteString>, keys: [&str; 2]) -> anyhow::Result<Pair> {
    let value = |key: &str| {
        let value = data.get(key);
        value.with_context(|| format!("key {key} is absent"))
    };
    let [certificate, key] = keys;
    let mut chain = Certificate::from_pem(value(certificate)?).into_iter();
    let parsed = chain.next();
    // The text of a parse error may quote the private key, so errors of the parser are dropped.
    let ByteString(pem) = value(key)?;
    let pem = String::from_utf8(pem.clone()).ok();
    let pair = Pair {
        certificate: parsed.with_context(|| format!("key {certificate} holds no certificate"))?,
        intermediates: chain.collect(),
        key: PrivateKey(pem.with_context(|| format!("key {key} holds no private key"))?),
    };
    let usable = pair.certified().is_ok();
    ensure!(usable, "key {key} holds no private key of {certificate}");
    Ok(pair)
}
