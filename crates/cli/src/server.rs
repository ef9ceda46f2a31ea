//! A connection to one of the services (`--server`), for operators.

use std::error::Error as _;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use tokio::runtime::Runtime;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Request, Response, Status};

use crate::args::CertificateArgs;
use crate::failure::{Failure, no_answer};

/// The time limit of the connection, and of each call.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A connection to a service.
pub(crate) struct Server {
    runtime: Runtime,
    channel: Channel,
    service: &'static str,
}

impl Server {
    /// Connects to `service` at this address.
    pub(crate) fn connect(
        service: &'static str,
        address: &str,
        certificates: &CertificateArgs,
    ) -> Result<Self, Failure> {
        let endpoint = endpoint(address, certificates)?;
        let runtime = crate::runtime()?;
        let connected = runtime.block_on(endpoint.connect_timeout(TIMEOUT).connect());
        let channel = connected.map_err(|error| {
            let text = no_answer(service, address, &anyhow!(error));
            Failure::Unreachable(anyhow!(text))
        })?;
        Ok(Self {
            runtime,
            channel,
            service,
        })
    }

    /// The answer to a request.
    pub(crate) fn call<Q, A>(
        &self,
        message: Q,
        rpc: impl AsyncFnOnce(Channel, Request<Q>) -> Result<Response<A>, Status>,
    ) -> Result<A, Status> {
        let mut request = Request::new(message);
        request.set_timeout(TIMEOUT);
        let answer = self.runtime.block_on(rpc(self.channel.clone(), request));
        answer.map(Response::into_inner)
    }

    /// The failure of a call.
    pub(crate) fn failed(&self, status: &Status) -> Failure {
        let message = match status.message() {
            "" => status.code().description(),
            message => message,
        };
        let error = anyhow!("{message}");
        let no_answer = format!("the {} gave no answer", self.service);
        match status.code() {
            Code::NotFound => Failure::NotFound(error),
            Code::Unavailable | Code::DeadlineExceeded => {
                Failure::Unreachable(error.context(no_answer))
            }
            // The connection broke, so this code is not the service's.
            _ if status.source().is_some() => {
                let hint = "if the services use mutual TLS, set --certificates";
                Failure::Unreachable(error.context(format!("{no_answer} ({hint})")))
            }
            _ => Failure::Failed(error.context(no_answer)),
        }
    }
}

fn endpoint(address: &str, args: &CertificateArgs) -> anyhow::Result<Endpoint> {
    let Some(folder) = &args.certificates else {
        return Ok(Endpoint::from_shared(format!("http://{address}"))?);
    };
    let mut tls = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(read(folder, "ca.crt")?))
        .identity(Identity::from_pem(
            read(folder, "tls.crt")?,
            read(folder, "tls.key")?,
        ));
    if let Some(authority) = &args.authority {
        tls = tls.domain_name(authority);
    }
    Ok(Endpoint::from_shared(format!("https://{address}"))?.tls_config(tls)?)
}

fn read(folder: &Path, file: &str) -> anyhow::Result<Vec<u8>> {
    let path = folder.join(file);
    fs::read(&path).with_context(|| format!("failed to read {}", path.display()))
}
