//! The gRPC server of a process. It serves the gRPC services of this process (the contracts), the standard health service, and
//! reflection v1 and v1alpha. The health service has a status for each contract, and one for the empty name.
//!
//! Layers around all these services do the common work. Each layer has a file: check of the caller, deadline, load shedding,
//! observation (span, log, metrics), and draining.

mod callers;
mod deadline;
mod drain;
mod observe;
mod shed;

use std::convert::Infallible;
use std::time::Duration;

use anyhow::Context as _;
use axum::Router;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::IntoResponse;
use futures::Stream;
use http::Request;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tonic::server::NamedService;
use tonic::service::{Routes, RoutesBuilder};
use tonic::transport::Server;
use tonic::transport::server::Connected;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;
use tower::Service as TowerService;

use crate::Health;
use crate::metrics_registry::Metrics;
use crate::rpc::RpcMetrics;
use crate::tls::Tls;

pub use callers::Callers;
use callers::Guard;
pub use deadline::Deadline;
use shed::Limit;

/// The largest message that a service accepts, in bytes. Each service passes it to `max_decoding_message_size` of its server,
/// which answers a larger message with `OUT_OF_RANGE`. This limit is more than twice etcd's default limit for a request (1.5
/// MiB).
pub const MAX_MESSAGE_BYTES: usize = 4 * 1024 * 1024;

/// The server asks a client to reconnect after this time, so that a new replica behind a Service soon gets its share of the
/// calls (B9). RPCs and streams in progress continue on the old connection.
const MAX_CONNECTION_AGE: Duration = Duration::from_secs(8);
/// A server sends an HTTP/2 ping on a connection that is silent for this time.
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
/// If there is no answer to the ping within this time, the server closes the connection (N9).
pub const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);

const HEALTH: &str = "grpc.health.v1.Health";
const REFLECTION: [&str; 2] = [
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
];

/// The gRPC services of a process, besides the health and reflection that every process has.
#[derive(Debug, Default)]
pub struct GrpcServices {
    routes: RoutesBuilder,
    services: Vec<(&'static str, Callers)>,
    descriptors: Vec<&'static [u8]>,
}

/// A server without its listener.
pub(crate) struct PreparedServer {
    routes: Routes,
    names: Vec<&'static str>,
    reporter: HealthReporter,
    draining: CancellationToken,
}

impl GrpcServices {
    /// Only health and reflection.
    pub fn new() -> Self {
        GrpcServices::default()
    }

    /// Adds a generated server, like `ConfigServiceServer::new(…)`. With mutual TLS, only `callers` may call it.
    #[must_use]
    pub fn add_service<S>(mut self, service: S, callers: Callers) -> Self
    where
        S: TowerService<Request<Body>, Error = Infallible>
            + NamedService
            + Clone
            + Send
            + Sync
            + 'static,
        S::Response: IntoResponse,
        S::Future: Send + 'static,
    {
        self.routes.add_service(service);
        self.services.push((S::NAME, callers));
        self
    }

    /// Adds an encoded `FileDescriptorSet` for reflection. Reflection lists only services that were added with
    /// [`Self::add_service`].
    #[must_use]
    pub fn descriptors(mut self, encoded: &'static [u8]) -> Self {
        self.descriptors.push(encoded);
        self
    }

    /// Adds health, reflection and the layers. The shedding layer limits the calls in progress to `max_concurrent_calls`.
    pub(crate) fn prepare(
        mut self,
        metrics: &Metrics,
        max_concurrent_calls: usize,
        tls: Option<Tls>,
    ) -> anyhow::Result<PreparedServer> {
        let names: Vec<_> = self.services.iter().map(|(name, _)| *name).collect();
        let listed = [&names[..], &[HEALTH], &REFLECTION].concat();
        let builtin = [
            tonic_health::pb::FILE_DESCRIPTOR_SET,
            tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET,
            tonic_reflection::pb::v1alpha::FILE_DESCRIPTOR_SET,
            // Lets tools show the details of errors.
            tonic_types::pb::FILE_DESCRIPTOR_SET,
        ];
        let reflection = || {
            let mut builder = tonic_reflection::server::Builder::configure();
            for name in &listed {
                builder = builder.with_service_name(*name);
            }
            for encoded in self.descriptors.iter().copied().chain(builtin) {
                builder = builder.register_encoded_file_descriptor_set(encoded);
            }
            builder
        };
        let failed = "failed to read the file descriptor sets for gRPC reflection";
        let (v1, v1alpha) = (reflection().build_v1(), reflection().build_v1alpha());
        let (reporter, health) = tonic_health::server::health_reporter();
        self.routes
            .add_service(v1.context(failed)?)
            .add_service(v1alpha.context(failed)?)
            .add_service(health);

        let draining = CancellationToken::new();
        let router = layered(
            self.routes.routes().into_axum_router(),
            RpcMetrics::server(metrics, listed),
            Limit::new(metrics, max_concurrent_calls, &names),
            Guard::new(tls, &self.services),
            draining.clone(),
        );
        Ok(PreparedServer {
            routes: Routes::from(router),
            names,
            reporter,
            draining,
        })
    }
}

/// Adds the layers, the innermost first. The layer that counts calls is outermost, so that it also sees the answers of other
/// layers.
fn layered(
    router: Router,
    metrics: RpcMetrics,
    limit: Limit,
    guard: Guard,
    draining: CancellationToken,
) -> Router {
    router
        .layer(from_fn_with_state(draining, drain::drain))
        .layer(from_fn_with_state(limit, shed::shed))
        .layer(from_fn(deadline::enforce))
        .layer(from_fn_with_state(guard, callers::guard))
        .layer(from_fn_with_state(metrics, observe::observe))
}

impl PreparedServer {
    /// Serves `connections` until `shutdown` is cancelled. Then it publishes NOT_SERVING, stops listening and ends streams. It
    /// returns when every connection is closed.
    pub(crate) async fn serve<C>(
        self,
        connections: impl Stream<Item = std::io::Result<C>>,
        health: Health,
        shutdown: CancellationToken,
    ) -> anyhow::Result<()>
    where
        C: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
    {
        self.publish(health.is_ready()).await;
        let stop = self.draining.clone().cancelled_owned();
        let server = Server::builder()
            .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
            .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
            .max_connection_age(MAX_CONNECTION_AGE)
            .add_routes(self.routes.clone())
            .serve_with_incoming_shutdown(connections, stop);

        let follow_readiness = async {
            let mut readiness = health.watch();
            loop {
                let ready = readiness.borrow_and_update().is_ready();
                self.publish(ready).await;
                tokio::select! {
                    _ = readiness.changed() => {}
                    () = shutdown.cancelled() => break,
                }
            }
            self.publish(false).await;
            self.draining.cancel();
            std::future::pending().await
        };

        tokio::select! {
            served = server => Ok(served?),
            () = follow_readiness => Ok(()),
        }
    }

    async fn publish(&self, ready: bool) {
        let status = match ready {
            true => ServingStatus::Serving,
            false => ServingStatus::NotServing,
        };
        for name in self.names.iter().copied().chain([""]) {
            self.reporter.set_service_status(name, status).await;
        }
    }
}

#[cfg(test)]
mod tests;
