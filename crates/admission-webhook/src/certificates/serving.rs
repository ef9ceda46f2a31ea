//! Selects the certificate of each TLS handshake. A handshake uses the certificate that is current at this moment, so the
//! listener need not be restarted for a new certificate. Until there is a certificate, handshakes fail.

use std::sync::Arc;

use anyhow::Context as _;
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio::sync::watch;

/// Gives the latest certificate to each handshake.
#[derive(Debug)]
struct Latest(watch::Receiver<Option<Arc<CertifiedKey>>>);

impl ResolvesServerCert for Latest {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.borrow().clone()
    }
}

/// A TLS configuration that always uses the latest certificate.
pub(super) fn config(
    certificates: watch::Receiver<Option<Arc<CertifiedKey>>>,
) -> anyhow::Result<Arc<ServerConfig>> {
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .context("failed to configure TLS")?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(Latest(certificates)));
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}
