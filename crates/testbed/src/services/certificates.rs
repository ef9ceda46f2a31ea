//! A CA that lives as long as one launcher, and the certificate admission-webhook serves with on loopback. The CA's
//! private key never leaves this process, so nobody else can sign for the registered `caBundle`.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose,
};

/// What was issued.
#[derive(Debug)]
pub(super) struct Certificates {
    /// The CA's certificate, PEM.
    pub(super) ca_pem: String,
    /// File of the serving certificate.
    pub(super) certificate: PathBuf,
    /// File of its private key, readable by its owner alone.
    pub(super) private_key: PathBuf,
}

/// Makes a CA and a certificate for 127.0.0.1 and localhost, and writes the latter into `folder`.
pub(super) fn issue(folder: &Path) -> anyhow::Result<Certificates> {
    let (ca_pem, certificate_pem, private_key_pem) =
        generate().context("failed to make the webhook's certificate")?;
    let certificate = folder.join("webhook.crt");
    let private_key = folder.join("webhook.key");
    write(&certificate, &certificate_pem)?;
    write(&private_key, &private_key_pem)?;
    Ok(Certificates {
        ca_pem,
        certificate,
        private_key,
    })
}

fn generate() -> Result<(String, String, String), rcgen::Error> {
    let mut authority = CertificateParams::default();
    authority
        .distinguished_name
        .push(DnType::CommonName, "coscheduler local services");
    authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate()?)?;

    let mut serving = CertificateParams::new(["127.0.0.1".to_owned(), "localhost".to_owned()])?;
    serving
        .distinguished_name
        .push(DnType::CommonName, "coscheduler admission-webhook");
    serving.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    serving.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    serving.use_authority_key_identifier_extension = true;
    let key = KeyPair::generate()?;
    let certificate = serving.signed_by(&key, &authority)?;
    Ok((authority.pem(), certificate.pem(), key.serialize_pem()))
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .with_context(|| format!("failed to write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_launcher_has_its_own_authority() {
        let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (first, second) = (issue(first.path()).unwrap(), issue(second.path()).unwrap());
        assert!(first.ca_pem.starts_with("-----BEGIN CERTIFICATE-----"));
        assert_ne!(first.ca_pem, second.ca_pem);
    }
}
