//! Connections of tests to the gRPC ports of the services.

use std::fs::read;
use std::path::Path;

use testbed::services::{Service, Services};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

/// A connection to `service`. If the services use mutual TLS, it has the certificate of `caller`: the name of another service,
/// or [`testbed::services::OPERATOR`].
///
/// # Errors
///
/// The service cannot be reached.
pub async fn connect(
    services: &Services,
    service: Service,
    caller: &str,
) -> anyhow::Result<Channel> {
    let certificates = services.certificates(caller);
    connect_to(&services.grpc_address(service), certificates.as_deref()).await
}

/// A connection to an address like `http://127.0.0.1:9101`. With a folder of certificates, the connection uses mutual TLS.
///
/// # Errors
///
/// The server cannot be reached, or refuses the certificate.
pub async fn connect_to(address: &str, certificates: Option<&Path>) -> anyhow::Result<Channel> {
    let Some(folder) = certificates else {
        return Ok(Endpoint::from_shared(address.to_owned())?.connect().await?);
    };
    let tls = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(read(folder.join("ca.crt"))?))
        .identity(Identity::from_pem(
            read(folder.join("tls.crt"))?,
            read(folder.join("tls.key"))?,
        ));
    let address = address.replacen("http:", "https:", 1);
    let endpoint = Endpoint::from_shared(address)?.tls_config(tls)?;
    Ok(endpoint.connect().await?)
}
