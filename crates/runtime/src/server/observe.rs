//! The outermost layer around every RPC: it opens the call's span, as part of the
//! caller's trace, and counts, times and logs the call when it ends, by
//! whichever layer it was ended.

use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use tracing::Instrument;

use crate::rpc::{ObservedBody, RpcMetrics};
use crate::trace;

/// The layer: `axum::middleware::from_fn_with_state(metrics, observe)`.
pub(crate) async fn observe(
    State(metrics): State<RpcMetrics>,
    request: Request,
    next: Next,
) -> Response {
    let rpc = metrics.begin(request.uri().path());
    trace::join_caller(&rpc.span(), request.headers());
    let response = next.run(request).instrument(rpc.span()).await;
    match rpc.begun_with(&response) {
        None => response,
        Some(rpc) => response.map(|body| Body::new(ObservedBody::new(body, rpc))),
    }
}
