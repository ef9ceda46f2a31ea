//! The connection to the API server. All requests of a process share one HTTP/2 connection. Pings detect that this connection
//! carries no data any more (N9). Without pings, a dead connection would look like a connection whose watches deliver no
//! changes. If the API server does not offer HTTP/2, requests in progress at the same time use separate connections. Then the
//! read timeout detects a dead connection.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::Config;
use kube::client::{Body, ConfigExt as _};
use rustls::pki_types::ServerName;

use crate::client::{KEEPALIVE_INTERVAL, KEEPALIVE_TIMEOUT};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// Longer than kube's longest watch (290 s), so that only a dead connection is silent for this time.
const READ_TIMEOUT: Duration = Duration::from_secs(300);

/// The connections to one API server. They are made when requests need them.
pub(super) type Connections = Client<TimeoutConnector<HttpsConnector<HttpConnector>>, Body>;

/// The connections to the API server of `config`.
///
/// # Errors
/// A certificate or the server name in `config` is malformed, or `config` demands a proxy.
pub(super) fn connections(config: &Config) -> anyhow::Result<Connections> {
    ensure!(config.proxy_url.is_none(), "a proxy is not supported");
    // The client sends a request as several small writes. TCP must not delay a write until the previous one is acknowledged.
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    let mut tls = HttpsConnectorBuilder::new()
        .with_tls_config(config.rustls_client_config()?)
        .https_or_http();
    if let Some(name) = config.tls_server_name.clone() {
        let name = ServerName::try_from(name).context("tls-server-name is malformed")?;
        tls = tls.with_server_name_resolver(FixedServerNameResolver::new(name));
    }
    let mut connector =
        TimeoutConnector::new(tls.enable_http1().enable_http2().wrap_connector(tcp));
    connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
    connector.set_write_timeout(Some(WRITE_TIMEOUT));
    connector.set_read_timeout(Some(READ_TIMEOUT));
    connector.set_reset_reader_on_write(true);
    Ok(Client::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
        .http2_keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .http2_keep_alive_while_idle(true)
        .build(connector))
}
