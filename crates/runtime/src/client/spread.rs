//! Several connections to one service (B9). Behind a Kubernetes Service, each connection goes to one replica and stays there. So
//! a channel has several connections, and sends its calls over them in turn. Servers end each connection after a few seconds, so
//! new replicas get their share.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use futures::future::BoxFuture;
use http::{Request, Response};
use tonic::body::Body;
use tonic::transport::{Channel, Error};
use tower::{Service, ServiceExt as _};

use super::Retry;

/// The number of connections of a channel. Two, three or four replicas can get the same number of connections.
const CONNECTIONS: usize = 12;

/// A transport over several connections. Each connects at its first call.
#[derive(Clone, Debug)]
pub(super) struct Spread {
    connections: Arc<[Channel]>,
    calls: Arc<AtomicUsize>,
    /// The index of the connection for retries: the connection that answered last or, if that connection has failed since, the
    /// next one.
    answered: Arc<AtomicUsize>,
}

impl Spread {
    /// A transport over connections that `connect` makes.
    pub(super) fn new(connect: impl Fn() -> Channel) -> Self {
        let connections = (0..CONNECTIONS).map(|_| connect());
        Self {
            connections: connections.collect(),
            calls: Arc::default(),
            answered: Arc::default(),
        }
    }
}

impl Service<Request<Body>> for Spread {
    type Response = Response<Body>;
    type Error = Error;
    type Future = BoxFuture<'static, Result<Response<Body>, Error>>;

    /// Always ready, because each call waits for its own connection.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        // A retry uses the connection that answered last.
        let turn = match request.extensions().get() {
            Some(Retry) => self.answered.load(Ordering::Relaxed),
            None => self.calls.fetch_add(1, Ordering::Relaxed) % CONNECTIONS,
        };
        let connection = self.connections[turn].clone();
        let answered = Arc::clone(&self.answered);
        Box::pin(async move {
            let response = connection.oneshot(request).await;
            let (order, next) = (Ordering::Relaxed, (turn + 1) % CONNECTIONS);
            match response.is_ok() {
                true => answered.store(turn, order),
                false => drop(answered.compare_exchange(turn, next, order, order)),
            }
            response
        })
    }
}
