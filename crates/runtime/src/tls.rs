//! Mutual TLS between the services. Each side of a connection must show a certificate that the CA of the installation
//! signed. The server learns the name of its caller from the caller's certificate. The client checks that the server's
//! certificate is valid for the host that it calls.
//!
//! The process reads its certificates at each handshake, so new certificates need no restart. This costs little: a channel has
//! twelve connections, and normally each of them lasts at least eight seconds. TLS sessions are not resumed, so an expired
//! certificate opens no connection.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use futures::{Stream, StreamExt as _};
use http::Uri;
use hyper_util::rt::TokioIo;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};
use tonic::transport::server::{Connected, TcpConnectInfo};
use tracing::warn;
use webpki::EndEntityCert;

/// A client that does not complete its handshake within this time is disconnected. Our clients do not wait longer either.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(1);
const ALPN: &[u8] = b"h2";

/// The names of the files, as in a Secret that cert-manager fills.
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";
const CA: &str = "ca.crt";

/// The certificates of this process.
#[derive(Clone, Debug)]
pub(crate) struct Tls {
    dir: Arc<Path>,
    /// The end of the first DNS name of each certificate of the installation, for example `.coscheduler-system.svc` in
    /// `watcher.coscheduler-system.svc`. A certificate whose first DNS name has another end does not name a caller. So the CA
    /// may also sign certificates for other programs.
    domain: Arc<str>,
}

/// The contents of the files.
struct Material {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    roots: Arc<RootCertStore>,
}

impl Material {
    /// # Errors
    /// A file cannot be read, or has no entry of its kind. The error names the file, and never quotes it.
    fn read(dir: &Path) -> anyhow::Result<Self> {
        let failed = |file| format!("failed to read {}", dir.join(file).display());
        let certificates = |file| -> anyhow::Result<Vec<_>> {
            let all = CertificateDer::pem_file_iter(dir.join(file))
                .and_then(|all| all.collect::<Result<Vec<_>, _>>())
                .with_context(|| failed(file))?;
            ensure!(!all.is_empty(), "{}: no certificate", failed(file));
            Ok(all)
        };
        let mut roots = RootCertStore::empty();
        for certificate in certificates(CA)? {
            roots.add(certificate).with_context(|| failed(CA))?;
        }
        Ok(Self {
            chain: certificates(CERTIFICATE)?,
            key: PrivateKeyDer::from_pem_file(dir.join(KEY)).with_context(|| failed(KEY))?,
            roots: Arc::new(roots),
        })
    }

    fn server(self) -> anyhow::Result<ServerConfig> {
        let provider = Arc::new(ring::default_provider());
        let clients = WebPkiClientVerifier::builder_with_provider(self.roots, provider.clone());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])?
            .with_client_cert_verifier(clients.build()?)
            .with_single_cert(self.chain, self.key)?;
        config.alpn_protocols = vec![ALPN.to_vec()];
        Ok(config)
    }

    fn client(self) -> anyhow::Result<ClientConfig> {
        let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[&TLS13])?
            .with_root_certificates(self.roots)
            .with_client_auth_cert(self.chain, self.key)?;
        config.alpn_protocols = vec![ALPN.to_vec()];
        Ok(config)
    }
}

impl Tls {
    /// Mutual TLS with the certificates in `dir`: `tls.crt`, `tls.key` and `ca.crt`.
    ///
    /// # Errors
    /// A file is missing or malformed, the key does not belong to the certificate, or the certificate has no DNS name with a
    /// domain.
    pub(crate) fn open(dir: PathBuf) -> anyhow::Result<Self> {
        let domain = Material::read(&dir).and_then(|material| {
            let name = first_dns_name(&material.chain[0]);
            material.server()?;
            let domain = name.as_deref().and_then(|name| name.find('.').map(|dot| name[dot..].into()));
            domain.with_context(|| {
                format!("the first DNS name of {CERTIFICATE} is {name:?}, expected one like watcher.coscheduler-system.svc")
            })
        });
        let failed = || format!("failed to use the certificates in {}", dir.display());
        Ok(Self {
            domain: domain.with_context(failed)?,
            dir: dir.into(),
        })
    }

    /// Does the handshakes of `connections`, as many at the same time as clients ask for. A connection whose handshake fails is
    /// closed.
    pub(crate) fn accept<C>(
        self,
        connections: impl Stream<Item = io::Result<C>>,
    ) -> impl Stream<Item = io::Result<server::TlsStream<C>>>
    where
        C: AsyncRead + AsyncWrite + Connected<ConnectInfo = TcpConnectInfo> + Unpin,
    {
        let handshake = move |connection: io::Result<C>| {
            let tls = self.clone();
            async move {
                let connection = match connection {
                    Ok(connection) => connection,
                    Err(error) => return Some(Err(error)),
                };
                let peer = connection.connect_info().remote_addr();
                match tls.handshake(connection).await {
                    Ok(stream) => Some(Ok(stream)),
                    Err(error) => {
                        let error = format!("{error:#}");
                        warn!(?peer, error, "a connection was refused");
                        None
                    }
                }
            }
        };
        let handshakes = connections.map(handshake).buffer_unordered(usize::MAX);
        handshakes.filter_map(std::future::ready)
    }

    async fn handshake<C>(&self, connection: C) -> anyhow::Result<server::TlsStream<C>>
    where
        C: AsyncRead + AsyncWrite + Unpin,
    {
        let config = Material::read(&self.dir)?.server()?;
        let accept = TlsAcceptor::from(Arc::new(config)).accept(connection);
        let accepted = tokio::time::timeout(HANDSHAKE_TIMEOUT, accept).await;
        accepted
            .context("the TLS handshake took too long")?
            .context("the TLS handshake failed")
    }

    /// Connects to the host and port of `address`, and checks that the server's certificate is valid for this host.
    pub(crate) async fn connect(
        self,
        address: Uri,
    ) -> anyhow::Result<TokioIo<client::TlsStream<TcpStream>>> {
        let host = address.host().context("no host")?.trim_matches(['[', ']']);
        let port = address.port_u16().context("no port")?;
        let name = ServerName::try_from(host.to_owned())?;
        let config = Material::read(&self.dir)?.client()?;
        let connection = TcpStream::connect((host, port)).await?;
        connection.set_nodelay(true)?;
        let connector = TlsConnector::from(Arc::new(config));
        Ok(TokioIo::new(connector.connect(name, connection).await?))
    }

    /// The name of the process that shows `certificate`: `watcher` for `watcher.coscheduler-system.svc`. `None` for a
    /// certificate that is not of this installation.
    pub(crate) fn name_in(&self, certificate: &CertificateDer<'_>) -> Option<String> {
        let mut name = first_dns_name(certificate)?;
        let process = name.strip_suffix(&*self.domain)?.len();
        name.truncate(process);
        (!name.contains('.')).then_some(name)
    }
}

fn first_dns_name(certificate: &CertificateDer<'_>) -> Option<String> {
    let parsed = EndEntityCert::try_from(certificate).ok()?;
    parsed.valid_dns_names().next().map(str::to_owned)
}
