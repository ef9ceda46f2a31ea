//! The gRPC server of a service: its own services, standard health for each of them and for "", and reflection v1 and
//! v1alpha over exactly what is served. What every call needs beside its handler is in the layers around them, one file
//! each: deadline, load shedding, span, log and metrics, and the end of streams when the server stops.

mod deadline;
mod drain;
mod observe;
mod shed;

use std::convert::Infallible;
use std::time::Duration;

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

use crate::metrics::Metrics;
use crate::rpc::RpcMetrics;
use crate::{Health, ServeError};

pub use deadline::Deadline;
pub(crate) use deadline::GRPC_TIMEOUT;
use shed::Limit;

/// The largest message that a service takes, in bytes: `.max_decoding_message_size(MAX_MESSAGE_BYTES)` on its server. A
/// larger one is answered with `OUT_OF_RANGE`. More than twice the largest object etcd stores.
pub const MAX_MESSAGE_BYTES: usize = 4 * 1024 * 1024;

/// How long a connection is used before the client is asked to open a new one, so that clients that never reconnect
/// find new replicas behind a Service. Calls in flight are not cut, streams included: whoever watches stays connected.
const MAX_CONNECTION_AGE: Duration = Duration::from_secs(300);
/// HTTP/2 pings, so that dead peers are noticed.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);

const HEALTH: &str = "grpc.health.v1.Health";
/// The name whose health says only that the process answers: what a liveness probe asks for, since a service that waits
/// for another one must not be restarted for it.
const LIVENESS: &str = "liveness";
const REFLECTION: [&str; 2] = [
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
];

/// What a service serves over gRPC, besides the health and reflection that every service has.
#[derive(Debug, Default)]
pub struct GrpcServices {
    routes: RoutesBuilder,
    names: Vec<&'static str>,
    descriptors: Vec<&'static [u8]>,
}

/// A server that lacks only its listener.
pub(crate) struct PreparedServer {
    routes: Routes,
    names: Vec<&'static str>,
    reporter: HealthReporter,
    draining: CancellationToken,
}

impl GrpcServices {
    /// Nothing but health and reflection.
    pub fn new() -> Self {
        GrpcServices::default()
    }

    /// Adds a generated server, like `ConfigServiceServer::new(…)`.
    #[must_use]
    pub fn add_service<S>(mut self, service: S) -> Self
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
        self.names.push(S::NAME);
        self
    }

    /// Adds an encoded `FileDescriptorSet` for reflection. It may describe more than is served: only the services
    /// that were added are listed.
    #[must_use]
    pub fn descriptors(mut self, encoded: &'static [u8]) -> Self {
        self.descriptors.push(encoded);
        self
    }

    /// Adds health, reflection and the layers. At most `max_concurrent_calls` are worked on at once.
    pub(crate) fn prepare(
        self,
        metrics: &Metrics,
        max_concurrent_calls: usize,
    ) -> Result<PreparedServer, ServeError> {
        let GrpcServices {
            mut routes,
            names,
            descriptors,
        } = self;

        let listed: Vec<&str> = names
            .iter()
            .copied()
            .chain([HEALTH])
            .chain(REFLECTION)
            .collect();
        let builtin = [
            tonic_health::pb::FILE_DESCRIPTOR_SET,
            tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET,
            tonic_reflection::pb::v1alpha::FILE_DESCRIPTOR_SET,
            // So that tools can show the details of an error.
            tonic_types::pb::FILE_DESCRIPTOR_SET,
        ];
        let reflection = || {
            let builder = listed.iter().fold(
                tonic_reflection::server::Builder::configure(),
                |builder, name| builder.with_service_name(*name),
            );
            descriptors
                .iter()
                .copied()
                .chain(builtin)
                .fold(builder, |builder, encoded| {
                    builder.register_encoded_file_descriptor_set(encoded)
                })
        };
        routes.add_service(reflection().build_v1()?);
        routes.add_service(reflection().build_v1alpha()?);

        let (reporter, health) = tonic_health::server::health_reporter();
        routes.add_service(health);

        let draining = CancellationToken::new();
        let router = layered(
            routes.routes().into_axum_router(),
            RpcMetrics::server(metrics, listed),
            Limit::new(metrics, max_concurrent_calls, &names),
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

/// The layers, the outermost last: whatever ends a call is seen by the one that counts.
fn layered(
    router: Router,
    metrics: RpcMetrics,
    limit: Limit,
    draining: CancellationToken,
) -> Router {
    router
        .layer(from_fn_with_state(draining, drain::drain))
        .layer(from_fn_with_state(limit, shed::shed))
        .layer(from_fn(deadline::enforce))
        .layer(from_fn_with_state(metrics, observe::observe))
}

impl PreparedServer {
    /// Serves `connections` until `shutdown` is cancelled: says NOT_SERVING first, then stops listening, ends streams,
    /// and returns once every connection is closed.
    pub(crate) async fn serve<C>(
        self,
        connections: impl Stream<Item = std::io::Result<C>>,
        health: Health,
        shutdown: CancellationToken,
    ) -> anyhow::Result<()>
    where
        C: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
    {
        let PreparedServer {
            routes,
            names,
            reporter,
            draining,
        } = self;
        publish(&reporter, &names, health.is_ready()).await;
        reporter
            .set_service_status(LIVENESS, ServingStatus::Serving)
            .await;

        let server = Server::builder()
            .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
            .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
            .max_connection_age(MAX_CONNECTION_AGE)
            .add_routes(routes)
            .serve_with_incoming_shutdown(connections, draining.clone().cancelled_owned());

        let follow_readiness = async {
            let mut readiness = health.watch();
            loop {
                let ready = readiness.borrow_and_update().is_ready();
                publish(&reporter, &names, ready).await;
                tokio::select! {
                    _ = readiness.changed() => {}
                    () = shutdown.cancelled() => break,
                }
            }
            publish(&reporter, &names, false).await;
            draining.cancel();
            std::future::pending().await
        };

        tokio::select! {
            served = server => Ok(served?),
            () = follow_readiness => Ok(()),
        }
    }
}

async fn publish(reporter: &HealthReporter, names: &[&str], ready: bool) {
    let status = if ready {
        ServingStatus::Serving
    } else {
        ServingStatus::NotServing
    };
    for name in names.iter().copied().chain([""]) {
        reporter.set_service_status(name, status).await;
    }
}

#[cfg(test)]
mod tests;
