//! The layer that decides who may call which RPC. It has an effect only with mutual TLS, because a plaintext connection does
//! not say who calls. Health and reflection are open to every holder of a certificate of the installation's CA.

use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use tonic::Status;
use tonic::transport::server::{TcpConnectInfo, TlsConnectInfo};

use super::{HEALTH, REFLECTION};
use crate::rpc::MethodLabels;
use crate::tls::Tls;

/// The callers of each RPC of a service, by the name in their certificate: `[("GetConfig", &["affinity-planner"])]`. Nobody may
/// call an RPC that is not listed.
pub type Callers = &'static [(&'static str, &'static [&'static str])];

/// Who may call what.
#[derive(Clone, Debug)]
pub(crate) struct Guard {
    tls: Option<Tls>,
    /// The callers by the full name of the RPC, like `coscheduler.config.v1.ConfigService/GetConfig`.
    callers: Arc<HashMap<String, &'static [&'static str]>>,
}

impl Guard {
    pub(crate) fn new(tls: Option<Tls>, services: &[(&'static str, Callers)]) -> Self {
        let rpcs = services.iter().flat_map(|(service, rpcs)| {
            let full = move |method| format!("{service}/{method}");
            rpcs.iter()
                .map(move |(method, callers)| (full(method), *callers))
        });
        Self {
            tls,
            callers: Arc::new(rpcs.collect()),
        }
    }

    fn check(&self, request: &Request) -> Result<(), Status> {
        let Some(tls) = &self.tls else { return Ok(()) };
        let path = request.uri().path();
        let service = MethodLabels::of(path).grpc_service;
        if service == HEALTH || REFLECTION.contains(&&*service) {
            return Ok(());
        }
        let connection = request.extensions().get::<TlsConnectInfo<TcpConnectInfo>>();
        let certificates = connection.and_then(TlsConnectInfo::peer_certs);
        let caller = certificates.and_then(|chain| tls.name_in(chain.first()?));
        let Some(caller) = caller else {
            let unknown = "the caller's certificate has no name of this installation";
            return Err(Status::unauthenticated(unknown));
        };
        let rpc = path.trim_start_matches('/');
        let allowed = self.callers.get(rpc).copied().unwrap_or_default();
        if allowed.contains(&&*caller) {
            return Ok(());
        }
        let message = match allowed {
            [] => format!("{caller} is not allowed to call {rpc}: nobody is"),
            allowed => format!(
                "{caller} is not allowed to call {rpc}: only {} may",
                allowed.join(", ")
            ),
        };
        Err(Status::permission_denied(message))
    }
}

/// The layer: `axum::middleware::from_fn_with_state(guard, guard)`.
pub(crate) async fn guard(State(guard): State<Guard>, request: Request, next: Next) -> Response {
    match guard.check(&request) {
        Ok(()) => next.run(request).await,
        Err(status) => status.into_http(),
    }
}
