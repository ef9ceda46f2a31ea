//! A certificate authority, for the API server of a test bed and for services with mutual TLS.

use std::net::Ipv4Addr;
use std::path::Path;

use anyhow::{Context as _, Result};
use rcgen::{
    BasicConstraints, Certificate, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, date_time_ymd,
};

use crate::files::{create_folder, write};

/// A certificate authority whose key exists only in this process.
#[derive(Debug)]
pub struct Authority {
    certificate: Certificate,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// A new certificate authority with a new key.
    ///
    /// # Errors
    /// No key can be created.
    pub fn new() -> Result<Self> {
        let key = key_pair()?;
        let mut authority = CertificateParams::default();
        let name = &mut authority.distinguished_name;
        name.push(DnType::CommonName, "testbed");
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        authority.key_usages = vec![
            KeyUsagePurpose::KeyCertSign,
            KeyUsagePurpose::DigitalSignature,
        ];
        let certificate = authority
            .self_signed(&key)
            .context("failed to create a certificate authority")?;
        Ok(Self {
            certificate,
            issuer: Issuer::new(authority, key),
        })
    }

    /// The certificate of this authority, in PEM format.
    pub fn pem(&self) -> String {
        self.certificate.pem()
    }

    /// Writes three files into `folder`, named as in a Secret of cert-manager: `ca.crt`, and `tls.crt` and `tls.key` for a
    /// process with these names and addresses. The certificate is for servers and for clients.
    ///
    /// # Errors
    /// A name is malformed, or a file cannot be written.
    pub fn issue(&self, folder: &Path, names: &[&str]) -> Result<()> {
        self.issue_until(folder, names, 4096)
    }

    /// As [`Self::issue`], with a certificate that expired long ago.
    ///
    /// # Errors
    /// As [`Self::issue`].
    pub fn issue_expired(&self, folder: &Path, names: &[&str]) -> Result<()> {
        self.issue_until(folder, names, 2000)
    }

    fn issue_until(&self, folder: &Path, names: &[&str], year: i32) -> Result<()> {
        let failed = || format!("failed to create a certificate for {names:?}");
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let mut params = CertificateParams::new(names.clone()).with_context(failed)?;
        params.not_after = date_time_ymd(year, 1, 1);
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        let key = key_pair()?;
        let certificate = params.signed_by(&key, &self.issuer).with_context(failed)?;
        create_folder(folder)?;
        write(&folder.join("ca.crt"), &self.pem())?;
        write(&folder.join("tls.crt"), &certificate.pem())?;
        write(&folder.join("tls.key"), &key.serialize_pem())
    }

    /// As [`Self::issue`], for a process that answers for a Service: its certificate has the name of the Service, and the
    /// loopback address.
    ///
    /// # Errors
    /// As [`Self::issue`].
    pub fn issue_service(&self, folder: &Path, namespace: &str, service: &str) -> Result<()> {
        let name = format!("{service}.{namespace}.svc");
        self.issue(folder, &[&name, &Ipv4Addr::LOCALHOST.to_string()])
    }
}

pub(crate) fn key_pair() -> Result<KeyPair> {
    KeyPair::generate().context("failed to create a key")
}
